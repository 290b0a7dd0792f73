"""CSV files some megabytes at a time: blocks of whole rows, and the types of columns over all blocks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

__all__ = ["ColumnTypes", "cut_blocks", "find_open_quote", "is_lossy_text", "parse_block", "take_first_row"]

BLOCK = 2**23
"""Bytes to parse at a time, where rows are not longer."""
ROWS_AT_ONCE = 64
"""Rows of very many columns are read at least so many at a time, as every column takes its time."""
LARGEST_BLOCK = 2**31 - 1
"""The most that pyarrow takes."""
LARGEST_EXACT = 2.0**53
"""Up to this, float64 holds every whole number."""
CANONICAL_INTEGERS = r"^(0|-?[1-9][0-9]*|nan|NaN)$"
CANONICAL_FLOATS = r"^((0|-?[1-9][0-9]*)\.0|nan|NaN)$"
"""How programs write whole numbers in a column with gaps."""

# A quoted field from its first quote on; the group is empty where the closing quote is missing.
QUOTED_FIELD = re.compile(rb'(?:\A(?:\xef\xbb\xbf)?|(?<=[,\t\n\r]))"[^"]*+(?:""[^"]*+)*+("?)')


def cut_blocks(read: Callable[[int], bytes], longest_row: int, where: str) -> Iterator[bytes]:
    """Whole rows, about ``BLOCK`` bytes at a time; line ends within quotes end no row.

    Args:
        read: gives the next so many bytes.
        longest_row: bytes; a longer row is an error, as it would have to be in memory at once.
        where: the file, for messages.
    """
    content, size = b"", BLOCK
    least = BLOCK
    while more := read(size):
        content += more
        end = _find_row_end(content)
        if end:
            yield content[:end]
            least = max(least, min(ROWS_AT_ONCE * (content.find(b"\n") + 1), longest_row // 4))
            content, size = content[end:], least
        else:  # a row longer than what was read: reading as much again keeps the time linear
            size = len(content)
        if len(content) > min(longest_row, LARGEST_BLOCK):
            if find_open_quote(content) is not None:
                raise ValueError(f'{where}: a quote (") is not closed, or a quoted field is too long.')
            raise ValueError(f"{where}: a row must have at most {longest_row:,} bytes. Got a longer one.")
    if find_open_quote(content) is not None:
        raise ValueError(f'{where}: a quote (") is not closed.')
    if content:
        yield content


def _find_row_end(content: bytes) -> int:
    """Where the last complete row ends; 0 where there is none."""
    end = _last_line_end(content, len(content))
    while end and b'"' in content:
        start = find_open_quote(content[:end])
        if start is None:
            break
        end = _last_line_end(content, start)
    return end


def _last_line_end(content: bytes, stop: int) -> int:
    """Where the last line before ``stop`` ends; by carriage returns alone only where there are no other line ends."""
    return content.rfind(b"\n", 0, stop) + 1 or content.rfind(b"\r", 0, max(0, stop - 1)) + 1


def take_first_row(content: bytes) -> bytes:
    """The row at the start of a block of whole rows."""
    end = content.find(b"\n") + 1
    while end and find_open_quote(content[:end]) is not None:
        end = content.find(b"\n", end) + 1
    return content[:end] if end else content


def find_open_quote(content: bytes) -> int | None:
    """Where a quoted field begins that does not end; nothing can follow it."""
    if b'"' not in content:
        return None
    last = deque(QUOTED_FIELD.finditer(content), maxlen=1)
    return last[0].start() if last and not last[0][1] else None


def parse_block(content: bytes, names: Sequence[str] | None, delimiter: str, **options: Any) -> pa.Table:
    """The columns of some rows. Only an empty field is missing: NA or null may be the name of a class.

    Args:
        content: whole rows, the first of which has the names where none are given.
        names: all columns.
        delimiter: between fields.
        options: of pyarrow's ``ConvertOptions``, such as which columns to read.
    """
    read = pyarrow.csv.ReadOptions(column_names=names, block_size=min(len(content) + 1, LARGEST_BLOCK))
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, **options)
    return pyarrow.csv.read_csv(pa.BufferReader(content), read, parse, convert)


@dataclass
class _Spelling:
    """How the numbers of a column are written, over all blocks."""

    are_whole: bool = True
    are_exact: bool = True
    """As float64."""
    are_integers: bool = True
    """As programs write them, and so are the next."""
    are_floats: bool = True

    def add(self, numbers: pa.ChunkedArray, text: pa.ChunkedArray) -> None:
        if pa.types.is_floating(numbers.type):
            is_whole = pc.or_(pc.equal(numbers, pc.floor(numbers)), pc.is_nan(numbers))
            self.are_whole &= pc.all(is_whole).as_py() is not False
        ends = [end for end in pc.min_max(numbers).as_py().values() if end is not None]
        self.are_exact &= not any(abs(end) > LARGEST_EXACT for end in ends)
        trimmed = pc.utf8_trim_whitespace(text.drop_null())
        self.are_integers &= pc.all(pc.match_substring_regex(trimmed, CANONICAL_INTEGERS)).as_py() is not False
        self.are_floats &= pc.all(pc.match_substring_regex(trimmed, CANONICAL_FLOATS)).as_py() is not False

    def is_lossy(self, kind: pa.DataType) -> bool:
        """Whether whole numbers are written otherwise than programs write them; fractions are what they are."""
        if pa.types.is_floating(kind):
            if not self.are_whole:
                return False
            if not self.are_exact:
                return True
        return not (self.are_integers or self.are_floats)


def is_lossy_text(numbers: pa.ChunkedArray, text: pa.ChunkedArray) -> bool:
    """Whether numbers, of which this is the text, say less than it, as 01 and 1 do."""
    spelling = _Spelling()
    spelling.add(numbers, text)
    return spelling.is_lossy(numbers.type)


class ColumnTypes:
    """What the columns of a CSV hold, over all its blocks.

    Args:
        names: all columns.
        as_spelled: those whose whole numbers keep their text where it says more than the numbers, as 01 and 1 do.
    """

    def __init__(self, names: Sequence[str], as_spelled: Set[str]) -> None:
        self.names, self.as_spelled = names, as_spelled
        self.kinds: list[pa.DataType] = [pa.null()] * len(names)
        self.num_rows = 0
        # Of columns that share a name none can be asked for.
        self.spellings = {name: _Spelling() for name in as_spelled if names.count(name) == 1}

    def add(self, table: pa.Table, read_text: Callable[[Sequence[str]], pa.Table]) -> None:
        """Take in a block, and for some columns its text."""
        self.num_rows += table.num_rows
        self.kinds = [_join_types(one, other) for one, other in zip(self.kinds, table.schema.types, strict=True)]
        numeric = {
            name: column.cast(kind)
            for name, column, kind in zip(self.names, table.columns, self.kinds, strict=True)
            if name in self.spellings and _is_number(kind)
        }
        if numeric:
            texts = read_text([*numeric])
            for name, numbers in numeric.items():
                self.spellings[name].add(numbers, texts.column(name))

    def schema(self) -> pa.Schema:
        """The type to read each column with."""
        types = [
            pa.string()
            if _is_number(kind) and name in self.spellings and self.spellings[name].is_lossy(kind)
            else kind
            for name, kind in zip(self.names, self.kinds, strict=True)
        ]
        return pa.schema([*zip(self.names, types, strict=True)])


def _join_types(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds both, as pyarrow finds it for a file that it reads at once."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    return pa.float64() if _is_number(one) and _is_number(other) else pa.string()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
