"""The text format of the extreme-classification repository: sparse features, and multi-label.

The first line says how many samples, features and labels there are. Every line after it is a sample, its labels and
then its features, such as ``3,17 0:1 5:0.25``. Lines are read some megabytes at a time with array operations, and the
parsed arrays are kept for the next time where a cache is given. A file of 302 MB takes 4.9 s, with scikit-learn's
``load_svmlight_file`` 17.3 s, and 0.26 s from the cache (``benchmarks/sparse_files.py``); unlike scikit-learn's, this
reader holds every number against the first line and names the line that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail._core.memory import BYTES_PER_CLASS, check_memory, memory_budget
from longtail._core.sparse_lines import Indices, Integers, Sizes
from longtail._core.sparse_parts import make_csr, parse_parts
from longtail.lab.data.dataset import Dataset, Split, sparse_indicator
from longtail.lab.data.formats._cache import cache_path, read_matrices, write_matrices
from longtail.lab.data.locate import PathLike, locate_path
from longtail.lab.data.sparse_rows import SparseRows
from longtail.metrics.propensity import PROPENSITY_CONSTANTS

__all__ = [
    "SparseSamples",
    "count_sparse_labels",
    "load_sparse_table",
    "one_per_positive",
    "read_sparse_file",
    "sparse_dataset",
]

MERGED_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False, slots=True)
class SparseSamples:
    """Samples with sparse features and any number of labels each."""

    features: Any
    """[N, D] SciPy CSR array, float32."""
    labels: Any
    """[N, L] SciPy CSR array, bool: which labels each sample has. A row may be empty."""

    def __post_init__(self) -> None:
        if self.features.shape[0] != self.labels.shape[0]:
            raise ValueError(
                f"SparseSamples: features and labels must have one length. "
                f"Got {self.features.shape[0]} and {self.labels.shape[0]}."
            )

    def __len__(self) -> int:
        return int(self.features.shape[0])


def read_sparse_file(path: PathLike, cache: PathLike | None = None, budget: int | None = None) -> SparseSamples:
    """Read a file of the extreme-classification repository.

    Args:
        path: the file, packed if its name ends in ``.gz``.
        cache: folder for the parsed arrays, which is made if it does not exist. The next call with the same file, by
            its path, size and time of change, reads them instead. None neither looks nor keeps.
        budget: bytes of memory; default: see ``memory_budget``.

    Returns:
        Features and labels. A sample without labels, or without features, is an empty row. A label that a line has
        twice counts once, and values of a feature that it has twice add up. Values are float32, rounded from what
        float64 makes of the first 18 digits.

    Raises:
        ValueError: where the first line is not three sizes, the number of lines is not the first of them, an index is
            not below the other two, or a line is not in the format; with the number of the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "two.txt")
    ...     _ = path.write_text("2 4 3\\n0,2 1:0.5 3:2\\n 0:1\\n")
    ...     samples = read_sparse_file(path)
    >>> samples.labels.toarray().astype(int).tolist(), samples.features.toarray()[0].tolist()
    ([[1, 0, 1], [0, 0, 0]], [0.0, 0.5, 0.0, 2.0])
    """
    file, limit = _find_file(path), memory_budget() if budget is None else budget
    if cache is None:
        return _parse_file(file, limit)
    cached = cache_path(Path(cache), file)
    matrices = read_matrices(cached, {"features": np.float32, "labels": np.bool_})
    if matrices is not None and matrices["features"].shape[0] == matrices["labels"].shape[0]:
        return SparseSamples(**matrices)
    samples = _parse_file(file, limit)
    write_matrices(cached, {"features": samples.features, "labels": samples.labels})
    return samples


def load_sparse_table(train: str, test: str, propensity: Sequence[float] = PROPENSITY_CONSTANTS["other"]) -> Dataset:
    """Two files of the extreme-classification repository's text format: sparse features, multi-label.

    Args:
        train: the file to train on.
        test: the file to test on.
        propensity: A and B of ``inverse_propensities``, for data with very many labels.
    """
    name = Path(train).name.partition(".")[0]
    if len(propensity) != 2 or not all(value > 0 for value in propensity):
        raise ValueError(f"propensity must be two numbers above 0, A and B. Got {list(propensity)}.")
    return sparse_dataset(name, read_sparse_file(train), read_sparse_file(test), (propensity[0], propensity[1]))


def sparse_dataset(
    name: str,
    train: SparseSamples,
    test: SparseSamples,
    propensity: tuple[float, float] = PROPENSITY_CONSTANTS["other"],
) -> Dataset:
    """Samples to train on and to test on as a data set whose classes are named by their index."""
    if train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(
            f"{name}: training and test files must have the same labels. "
            f"Got {train.labels.shape[1]} and {test.labels.shape[1]}."
        )
    check_memory(train.labels.shape[1] * BYTES_PER_CLASS, f"{name}: {train.labels.shape[1]:,} labels")
    splits = [Split(SparseRows.from_scipy(part.features), sparse_indicator(part.labels)) for part in (train, test)]
    names = tuple(str(label) for label in range(train.labels.shape[1]))
    return Dataset(name, splits[0], splits[1], names, propensity)


def one_per_positive(labels: Any) -> tuple[Tensor, Tensor]:
    """Multi-label samples as examples with one label each: an example for each label that a sample has.

    Args:
        labels: [N, L] SciPy sparse, as of ``SparseSamples``.

    Returns:
        [P] the sample of each example, and [P] its label, both int64. Features are not copied: a batch takes the
        rows of its samples. A sample without labels is no example.

    >>> samples, targets = one_per_positive(csr_array([[True, False, True], [False, False, False]]))
    >>> samples.tolist(), targets.tolist()
    ([0, 0], [0, 2])

    Reference:
        Menon et al. (2019), "Multilabel reductions: what is my loss optimising?", the pick-all-labels reduction.
    """
    csr = csr_array(labels)
    if not csr.data.all():
        csr = csr.copy()
        csr.eliminate_zeros()
    counts = torch.from_numpy(np.diff(csr.indptr).astype(np.int64))
    return torch.arange(csr.shape[0]).repeat_interleave(counts), torch.from_numpy(csr.indices.astype(np.int64))


def count_sparse_labels(path: PathLike, budget: int | None = None) -> tuple[Indices, Integers, int]:
    """The labels that occur in a file, rising, in how many samples each, and of how many samples.

    Memory does not grow with the samples.

    Args:
        path: the file, packed if its name ends in ``.gz``.
        budget: bytes of memory; default: see ``memory_budget``.
    """
    limit = memory_budget() if budget is None else budget
    labels, counts = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    waiting: list[Indices] = []
    num_samples = 0
    for sizes, part in chain(parse_parts(_find_file(path), limit), [(None, None)]):
        if part is not None and sizes is not None:
            rows = np.repeat(np.arange(len(part.labels_per_line)), part.labels_per_line)
            num_samples += len(part.labels_per_line)
            waiting.append((np.unique(rows * sizes.labels + part.labels) % sizes.labels).astype(np.int32))
        if part is None or sum(map(len, waiting)) > MERGED_AT_ONCE:
            labels, place = np.unique(np.concatenate([labels, *waiting]), return_inverse=True)
            weights = np.concatenate([counts, np.ones(len(place) - len(counts), dtype=np.int64)])
            counts = np.zeros(len(labels), dtype=np.int64)
            np.add.at(counts, place, weights)
            check_memory(len(labels) * BYTES_PER_CLASS, f"{path}: {len(labels):,} different labels", limit)
            waiting = []
    return labels, counts, num_samples


def _find_file(path: PathLike) -> Path:
    file = locate_path(path)
    if not file.is_file():
        raise FileNotFoundError(f"Sparse samples were not found: there is no file {file}.")
    return file


def _parse_file(path: Path, budget: int) -> SparseSamples:
    parts, num_bytes, sizes = [], 0, Sizes(0, 0, 0)
    for header, part in parse_parts(path, budget):
        sizes = header
        parts.append(part)
        num_bytes += 2 * sum(array.nbytes for array in part)  # they are joined
        check_memory(num_bytes, str(path), budget)
    labels = _join([part.labels for part in parts], np.int32)
    columns = _join([part.columns for part in parts], np.int32)
    values = _join([part.values for part in parts], np.float32)
    labels_per_line = _join([part.labels_per_line for part in parts], np.int64)
    columns_per_line = _join([part.columns_per_line for part in parts], np.int64)
    return SparseSamples(
        make_csr(values, columns, columns_per_line, sizes.features),
        make_csr(np.ones(len(labels), dtype=np.bool_), labels, labels_per_line, sizes.labels),
    )


def _join(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts], dtype=dtype)
