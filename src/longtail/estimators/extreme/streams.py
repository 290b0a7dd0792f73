"""Samples of ExtremeClassifier in files that need not fit into memory: read in chunks, shuffled in a buffer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from longtail._core.labels import IntArray
from longtail._core.memory import memory_budget
from longtail._core.sparse_chunks import (
    COLUMNS,
    Chunk,
    check_parquet,
    join_chunks,
    make_chunk,
    parse_columns,
    select_rows,
)
from longtail._core.sparse_lines import Part
from longtail._core.sparse_parts import parse_parts
from longtail.estimators.extreme.data import LabelBatch, make_batch
from longtail.estimators.extreme.features import FeatureScaling, are_counts, count_rows

__all__ = [
    "Chunk",
    "Statistics",
    "Stream",
    "StreamedSamples",
    "is_path",
    "open_stream",
    "read_statistics",
    "take_first",
]


class Stream(Protocol):
    """A file, or several, that can be read again and again."""

    def chunks(self) -> Iterator[Chunk]:
        """All samples, some at a time."""


def is_path(X: Any) -> bool:
    """Whether features are given as a file."""
    return isinstance(X, str | os.PathLike)


def open_stream(path: Any) -> Stream:
    """The samples of a text file as of the extreme-classification repository, or of Parquet, a file or a folder."""
    path = Path(path)
    if path.is_dir():
        parts = sorted(path.glob("*.parquet"))
        if not parts:
            raise ValueError(f"{path} must have files that end with .parquet. Got none.")
        return _ParquetStream(parts)
    if not path.exists():
        raise FileNotFoundError(f"{path} must be a file of samples, or a folder of Parquet files. It does not exist.")
    return _ParquetStream([path]) if path.suffix == ".parquet" else _TextStream(path)


class Statistics(NamedTuple):
    """What one pass over a stream finds."""

    num_samples: int
    num_labeled: int
    """Samples that have labels."""
    label_counts: IntArray
    """[C]."""
    rows_with: IntArray
    """[D] in how many samples each feature is not 0."""
    are_counts: bool
    square: float
    """Mean over samples of the squared length."""


def read_statistics(stream: Stream) -> Statistics:
    """One pass over all samples."""
    num_samples = num_labeled = 0
    label_counts = rows_with = np.zeros(0, dtype=np.int64)
    total, is_whole, is_beyond_one = 0.0, True, False
    for features, labels in stream.chunks():
        num_samples += features.shape[0]
        num_labeled += int(np.count_nonzero(np.diff(labels.indptr)))
        label_counts = _add(label_counts, np.bincount(labels.indices, minlength=labels.shape[1]))
        rows_with = _add(rows_with, count_rows(features))
        total += float(np.square(features.data, dtype=np.float64).sum())
        is_beyond_one = is_beyond_one or are_counts(features)
        is_whole = is_whole and bool((features.data >= 0).all() and (features.data == np.round(features.data)).all())
    square = total / num_samples if total else 1.0
    return Statistics(num_samples, num_labeled, label_counts, rows_with, is_whole and is_beyond_one, square)


def take_first(stream: Stream, num_samples: int) -> Chunk:
    """The first samples of a stream that have labels, at most so many."""
    parts: list[Chunk] = []
    for chunk in stream.chunks():
        parts.append(select_rows(chunk, np.flatnonzero(np.diff(chunk.labels.indptr))))
        if sum(part.features.shape[0] for part in parts) >= num_samples:
            break
    return select_rows(join_chunks(parts), np.arange(num_samples))


class StreamedSamples(NamedTuple):
    """The samples of a stream as batches: what the first pass found says how many."""

    stream: Stream
    scaling: FeatureScaling
    num_samples: int
    """Samples that have labels and are trained on."""
    num_skipped: int
    """Of those that have labels, how many at the start are held out."""
    buffer_size: int
    """Samples that are shuffled with each other; about twice as many are in memory."""

    def num_batches(self, size: int) -> int:
        """Steps per epoch."""
        return math.ceil(self.num_samples / size)

    def batches(self, size: int, generator: torch.Generator, device: str) -> Iterator[LabelBatch]:
        """One pass: a buffer is filled and shuffled, half of it is used, and the rest mixes with what comes next.

        All batches but the last are full, so that as many come as ``num_batches`` says.
        """
        for block in self._blocks(size, generator):
            for start in range(0, block.features.shape[0], size):
                features = self.scaling.apply(block.features[start : start + size])
                yield make_batch(features, block.labels[start : start + size], None, device)

    def _blocks(self, batch_size: int, generator: torch.Generator) -> Iterator[Chunk]:
        pool, held, skipped = [], 0, 0
        for chunk in self.stream.chunks():
            labeled = np.flatnonzero(np.diff(chunk.labels.indptr))
            left_out = min(len(labeled), self.num_skipped - skipped)
            skipped += left_out
            pool.append(select_rows(chunk, labeled[left_out:]))
            held += len(labeled) - left_out
            if held >= max(self.buffer_size, 2 * batch_size):
                block = _shuffle(join_chunks(pool), generator)
                used = held // 2 // batch_size * batch_size
                yield select_rows(block, np.arange(used))
                pool, held = [select_rows(block, np.arange(used, held))], held - used
        if held:
            yield _shuffle(join_chunks(pool), generator)


class _TextStream(NamedTuple):
    path: Path

    def chunks(self) -> Iterator[Chunk]:
        for sizes, part in parse_parts(self.path, memory_budget()):
            yield make_chunk(part, sizes.features, sizes.labels)


class _ParquetStream:
    """Files of which the numbers of features and labels are those of the largest in any of them."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.sizes: tuple[int, int] | None = None

    def chunks(self) -> Iterator[Chunk]:
        if self.sizes is None:
            self.sizes = self._find_sizes()
        for part in self._parts():
            yield make_chunk(part, *self.sizes)

    def _find_sizes(self) -> tuple[int, int]:
        num_features = num_labels = 0
        for part in self._parts():
            num_features = max(num_features, int(part.columns.max(initial=-1)) + 1)
            num_labels = max(num_labels, int(part.labels.max(initial=-1)) + 1)
        return num_features, num_labels

    def _parts(self) -> Iterator[Part]:
        from pyarrow import parquet

        for path in self.paths:
            with parquet.ParquetFile(path) as file:
                check_parquet(path, file.metadata)
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=COLUMNS):
                    yield parse_columns(path, batch)


def _shuffle(chunk: Chunk, generator: torch.Generator) -> Chunk:
    return select_rows(chunk, torch.randperm(chunk.features.shape[0], generator=generator).numpy())


def _add(total: IntArray, part: npt.NDArray[Any]) -> IntArray:
    return part.astype(np.int64) if not len(total) else total + part


ROWS_AT_ONCE = 4096
"""Rows of a Parquet file to read at a time."""
