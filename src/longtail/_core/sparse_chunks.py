"""Samples with sparse features and labels, some at a time: from text or Parquet, selected, and joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from longtail._core.memory import memory_budget
from longtail._core.parquet_pages import check_pages
from longtail._core.sparse_lines import Part
from longtail._core.sparse_parts import make_csr

__all__ = ["COLUMNS", "Chunk", "check_parquet", "join_chunks", "make_chunk", "parse_columns", "select_rows"]

COLUMNS = ["labels", "features", "values"]
"""Of a Parquet file: lists of whole numbers, and of numbers as long as those of features."""


class Chunk(NamedTuple):
    """Some samples."""

    features: Any
    """[n, D] CSR of float32."""
    labels: Any
    """[n, C] CSR of bool."""


def make_chunk(part: Part, num_features: int, num_labels: int) -> Chunk:
    """Samples as matrices."""
    ones = np.ones(len(part.labels), dtype=np.bool_)
    return Chunk(
        make_csr(part.values, part.columns, part.columns_per_line, num_features),
        make_csr(ones, part.labels, part.labels_per_line, num_labels),
    )


def select_rows(chunk: Chunk, rows: npt.NDArray[Any]) -> Chunk:
    """These samples of a chunk, at most as many as it has."""
    rows = rows[: chunk.features.shape[0]]
    return Chunk(chunk.features[rows], chunk.labels[rows])


def join_chunks(chunks: list[Chunk]) -> Chunk:
    """The samples of all chunks."""
    from scipy.sparse import csr_array, vstack  # takes as long to load as the rest of the library

    if len(chunks) == 1:
        return chunks[0]
    return Chunk(*(csr_array(vstack(parts, format="csr")) for parts in zip(*chunks, strict=True)))


def check_parquet(path: Path, metadata: Any) -> None:
    """Raise unless a Parquet file has the columns of samples, and each group of its rows has room in memory.

    A batch does not help: one row may have all values of a group.
    """
    missing = set(COLUMNS) - set(metadata.schema.to_arrow_schema().names)
    if missing:
        raise ValueError(f"{path} must have columns labels, features and values. It lacks {missing}.")
    with path.open("rb") as file:

        def read_at(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        check_pages(str(path), metadata, set(COLUMNS), path.stat().st_size, read_at, memory_budget())


def parse_columns(path: Path, batch: Any) -> Part:
    """The samples of a record batch of a Parquet file."""
    columns = {name: batch.column(name) for name in COLUMNS}
    if any(column.null_count for column in columns.values()):
        raise ValueError(f"{path} must have a list in every row, if an empty one. Got null.")
    labels, features = columns["labels"], columns["features"]
    part = Part(
        np.asarray(labels.flatten(), dtype=np.int64),
        np.asarray(labels.value_lengths(), dtype=np.int64),
        np.asarray(features.flatten(), dtype=np.int64),
        np.asarray(columns["values"].flatten(), dtype=np.float32),
        np.asarray(features.value_lengths(), dtype=np.int64),
    )
    for name, numbers in (("labels", part.labels), ("features", part.columns)):
        if numbers.size and numbers.min() < 0:
            raise ValueError(f"{path}: {name} must be at least 0. Got {numbers.min()}.")
    if not np.array_equal(part.columns_per_line, np.asarray(columns["values"].value_lengths(), dtype=np.int64)):
        raise ValueError(f"{path}: features and values must have one length in every row. Got others.")
    return part
