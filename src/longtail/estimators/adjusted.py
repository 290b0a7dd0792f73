"""LogitAdjustedClassifier: any scikit-learn classifier, with logits adjusted after training."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.utils import Tags, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from longtail.estimators._common import (
    Array,
    FloatArray,
    Split,
    check_score_width,
    copy_feature_attributes,
    is_text,
    select_rows,
    stratified_splits,
)
from longtail.estimators._parameters import (
    ANYTHING,
    FOLDS,
    FUNCTION,
    INTEGER,
    NOTHING,
    Constraint,
    Constraints,
    check_parameters,
    number,
    text,
)
from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.objectives import balanced_error_shares
from longtail.posthoc.shift import temperature_scale
from longtail.posthoc.tau import Objective, TauSearch, cross_validate_tau

__all__ = ["LogitAdjustedClassifier"]


SMALLEST_EVIDENCE = 1e-6
"""A class's probability counts as at least this times its prior, so that its logarithm exists."""


class LogitAdjustedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logit adjustment around any scikit-learn classifier, so that it predicts rare classes too.

    Formula:
        predict argmax_y log p(y | x) - tau * (log pi[y] - log pi_target[y])

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``; None is ``LogisticRegression()``.
        tau: strength, >= 0; 1 is right for calibrated probabilities, 0 changes nothing. "auto" chooses it by
            cross-validation, as ``longtail.posthoc.tune_tau`` does.
        cv: for the cross-validation: a number of folds, a splitter, or an iterable of splits. With a number, folds
            are stratified; a class with fewer samples than folds is held out in as many folds as it has samples, and
            a class with a single sample is always trained on and never held out, so it has no say about tau. Other
            splits must leave every class some samples to train on.
        target: the prior to predict for: "uniform", which is optimal for the balanced error; "train", which changes
            nothing but gives probabilities to a classifier that has none; or [C] probabilities in the order of
            ``classes_``.
        objective: what "auto" minimizes; see ``longtail.posthoc``.
        n_jobs: how many folds to fit at a time; None is 1.

    Attributes:
        classes_: [C] labels, sorted.
        estimator_: the classifier, fitted to all data.
        class_prior_: [C] probabilities of the classes in training, in the order of ``classes_``.
        target_: [C] the prior predicted for.
        tau_: the strength used.
        tau_search_: the ``TauSearch`` behind it; None if tau was given, or target is "train".
        temperature_: what scores of ``decision_function`` are divided by; 1 where there is ``predict_proba``.
        n_features_in_, feature_names_in_: as of ``estimator_``, where it has them.

    Probabilities of 0, as forests give, have no logarithm. A class counts as at least 1e-6 times as probable as its
    prior. The floor follows the prior, so that a class for which nothing speaks gets the same adjusted score whether
    it is rare or not; with one floor for all, the rarest class would gain most from having no evidence.

    A classifier without ``predict_proba`` is cross-validated for a temperature that turns its scores into logits,
    even if tau is given. Two classes with score s have the logits -s/2 and s/2.

    ``sample_weight`` goes to the classifier, and the prior is that of the weighted samples, for it is what the
    classifier then learns: weights that balance the classes leave nothing to adjust. Weights count as numbers of
    samples in the choice of tau.

    Use when:
        A classifier is good, but hardly predicts rare classes, and balanced accuracy or recall per class matters.
    Avoid when:
        The classifier has its correction already (``class_weight="balanced"``, resampling): that would correct twice,
        for the prior of y is not the one it learned. Scores are votes of pairs, as those of ``SVC``, and no logits.
    Special cases:
        The classifier itself at tau = 0 or target = "train".

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(600, weights=[0.9], flip_y=0.1, random_state=0)
    >>> plain = LogisticRegression().fit(X, y)
    >>> adjusted = LogitAdjustedClassifier(plain, tau=1.0).fit(X, y)
    >>> int(plain.predict(X).sum()) < int(adjusted.predict(X).sum())
    True

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.
    """

    classes_: Array
    estimator_: Any
    class_prior_: FloatArray
    target_: FloatArray
    tau_: float
    tau_search_: TauSearch | None
    temperature_: float
    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        estimator: Any = None,
        *,
        tau: float | str = "auto",
        cv: Any = 5,
        target: Any = "uniform",
        objective: Objective = balanced_error_shares,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.tau = tau
        self.cv = cv
        self.target = target
        self.objective = objective
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LogitAdjustedClassifier:
        """Fit the classifier, and choose tau and the temperature where they are not given.

        Args:
            X: what the classifier takes.
            y: [N] labels of any kind.
            sample_weight: [N]; None is 1. The classifier must take it.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        samples = _read_samples(X, y, sample_weight)
        base = self._base()
        self.classes_ = samples.classes
        self.class_prior_ = samples.prior()
        self.target_ = _target_probabilities(self.target, self.class_prior_)
        self.estimator_ = _fit(base, samples)
        copy_feature_attributes(self)

        is_searching = self.tau == "auto" and not is_text(self.target, "train")
        is_scaling = not hasattr(self.estimator_, "predict_proba")
        folds = self._held_out(base, samples) if is_searching or is_scaling else []
        self.temperature_ = _temperature(folds) if is_scaling else 1.0
        self.tau_search_ = self._search(folds) if is_searching else None
        given = 1.0 if self.tau == "auto" else float(self.tau)
        self.tau_ = given if self.tau_search_ is None else self.tau_search_.tau
        return self

    def predict(self, X: Any) -> Array:
        """[N] labels with the largest adjusted logit."""
        codes = self._adjusted_logits(X).argmax(axis=1)
        labels: Array = self.classes_[codes]
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """[N, C] probabilities under the target prior: the softmax of the adjusted logits."""
        probabilities: FloatArray = softmax(self._adjusted_logits(X), axis=1)
        return probabilities

    def decision_function(self, X: Any) -> FloatArray:
        """[N, C] adjusted logits; for two classes [N], the second's minus the first's."""
        logits = self._adjusted_logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        base_tags = get_tags(self._base())
        tags.input_tags = deepcopy(base_tags.input_tags)
        if base_tags.classifier_tags is not None:
            tags.classifier_tags.multi_class = base_tags.classifier_tags.multi_class
        return tags

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _adjusted_logits(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        logits = _logits(self.estimator_, X, self.class_prior_) / self.temperature_
        return np.asarray(adjust_logits(logits, self.class_prior_, self.tau_, self.target_))

    def _held_out(self, base: Any, samples: _Samples) -> list[_HeldOut]:
        is_pairwise = get_tags(base).input_tags.pairwise
        splits = _splits(self.cv, samples)
        parts: Iterable[_HeldOut] = Parallel(n_jobs=self.n_jobs)(
            delayed(_held_out_part)(base, samples, train, test, is_pairwise) for train, test in splits
        )
        return list(parts)

    def _search(self, folds: list[_HeldOut]) -> TauSearch:
        return cross_validate_tau(
            [(fold.logits / self.temperature_, fold.codes, fold.prior) for fold in folds],
            objective=self.objective,
            target_prior=self.target_,
            sample_weight=[fold.counts for fold in folds],
        )


class _Samples(NamedTuple):
    """Checked training data. ``codes`` are the labels as indices into the classes."""

    X: Any
    y: Array
    codes: Array
    classes: Array
    weight: FloatArray | None
    samples_per_unit: float = 1.0
    """How many samples a weight of 1 stands for."""

    def part(self, rows: Array, columns: Array | None = None) -> _Samples:
        """Some of the samples; of a pairwise X, against some others."""
        X = select_rows(self.X, rows)
        return self._replace(
            X=X if columns is None else X[:, columns],
            y=self.y[rows],
            codes=self.codes[rows],
            weight=None if self.weight is None else self.weight[rows],
        )

    def counts(self) -> FloatArray:
        """[N] how many samples each one stands for."""
        return np.ones(len(self.codes)) if self.weight is None else self.samples_per_unit * self.weight

    def prior(self) -> FloatArray:
        """[C] each class's share of the samples by weight."""
        totals = np.bincount(self.codes, weights=self.counts(), minlength=len(self.classes))
        empty = np.flatnonzero(totals == 0)
        if empty.size:
            raise ValueError(
                f"Class {self.classes[empty[0]]} has no samples to train on, or only samples of zero weight; "
                "drop it, or choose cv so that every training part has all classes."
            )
        prior: FloatArray = totals / totals.sum()
        return prior


class _HeldOut(NamedTuple):
    """What a model says about samples that it was not trained on."""

    logits: FloatArray
    codes: Array
    prior: FloatArray
    counts: FloatArray


def _held_out_part(base: Any, samples: _Samples, train: Array, test: Array, is_pairwise: bool) -> _HeldOut:
    columns = train if is_pairwise else None
    seen, unseen = samples.part(train, columns), samples.part(test, columns)
    prior = seen.prior()
    return _HeldOut(_logits(_fit(base, seen), unseen.X, prior), unseen.codes, prior, unseen.counts())


def _fit(base: Any, samples: _Samples) -> Any:
    if not (hasattr(base, "predict_proba") or hasattr(base, "decision_function")):
        raise TypeError(
            f"estimator must be a classifier with predict_proba or decision_function. Got {type(base).__name__}."
        )
    options = {}
    if samples.weight is not None:
        if not has_fit_parameter(base, "sample_weight"):
            raise TypeError(
                f"sample_weight needs an estimator whose fit takes it. Got {type(base).__name__}; of a pipeline, "
                "wrap the last step instead."
            )
        options["sample_weight"] = samples.weight
    model = clone(base).fit(samples.X, samples.y, **options)
    if not np.array_equal(getattr(model, "classes_", ()), samples.classes):
        raise TypeError(
            f"estimator must be a classifier that learns the classes of y, {samples.classes}. "
            f"Got {type(base).__name__} with {getattr(model, 'classes_', 'no classes_')}."
        )
    return model


def _logits(model: Any, X: Any, prior: FloatArray) -> FloatArray:
    """[N, C] logits, or log-probabilities, of a fitted classifier."""
    if hasattr(model, "predict_proba"):
        probabilities = np.asarray(model.predict_proba(X), dtype=np.float64)
        check_score_width(model, probabilities, len(prior))
        return np.log(np.maximum(probabilities, SMALLEST_EVIDENCE * prior))
    scores = np.asarray(model.decision_function(X), dtype=np.float64)
    if scores.ndim == 1:
        scores = np.stack([-scores / 2, scores / 2], axis=1)
    check_score_width(model, scores, len(prior))
    return scores


def _temperature(folds: list[_HeldOut]) -> float:
    counts = np.concatenate([fold.counts for fold in folds])
    return temperature_scale(
        np.concatenate([fold.logits for fold in folds]),
        np.concatenate([fold.codes for fold in folds]),
        counts,
        # As if one more sample had any label: separable scores then give no probabilities of 0 and 1.
        label_smoothing=float(1 / (1 + counts.sum())),
    )


def _splits(cv: Any, samples: _Samples) -> list[Split]:
    if cv is not None and not isinstance(cv, Integral):
        return list(check_cv(cv, samples.codes, classifier=True).split(samples.X, samples.y))
    return stratified_splits(5 if cv is None else int(cv), samples.codes)


def _read_samples(X: Any, y: Any, sample_weight: Any) -> _Samples:
    if y is None:
        raise ValueError("LogitAdjustedClassifier requires y to be passed, but the target y is None.")
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    X, y = indexable(X, y)
    if len(y) == 0:
        raise ValueError("There must be at least one sample. Got none.")
    classes, codes = np.unique(y, return_inverse=True)
    if sample_weight is None:
        return _Samples(X, y, codes, classes, None)
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != y.shape or not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError(
            f"sample_weight must be {len(y)} finite numbers of at least 0. Got shape {weight.shape} and a smallest "
            f"number of {weight.min(initial=np.inf)}."
        )
    # Weights count samples; but those that sum to less than there are, as shares do, can only be relative.
    num_weighted, total = np.count_nonzero(weight), weight.sum()
    return _Samples(X, y, codes, classes, weight, max(1.0, num_weighted / total) if total > 0 else 1.0)


def _target_probabilities(target: Any, prior: FloatArray) -> FloatArray:
    if is_text(target, "uniform"):
        return np.full_like(prior, 1 / len(prior))
    if is_text(target, "train"):
        return prior
    probabilities = np.asarray(target, dtype=np.float64)
    is_valid = (
        probabilities.shape == prior.shape and (probabilities >= 0).all() and np.isclose(probabilities.sum(), 1)
    )
    if not is_valid:
        raise ValueError(f"target must be {len(prior)} probabilities that sum to 1. Got {target!r}.")
    return probabilities


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "tau": (text("auto"), number(0)),
    "cv": (FOLDS,),
    "target": (
        Constraint(
            "'uniform', 'train' or an array of probabilities",
            lambda value: not isinstance(value, str) or value in ("uniform", "train"),
        ),
    ),
    "objective": (FUNCTION,),
    "n_jobs": (INTEGER, NOTHING),
}
"""What the parameters of LogitAdjustedClassifier may be."""
