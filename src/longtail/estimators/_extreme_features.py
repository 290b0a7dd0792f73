"""Features of ExtremeClassifier: counts as tf-idf, and rows of one length."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import normalize

from longtail.estimators._extreme_network import is_sparse

__all__ = ["FeatureScaling", "are_counts", "count_rows", "idf_of"]

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
