"""Which items users took, as pairs: recommendation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from longtail.lab.data.formats.array_files import ArrayFile, open_arrays
from longtail.lab.data.locate import PathLike

__all__ = ["Interactions", "read_interactions"]


class Interactions(NamedTuple):
    """Pairs to train on, and other pairs of the same users and items to find."""

    train: Any
    """[users, items] SciPy CSR array, bool."""
    test: Any
    """[users, items] SciPy CSR array, bool."""


def read_interactions(path: PathLike) -> Interactions:
    """Read pairs of users and items from an ``.npz``.

    Args:
        path: the file. ``train_indptr`` and ``test_indptr`` [users + 1] say where each user's items begin and end in
            ``train_items`` and ``test_items``; ``n_items`` is how many items there are.

    Returns:
        The pairs.
    """
    file = Path(path)
    try:
        arrays = open_arrays(file)
        num_items = int(arrays.read("n_items"))
        train, test = (_matrix(arrays, part, num_items) for part in ("train", "test"))
    except KeyError as error:
        raise ValueError(
            f"{file} must have the arrays n_items, train_indptr, train_items, test_indptr and test_items. "
            f"Missing: {error.args[0]}"
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} must be an .npz of users' items. Got: {error}") from error
    if train.shape != test.shape:
        raise ValueError(
            f"{file} must have as many users to train on as to test. Got {train.shape[0]} and {test.shape[0]}."
        )
    return Interactions(train, test)


def _matrix(arrays: ArrayFile, part: str, num_items: int) -> Any:
    starts, items = arrays.read(f"{part}_indptr"), arrays.read(f"{part}_items")
    if starts.ndim != 1 or items.ndim != 1 or starts.dtype.kind not in "iu" or items.dtype.kind not in "iu":
        raise ValueError(f"{part}_indptr and {part}_items must be vectors of whole numbers.")
    if (
        len(starts) < 2
        or starts[0] != 0
        or starts[-1] != len(items)
        or bool((np.diff(starts.astype(np.int64)) < 0).any())
    ):
        raise ValueError(f"{part}_indptr must go from 0 up to the {len(items)} items.")
    wrong = items[(items < 0) | (items >= num_items)]
    if len(wrong):
        raise ValueError(f"{part}_items must be in 0..{num_items - 1}. Got {int(wrong[0])}.")
    matrix = csr_array(
        (np.ones(len(items), dtype=np.bool_), items.astype(np.int32), starts.astype(np.int32)),
        shape=(len(starts) - 1, num_items),
    )
    matrix.sum_duplicates()
    return matrix
