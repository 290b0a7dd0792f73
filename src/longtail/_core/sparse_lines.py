"""The numbers of whole lines of sparse text, by array operations over all their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

__all__ = ["LONGEST_INTEGER", "Indices", "Integers", "Lines", "Part", "Sizes", "parse_lines"]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]
Flags = npt.NDArray[np.bool_]

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


class Sizes(NamedTuple):
    """What the first line says."""

    samples: int
    features: int
    labels: int


class Part(NamedTuple):
    """The content of some whole lines."""

    labels: Indices | Integers
    labels_per_line: Integers
    columns: Indices | Integers
    values: npt.NDArray[np.float32]
    columns_per_line: Integers


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines and where they are, for messages."""

    path: Path
    content: bytes
    first_line: int

    def fail(self, offset: int, problem: str) -> NoReturn:
        """Raise, with the line that has this offset."""
        line = self.first_line + self.content.count(b"\n", 0, offset)
        start = self.content.rfind(b"\n", 0, offset) + 1
        text = self.content[start : start + 60].split(b"\n")[0].decode("ascii", "backslashreplace")
        raise ValueError(f"{self.path}, line {line}: {problem} Got {text!r}.")


class _Text(NamedTuple):
    """Lines, and where their numbers are."""

    lines: Lines
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


def _byte_table(kinds: dict[int, bytes]) -> bytes:
    """A table for ``bytes.translate``, which is faster than indexing an array."""
    table = bytearray([OTHER] * 256)
    for kind, characters in kinds.items():
        for character in characters:
            table[character] = kind
    return bytes(table)


_KIND_OF_BYTE = _byte_table({COMMA: b",", COLON: b":", SPACE: b" \t\r", NEWLINE: b"\n"})


def _make_roles() -> bytes:
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


_ROLE_OF_PAIR = _make_roles()


def parse_lines(lines: Lines, sizes: Sizes) -> Part:
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
    values = _parse_values(text, columns)
    line_ends = np.flatnonzero(after == NEWLINE)
    return Part(
        _parse_indices(text, labels, sizes.labels, "labels"),
        np.diff(np.searchsorted(labels, line_ends, side="right"), prepend=0),
        _parse_indices(text, columns, sizes.features, "features"),
        values,
        np.diff(np.searchsorted(columns, line_ends, side="right"), prepend=0),
    )


def _check_characters(lines: Lines, places: Integers, kinds: Bytes) -> None:
    wrong = np.flatnonzero(kinds == OTHER)
    if wrong.size:
        character = chr(lines.content[places[wrong[0]]])
        lines.fail(int(places[wrong[0]]), f"there must be numbers, commas and colons alone, not {character!r}.")


def _check_order(lines: Lines, roles: Bytes, before: Bytes, ends: Integers) -> None:
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


def _parse_indices(text: _Text, places: Integers, size: int, name: str) -> Indices:
    ends = text.ends[places]
    lengths = ends - _find_starts(text, places)
    indices = _whole_numbers(text, ends, lengths)
    is_wrong = indices >= size
    if lengths.max(initial=0) > LONGEST_INTEGER:
        is_wrong |= lengths > LONGEST_INTEGER
    if is_wrong.any():
        problem = f"indices of {name} must be in 0..{size - 1}, as the first line says."
        text.lines.fail(int(ends[is_wrong.argmax()]), problem)
    return indices.astype(np.int32)


def _find_starts(text: _Text, places: Integers) -> Integers:
    """Where numbers begin: behind the delimiter before, and at the first byte."""
    starts = text.ends[places - 1] + 1
    if places.size and places[0] == 0:
        starts[0] = 0
    return starts


def _parse_values(text: _Text, columns: Integers) -> npt.NDArray[np.float32]:
    """Decimal numbers by array operations, and the few in another notation one by one."""
    starts, ends = text.ends[columns] + 1, text.ends[columns + 1]
    if not text.is_mark.any() and (ends - starts).max(initial=0) <= LONGEST_INTEGER:
        return _whole_numbers(text, ends, ends - starts).astype(np.float32)
    points, num_marks = _find_points(text, columns, starts, ends)
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
    values[odd] = [_parse_number(text.lines.content[start:end]) for start, end in limits]
    with np.errstate(over="ignore"):
        rounded: npt.NDArray[np.float32] = values.astype(np.float32)
    is_finite = np.isfinite(rounded)
    if not is_finite.all():
        text.lines.fail(int(ends[is_finite.argmin()]), "values must be finite numbers.")
    return rounded


def _find_points(text: _Text, columns: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers | int]:
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


def _parse_number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
