"""The text format of the extreme-classification repository: sparse features, and multi-label.

The first line says how many samples, features and labels there are. Every line after it is a sample, its labels and
then its features, such as ``3,17 0:1 5:0.25``. Lines are read some megabytes at a time with array operations, and the
parsed arrays are kept for the next time where a cache is given. A file of 302 MB takes 4.9 s, with scikit-learn's
``load_svmlight_file`` 17.3 s, and 0.26 s from the cache (``benchmarks/sparse_files.py``); unlike scikit-learn's, this
reader holds every number against the first line and names the line that is wrong.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Split, sparse_indicator
from longtail.lab.data.formats._cache import cache_path, read_matrices, write_matrices
from longtail.lab.data.formats._sparse_lines import (
    LONGEST_INTEGER,
    Indices,
    Integers,
    Lines,
    Part,
    Sizes,
    parse_lines,
)
from longtail.lab.data.locate import PathLike, locate_path
from longtail.lab.data.sparse_rows import SparseRows

__all__ = ["SparseSamples", "load_sparse_table", "one_per_positive", "read_sparse_file", "sparse_dataset"]

BLOCK = 2**22
"""Bytes to read at a time."""
CHUNK = 2**18
"""Bytes to parse at a time: so few that the arrays over them stay in a processor's cache."""
LARGEST_INDEX = 2**31 - 1
"""Features and labels are at most this many, so that an index fits into four bytes."""


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


def read_sparse_file(path: PathLike, cache: PathLike | None = None) -> SparseSamples:
    """Read a file of the extreme-classification repository.

    Args:
        path: the file, packed if its name ends in ``.gz``.
        cache: folder for the parsed arrays, which is made if it does not exist. The next call with the same file, by
            its path, size and time of change, reads them instead. None neither looks nor keeps.

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
    file = locate_path(path)
    if not file.is_file():
        raise FileNotFoundError(f"Sparse samples were not found: there is no file {file}.")
    if cache is None:
        return _parse_file(file)
    cached = cache_path(Path(cache), file)
    matrices = read_matrices(cached, {"features": np.float32, "labels": np.bool_})
    if matrices is not None and matrices["features"].shape[0] == matrices["labels"].shape[0]:
        return SparseSamples(**matrices)
    samples = _parse_file(file)
    write_matrices(cached, {"features": samples.features, "labels": samples.labels})
    return samples


def load_sparse_table(train: str, test: str) -> Dataset:
    """Two files of the extreme-classification repository's text format: sparse features, multi-label."""
    name = Path(train).name.partition(".")[0]
    return sparse_dataset(name, read_sparse_file(train), read_sparse_file(test))


def sparse_dataset(name: str, train: SparseSamples, test: SparseSamples) -> Dataset:
    """Samples to train on and to test on as a data set whose classes are named by their index."""
    if train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(
            f"{name}: training and test files must have the same labels. "
            f"Got {train.labels.shape[1]} and {test.labels.shape[1]}."
        )
    splits = [Split(SparseRows.from_scipy(part.features), sparse_indicator(part.labels)) for part in (train, test)]
    return Dataset(name, splits[0], splits[1], tuple(str(label) for label in range(train.labels.shape[1])))


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


def _parse_file(path: Path) -> SparseSamples:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            sizes = _parse_header(path, file.readline(256))
            parts = list(_parse_parts(path, cast(BinaryIO, file), sizes))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a complete gzip file. Got: {error}.") from error
    labels_per_line = _join([part.labels_per_line for part in parts], np.int64)
    columns_per_line = _join([part.columns_per_line for part in parts], np.int64)
    surplus = labels_per_line[sizes.samples :] + columns_per_line[sizes.samples :]
    if len(labels_per_line) < sizes.samples or surplus.any():  # blank lines at the end are no samples
        raise ValueError(
            f"{path} must have {sizes.samples} samples, as its first line says. Got {len(labels_per_line)} lines "
            "after it; the file is cut off, or its first line is wrong."
        )
    labels = _join([part.labels for part in parts], np.int32)
    columns = _join([part.columns for part in parts], np.int32)
    values = _join([part.values for part in parts], np.float32)
    return SparseSamples(
        _csr(values, columns, columns_per_line[: sizes.samples], sizes.features),
        _csr(np.ones(len(labels), dtype=np.bool_), labels, labels_per_line[: sizes.samples], sizes.labels),
    )


def _parse_header(path: Path, line: bytes) -> Sizes:
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() and len(word) <= LONGEST_INTEGER for word in words):
        text = line[:60].strip().decode("ascii", "backslashreplace")
        raise ValueError(f"{path} must begin with its numbers of samples, features and labels. Got {text!r}.")
    sizes = Sizes(*map(int, words))
    if sizes.samples < 1 or not (1 <= sizes.features <= LARGEST_INDEX and 1 <= sizes.labels <= LARGEST_INDEX):
        raise ValueError(
            f"{path}: samples must be at least 1, and features and labels in 1..{LARGEST_INDEX}. "
            f"Got {sizes.samples}, {sizes.features} and {sizes.labels}."
        )
    return sizes


def _parse_parts(path: Path, file: BinaryIO, sizes: Sizes) -> Iterator[Part]:
    """What the lines after the first have, some lines at a time."""
    line = 2
    for content in _read_lines(file):
        part = parse_lines(Lines(path, content, line), sizes)
        yield part
        line += len(part.labels_per_line)


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Some lines at a time, each with its end, which the last one of a file may lack."""
    block = b""
    while more := file.read(BLOCK):
        block, start = block + more, 0
        # As many lines as fit into a chunk, or one that is longer; 0 where the rest of the block has no end.
        while end := block.rfind(b"\n", start, start + CHUNK) + 1 or block.find(b"\n", start) + 1:
            yield block[start:end]
            start = end
        block = block[start:]
    if block:
        yield block + b"\n"


def _join(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts], dtype=dtype)


def _csr(data: npt.NDArray[Any], columns: Indices, per_line: Integers, num_columns: int) -> Any:
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(per_line)])
    matrix = csr_array((data, columns, starts), shape=(len(per_line), num_columns))
    matrix.sum_duplicates()
    return matrix
