"""ConformalClassifier: sets of classes around any scikit-learn classifier."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from longtail.estimators._common import (
    Array,
    FloatArray,
    copy_base_tags,
    copy_feature_attributes,
    match_namespace,
    stratified_splits,
)
from longtail.estimators._parameters import ANYTHING, FUNCTION, Constraints, check_parameters, number
from longtail.estimators._routing import build_router, route_fit
from longtail.estimators._samples import Samples, fit_classifier, read_probabilities, read_samples
from longtail.posthoc.conformal import (
    ConformalScore,
    Thresholding,
    class_thresholds,
    probability_scores,
)

__all__ = ["ConformalClassifier"]


class ConformalClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Sets of classes that hold the true one as often as promised, in every class, around any classifier.

    Formula:
        the set of x is {y: nonconformity(x, y) <= threshold[y]}; thresholds are quantiles of held-out samples' scores

    Args:
        estimator: a classifier with ``predict_proba``; None is ``LogisticRegression()``. One that is trained already
            goes in as ``FrozenEstimator(model)``: then all samples given to ``fit`` calibrate, and must be ones that
            it was not trained on.
        alpha: how often a set may miss the true class.
        nonconformity: how badly a class fits a sample: ``probability_scores``, ``adaptive_set_scores`` or
            ``prevalence_scores`` of ``longtail.posthoc``, or a function like these.
        thresholds: ``class_thresholds``, which promises coverage in every class; ``clustered_thresholds``, nearly
            that from fewer samples; ``marginal_thresholds``, over all samples; or a function like these.
        calibration_size: the share of each class that is held out to calibrate; a class with a single sample is
            trained on, and has no threshold of its own.

    Attributes:
        classes_: [C] labels, sorted.
        estimator_: the classifier, fitted to what was not held out.
        class_prior_: [C] the class frequencies of y.
        thresholds_: [C]; infinite for a class with too few samples, which is then in every set.
        n_features_in_, feature_names_in_: as of ``estimator_``, where it has them.

    Use when:
        A wrong answer costs more than several: a short list with a promise, also for rare classes.
    Avoid when:
        Samples where it is used differ from those it is calibrated on: the promise is for samples like these. Class
        by class it holds whatever the class frequencies are.
    Special cases:
        Split conformal prediction with ``marginal_thresholds``.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> sets = ConformalClassifier(LogisticRegression(max_iter=1000), alpha=0.1).fit(X, y).predict_set(X)
    >>> sets.shape, sets[0].tolist()
    ((150, 3), [True, False, False])

    Reference:
        Vovk (2012), "Conditional validity of inductive conformal predictors"; Ding et al. (2023), "Class-conditional
        conformal prediction with many classes".
    """

    classes_: Array
    estimator_: Any
    class_prior_: FloatArray
    thresholds_: FloatArray
    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        estimator: Any = None,
        *,
        alpha: float = 0.1,
        nonconformity: ConformalScore = probability_scores,
        thresholds: Thresholding = class_thresholds,
        calibration_size: float = 0.25,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.nonconformity = nonconformity
        self.thresholds = thresholds
        self.calibration_size = calibration_size

    def fit(self, X: Any, y: Any, **fit_params: Any) -> ConformalClassifier:
        """Fit the classifier to a part of the samples, and calibrate with the others.

        Args:
            X: what the classifier takes.
            y: [N] labels of any kind.
            **fit_params: with scikit-learn's metadata routing, what the classifier requests, such as
                ``sample_weight``. Samples that calibrate count the same, whatever they weigh.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        base = self._base()
        if not hasattr(base, "predict_proba"):
            raise TypeError(f"estimator must be a classifier with predict_proba. Got {type(base).__name__}.")
        samples = read_samples(self, X, y, route_fit(self, base, None, fit_params).fit)
        train, held_out = self._split(base, samples)
        self.class_prior_ = samples.prior()
        self.estimator_ = fit_classifier(base, train)
        self.classes_ = samples.classes
        scores = self._scores(held_out.X)
        found = self.thresholds(scores, torch.from_numpy(held_out.codes), float(self.alpha))
        self.thresholds_ = found.double().numpy()
        self._warn_of_full_sets()
        copy_feature_attributes(self)
        return self

    def predict(self, X: Any) -> Array:
        """[N] labels, as the classifier predicts them."""
        check_is_fitted(self)
        labels: Array = self.estimator_.predict(X)
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """[N, C] probabilities of the classifier."""
        check_is_fitted(self)
        probabilities: FloatArray = match_namespace(read_probabilities(self.estimator_, X, len(self.classes_)), X)
        return probabilities

    def predict_set(self, X: Any) -> npt.NDArray[np.bool_]:
        """[N, C] which classes, in the order of ``classes_``, are in each sample's set."""
        check_is_fitted(self)
        is_member: npt.NDArray[np.bool_] = match_namespace(self._scores(X).numpy() <= self.thresholds_, X)
        return is_member

    def get_metadata_routing(self) -> MetadataRouter:
        """Who gets what of the arguments of ``fit``; see scikit-learn's guide to metadata routing."""
        return build_router(self, self._base())

    def __sklearn_tags__(self) -> Tags:
        return copy_base_tags(super().__sklearn_tags__(), self._base())

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _split(self, base: Any, samples: Samples) -> tuple[Samples, Samples]:
        if isinstance(base, FrozenEstimator):
            return samples, samples
        train, held_out = stratified_splits(max(2, round(1 / self.calibration_size)), samples.codes)[0]
        return samples.part(train), samples.part(held_out)

    def _warn_of_full_sets(self) -> None:
        num_full = int(np.isposinf(self.thresholds_).sum())
        if num_full:
            warnings.warn(
                f"ConformalClassifier: {num_full} of {len(self.classes_)} classes have too few samples to calibrate "
                f"alpha = {self.alpha:g} with (each needs {math.ceil(1 / self.alpha - 1 - 1e-9)}), and are in every "
                "set; calibrate with more samples, raise alpha, or pass thresholds=clustered_thresholds.",
                UserWarning,
                stacklevel=3,
            )

    def _scores(self, X: Any) -> Tensor:
        probabilities = read_probabilities(self.estimator_, X, len(self.classes_))
        return self.nonconformity(torch.from_numpy(probabilities), torch.from_numpy(self.class_prior_))


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "alpha": (number(0, 1, excludes_low=True),),
    "nonconformity": (FUNCTION,),
    "thresholds": (FUNCTION,),
    "calibration_size": (number(0, 0.5, excludes_low=True, includes_high=True),),
}
"""What the parameters of ConformalClassifier may be."""
