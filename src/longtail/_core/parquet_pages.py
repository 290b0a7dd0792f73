"""How much memory the pages of a Parquet file take, by the header of every page: the file's footer may be wrong.

A reader makes room for what a page's header says that it unpacks to, up to 2 GB, and for the values of a list, which
may be written as one run of a few bytes. So a small file can take all memory, whatever its footer says. The headers
are all that unpacking goes by: what they say is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

from longtail._core.memory import check_memory

__all__ = ["Pages", "ReadAt", "check_pages", "measure_chunk"]

ReadAt = Callable[[int, int], bytes]
"""``read_at(offset, size)`` gives the bytes of the file there, fewer at its end."""

LARGEST_HEADER = 2**24
"""Bytes; a reader gives up here too."""
DEEPEST_HEADER = 8
"""Structures within structures."""
LONGEST_NUMBER = 10
"""Bytes."""
VALUE_BYTES = 8 + 4
"""A number, and where its list begins and ends."""
# Types of pages, and the fields of a header that count.
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 0, 2, 3
PAGE_TYPE, UNPACKED_SIZE, PACKED_SIZE, NUM_VALUES = 1, 2, 3, 1
HEADER_OF = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_2: 8}
"""The field that says how many values a page of this type has."""
# Types of fields.
TRUE, FALSE, BYTE, SHORT, INTEGER, LONG, DOUBLE, BINARY, STRUCTURE = 1, 2, 3, 4, 5, 6, 7, 8, 12


class _Fields(NamedTuple):
    """A structure of a header: what counts of it, by field."""

    numbers: dict[int, int]
    parts: dict[int, _Fields]


class Pages(NamedTuple):
    """The pages of one column in one group of rows: bytes, packed and unpacked."""

    dictionary: int = 0
    """Of the largest page of distinct values."""
    data: int = 0
    """Of the largest other page."""
    total: int = 0
    num_values: int = 0


def check_pages(
    name: str, metadata: Any, columns: Set[str], size: int, read_at: ReadAt, budget: int, window: int = 2**12
) -> None:
    """Raise where reading some columns of a Parquet file, a batch of rows at a time, could take more than the budget.

    One page of every column is in memory at a time, beside its distinct values. Where one row may have many values,
    or long ones, all values of a group of rows must have room.

    Args:
        name: what a message calls the file.
        metadata: ``ParquetFile.metadata``.
        columns: names of the columns at the top of the schema.
        size: bytes of the file.
        read_at: reads the file.
        budget: bytes.
        window: bytes to read at a time in search of headers: many where a read is slow.
    """
    if not columns:
        return
    schema = metadata.schema
    leaves = [(index, schema.column(index)) for index in range(metadata.num_columns)]
    wanted = [(index, leaf) for index, leaf in leaves if _is_part_of(leaf.path, columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        together = 0
        for index, leaf in wanted:
            pages = measure_chunk(name, group.column(index), size, read_at, window)
            together += pages.dictionary + pages.data
            needed = _count_group_bytes(leaf, columns, pages)
            check_memory(needed, f"{name}: column {leaf.path!r} of a row group", budget)
        check_memory(together, f"{name}: a page of each column", budget)


def _is_part_of(path: str, columns: Set[str]) -> bool:
    """Whether a path, such as ``tags.list.element``, begins with a column; its own name may have dots too."""
    parts = path.split(".")
    return any(".".join(parts[:end]) in columns for end in range(1, len(parts) + 1))


def _count_group_bytes(leaf: Any, columns: Set[str], pages: Pages) -> int:
    """What a group of rows may take where batches of rows do not bound it."""
    is_text = leaf.physical_type == "BYTE_ARRAY"
    if leaf.path in columns and not leaf.max_repetition_level:
        return pages.total if is_text else 0
    # A word that comes often is there as often; which one it is nobody knows yet.
    longest = pages.dictionary if is_text else leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
    return pages.total + pages.num_values * (VALUE_BYTES + longest)


def measure_chunk(name: str, chunk: Any, size: int, read_at: ReadAt, window: int) -> Pages:
    """Walk from header to header, as a reader does."""
    start, length = chunk.data_page_offset, chunk.total_compressed_size
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    if start < 0 or length < 0 or start + length > size:
        raise ValueError(
            f"{name}: this is no readable .parquet file: a column must be within its {size:,} bytes. "
            f"Got {length:,} bytes from {start:,} on."
        )
    reader = _Headers(name, read_at, start, start + length, window)
    pages = Pages()
    while reader.place < reader.end and pages.num_values < chunk.num_values:
        header = reader.read()
        packed, unpacked = (_whole_number(name, header, field) for field in (PACKED_SIZE, UNPACKED_SIZE))
        reader.place += packed
        num_bytes, num_values = packed + unpacked, _count_values(name, header)
        if header.numbers.get(PAGE_TYPE) != DICTIONARY_PAGE:
            pages = pages._replace(data=max(pages.data, num_bytes), num_values=pages.num_values + num_values)
        elif num_values <= unpacked:
            pages = pages._replace(dictionary=max(pages.dictionary, num_bytes))
        else:
            raise ValueError(
                f"{name}: this is no readable .parquet file: {num_values:,} values in {unpacked:,} bytes."
            )
        pages = pages._replace(total=pages.total + unpacked)
    return pages


def _count_values(name: str, header: _Fields) -> int:
    part = header.parts.get(HEADER_OF.get(header.numbers.get(PAGE_TYPE, -1), -1))
    return 0 if part is None else _whole_number(name, part, NUM_VALUES)


def _whole_number(name: str, header: _Fields, field: int) -> int:
    value = header.numbers.get(field, -1)
    if value < 0:
        raise ValueError(f"{name}: this is no readable .parquet file: a page lacks a size, or has a negative one.")
    return value


class _Headers:
    """Headers of pages in a part of a file; see the compact protocol of Apache Thrift, in which they are written."""

    def __init__(self, name: str, read_at: ReadAt, place: int, end: int, window: int) -> None:
        self.name, self.read_at, self.place, self.end, self.window = name, read_at, place, end, window
        self.content, self.offset = b"", place

    def read(self) -> _Fields:
        """The header at ``place``, which moves behind it."""
        if not self.offset <= self.place < self.offset + len(self.content):
            self._load(self.window)
        while True:
            try:
                fields, position = _parse_fields(self.content, self.place - self.offset)
            except IndexError:  # it goes on behind what is loaded
                self._load_more()
            except ValueError as error:
                raise ValueError(f"{self.name}: this is no readable .parquet file: {error}") from None
            else:
                self.place = self.offset + position
                return fields

    def _load_more(self) -> None:
        loaded = self.offset + len(self.content) - self.place
        self._load(max(self.window, 8 * loaded))
        if len(self.content) <= loaded:
            raise ValueError(f"{self.name}: this is no readable .parquet file: a page header has no end.")

    def _load(self, size: int) -> None:
        self.offset = self.place
        self.content = self.read_at(self.place, min(size, LARGEST_HEADER, self.end - self.place))


def _parse_fields(content: bytes, position: int, depth: int = 0) -> tuple[_Fields, int]:
    """A structure, and where it ends. IndexError: it is cut."""
    if depth > DEEPEST_HEADER:
        raise ValueError("a page header is nested too deeply.")
    fields = _Fields({}, {})
    field = 0
    while content[position]:
        delta, kind = content[position] >> 4, content[position] & 15
        position += 1
        if delta:
            field += delta
        else:
            field, position = _parse_number(content, position)
        if not 0 <= field < 2**15:  # a reader would take it modulo 2^16
            raise ValueError(f"a page header has a field {field}.")
        if kind in (TRUE, FALSE):  # all that they are is their type
            continue
        if kind == BYTE:
            position += 1
        elif kind == INTEGER:
            fields.numbers[field], position = _parse_number(content, position)
        elif kind in (SHORT, LONG):  # a reader takes none of these for a size
            _, position = _parse_number(content, position)
        elif kind == DOUBLE:
            position += 8
        elif kind == BINARY:
            length, position = _parse_number(content, position, is_signed=False)
            position += length
        elif kind == STRUCTURE:
            fields.parts[field], position = _parse_fields(content, position, depth + 1)
        else:
            raise ValueError(f"a page header has a field of unknown type {kind}.")
    return fields, position + 1


def _parse_number(content: bytes, position: int, is_signed: bool = True) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; of a signed number the lowest bit says whether it is negative."""
    number = 0
    for shift in range(0, 7 * LONGEST_NUMBER, 7):
        byte = content[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return ((number >> 1) ^ -(number & 1)) if is_signed else number, position
    raise ValueError("a page header has a number that does not end.")
