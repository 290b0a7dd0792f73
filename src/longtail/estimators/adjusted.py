"""LogitAdjustedClassifier: any scikit-learn classifier, with logits adjusted after training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags, get_tags
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from longtail.estimators._common import (
    Array,
    FloatArray,
    check_is_classifier,
    copy_base_tags,
    copy_feature_attributes,
    is_text,
    match_namespace,
    target_probabilities,
)
from longtail.estimators._corrections import check_not_corrected, warn_if_weighted
from longtail.estimators._parameters import (
    ANYTHING,
    FOLDS,
    FUNCTION,
    INTEGER,
    NOTHING,
    TARGET,
    Constraints,
    check_parameters,
    number,
    text,
)
from longtail.estimators._routing import build_router, route_fit
from longtail.estimators._samples import Samples, fit_classifier, read_logits, read_samples, split_samples
from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.objectives import balanced_error_shares
from longtail.posthoc.shift import temperature_scale
from longtail.posthoc.tau import Objective, TauSearch, cross_validate_tau

__all__ = ["LogitAdjustedClassifier"]


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
            nothing but gives probabilities to a classifier that has none; or probabilities: a dict by label, or
            [C] in the order of ``classes_``.
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

    corrects_prior: ClassVar[bool] = True
    """Other estimators refuse it as their own estimator: a prior is corrected once."""

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

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> LogitAdjustedClassifier:
        """Fit the classifier, and choose tau and the temperature where they are not given.

        Args:
            X: what the classifier takes.
            y: [N] labels of any kind.
            sample_weight: [N]; None is 1. The classifier must take it.
            **fit_params: with scikit-learn's metadata routing, what the classifier or the splitter requests, such as
                ``groups``.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        base = self._base()
        check_is_classifier(base)
        check_not_corrected(self, base)
        parameters = route_fit(self, base, sample_weight, fit_params)
        samples = read_samples(self, X, y, parameters.fit)
        self.classes_ = samples.classes
        self.class_prior_ = samples.prior()
        self.target_ = target_probabilities(self.target, self.class_prior_, self.classes_)
        warn_if_weighted(self, base, self.classes_, self.class_prior_)
        self.estimator_ = fit_classifier(base, samples)
        copy_feature_attributes(self)

        is_searching = self.tau == "auto" and not is_text(self.target, "train")
        is_scaling = not hasattr(self.estimator_, "predict_proba")
        folds = self._held_out(base, samples, parameters.split) if is_searching or is_scaling else []
        self.temperature_ = _temperature(folds) if is_scaling else 1.0
        self.tau_search_ = self._search(folds) if is_searching else None
        given = 1.0 if self.tau == "auto" else float(self.tau)
        self.tau_ = given if self.tau_search_ is None else self.tau_search_.tau
        return self

    def predict(self, X: Any) -> Array:
        """[N] labels with the largest adjusted logit."""
        codes = self._adjusted_logits(X).argmax(axis=1)
        labels: Array = match_namespace(self.classes_[codes], X)
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """[N, C] probabilities under the target prior: the softmax of the adjusted logits."""
        probabilities: FloatArray = match_namespace(softmax(self._adjusted_logits(X), axis=1), X)
        return probabilities

    def decision_function(self, X: Any) -> FloatArray:
        """[N, C] adjusted logits; for two classes [N], the second's minus the first's."""
        logits = self._adjusted_logits(X)
        scores: FloatArray = logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits
        return match_namespace(scores, X)  # type: ignore[no-any-return]

    def get_metadata_routing(self) -> MetadataRouter:
        """Who gets what of the arguments of ``fit``; see scikit-learn's guide to metadata routing."""
        return build_router(self, self._base(), self.cv)

    def __sklearn_tags__(self) -> Tags:
        return copy_base_tags(super().__sklearn_tags__(), self._base())

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _adjusted_logits(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        logits = read_logits(self.estimator_, X, self.class_prior_) / self.temperature_
        return np.asarray(adjust_logits(logits, self.class_prior_, self.tau_, self.target_))

    def _held_out(self, base: Any, samples: Samples, split_parameters: dict[str, Any]) -> list[_HeldOut]:
        is_pairwise = get_tags(base).input_tags.pairwise
        splits = split_samples(self.cv, samples, split_parameters)
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


class _HeldOut(NamedTuple):
    """What a model says about samples that it was not trained on."""

    logits: FloatArray
    codes: Array
    prior: FloatArray
    counts: FloatArray


def _held_out_part(base: Any, samples: Samples, train: Array, test: Array, is_pairwise: bool) -> _HeldOut:
    columns = train if is_pairwise else None
    seen, unseen = samples.part(train, columns), samples.part(test, columns)
    prior = seen.prior()
    logits = read_logits(fit_classifier(base, seen), unseen.X, prior)
    return _HeldOut(logits, unseen.codes, prior, unseen.counts())


def _temperature(folds: list[_HeldOut]) -> float:
    counts = np.concatenate([fold.counts for fold in folds])
    return temperature_scale(
        np.concatenate([fold.logits for fold in folds]),
        np.concatenate([fold.codes for fold in folds]),
        counts,
        # As if one more sample had any label: separable scores then give no probabilities of 0 and 1.
        label_smoothing=float(1 / (1 + counts.sum())),
    )


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "tau": (text("auto"), number(0)),
    "cv": (FOLDS,),
    "target": (TARGET,),
    "objective": (FUNCTION,),
    "n_jobs": (INTEGER, NOTHING),
}
"""What the parameters of LogitAdjustedClassifier may be."""
