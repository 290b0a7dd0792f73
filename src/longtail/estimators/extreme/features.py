"""Features of ExtremeClassifier: counts as tf-idf, and rows of one length."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import normalize

from longtail.estimators.extreme.network import is_sparse

__all__ = ["FeatureScaling", "are_counts", "choose_scaling", "count_rows", "idf_of"]

LARGEST_COUNT_LOOKED_AT = 2**20
"""Values that are looked at to see whether they are counts."""


class FeatureScaling(NamedTuple):
    """What is done to rows before the network sees them."""

    idf: npt.NDArray[np.float32] | None
    """[D] how much a feature counts; its values then are counts, and log(1 + count) is what is multiplied."""
    normalizes_rows: bool
    """Whether rows are scaled to length 1."""

    def apply(self, features: Any) -> Any:
        """The features as the network takes them, float32; those given are left as they are."""
        if self.idf is not None:
            if is_sparse(features):
                features = features.copy()
                features.data = np.log1p(features.data) * self.idf[features.indices]
            else:
                features = np.log1p(features) * self.idf
        return normalize(features) if self.normalizes_rows else features


def are_counts(features: Any) -> bool:
    """Whether these are sparse counts: whole numbers, none negative, and not all of them 0 or 1."""
    if not is_sparse(features):
        return False
    values = features.data[:LARGEST_COUNT_LOOKED_AT]
    return bool(len(values) and (values >= 0).all() and (values > 1).any() and (values == np.round(values)).all())


def count_rows(features: Any) -> npt.NDArray[np.int64]:
    """[D] in how many rows each feature is not 0."""
    if is_sparse(features):
        found = np.bincount(features.indices[features.data != 0], minlength=features.shape[1])
    else:
        found = np.count_nonzero(features, axis=0)
    return np.asarray(found, dtype=np.int64)


def idf_of(num_rows_with: npt.NDArray[np.int64], num_rows: int) -> npt.NDArray[np.float32]:
    """[D] 1 + log((1 + N) / (1 + rows that have the feature)), as scikit-learn's smoothed one."""
    return (1 + np.log((1 + num_rows) / (1 + num_rows_with))).astype(np.float32)


def choose_scaling(
    estimator: Any,
    has_counts: bool,
    rows_with: npt.NDArray[np.int64],
    features: Any,
    num_rows: int | None = None,
) -> FeatureScaling:
    """What an estimator's parameters ask for; where they leave it open, counts become tf-idf in rows of one length.

    Args:
        estimator: with ``uses_tfidf`` and ``normalizes_rows``.
        has_counts: whether the features are counts.
        rows_with: [D] in how many rows each feature is not 0.
        features: some of the rows, or all.
        num_rows: how many rows there are in all; None: those given.
    """
    uses_tfidf = has_counts if estimator.uses_tfidf is None else bool(estimator.uses_tfidf)
    if uses_tfidf and (features.data if is_sparse(features) else features).min(initial=0) < 0:
        raise ValueError("uses_tfidf needs features of at least 0. Got a negative one.")
    idf = idf_of(rows_with, num_rows or features.shape[0]) if uses_tfidf else None
    normalizes = uses_tfidf if estimator.normalizes_rows is None else bool(estimator.normalizes_rows)
    return FeatureScaling(idf, normalizes)
