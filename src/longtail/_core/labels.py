"""Class indices and label pairs out of whatever holds labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    "NO_LABEL",
    "IntArray",
    "column_sums",
    "indicator_rows",
    "label_array",
    "positive_pairs",
    "rarest_labels",
    "to_numpy",
]

IntArray = npt.NDArray[np.int64]

NO_LABEL = -100
"""The label that stands for none, as in PyTorch's losses."""


def label_array(labels: Any) -> IntArray:
    """One int64 vector from whatever holds labels."""
    if hasattr(labels, "datasets"):  # ConcatDataset
        return np.concatenate([label_array(part) for part in labels.datasets])
    if hasattr(labels, "dataset") and hasattr(labels, "indices"):  # Subset
        return label_array(labels.dataset)[np.asarray(to_numpy(labels.indices), dtype=np.int64)]
    if not _is_array_like(labels):
        for attribute in ("targets", "labels"):
            if getattr(labels, attribute, None) is not None:
                return label_array(getattr(labels, attribute))
        if hasattr(labels, "tensors"):
            return label_array(labels.tensors[-1])
        labels = _second_of_pairs(labels)
    return _checked_integers(to_numpy(labels))


def _is_array_like(values: Any) -> bool:
    if isinstance(values, Sequence) and not isinstance(values, str):
        return len(values) == 0 or isinstance(values[0], str) or not isinstance(values[0], Sequence)
    return hasattr(values, "__array__")


def _second_of_pairs(pairs: Any) -> list[Any]:
    is_map = hasattr(pairs, "__getitem__") and hasattr(pairs, "__len__")
    if isinstance(pairs, str) or not (isinstance(pairs, Iterable) or is_map):
        raise TypeError(
            "ClassPrior.from_labels: expected integer labels, a dataset with targets, labels or tensors, "
            f"or (x, y) pairs. Got {type(pairs).__name__}."
        )
    values = []
    # A map-style dataset ends by its length: iterating over it by index might never.
    items = pairs if isinstance(pairs, Iterable) else (pairs[index] for index in range(len(pairs)))
    for pair in items:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"ClassPrior.from_labels: expected (x, y) pairs. Got an item of {type(pair).__name__}.")
        values.append(pair[1].item() if isinstance(pair[1], Tensor) else pair[1])
    return values


def _checked_integers(array: npt.NDArray[Any]) -> IntArray:
    if array.ndim != 1:
        is_column = array.ndim == 2 and array.shape[1] == 1
        advice = "take its only column" if is_column else "for multi-label data use ClassPrior.from_indicator"
        raise ValueError(f"ClassPrior.from_labels: labels must be a vector. Got shape {array.shape}; {advice}.")
    if array.size and array.dtype.kind not in "iub":
        is_whole = array.dtype.kind == "f" and bool((array == np.round(array)).all())
        advice = (
            "convert them first, with astype(int) or .long()"
            if is_whole
            else "encode them first, for example with sklearn.preprocessing.LabelEncoder"
        )
        raise TypeError(f"ClassPrior.from_labels: labels must be integers. Got {array.dtype}; {advice}.")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"ClassPrior.from_labels: labels must be below 2^63. Got {array.max()}.")
    return array.astype(np.int64, copy=False)


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """An array of whatever NumPy or PyTorch can make one of."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    has_numpy_dtype = not values.is_floating_point() or values.dtype in (torch.float16, torch.float32, torch.float64)
    return (values if has_numpy_dtype else values.float()).detach().cpu().numpy()


def column_sums(indicator: Any) -> tuple[IntArray, int]:
    """Positives of each column, and the number of rows, of a 0/1 matrix of any kind."""
    if isinstance(indicator, Tensor):
        coalesced = indicator.detach().cpu()
        if coalesced.layout == torch.strided:
            indicator = to_numpy(coalesced)
        else:
            coalesced = coalesced.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
            _check_indicator_shape(coalesced.shape)
            values = to_numpy(coalesced.values())
            _check_zero_one(values)
            present = values != 0
            columns = coalesced.indices()[1].numpy()[present]
            return np.bincount(columns, minlength=coalesced.shape[1]), coalesced.shape[0]
    if hasattr(indicator, "tocsc"):  # SciPy sparse
        matrix = indicator.tocsc(copy=True)
        matrix.sum_duplicates()
        _check_indicator_shape(matrix.shape)
        _check_zero_one(matrix.data)
        matrix.eliminate_zeros()
        return np.diff(matrix.indptr).astype(np.int64), int(matrix.shape[0])
    dense = np.asarray(indicator)
    _check_indicator_shape(dense.shape)
    _check_zero_one(dense)
    return np.count_nonzero(dense, axis=0).astype(np.int64), dense.shape[0]  # a sum in half precision stops at 2,048


def _check_indicator_shape(shape: Sequence[int]) -> None:
    if len(shape) != 2:
        raise ValueError(f"ClassPrior.from_indicator: expected a matrix [samples, labels]. Got shape {tuple(shape)}.")


def _check_zero_one(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind not in "iufb" or not np.isin(values, (0, 1)).all():
        raise ValueError("ClassPrior.from_indicator: entries must be 0 or 1.")


def indicator_rows(indicator: Any, name: str) -> Any:
    """[N, C] CSR of bool, without stored zeros, from a 0/1 matrix of NumPy or SciPy; messages call it ``name``."""
    from scipy.sparse import csr_array  # takes as long to load as the rest of the library

    matrix = csr_array(indicator, copy=True) if hasattr(indicator, "tocsr") else to_numpy(indicator)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be [N, C] of 0 and 1. Got {matrix.dtype} {matrix.shape}.")
    rows = csr_array(matrix)
    rows.sum_duplicates()
    wrong = rows.data[~np.isin(rows.data, (0, 1))]
    if wrong.size:
        raise ValueError(f"{name} must be [N, C] of 0 and 1. Got {wrong[0]:g}.")
    rows = rows.astype(np.bool_)
    rows.eliminate_zeros()
    return rows


def rarest_labels(indicator: Any) -> Tensor:
    """[N] the least frequent label of each sample; C for a sample without labels."""
    num_classes = indicator.shape[1]
    counts, _ = column_sums(indicator)
    by_rarity = torch.from_numpy(np.argsort(counts, kind="stable"))
    rarity = torch.empty_like(by_rarity)
    rarity[by_rarity] = torch.arange(num_classes)
    rows, columns = positive_pairs(indicator)
    nothing = torch.full((indicator.shape[0],), num_classes)
    rarest = nothing.scatter_reduce(0, rows, rarity[columns], "amin")
    return torch.cat([by_rarity, by_rarity.new_tensor([num_classes])])[rarest]


def positive_pairs(indicator: Any) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries of a 0/1 matrix that are 1."""
    if hasattr(indicator, "tocoo"):  # SciPy sparse
        matrix = indicator.tocoo()
        entries, values = np.stack([matrix.row, matrix.col]), torch.from_numpy(matrix.data)
        indices = torch.from_numpy(entries).long()
    else:
        sparse = torch.as_tensor(indicator).detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        indices, values = sparse.indices(), sparse.values()
    rows, columns = indices[:, values != 0]
    return rows, columns
