"""Tables that are read some rows at a time: CSV and Parquet files in any number of parts, and frames in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from longtail._core.memory import check_memory, memory_budget
from longtail._core.parquet_pages import check_pages
from longtail.correction import ATTRIBUTE
from longtail.lab.data.formats._csv_blocks import ColumnTypes, cut_blocks, parse_block, take_first_row
from longtail.lab.data.formats.sources import Part, Progress

__all__ = ["TableFile", "count_bytes", "expand_text", "open_frame", "open_table", "read_columns"]

BATCH = 2**25
"""Bytes of numbers to read at a time."""
MOST_ROWS, FEWEST_ROWS = 2**20, 64
LARGEST_BUFFER, SMALLEST_BUFFER = 2**20, 2**12
"""Bytes of each column of a Parquet file to have in memory at a time."""
HEADER_WINDOW = 2**12
"""Bytes of a Parquet file to read at a time in search of the headers of its pages."""
NOTHING: frozenset[str] = frozenset()


class TableFile(Protocol):
    """Named columns of equal length, some rows at a time."""

    @property
    def name(self) -> str:
        """What a message calls it."""

    @property
    def names(self) -> list[str]:
        """All columns."""

    @property
    def num_bytes(self) -> int:
        """What a progress counts up to."""

    @property
    def record(self) -> bytes | None:
        """What it says was done to its scores, as it stands in the file."""

    @property
    def has_text_header(self) -> bool:
        """Whether the names are a row of the file, for which a sample may be taken."""

    def schema(self, as_spelled: Set[str] = NOTHING, progress: Progress | None = None) -> pa.Schema:
        """The type of each column, for which a CSV is read; ``as_spelled``: columns in which 01 and 1 differ."""

    @property
    def num_rows(self) -> int:
        """How many rows there are, for which a CSV is read unless its schema is known."""

    def batches(
        self, columns: Sequence[str], kinds: Mapping[str, pa.DataType], progress: Progress | None = None
    ) -> Iterator[pa.Table]:
        """The rows in order; ``kinds``: how to read the columns of a CSV."""


def open_table(parts: Sequence[Part], budget: int, reads_bools: bool = False) -> TableFile:
    """The table that the parts make up. ``reads_bools``: true and false are no text in a CSV."""
    return _ParquetTable(parts, budget) if parts[0].suffix == ".parquet" else _CsvTable(parts, budget, reads_bools)


def open_frame(frame: Any) -> TableFile:
    """A frame of polars, pandas or pyarrow as a table."""
    return _FrameTable(frame)


class _CsvTable:
    """CSV files with the same first row, packed or not; see ``TableFile``."""

    has_text_header = True
    record = None

    def __init__(self, parts: Sequence[Part], budget: int, reads_bools: bool = False) -> None:
        self.parts, self.name = parts, _name_parts(parts)
        self.num_bytes = sum(part.size for part in parts)
        self.longest_row = budget // 8
        self.delimiter = "\t" if parts[0].suffix == ".tsv" else ","
        self.bools: dict[str, Any] = {} if reads_bools else {"true_values": [], "false_values": []}
        self.names = self._read_names(parts[0])
        for part in parts[1:]:
            _check_same_columns(part, self._read_names(part), parts[0], self.names)
        self._types: ColumnTypes | None = None

    def schema(self, as_spelled: Set[str] = NOTHING, progress: Progress | None = None) -> pa.Schema:
        if self._types is None or not as_spelled <= self._types.as_spelled:
            self._types = ColumnTypes(self.names, as_spelled)
            for block in self._blocks(self.parts, progress):
                self._types.add(self._parse(block), partial(self._parse_text, block))
        return self._types.schema()

    @property
    def num_rows(self) -> int:
        if self._types is None:
            self.schema()
        return self._types.num_rows if self._types is not None else 0

    def batches(
        self, columns: Sequence[str], kinds: Mapping[str, pa.DataType], progress: Progress | None = None
    ) -> Iterator[pa.Table]:
        types = {name: kinds[name] for name in columns}
        for block in self._blocks(self.parts, progress):
            yield self._parse(block, include_columns=[*columns], column_types=types)

    def _read_names(self, part: Part) -> list[str]:
        block = next(self._blocks([part]))
        names: list[str] = self._parse(block._replace(content=take_first_row(block.content))).column_names
        other = next((mark for mark in (";", "\t") if mark in names[0]), None) if len(names) == 1 else None
        if other is not None:
            raise ValueError(
                f"{part.name}: columns must be separated by {self.delimiter!r}. Got {other!r} in the first row; "
                "save it with commas, or with tabs as .tsv."
            )
        return names

    def _blocks(self, parts: Sequence[Part], progress: Progress | None = None) -> Iterator[_Block]:
        for part in parts:
            names = None
            with part.stream(progress) as read:
                for content in cut_blocks(read, self.longest_row, part.name):
                    yield _Block(part, content, names)
                    names = self.names
            if names is None:
                yield _Block(part, b"", None)

    def _parse(self, block: _Block, **options: Any) -> pa.Table:
        with _reading(block.part):
            return parse_block(block.content, block.names, self.delimiter, **options, **self.bools)

    def _parse_text(self, block: _Block, columns: Sequence[str]) -> pa.Table:
        return self._parse(block, include_columns=[*columns], column_types=dict.fromkeys(columns, pa.string()))


class _Block(NamedTuple):
    """Whole rows of a CSV."""

    part: Part
    content: bytes
    names: Sequence[str] | None
    """Of all columns; None where the first row has them."""


class _ParquetTable:
    """Parquet files with the same columns; see ``TableFile``. Text comes as dictionaries, each word there once."""

    has_text_header = False

    def __init__(self, parts: Sequence[Part], budget: int) -> None:
        self.parts, self.name, self.budget = parts, _name_parts(parts), budget
        self.num_bytes = sum(part.size for part in parts)
        self.num_rows = 0
        self.record: bytes | None = None
        for part in parts:
            with self._open(part) as file:
                self.num_rows += file.metadata.num_rows
                self.record = _find_record(file.schema_arrow) or self.record
                schema = file.schema_arrow.remove_metadata()
                if part is parts[0]:
                    self._schema, self.names = schema, schema.names
                _check_same_columns(part, _describe(schema), parts[0], _describe(self._schema))

    def schema(self, as_spelled: Set[str] = NOTHING, progress: Progress | None = None) -> pa.Schema:
        return self._schema

    def batches(
        self, columns: Sequence[str], kinds: Mapping[str, pa.DataType], progress: Progress | None = None
    ) -> Iterator[pa.Table]:
        widths = [_count_bytes_of_one(self._schema.field(name).type) for name in columns]
        check_memory(sum(widths), f"{self.name}: a row", self.budget)
        num_rows = _choose_num_rows(sum(widths), self.budget)
        for part in self.parts:
            with self._open(part, columns) as file:
                # Pages are read as they are needed: a group of rows need not fit into memory.
                for batch in file.iter_batches(num_rows, columns=[*columns], use_threads=len(columns) > 1):
                    yield pa.Table.from_batches([batch]).select([*columns])
                    if progress:
                        progress(part.size * batch.num_rows // max(1, file.metadata.num_rows))

    @contextmanager
    def _open(self, part: Part, columns: Sequence[str] = ()) -> Iterator[pyarrow.parquet.ParquetFile]:
        buffer_size = max(SMALLEST_BUFFER, min(LARGEST_BUFFER, self.budget // (8 * max(1, len(columns)))))
        text = [name for name in columns if _is_text(self._schema.field(name).type)]
        with _reading(part), part.open() as raw:
            file = pyarrow.parquet.ParquetFile(raw, read_dictionary=text, buffer_size=buffer_size, pre_buffer=False)
            self._check_pages(part, file, raw, {*columns})
            yield file

    def _check_pages(
        self, part: Part, file: pyarrow.parquet.ParquetFile, raw: pa.NativeFile, columns: Set[str]
    ) -> None:
        is_near = isinstance(part.filesystem, pa.fs.LocalFileSystem)
        window = HEADER_WINDOW if is_near else LARGEST_BUFFER

        def read_at(offset: int, size: int) -> bytes:
            content: bytes = raw.read_at(size, offset)
            return content

        check_pages(part.name, file.metadata, columns, part.size, read_at, self.budget, window)


class _FrameTable:
    """A frame in memory, of polars, pandas or pyarrow; see ``TableFile``."""

    has_text_header = False
    name = "the frame"

    def __init__(self, frame: Any) -> None:
        is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else pa.table(frame)
        self.table = _widen_text(table)
        self.names: list[str] = self.table.column_names
        self.num_rows: int = self.table.num_rows
        self.num_bytes: int = self.table.nbytes
        self.record = _find_record(self.table.schema)

    def schema(self, as_spelled: Set[str] = NOTHING, progress: Progress | None = None) -> pa.Schema:
        return self.table.schema

    def batches(
        self, columns: Sequence[str], kinds: Mapping[str, pa.DataType], progress: Progress | None = None
    ) -> Iterator[pa.Table]:
        num_rows = _choose_num_rows(8 * len(columns), memory_budget())
        chosen = self.table.select([*columns])
        for start in range(0, self.num_rows, num_rows):
            yield chosen.slice(start, num_rows)


def read_columns(table: TableFile, columns: Sequence[str], kinds: Mapping[str, pa.DataType], budget: int) -> pa.Table:
    """All rows of some columns, if they fit into the budget; text comes as such."""
    parts, num_bytes = [], 0
    for batch in table.batches(columns, kinds):
        num_bytes += count_bytes(batch)
        check_memory(num_bytes, table.name, budget)
        parts.append(expand_text(batch))
    return pa.concat_tables(parts) if parts else pa.schema([(n, kinds[n]) for n in columns]).empty_table()


def count_bytes(table: pa.Table) -> int:
    """What a table takes once its text is written out."""
    return sum(_count_column_bytes(column) for column in table.columns)


def _count_column_bytes(column: pa.ChunkedArray) -> int:
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return int(column.nbytes)
    total = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
        total += (pc.sum(lengths).as_py() or 0) + 4 * len(chunk)
    return total


def expand_text(table: pa.Table) -> pa.Table:
    """Dictionaries of text as the text itself."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _widen_text(table: pa.Table) -> pa.Table:
    """Views of text, as polars has it, as text, which more of pyarrow can work with."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_string_view(column.type):
            table = table.set_column(place, name, column.cast(pa.large_string()))
    return table


def _count_bytes_of_one(kind: pa.DataType) -> int:
    """What a value takes; a fixed number of bytes may be any number."""
    return max(8, kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 8


def _choose_num_rows(row_bytes: int, budget: int) -> int:
    """Rows to read at a time: at least some dozens, as every column takes its time, where these have room."""
    row_bytes = max(8, row_bytes)
    return max(1, min(MOST_ROWS, max(BATCH // row_bytes, min(FEWEST_ROWS, budget // (16 * row_bytes)))))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))


def _name_parts(parts: Sequence[Part]) -> str:
    return parts[0].name if len(parts) == 1 else f"{parts[0].name} and {len(parts) - 1} more"


def _find_record(schema: pa.Schema) -> bytes | None:
    found: bytes | None = (schema.metadata or {}).get(ATTRIBUTE.encode())
    return found


def _describe(schema: pa.Schema) -> list[str]:
    return [f"{field.name}: {field.type}" for field in schema]


def _check_same_columns(part: Part, columns: Sequence[str], first: Part, wanted: Sequence[str]) -> None:
    if columns != wanted:
        place = next((i for i, pair in enumerate(zip(columns, wanted, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            difference = f"Got {len(columns)} columns instead of {len(wanted)}"
        else:
            difference = f"Got {columns[place]!r} instead of {wanted[place]!r}"
        raise ValueError(f"{part.name}: every part must have the columns of {first.name}. {difference}.")


@contextmanager
def _reading(part: Part) -> Iterator[None]:
    """Errors of pyarrow as one line that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, which says enough
            raise
        reason = str(error).partition("\n")[0]
        remedy = "; save it as UTF-8" if "UTF8" in reason else ""
        raise ValueError(f"{part.name}: this is no readable {part.suffix} file: {reason}{remedy}") from error
