"""Files in the text format of the extreme-classification repository, some lines at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from longtail._core.sparse_lines import LONGEST_INTEGER, Lines, Part, Sizes, parse_lines

__all__ = ["BLOCK", "LARGEST_INDEX", "make_csr", "parse_header", "parse_parts"]

BLOCK = 2**22
"""Bytes to read at a time."""
CHUNK = 2**18
"""Bytes to parse at a time: so few that the arrays over them stay in a processor's cache."""
LINE_EXPANSION = 64
"""Bytes that it takes at most to parse one."""
LARGEST_INDEX = 2**31 - 1
"""Features and labels are at most this many, so that an index fits into four bytes."""


def parse_header(path: Path, line: bytes) -> Sizes:
    """The sizes that the first line of a file says."""
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


def parse_parts(path: Path, budget: int) -> Iterator[tuple[Sizes, Part]]:
    """What the first line says, and what some lines at a time after it have."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            sizes = parse_header(path, file.readline(256))
            num_lines, has_surplus = 0, False
            for content in _read_lines(cast(BinaryIO, file), budget // LINE_EXPANSION, path):
                part = parse_lines(Lines(path, content, num_lines + 2), sizes)
                num_kept = max(0, sizes.samples - num_lines)
                num_lines += len(part.labels_per_line)
                surplus = part.labels_per_line[num_kept:] + part.columns_per_line[num_kept:]
                has_surplus |= bool(surplus.any())  # blank lines at the end are no samples
                per_line = {name: getattr(part, name)[:num_kept] for name in ("labels_per_line", "columns_per_line")}
                if not has_surplus:
                    yield sizes, part._replace(**per_line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a complete gzip file. Got: {error}.") from error
    if num_lines < sizes.samples or has_surplus:
        raise ValueError(
            f"{path} must have {sizes.samples} samples, as its first line says. Got {num_lines} lines "
            "after it; the file is cut off, or its first line is wrong."
        )


def _read_lines(file: BinaryIO, longest: int, path: Path) -> Iterator[bytes]:
    """Some lines at a time, each with its end, which the last one of a file may lack."""
    block = b""
    while more := file.read(BLOCK):
        block, start = block + more, 0
        # As many lines as fit into a chunk, or one that is longer; 0 where the rest of the block has no end.
        while end := block.rfind(b"\n", start, start + CHUNK) + 1 or block.find(b"\n", start) + 1:
            yield block[start:end]
            start = end
        block = block[start:]
        if len(block) > longest:
            raise ValueError(f"{path}: a line must have at most {longest:,} bytes. Got a longer one.")
    if block:
        yield block + b"\n"


def make_csr(
    data: npt.NDArray[Any], columns: npt.NDArray[Any], per_row: npt.NDArray[np.int64], num_columns: int
) -> Any:
    """[N, num_columns] CSR from numbers, their columns, and how many of them each row has."""
    from scipy.sparse import csr_array  # takes as long to load as the rest of the library

    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(per_row)])
    matrix = csr_array((data, columns, starts), shape=(len(per_row), num_columns))
    matrix.sum_duplicates()
    return matrix
