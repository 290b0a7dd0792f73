"""ThresholdedClassifier: any multi-label scikit-learn classifier, with a threshold per label."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils import Tags, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from longtail._core.labels import indicator_rows, rarest_labels
from longtail.estimators._common import (
    Array,
    FloatArray,
    Split,
    copy_base_tags,
    copy_feature_attributes,
    select_rows,
    stratified_splits,
)
from longtail.estimators._parameters import (
    ANYTHING,
    FOLDS,
    INTEGER,
    NOTHING,
    Constraints,
    check_parameters,
    number,
)
from longtail.estimators._routing import build_router, route_fit, select_parameters
from longtail.posthoc.thresholds import Thresholds, f1_thresholds, precision_thresholds

__all__ = ["ThresholdedClassifier"]


class ThresholdedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A threshold for each label around any multi-label classifier, chosen on samples that it was not trained on.

    Formula:
        predict label c where score[c] >= threshold[c]; the threshold has the largest F1 on held-out samples, or the
        largest recall at a precision of at least ``precision_floor``

    Args:
        estimator: a multi-label classifier with ``predict_proba`` or ``decision_function``; None is
            ``OneVsRestClassifier(LogisticRegression())``.
        precision_floor: in (0, 1]; None maximizes F1.
        min_f1: for F1, as in ``longtail.posthoc.f1_thresholds``.
        cv: for the held-out scores: a number of folds, a splitter, or an iterable of splits. With a number, samples
            are spread by their rarest label, and a label's only sample is always trained on.
        n_jobs: how many folds to fit at a time; None is 1.

    Attributes:
        estimator_: the classifier, fitted to all data.
        thresholds_: [C].
        undecided_: indices of labels without held-out positives; they keep the usual threshold, 0.5 for
            probabilities and 0 for other scores.
        classes_: [C] label numbers; for a vector y its two classes.
        n_features_in_, feature_names_in_: as of ``estimator_``, where it has them.

    ``y`` is [N, C] of 0 and 1, dense or sparse, or a vector with two classes, of which the second is the label.

    Use when:
        F1 or precision of every label counts, and 0.5 suits few of them, as with rare labels.
    Avoid when:
        Every sample has exactly one label: use ``LogitAdjustedClassifier``.
    Special cases:
        For a vector y, scikit-learn's ``TunedThresholdClassifierCV`` with all thresholds instead of a grid.

    >>> from sklearn.datasets import make_multilabel_classification
    >>> X, y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> model = ThresholdedClassifier().fit(X, y)
    >>> model.predict(X).shape, model.thresholds_.shape
    ((300, 4), (4,))

    Reference:
        Fan and Lin (2007), "A study on threshold selection for multi-label classification".
    """

    classes_: Array
    estimator_: Any
    thresholds_: FloatArray
    undecided_: Array
    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        estimator: Any = None,
        *,
        precision_floor: float | None = None,
        min_f1: float = 0.1,
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.precision_floor = precision_floor
        self.min_f1 = min_f1
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, **fit_params: Any) -> ThresholdedClassifier:
        """Fit the classifier to all data, and choose thresholds by held-out scores of copies of it.

        Args:
            X: what the classifier takes.
            y: [N, C] of 0 and 1, or a vector with two classes.
            **fit_params: with scikit-learn's metadata routing, what the classifier or the splitter requests, such as
                ``sample_weight`` or ``groups``. Held-out samples count the same, whatever they weigh.

        Returns:
            The estimator itself.
        """
        check_parameters(self, CONSTRAINTS)
        base = self._base()
        parameters = route_fit(self, base, None, fit_params)
        data = _read_data(X, y, parameters.fit)
        self._is_vector = data.is_vector
        self.classes_ = data.classes
        self.estimator_ = clone(base).fit(data.X, data.y, **data.parameters)
        copy_feature_attributes(self)
        parts = Parallel(n_jobs=self.n_jobs)(
            delayed(_held_out_labels)(base, data, train, test)
            for train, test in data.splits(self.cv, parameters.split)
        )
        scores, is_positive = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        chosen = self._choose(scores, is_positive)
        self.thresholds_ = chosen.values.numpy()
        self.undecided_ = chosen.undecided.numpy()
        return self

    def predict(self, X: Any) -> Array:
        """[N, C] of 0 and 1; for a vector y, [N] of its classes."""
        is_predicted = self._excess(X) > 0
        return self.classes_[is_predicted[:, 0].astype(int)] if self._is_vector else is_predicted.astype(np.int64)

    def decision_function(self, X: Any) -> FloatArray:
        """[N, C] scores minus thresholds, above 0 where a label is predicted; for a vector y [N]."""
        excess = self._excess(X)
        return excess[:, 0] if self._is_vector else excess

    def get_metadata_routing(self) -> MetadataRouter:
        """Who gets what of the arguments of ``fit``; see scikit-learn's guide to metadata routing."""
        return build_router(self, self._base(), self.cv)

    def __sklearn_tags__(self) -> Tags:
        tags = copy_base_tags(super().__sklearn_tags__(), self._base())
        base_tags = get_tags(self._base())
        tags.classifier_tags.multi_class = False
        if base_tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = base_tags.classifier_tags.multi_label
        return tags

    def _base(self) -> Any:
        return OneVsRestClassifier(LogisticRegression()) if self.estimator is None else self.estimator

    def _excess(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        # Scores at a threshold count, and scikit-learn wants more than 0 of them: so the number just below it.
        limits = np.where(np.isinf(self.thresholds_), np.inf, np.nextafter(self.thresholds_, -np.inf))
        excess: FloatArray = _label_scores(self.estimator_, X, self._is_vector) - limits
        return excess

    def _choose(self, scores: FloatArray, is_positive: Array) -> Thresholds:
        # As in scikit-learn, a decision function must be above 0, and it is 0 for a label without positives.
        default = 0.5 if hasattr(self.estimator_, "predict_proba") else float(np.nextafter(0.0, 1.0))
        if self.precision_floor is None:
            return f1_thresholds(scores, is_positive, default, min_f1=self.min_f1)
        return precision_thresholds(scores, is_positive, self.precision_floor, default)


class _LabelData(NamedTuple):
    """Checked training data with any number of labels per sample, or one of two classes."""

    X: Any
    y: Any
    is_positive: npt.NDArray[np.bool_]
    classes: Array
    is_vector: bool
    parameters: dict[str, Any]
    """For ``fit`` of the estimator, besides X and y."""

    def splits(self, cv: Any, parameters: dict[str, Any]) -> list[Split]:
        """Rows to train on and to hold out; ``parameters`` are for ``split`` of a splitter."""
        if cv is None or isinstance(cv, Integral):
            return stratified_splits(5 if cv is None else int(cv), rarest_labels(self.is_positive).numpy())
        return list(check_cv(cv).split(self.X, self.y, **parameters))


def _as_array(y: Any) -> Array:
    try:
        return np.asarray(y)
    except ValueError:
        raise ValueError(
            "y must be [N, C] of 0 and 1. Got lists of different lengths; sklearn.preprocessing.MultiLabelBinarizer "
            "makes a matrix of lists of labels."
        ) from None


def _read_data(X: Any, y: Any, parameters: dict[str, Any]) -> _LabelData:
    if y is None:
        raise ValueError("ThresholdedClassifier requires y to be passed, but the target y is None.")
    y = y if hasattr(y, "tocsr") or hasattr(y, "iloc") else _as_array(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    X, y = indexable(X, y)
    check_classification_targets(y)
    if y.ndim == 2:
        is_positive = indicator_rows(y, "y").toarray()
        return _LabelData(X, y, is_positive, np.arange(is_positive.shape[1]), False, parameters)
    classes = np.unique(y)
    if len(classes) != 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {type_of_target(y)}, with "
            f"{len(classes)} class{'es' if len(classes) > 1 else ''}; give [N, C] of 0 and 1 for multi-label data."
        )
    return _LabelData(X, y, np.asarray(y)[:, None] == classes[1], classes, True, parameters)


def _held_out_labels(base: Any, data: _LabelData, train: Array, test: Array) -> tuple[FloatArray, Array]:
    parameters = select_parameters(data.parameters, train, len(data.is_positive))
    model = clone(base).fit(select_rows(data.X, train), select_rows(data.y, train), **parameters)
    return _label_scores(model, select_rows(data.X, test), data.is_vector), data.is_positive[test]


def _label_scores(model: Any, X: Any, is_vector: bool) -> FloatArray:
    """[N, C] of a fitted multi-label classifier; [N, 1] of one with two classes."""
    if not hasattr(model, "predict_proba"):
        if not hasattr(model, "decision_function"):
            raise TypeError(f"estimator must have predict_proba or decision_function. Got {type(model).__name__}.")
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        return scores[:, None] if is_vector else scores
    probabilities = model.predict_proba(X)
    if isinstance(probabilities, list):  # one [N, 2] per label, as forests and MultiOutputClassifier have it
        columns = [
            part[:, 1] if part.shape[1] == 2 else _constant(part, c)
            for part, c in zip(probabilities, model.classes_, strict=True)
        ]
        return np.column_stack(columns).astype(np.float64)
    matrix = np.asarray(probabilities, dtype=np.float64)
    return matrix[:, 1:] if is_vector else matrix


def _constant(part: Array, classes: Array) -> Array:
    """[N] the probability of a label of which training showed one side only."""
    return np.full(len(part), float(classes[0]))


CONSTRAINTS: Constraints = {
    "estimator": (ANYTHING,),
    "precision_floor": (number(0, 1, excludes_low=True, includes_high=True), NOTHING),
    "min_f1": (number(0, 1, includes_high=True),),
    "cv": (FOLDS,),
    "n_jobs": (INTEGER, NOTHING),
}
"""What the parameters of ThresholdedClassifier may be."""
