"""MarginBoostedClassifier: XGBoost, LightGBM or CatBoost, trained with a margin."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.validation import check_is_fitted

from longtail.boosting import MarginObjective, starting_scores
from longtail.estimators._common import (
    Array,
    FloatArray,
    check_score_width,
    copy_base_tags,
    copy_feature_attributes,
    target_probabilities,
)
from longtail.estimators._corrections import check_not_corrected, warn_if_weighted
from longtail.estimators._parameters import (
    ANYTHING,
    FUNCTION,
    NOTHING,
    TARGET,
    Constraints,
    check_parameters,
)
from longtail.estimators._routing import build_router, route_fit
from longtail.estimators._samples import Samples, read_samples
from longtail.margins import Margins, is_shift, logit_adjusted
from longtail.posthoc.seen import correct_probabilities, margin_prior
from longtail.prior import ClassPrior

__all__ = ["MarginBoostedClassifier"]


class MarginBoostedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Gradient-boosted trees trained with a margin: balanced predictions of XGBoost, LightGBM or CatBoost.

    Formula:
        l(y, f) = log(1 + sum_{y' != y} exp(positive[y] + negative[y'] + f[y'] - f[y])), with margins of y's prior

    Args:
        estimator: an ``XGBClassifier``, ``LGBMClassifier`` or ``CatBoostClassifier``.
        margins: a function of a ``ClassPrior`` that returns ``Margins``, as those of ``longtail.margins``. What only
            shifts logits, as the default does, costs nothing: every sample starts at that shift (``base_margin``,
            ``init_score``, ``baseline``). Other margins go in as an objective with exact derivatives. CatBoost
            chooses no learning rate for these: set ``learning_rate``.
        target: the prior that probabilities and predictions are for: None, as trained, which for ``logit_adjusted``
            is uniform; "train", "uniform", or [C] probabilities in the order of ``classes_``. Others than None need
            margins that only shift.

    Attributes:
        classes_: [C] labels, sorted.
        estimator_: the booster, fitted to the indices of the classes.
        class_prior_: [C] the class frequencies of y, by ``sample_weight``.
        margins_: the ``Margins`` trained with.
        seen_prior_: [C] the prior that the booster's scores stand for; None where they stand for none.
        n_features_in_, feature_names_in_: as of ``estimator_``, where it has them.

    Use when:
        You train boosted trees and want balanced accuracy.
    Avoid when:
        A booster is trained already: ``LogitAdjustedClassifier`` adjusts its scores. It has ``scale_pos_weight`` or
        class weights: that would correct twice.
    Special cases:
        The booster itself with ``longtail.margins.none``, but for XGBoost's intercept, which is fixed at 0.

    >>> import pytest; lightgbm = pytest.importorskip("lightgbm")
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(600, weights=[0.9], flip_y=0.1, random_state=0)
    >>> plain = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
    >>> adjusted = MarginBoostedClassifier(plain).fit(X, y)
    >>> int(plain.fit(X, y).predict(X).sum()) < int(adjusted.predict(X).sum())
    True

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (10) and (11).
    """

    corrects_prior: ClassVar[bool] = True
    """Other estimators refuse it as their own estimator: a prior is corrected once."""

    classes_: Array
    estimator_: Any
    class_prior_: FloatArray
    margins_: Margins
    seen_prior_: FloatArray | None
    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self, estimator: Any, *, margins: Callable[[ClassPrior], Margins] = logit_adjusted, target: Any = None
    ) -> None:
        self.estimator = estimator
        self.margins = margins
        self.target = target

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> MarginBoostedClassifier:
        """Train the booster with the margins of y's prior.

        Args:
            X: what the booster takes.
            y: [N] labels of any kind.
            sample_weight: [N]; None is 1. The prior is that of the weighted samples.
            **fit_params: with scikit-learn's metadata routing, what the booster requests. An ``eval_set`` gets no
                starting scores: what it measures, and stops by, are scores for the prior that the margins stand for,
                and its labels are indices in the order of ``classes_``.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        engine = _engine(self.estimator)
        check_not_corrected(self, self.estimator)
        samples = read_samples(self, X, y, route_fit(self, self.estimator, sample_weight, fit_params).fit)
        if len(samples.classes) < 2:
            raise ValueError(f"There must be at least 2 classes. Got 1 class, {samples.classes[0]!r}.")
        self.class_prior_ = samples.prior()
        warn_if_weighted(self, self.estimator, samples.classes, self.class_prior_)
        self.margins_ = self.margins(_count_classes(samples))
        self._is_shift = is_shift(self.margins_)
        self.seen_prior_ = margin_prior(self.class_prior_, self.margins_).numpy() if self._is_shift else None
        if self.target is not None and not self._is_shift:
            raise ValueError(f"target needs margins that only shift logits, or must be None. Got {self.target!r}.")
        model = clone(self.estimator)
        train = engine.start if self._is_shift else engine.optimize
        self.estimator_ = train(model, samples, self.margins_)
        self.classes_ = samples.classes
        copy_feature_attributes(self)
        return self

    def predict(self, X: Any) -> Array:
        """[N] labels with the largest probability."""
        codes = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[codes]
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """[N, C] probabilities under the target prior: the softmax of the booster's scores, moved there."""
        check_is_fitted(self)
        probabilities: FloatArray = softmax(self._scores(X), axis=1)
        if self.target is None or self.seen_prior_ is None:
            return probabilities
        target = target_probabilities(self.target, self.class_prior_, self.classes_)
        return np.asarray(correct_probabilities(probabilities, self.seen_prior_, target))

    def get_metadata_routing(self) -> MetadataRouter:
        """Who gets what of the arguments of ``fit``; see scikit-learn's guide to metadata routing."""
        return build_router(self, self.estimator)

    def __sklearn_tags__(self) -> Tags:
        return copy_base_tags(super().__sklearn_tags__(), self.estimator)

    def _scores(self, X: Any) -> FloatArray:
        scores = np.asarray(_engine(self.estimator).score(self.estimator_, X), dtype=np.float64)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        check_score_width(self.estimator_, scores, len(self.classes_))
        return scores


