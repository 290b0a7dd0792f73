"""PriorCorrectedClassifier: honest probabilities of a classifier trained on weighted or resampled data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from longtail.estimators._common import (
    Array,
    FloatArray,
    copy_base_tags,
    copy_feature_attributes,
    is_text,
    match_namespace,
    target_probabilities,
)
from longtail.estimators._corrections import (
    check_not_corrected,
    class_weight_vector,
    find_class_weights,
    find_sampler,
)
from longtail.estimators._parameters import (
    ANYTHING,
    FOLDS,
    INTEGER,
    NOTHING,
    TARGET,
    Constraint,
    Constraints,
    check_parameters,
    text,
)
from longtail.estimators._routing import build_router, route_fit
from longtail.estimators._samples import (
    SMALLEST_EVIDENCE,
    Samples,
    fit_classifier,
    read_probabilities,
    read_samples,
    split_samples,
)
from longtail.margins import Margins
from longtail.posthoc.calibration import BiasCorrectedTemperature, bias_corrected_temperature
from longtail.posthoc.seen import correct_probabilities, margin_prior, weighted_prior
from longtail.prior import ClassPrior

__all__ = ["PriorCorrectedClassifier"]


class PriorCorrectedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Probabilities of a classifier trained with class weights or on resampled data, back on the true prior.

    Formula:
        q[y] is proportional to p[y] * target[y] / seen[y]

    Args:
        estimator: a classifier with ``predict_proba``; None is ``LogisticRegression()``. One that is trained already
            goes in as ``FrozenEstimator(model)``: ``trained_with`` then says what was done, and ``fit`` counts y.
        trained_with: how the classifier is trained, or was.

            - None: by what its own parameters say (``class_weight``, ``scale_pos_weight``, ``is_unbalance``,
              ``auto_class_weights``).
            - "balanced", or a dict of weights by label: class weights. A classifier that is not trained yet gets them
              as ``sample_weight``.
            - an object with ``fit_resample``, such as imbalanced-learn's ``SMOTE()``: the training data is resampled
              with it, and what came out is counted. Not for a frozen estimator.
            - ``ClassPrior.from_counts(...)``: the counts that it sees, in the order of ``classes_``; for whatever
              resamples on its own.
            - ``Margins`` of a logit-adjusted loss, in the order of ``classes_``.
        target: the prior that the probabilities are for: "train", that of y; "uniform"; or probabilities: a dict by
            label, or [C] in the order of ``classes_``.
        cv: None trusts the formula. A number of folds, a splitter or splits fit a temperature and a bias per class to
            held-out probabilities (``longtail.posthoc.bias_corrected_temperature``), for models whose confidence is
            wrong besides, as that of boosted trees and of whatever was trained on repeated or made-up samples. Of a
            frozen estimator, the samples given to ``fit`` must then be ones that it was not trained on.
        n_jobs: how many folds to fit at a time; None is 1.

    Attributes:
        classes_: [C] labels, sorted.
        estimator_: the classifier, fitted.
        class_prior_: [C] the class frequencies of y, by ``sample_weight``.
        seen_prior_: [C] those that training showed.
        target_: [C] the prior that the probabilities are for.
        calibration_: the ``BiasCorrectedTemperature`` fitted to held-out samples; None without ``cv``.
        n_features_in_, feature_names_in_: as of ``estimator_``, where it has them.

    ``sample_weight`` goes to the classifier, and counts samples: y is weighted by it. Weights that are to balance the
    classes belong into ``trained_with`` instead.

    Use when:
        Re-sampling or weights are there to stay, for speed or by decree, and probabilities must mean what they say.
    Avoid when:
        Nothing but the ranking of samples matters: of two classes it does not change. Plain training needs no
        correction, and is the first thing to compare with. Models that fit every training sample take no notice of
        weights; ``CalibratedClassifierCV`` measures what is wrong instead of computing it.
    Special cases:
        The classifier itself where ``seen_prior_`` is the target. With target "uniform" and plain training,
        ``LogitAdjustedClassifier`` with tau = 1.

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(2000, weights=[0.95], flip_y=0.05, random_state=0)
    >>> weighted = LogisticRegression(class_weight="balanced").fit(X, y)
    >>> corrected = PriorCorrectedClassifier(LogisticRegression(class_weight="balanced")).fit(X, y)
    >>> [round(float(p.mean()), 2) for p in (y, weighted.predict_proba(X)[:, 1], corrected.predict_proba(X)[:, 1])]
    [0.07, 0.28, 0.06]

    Reference:
        Elkan (2001), "The foundations of cost-sensitive learning", theorem 2; Saerens et al. (2002), eq. (2.4), for
        many classes; Dal Pozzolo et al. (2015), "Calibrating probability with undersampling for unbalanced
        classification", eq. (4).
    """

    corrects_prior: ClassVar[bool] = True
    """Other estimators refuse it as their own estimator: a prior is corrected once."""

    classes_: Array
    estimator_: Any
    class_prior_: FloatArray
    seen_prior_: FloatArray
    target_: FloatArray
    calibration_: BiasCorrectedTemperature | None
    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        estimator: Any = None,
        *,
        trained_with: Any = None,
        target: Any = "train",
        cv: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.trained_with = trained_with
        self.target = target
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> PriorCorrectedClassifier:
        """Train the classifier as ``trained_with`` says, unless it is frozen, and count what it has seen.

        Args:
            X: what the classifier takes.
            y: [N] labels of any kind, with the true frequencies.
            sample_weight: [N]; None is 1. The classifier must take it.
            **fit_params: with scikit-learn's metadata routing, what the classifier or the splitter requests.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        base = self._base()
        if not hasattr(base, "predict_proba"):
            raise TypeError(f"estimator must be a classifier with predict_proba. Got {type(base).__name__}.")
        check_not_corrected(self, base)
        parameters = route_fit(self, base, sample_weight, fit_params)
        samples = read_samples(self, X, y, parameters.fit)
        self.class_prior_ = samples.prior()
        self.target_ = target_probabilities(self.target, self.class_prior_, samples.classes)
        self.estimator_, self.seen_prior_ = _train(base, samples, self.trained_with)
        self.calibration_ = None if self.cv is None else self._calibrate(base, samples, parameters.split)
        self.classes_ = samples.classes
        copy_feature_attributes(self)
        return self

    def predict(self, X: Any) -> Array:
        """[N] labels with the largest corrected probability."""
        codes = self._probabilities(X).argmax(axis=1)
        labels: Array = match_namespace(self.classes_[codes], X)
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """[N, C] probabilities under the target prior."""
        probabilities: FloatArray = match_namespace(self._probabilities(X), X)
        return probabilities

    def get_metadata_routing(self) -> MetadataRouter:
        """Who gets what of the arguments of ``fit``; see scikit-learn's guide to metadata routing."""
        return build_router(self, self._base(), self.cv)

    def __sklearn_tags__(self) -> Tags:
        return copy_base_tags(super().__sklearn_tags__(), self._base())

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _probabilities(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        probabilities = read_probabilities(self.estimator_, X, len(self.classes_))
        if self.calibration_ is None:
            return np.asarray(correct_probabilities(probabilities, self.seen_prior_, self.target_))
        logits = _true_logits(probabilities, self.seen_prior_, self.class_prior_)
        calibrated = self.calibration_.apply(logits).softmax(dim=1).numpy()
        return np.asarray(correct_probabilities(calibrated, self.class_prior_, self.target_))

    def _calibrate(self, base: Any, samples: Samples, split_parameters: dict[str, Any]) -> BiasCorrectedTemperature:
        splits = split_samples(self.cv, samples, split_parameters)
        parts: Iterable[tuple[FloatArray, Samples]] = Parallel(n_jobs=self.n_jobs)(
            delayed(_hold_out)(base, samples, train, test, self.trained_with) for train, test in splits
        )
        logits, held_out = zip(*parts, strict=True)
        codes, counts = (
            np.concatenate(values)
            for values in ([part.codes for part in held_out], [part.counts() for part in held_out])
        )
        return bias_corrected_temperature(np.concatenate(logits), codes, counts)


class _Trained(NamedTuple):
    """A fitted classifier, and the prior that it has seen."""

    model: Any
    seen: FloatArray


def _train(base: Any, samples: Samples, trained_with: Any) -> _Trained:
    prior = samples.prior()
    if hasattr(trained_with, "fit_resample"):
        return _resample_and_train(base, samples, trained_with)
    if is_text(trained_with, "balanced") or isinstance(trained_with, Mapping):
        weights = class_weight_vector(trained_with, samples.classes, prior)
        return _Trained(_fit_weighted(base, samples, weights), _weighted(prior, weights))
    if isinstance(trained_with, Margins):
        return _Trained(fit_classifier(base, samples), margin_prior(prior, trained_with).numpy())
    if isinstance(trained_with, ClassPrior):
        return _Trained(fit_classifier(base, samples), _counted(trained_with, len(prior)))
    if find_sampler(base) is not None:
        raise ValueError(
            f"trained_with must say what {type(find_sampler(base)).__name__} in the pipeline does: give 'balanced', "
            "ClassPrior.from_counts(...) of what comes out, or the sampler itself and leave it out of the pipeline."
        )
    own = find_class_weights(base, samples.classes, prior)
    return _Trained(fit_classifier(base, samples), prior if own is None else _weighted(prior, own))


def _hold_out(
    base: Any, samples: Samples, train: Array, test: Array, trained_with: Any
) -> tuple[FloatArray, Samples]:
    """Logits at the true prior of samples that the classifier was not trained on, and these samples."""
    seen, unseen = samples.part(train), samples.part(test)
    trained = _train(base, seen, trained_with)
    probabilities = read_probabilities(trained.model, unseen.X, len(samples.classes))
    return _true_logits(probabilities, trained.seen, seen.prior()), unseen


def _true_logits(probabilities: FloatArray, seen: FloatArray, prior: FloatArray) -> FloatArray:
    """[N, C] logarithms of the corrected probabilities, where they have one."""
    corrected = correct_probabilities(probabilities, seen, prior)
    return np.log(np.maximum(corrected, SMALLEST_EVIDENCE * prior))


def _resample_and_train(base: Any, samples: Samples, sampler: Any) -> _Trained:
    if isinstance(base, FrozenEstimator):
        raise ValueError(
            "trained_with must say what a frozen estimator has seen: 'balanced', class weights, or "
            f"ClassPrior.from_counts(...). Got {type(sampler).__name__}, which can't resample what is trained."
        )
    if samples.parameters:
        raise ValueError(
            f"fit must get X and y alone where {type(sampler).__name__} resamples them. "
            f"Got {', '.join(sorted(samples.parameters))}."
        )
    X, y = (clone(sampler) if hasattr(sampler, "get_params") else sampler).fit_resample(samples.X, samples.y)
    resampled = samples._replace(X=X, y=np.asarray(y), codes=np.searchsorted(samples.classes, y))
    return _Trained(fit_classifier(base, resampled), resampled.prior())


def _fit_weighted(base: Any, samples: Samples, weights: FloatArray) -> Any:
    """The classifier trained with these class weights; a frozen one has been."""
    if isinstance(base, FrozenEstimator):
        return fit_classifier(base, samples)
    if find_class_weights(base, samples.classes, samples.prior()) is not None:
        raise ValueError(
            f"class weights must be in one place. Got them in trained_with and in the parameters of "
            f"{type(base).__name__}; leave trained_with at None to use these."
        )
    if not has_fit_parameter(base, "sample_weight"):
        raise TypeError(
            f"class weights in trained_with need an estimator whose fit takes sample_weight. "
            f"Got {type(base).__name__}; set them in the estimator, or freeze one that is trained."
        )
    weight = weights[samples.codes] * (1.0 if samples.weight is None else samples.weight)
    return fit_classifier(base, samples._replace(parameters=samples.parameters | {"sample_weight": weight}))


def _weighted(prior: FloatArray, weights: FloatArray) -> FloatArray:
    seen: FloatArray = weighted_prior(prior, weights).numpy()
    return seen


def _counted(counts: ClassPrior, num_classes: int) -> FloatArray:
    if counts.num_classes != num_classes:
        raise ValueError(
            f"trained_with must have counts for {num_classes} classes, those of y. Got {counts.num_classes}."
        )
    counts.log_probs  # noqa: B018  (raises where a class was not seen)
    seen: FloatArray = counts.probs.numpy()
    return seen


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "trained_with": (
        NOTHING,
        text("balanced"),
        Constraint(
            "a dict of weights by label, a ClassPrior, Margins or an object with fit_resample",
            lambda value: isinstance(value, Mapping | ClassPrior | Margins) or hasattr(value, "fit_resample"),
        ),
    ),
    "target": (TARGET,),
    "cv": (NOTHING, FOLDS),
    "n_jobs": (INTEGER, NOTHING),
}
"""What the parameters of PriorCorrectedClassifier may be."""
