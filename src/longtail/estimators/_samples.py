"""Training data of the single-label meta-estimators: checked, in parts, and what a classifier makes of it."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d, indexable
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from longtail._core.labels import to_numpy
from longtail.estimators._common import Array, FloatArray, Split, check_score_width, select_rows, stratified_splits
from longtail.estimators._routing import select_parameters

__all__ = [
    "SMALLEST_EVIDENCE",
    "Samples",
    "fit_classifier",
    "read_logits",
    "read_probabilities",
    "read_samples",
    "split_samples",
]


SMALLEST_EVIDENCE = 1e-6
"""A class's probability counts as at least this times its prior, so that its logarithm exists."""


class Samples(NamedTuple):
    """Checked training data. ``codes`` are the labels as indices into the classes."""

    X: Any
    y: Array
    codes: Array
    classes: Array
    parameters: dict[str, Any]
    """For ``fit`` of the estimator, besides X and y."""
    weight: FloatArray | None
    """``sample_weight`` among the parameters, as an array."""
    samples_per_unit: float = 1.0
    """How many samples a weight of 1 stands for."""

    def part(self, rows: Array, columns: Array | None = None) -> Samples:
        """Some of the samples; of a pairwise X, against some others."""
        X = select_rows(self.X, rows)
        return self._replace(
            X=X if columns is None else X[:, columns],
            y=self.y[rows],
            codes=self.codes[rows],
            parameters=select_parameters(self.parameters, rows, len(self.codes)),
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


def read_samples(model: Any, X: Any, y: Any, parameters: dict[str, Any]) -> Samples:
    """Data as ``fit`` of the model got it, checked."""
    if y is None:
        raise ValueError(f"{type(model).__name__} requires y to be passed, but the target y is None.")
    y = column_or_1d(to_numpy(y) if isinstance(y, Tensor) else y, warn=True)
    check_classification_targets(y)
    X, y = indexable(X, y)
    if len(y) == 0:
        raise ValueError("There must be at least one sample. Got none.")
    classes, codes = np.unique(y, return_inverse=True)
    if parameters.get("sample_weight") is None:
        return Samples(X, y, codes, classes, parameters, None)
    weight = np.asarray(parameters["sample_weight"], dtype=np.float64)
    if weight.shape != y.shape or not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError(
            f"sample_weight must be {len(y)} finite numbers of at least 0. Got shape {weight.shape} and a smallest "
            f"number of {weight.min(initial=np.inf)}."
        )
    parameters = parameters | {"sample_weight": weight}
    # Weights count samples; but those that sum to less than there are, as shares do, can only be relative.
    num_weighted, total = np.count_nonzero(weight), weight.sum()
    per_unit = max(1.0, num_weighted / total) if total > 0 else 1.0
    return Samples(X, y, codes, classes, parameters, weight, per_unit)


def split_samples(cv: Any, samples: Samples, parameters: dict[str, Any]) -> list[Split]:
    """Rows to train on and to hold out, for each fold; ``parameters`` are for ``split`` of a splitter."""
    if cv is None or isinstance(cv, Integral):
        return stratified_splits(5 if cv is None else int(cv), samples.codes)
    return list(check_cv(cv, samples.codes, classifier=True).split(samples.X, samples.y, **parameters))


def fit_classifier(base: Any, samples: Samples) -> Any:
    """A copy of the classifier, fitted, with the classes of the samples."""
    model = clone(base).fit(samples.X, samples.y, **samples.parameters)
    if not np.array_equal(getattr(model, "classes_", ()), samples.classes):
        raise TypeError(
            f"estimator must be a classifier that learns the classes of y, {samples.classes}. "
            f"Got {type(base).__name__} with {getattr(model, 'classes_', 'no classes_')}."
        )
    return model


def read_probabilities(model: Any, X: Any, num_classes: int) -> FloatArray:
    """[N, C] probabilities of a fitted classifier."""
    probabilities = to_numpy(model.predict_proba(X)).astype(np.float64)
    check_score_width(model, probabilities, num_classes)
    return probabilities


def read_logits(model: Any, X: Any, prior: FloatArray) -> FloatArray:
    """[N, C] logits, or log-probabilities, of a fitted classifier."""
    if hasattr(model, "predict_proba"):
        return np.log(np.maximum(read_probabilities(model, X, len(prior)), SMALLEST_EVIDENCE * prior))
    scores = to_numpy(model.decision_function(X)).astype(np.float64)
    if scores.ndim == 1:
        scores = np.stack([-scores / 2, scores / 2], axis=1)
    check_score_width(model, scores, len(prior))
    return scores