class _Engine(Protocol):
    """How one library trains and scores."""

    def start(self, model: Any, samples: Samples, margins: Margins) -> Any:
        """The model, trained from the scores that the margins stand for."""

    def optimize(self, model: Any, samples: Samples, margins: Margins) -> Any:
        """The model, trained with the margins as its objective."""

    def score(self, model: Any, X: Any) -> Any:
        """[N, C] raw scores, or [N] for two classes."""


class _XGBoost:
    def start(self, model: Any, samples: Samples, margins: Margins) -> Any:
        # Its own intercept would put the frequencies of training back at prediction.
        model.set_params(base_score=0.5)
        start = starting_scores(margins, len(samples.codes))
        return model.fit(samples.X, samples.codes, base_margin=start, **samples.parameters)

    def optimize(self, model: Any, samples: Samples, margins: Margins) -> Any:
        model.set_params(objective=MarginObjective(margins), base_score=0.5)
        return model.fit(samples.X, samples.codes, **samples.parameters)

    def score(self, model: Any, X: Any) -> Any:
        return model.predict(X, output_margin=True)


class _LightGBM:
    def start(self, model: Any, samples: Samples, margins: Margins) -> Any:
        start = starting_scores(margins, len(samples.codes))
        return model.fit(samples.X, samples.codes, init_score=start, **samples.parameters)

    def optimize(self, model: Any, samples: Samples, margins: Margins) -> Any:
        model.set_params(objective=MarginObjective(margins))
        return model.fit(samples.X, samples.codes, **samples.parameters)

    def score(self, model: Any, X: Any) -> Any:
        return model.predict(X, raw_score=True)


RATE_NAMES = {"learning_rate", "eta"}
"""What CatBoost calls its learning rate."""


class _CatBoost:
    def start(self, model: Any, samples: Samples, margins: Margins) -> Any:
        start = starting_scores(margins, len(samples.codes))
        return model.fit(samples.X, samples.codes, baseline=start, **samples.parameters)

    def optimize(self, model: Any, samples: Samples, margins: Margins) -> Any:
        if not RATE_NAMES & {name for name, value in model.get_params().items() if value is not None}:
            warnings.warn(
                "MarginBoostedClassifier: CatBoost chooses its learning rate for its own objectives alone, and takes "
                "0.03 with these margins, which may need many more trees; set learning_rate.",
                UserWarning,
                stacklevel=3,
            )
        metric = "Logloss" if margins.num_classes == 2 else "MultiClass"
        model.set_params(loss_function=MarginObjective(margins), eval_metric=metric)
        return model.fit(samples.X, samples.codes, **samples.parameters)

    def score(self, model: Any, X: Any) -> Any:
        return model.predict(X, prediction_type="RawFormulaVal")


ENGINES: dict[str, _Engine] = {"xgboost": _XGBoost(), "lightgbm": _LightGBM(), "catboost": _CatBoost()}


def _engine(estimator: Any) -> _Engine:
    for kind in type(estimator).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in ENGINES and hasattr(estimator, "predict_proba"):
            return ENGINES[library]
    raise TypeError(
        "estimator must be a classifier of XGBoost, LightGBM or CatBoost. "
        f"Got {type(estimator).__name__}; LogitAdjustedClassifier adjusts any classifier after training."
    )


def _count_classes(samples: Samples) -> ClassPrior:
    totals = np.bincount(samples.codes, weights=samples.weight, minlength=len(samples.classes))
    # Counts are whole; of weighted ones all that matters are the shares.
    return ClassPrior.from_counts(totals if samples.weight is None else np.ceil(totals * (1e12 / totals.sum())))


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "margins": (FUNCTION,),
    "target": (NOTHING, TARGET),
}
"""What the parameters of MarginBoostedClassifier may be."""
