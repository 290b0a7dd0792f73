"""Labels of ExtremeClassifier: whatever holds them -> sparse rows of bool, and the names that they came with."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.utils.validation import check_array

from longtail._core.labels import indicator_rows
from longtail.estimators.extreme.network import is_sparse

__all__ = ["Labels", "as_names", "find_columns", "read_labels"]

Names = npt.NDArray[Any]


class Labels(NamedTuple):
    """The labels of some samples."""

    rows: Any
    """[N, C] CSR of bool."""
    names: Names
    """[C] what the labels are called: 0..C-1 where ``y`` has no other names."""
    is_single: bool
    """Whether ``y`` had one label per sample by its form."""


def read_labels(y: Any, num_samples: int, names: Names | None = None, accepts_unknown: bool = False) -> Labels:
    """The labels in what ``fit`` and ``score`` take; ``names`` are those of training, once there was.

    Labels that are none of ``names`` are an error; with ``accepts_unknown`` they are left out, unless all are.
    """
    found = _read(y, names, accepts_unknown)
    if found.rows.shape[0] != num_samples:
        raise ValueError(f"X and y must have one length. Got {num_samples} and {found.rows.shape[0]}.")
    if names is None and (found.rows.shape[1] < 2 or found.rows.nnz == 0):
        raise ValueError(
            f"y must have two labels or more, and samples that have one. Got {found.rows.shape[1]} labels "
            f"and {found.rows.nnz} positives."
        )
    if names is not None and found.rows.shape[1] != len(names):
        raise ValueError(f"y must have the {len(names)} labels of training. Got {found.rows.shape[1]}.")
    return found


def as_names(classes: Any) -> Names | None:
    """The names of all labels from their number, or from themselves; None where none are given."""
    if classes is None:
        return None
    return np.arange(int(classes)) if np.ndim(classes) == 0 else np.asarray(classes)


def find_columns(labels: Any, names: Names) -> npt.NDArray[np.int64]:
    """[K] the columns of some labels."""
    columns, _ = _encode(np.asarray(labels).reshape(-1), names, accepts_unknown=False)
    return columns.astype(np.int64)


def _read(y: Any, names: Names | None, accepts_unknown: bool) -> Labels:
    if is_sparse(y):
        return _with_numbers(indicator_rows(y, "y"), False)
    columns = _column_names(y)
    values = y.to_numpy() if hasattr(y, "to_numpy") else y  # a table or series of pandas or polars
    if _holds_collections(values, None if names is None else len(names)):
        return _join_collections(values, names, accepts_unknown)
    if np.ndim(values) == 1:
        array = np.asarray(values)
        return Labels(*_make_rows(array, np.arange(len(array)), len(array), names, accepts_unknown), True)
    rows = indicator_rows(check_array(values, dtype=None, input_name="y"), "y")
    if columns is None or len(columns) != rows.shape[1]:
        return _with_numbers(rows, False)
    if names is not None and list(columns) != list(names):
        raise ValueError(f"y must have the columns of training. Got {list(columns)[:5]}, not {list(names)[:5]}.")
    return Labels(rows, columns, False)


def _column_names(y: Any) -> Names | None:
    columns = getattr(y, "columns", None)
    if columns is None or not all(isinstance(column, str) for column in columns):
        return None
    return np.asarray(list(columns))


def _holds_collections(values: Any, num_labels: int | None) -> bool:
    """Whether this is one collection of labels per sample, rather than rows of zeros and ones."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return False
    if hasattr(values, "__len__") and len(values) and all(isinstance(item, set | frozenset) for item in values):
        return True
    if not all(isinstance(item, list | tuple | set | frozenset | np.ndarray) for item in values):
        return False
    lengths = {len(item) for item in values}
    if len(lengths) > 1 or lengths == {0} or any(_names_a_label(value) for item in values for value in item):
        return True
    # Lists of zeros and ones that all have one length are a matrix, as everywhere, unless it would be too narrow.
    is_narrow = num_labels is not None and max(lengths, default=num_labels) < min(num_labels, 3)
    return is_narrow and all(len(set(item)) == len(item) for item in values)


def _names_a_label(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int | np.integer) and value not in (0, 1))


def _join_collections(values: Any, names: Names | None, accepts_unknown: bool) -> Labels:
    parts = [list(item) for item in values]
    flat = list(chain.from_iterable(parts))
    kinds = {isinstance(label, str) for label in flat}
    if len(kinds) > 1:
        raise ValueError("y must have names or whole numbers as labels. Got both.")
    labels = np.asarray(flat if flat else np.zeros(0, dtype=np.int64))
    samples = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Labels(*_make_rows(labels, samples, len(parts), names, accepts_unknown), False)


def _make_rows(
    labels: Names, samples: Names, num_samples: int, names: Names | None, accepts_unknown: bool
) -> tuple[Any, Names]:
    """CSR from labels [P] and the samples [P] that have them, and the names of its columns."""
    columns, names = _encode(labels, names, accepts_unknown)
    is_known = columns >= 0
    places = (samples[is_known], columns[is_known])
    rows = csr_array((np.ones(is_known.sum(), np.int64), places), shape=(num_samples, len(names)))
    return rows.astype(np.bool_), names


def _encode(values: Names, names: Names | None, accepts_unknown: bool) -> tuple[Names, Names]:
    """Each label's column, -1 for one that is none of ``names``, and the names of all columns."""
    if values.dtype.kind in "iu":
        wanted, columns, names = _place_numbers(values, names)
    elif all(isinstance(value, str) for value in values):
        wanted, columns, names = _place_texts(values.astype(np.str_), names)
    else:
        raise ValueError(
            "y must be zeros and ones [N, C], whole numbers or names [N], or a collection of these per sample. "
            f"Got {values.dtype} [{len(values)}]."
        )
    is_unknown = columns < 0
    if is_unknown.any() and (is_unknown.all() or not accepts_unknown):
        raise ValueError(f"y must {wanted}. Got {values[is_unknown].tolist()[0]!r}.")
    return columns, names


def _place_texts(texts: Names, names: Names | None) -> tuple[str, Names, Names]:
    if names is None:
        names = np.unique(texts)
    column_of = {str(name): column for column, name in enumerate(names)}
    columns = np.array([column_of.get(text, -1) for text in texts.tolist()], dtype=np.int64)
    return "have labels of training", columns, names


def _place_numbers(numbers: Names, names: Names | None) -> tuple[str, Names, Names]:
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"y must be at least 0. Got {numbers.min()}.")
    if names is None:
        names = np.arange(int(numbers.max(initial=-1)) + 1)
    return f"be in 0..{len(names) - 1}", np.where(numbers < len(names), numbers, -1), names


def _with_numbers(rows: Any, is_single: bool) -> Labels:
    return Labels(rows, np.arange(rows.shape[1]), is_single)
