"""The text format of the extreme-classification repository: sparse features, and several labels a sample.

The first line says how many samples, features and labels there are. Every line after it is a sample, its labels and
then its features, such as ``3,17 0:1 5:0.25``. Lines are read some megabytes at a time with array operations, which
is many times faster than a loop over lines, and the parsed arrays are kept for the next time.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail._core.files import replacing
from longtail.lab.data.locate import PathLike, data_root, located, not_found

__all__ = ["SparseSamples", "one_per_positive", "read_delicious", "read_sparse_file"]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]
Flags = npt.NDArray[np.bool_]

BLOCK = 2**22
"""Bytes to read at a time."""
CHUNK = 2**18
"""Bytes to parse at a time: so few that the arrays over them stay in a processor's cache."""
LARGEST_INDEX = 2**31 - 1
"""Features and labels are at most this many, so that an index fits into four bytes."""
LONGEST_INTEGER = 18
"""Digits that always fit into an int64."""

COMMA, COLON, SPACE, NEWLINE, OTHER = range(5)
LABEL, COLUMN, VALUE, NOTHING, WRONG = range(5)
EMPTY = 64

SIGNS = b"+-eE"
"""What a number may have beside digits and a point."""
PADDING = LONGEST_INTEGER + 2
"""Zeros before the first byte, for numbers that have fewer digits than are looked at."""

_POWERS_OF_TEN = 10.0 ** np.arange(LONGEST_INTEGER + 1)


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
    file = located(path)
    if not file.is_file():
        raise FileNotFoundError(f"Sparse samples were not found: there is no file {file}.")
    kept = None if cache is None else _cache_file(Path(cache), file)
    samples = None if kept is None else _from_cache(kept)
    if samples is None:
        samples = _parsed(file)
        if kept is not None:
            _to_cache(kept, samples)
    return samples


def read_delicious(
    root: PathLike | None = None, cache: PathLike | None = None
) -> tuple[SparseSamples, SparseSamples]:
    """Delicious: bookmarks with 983 tags, 19 of them on average, and 500 features.

    Args:
        root: folder with ``delicious/train.txt[.gz]`` and ``delicious/test.txt[.gz]``; None is the variable
            LONGTAIL_DATA.
        cache: folder for the parsed arrays, as of ``read_sparse_file``.

    Returns:
        The 12,920 samples to train on, and the 3,185 to test on.

    Reference:
        Bhatia et al. (2016), "The extreme classification repository"; Tsoumakas et al. (2008), "Effective and
        efficient multilabel classification in domains with large number of labels".
    """
    folder = data_root(root)
    parts = []
    for name in ("train.txt", "test.txt"):
        choices = (folder / "delicious" / name, folder / "delicious" / f"{name}.gz")
        path = next((choice for choice in choices if choice.is_file()), None)
        if path is None:
            raise not_found("Delicious", folder, f"delicious/{name} or delicious/{name}.gz")
        parts.append(read_sparse_file(path, cache))
    return parts[0], parts[1]


def one_per_positive(labels: Any) -> tuple[Tensor, Tensor]:
    """Several labels a sample as one label an example: an example for each label that a sample has.

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


# Parsing


class _Sizes(NamedTuple):
    """What the first line says."""

    samples: int
    features: int
    labels: int


class _Part(NamedTuple):
    """The content of some whole lines."""

    labels: Indices
    labels_per_line: Integers
    columns: Indices
    values: npt.NDArray[np.float32]
    columns_per_line: Integers


@dataclass(frozen=True, slots=True)
class _Lines:
    """Whole lines and where they are, for messages."""

    path: Path
    content: bytes
    first_line: int

    def fail(self, offset: int, problem: str) -> NoReturn:
        line = self.first_line + self.content.count(b"\n", 0, offset)
        start = self.content.rfind(b"\n", 0, offset) + 1
        text = self.content[start : start + 60].split(b"\n")[0].decode("ascii", "backslashreplace")
        raise ValueError(f"{self.path}, line {line}: {problem} Got {text!r}.")


class _Text(NamedTuple):
    """Lines, and where their numbers are."""

    lines: _Lines
    content: Bytes
    is_end: Flags
    """Which bytes are delimiters."""
    ends: Integers
    """Of every number, which may be empty, the delimiter after it."""
    roles: Bytes
    is_mark: Flags
    """Which bytes are points, signs and exponents."""
    has_signs: bool
    """Whether any of these is not a point."""
    by_four: npt.NDArray[np.uint16]
    """For every byte the whole number of up to four digits that ends there; ``PADDING`` zeros before."""


def _table(kinds: dict[int, bytes]) -> bytes:
    """A table for ``bytes.translate``, which is faster than to index an array."""
    table = bytearray([OTHER] * 256)
    for kind, characters in kinds.items():
        for character in characters:
            table[character] = kind
    return bytes(table)


_KIND_OF_BYTE = _table({COMMA: b",", COLON: b":", SPACE: b" \t\r", NEWLINE: b"\n"})


def _role_of_pair() -> bytes:
    """What a number is by the delimiters before and after it, at 8 * before + after; EMPTY more where it is empty."""
    roles = bytearray([WRONG] * 256)
    for before in (COMMA, COLON, SPACE, NEWLINE):
        for after in (COMMA, COLON, SPACE, NEWLINE):
            pair = 8 * before + after
            if before >= SPACE and after >= SPACE:
                roles[pair], roles[EMPTY + pair] = LABEL, NOTHING
            elif COLON not in (before, after):
                roles[pair] = LABEL
            elif before >= SPACE:
                roles[pair] = COLUMN
            elif after >= SPACE:
                roles[pair] = VALUE
    return bytes(roles)


_ROLE_OF_PAIR = _role_of_pair()


def _parsed(path: Path) -> SparseSamples:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            sizes = _header(path, file.readline(256))
            parts = list(_parts(path, cast(BinaryIO, file), sizes))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a complete gzip file. Got: {error}.") from error
    labels_per_line = _joined([part.labels_per_line for part in parts], np.int64)
    columns_per_line = _joined([part.columns_per_line for part in parts], np.int64)
    surplus = labels_per_line[sizes.samples :] + columns_per_line[sizes.samples :]
    if len(labels_per_line) < sizes.samples or surplus.any():  # blank lines at the end are no samples
        raise ValueError(
            f"{path} must have {sizes.samples} samples, as its first line says. Got {len(labels_per_line)} lines "
            "after it; the file is cut off, or its first line is wrong."
        )
    labels = _joined([part.labels for part in parts], np.int32)
    columns = _joined([part.columns for part in parts], np.int32)
    values = _joined([part.values for part in parts], np.float32)
    return SparseSamples(
        _csr(values, columns, columns_per_line[: sizes.samples], sizes.features),
        _csr(np.ones(len(labels), dtype=np.bool_), labels, labels_per_line[: sizes.samples], sizes.labels),
    )


def _header(path: Path, line: bytes) -> _Sizes:
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() and len(word) <= LONGEST_INTEGER for word in words):
        text = line[:60].strip().decode("ascii", "backslashreplace")
        raise ValueError(f"{path} must begin with its numbers of samples, features and labels. Got {text!r}.")
    sizes = _Sizes(*map(int, words))
    if sizes.samples < 1 or not (1 <= sizes.features <= LARGEST_INDEX and 1 <= sizes.labels <= LARGEST_INDEX):
        raise ValueError(
            f"{path}: samples must be at least 1, and features and labels in 1..{LARGEST_INDEX}. "
            f"Got {sizes.samples}, {sizes.features} and {sizes.labels}."
        )
    return sizes


def _parts(path: Path, file: BinaryIO, sizes: _Sizes) -> Iterator[_Part]:
    """What the lines after the first have, some lines at a time."""
    line = 2
    for content in _whole_lines(file):
        part = _parse(_Lines(path, content, line), sizes)
        yield part
        line += len(part.labels_per_line)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
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


def _parse(lines: _Lines, sizes: _Sizes) -> _Part:
    """Numbers of whole lines, by array operations over all their bytes."""
    content = np.frombuffer(lines.content, dtype=np.uint8)
    is_digit = (content - np.uint8(ord("0"))) <= 9
    is_mark = content == ord(".")
    has_signs = any(sign in lines.content for sign in SIGNS)
    if has_signs:
        for sign in SIGNS:
            is_mark |= content == sign
    is_end = is_digit == is_mark  # neither
    ends = np.flatnonzero(is_end)
    after = np.frombuffer(content.take(ends).tobytes().translate(_KIND_OF_BYTE), dtype=np.uint8)
    _check_characters(lines, ends, after)
    before = np.empty_like(after)
    before[0], before[1:] = NEWLINE, after[:-1]
    pairs = before * np.uint8(8) + after
    if is_end[0] or (is_end[1:] & is_end[:-1]).any():
        pairs += (np.diff(ends, prepend=-1) == 1) * np.uint8(EMPTY)
    roles = np.frombuffer(pairs.tobytes().translate(_ROLE_OF_PAIR), dtype=np.uint8)
    _check_order(lines, roles, before, ends)

    by_four = _numbers_by_four(content, is_digit)
    text = _Text(lines, content, is_end, ends, roles, is_mark, has_signs, by_four)
    labels, columns = np.flatnonzero(roles == LABEL), np.flatnonzero(roles == COLUMN)
    values = _values(text, columns)
    line_ends = np.flatnonzero(after == NEWLINE)
    return _Part(
        _indices(text, labels, sizes.labels, "labels"),
        np.diff(np.searchsorted(labels, line_ends, side="right"), prepend=0),
        _indices(text, columns, sizes.features, "features"),
        values,
        np.diff(np.searchsorted(columns, line_ends, side="right"), prepend=0),
    )


def _check_characters(lines: _Lines, places: Integers, kinds: Bytes) -> None:
    wrong = np.flatnonzero(kinds == OTHER)
    if wrong.size:
        character = chr(lines.content[places[wrong[0]]])
        lines.fail(int(places[wrong[0]]), f"there must be numbers, commas and colons alone, not {character!r}.")


def _check_order(lines: _Lines, roles: Bytes, before: Bytes, ends: Integers) -> None:
    """Numbers stand where the format has them: labels first with commas between, then ``feature:value`` pairs."""
    problem = "labels must come first, with single commas between, and features be index:value."
    wrong = np.flatnonzero(roles == WRONG)
    if wrong.size:
        lines.fail(int(ends[wrong[0]]), problem)
    is_loose = (roles == LABEL) & (before == SPACE)
    if is_loose.any():  # allowed where nothing but spaces is before it in its line
        numbers = np.flatnonzero(roles != NOTHING)
        line_of = np.cumsum(before == NEWLINE)[numbers]
        is_first = np.diff(line_of, prepend=0) > 0
        wrong = numbers[is_loose[numbers] & ~is_first]
        if wrong.size:
            lines.fail(int(ends[wrong[0]]), problem)


def _numbers_by_four(content: Bytes, is_digit: Flags) -> npt.NDArray[np.uint16]:
    """For every byte the number that its digit ends, cut to four digits, and 0 where there is none.

    Each step doubles the digits that are taken in. To four digits it takes two bytes, so that more is faster done for
    the numbers alone.
    """
    are_digits = is_digit.view(np.uint8)
    pairs = (content & np.uint8(15)) * are_digits
    carried = pairs[:-1] * np.uint8(10)
    carried *= are_digits[1:]
    pairs[1:] += carried
    carried = are_digits[1:-1] & are_digits[2:]
    carried *= pairs[:-2]
    numbers = np.empty(PADDING + len(content), dtype=np.uint16)
    numbers[: PADDING + 2] = 0
    np.multiply(carried, 100, out=numbers[PADDING + 2 :], dtype=np.uint16)
    numbers[PADDING:] += pairs
    return numbers


def _whole_numbers(text: _Text, ends: Integers, lengths: Integers) -> Unsigned:
    """The digits before each of the ends; right up to ``LONGEST_INTEGER`` of them, and up to what is no digit."""
    last = ends + (PADDING - 1)
    longest = min(int(lengths.max(initial=0)), LONGEST_INTEGER)
    dtype: type = np.uint32 if longest < 10 else np.uint64
    numbers: Unsigned = text.by_four.take(last).astype(dtype)
    for width in range(4, longest, 4):
        more: Unsigned = (text.by_four.take(last - width) * (lengths > width)).astype(dtype)
        more *= 10**width
        numbers += more
    return numbers


def _indices(text: _Text, places: Integers, size: int, name: str) -> Indices:
    ends = text.ends[places]
    lengths = ends - _starts(text, places)
    indices = _whole_numbers(text, ends, lengths)
    is_wrong = indices >= size
    if lengths.max(initial=0) > LONGEST_INTEGER:
        is_wrong |= lengths > LONGEST_INTEGER
    if is_wrong.any():
        problem = f"indices of {name} must be in 0..{size - 1}, as the first line says."
        text.lines.fail(int(ends[is_wrong.argmax()]), problem)
    return indices.astype(np.int32)


def _starts(text: _Text, places: Integers) -> Integers:
    """Where numbers begin: behind the delimiter before, and at the first byte."""
    starts = text.ends[places - 1] + 1
    if places.size and places[0] == 0:
        starts[0] = 0
    return starts


def _values(text: _Text, columns: Integers) -> npt.NDArray[np.float32]:
    """Decimal numbers by array operations, and the few in another notation one by one."""
    starts, ends = text.ends[columns] + 1, text.ends[columns + 1]
    if not text.is_mark.any() and (ends - starts).max(initial=0) <= LONGEST_INTEGER:
        return _whole_numbers(text, ends, ends - starts).astype(np.float32)
    points, num_marks = _points(text, columns, starts, ends)
    is_pointed = points < ends
    num_decimals = (ends - points - 1) * is_pointed
    # The digits in front of the point, where there are any, and those after it, as one whole number.
    unit = _POWERS_OF_TEN.take(num_decimals, mode="clip")
    values = _whole_numbers(text, points, points - starts) * unit
    values += _whole_numbers(text, ends, num_decimals) * is_pointed
    values /= unit

    num_expected = is_pointed.view(np.int8)
    if text.has_signs:
        is_minus = text.content[starts] == ord("-")
        values[is_minus] *= -1
        num_expected = num_expected + is_minus
    num_digits = ends - starts - num_marks
    is_odd = (num_marks > num_expected) | (num_digits < 1) | (num_digits > LONGEST_INTEGER)
    odd = np.flatnonzero(is_odd)
    limits = zip(starts[odd].tolist(), ends[odd].tolist(), strict=True)
    values[odd] = [_number(text.lines.content[start:end]) for start, end in limits]
    with np.errstate(over="ignore"):
        rounded: npt.NDArray[np.float32] = values.astype(np.float32)
    is_finite = np.isfinite(rounded)
    if not is_finite.all():
        text.lines.fail(int(ends[is_finite.argmin()]), "values must be finite numbers.")
    return rounded


def _points(text: _Text, columns: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers | int]:
    """Where the point of each value is, its end if it has none, and how many marks it has."""
    if not text.has_signs and np.count_nonzero(text.is_mark) == len(ends):
        guess = starts + 1  # after one digit, as in most numbers
        if (text.content.take(guess) == ord(".")).all():
            return guess, 1
    marks = np.flatnonzero(text.is_mark)
    if not text.has_signs and len(marks) == len(ends) and ((marks >= starts) & (marks < ends)).all():
        return marks, 1
    bounds = np.flatnonzero(text.is_mark | text.is_end)
    numbers = np.flatnonzero(text.is_mark[bounds]) - np.arange(len(marks))  # as many delimiters are before the mark
    wrong = marks[text.roles[numbers] != VALUE]
    if wrong.size:
        text.lines.fail(int(wrong[0]), "indices of labels and features must be whole numbers of at least 0.")
    rank = np.zeros(len(text.ends), dtype=np.int64)
    rank[columns + 1] = np.arange(len(columns))
    of = rank[numbers]
    is_point = text.content[marks] == ord(".")
    points = ends.copy()
    points[of[is_point]] = marks[is_point]
    return points, np.bincount(of, minlength=len(ends))


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _joined(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts], dtype=dtype)


def _csr(data: npt.NDArray[Any], columns: Indices, per_line: Integers, num_columns: int) -> Any:
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(per_line)])
    matrix = csr_array((data, columns, starts), shape=(len(per_line), num_columns))
    matrix.sum_duplicates()
    return matrix


# Parsed arrays, kept for the next time

_CACHE_VERSION = 1


def _cache_file(folder: Path, path: Path) -> Path:
    """Where the arrays of this file, in its present state, are kept."""
    status = path.stat()
    state = f"{_CACHE_VERSION} {path.resolve()} {status.st_size} {status.st_mtime_ns}"
    return folder / f"{path.name}-{hashlib.sha256(os.fsencode(state)).hexdigest()[:16]}.npz"


def _to_cache(path: Path, samples: SparseSamples) -> None:
    arrays = {
        f"{name}_{part}": getattr(matrix, part)
        for name, matrix in (("features", samples.features), ("labels", samples.labels))
        for part in ("data", "indices", "indptr")
    }
    sizes = np.array([*samples.features.shape, samples.labels.shape[1]])
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, sizes=sizes, **arrays)


def _from_cache(path: Path) -> SparseSamples | None:
    """The samples, or None where there are none or the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            num_samples, num_features, num_labels = (int(size) for size in arrays["sizes"])
            return SparseSamples(
                _checked_csr(arrays, "features", np.float32, (num_samples, num_features)),
                _checked_csr(arrays, "labels", np.bool_, (num_samples, num_labels)),
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _checked_csr(arrays: Any, name: str, dtype: type, shape: tuple[int, int]) -> Any:
    parts = tuple(arrays[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    matrix = csr_array(parts, shape=shape)
    matrix.check_format(full_check=True)
    if matrix.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}. Got {matrix.dtype}.")
    return matrix
