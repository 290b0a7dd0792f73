"""Columns and arrays of labels, some rows at a time: which classes there are, how often, and which each row has."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from longtail._core.labels import NO_LABEL, column_sums
from longtail._core.memory import BYTES_PER_CLASS, check_memory, memory_budget
from longtail.lab.data.formats._csv_blocks import is_lossy_text, parse_block
from longtail.lab.data.formats.array_files import ArrayFile
from longtail.lab.data.formats.columns import check_names, choose_name
from longtail.lab.data.formats.sources import Progress, Source, find_parts, is_table
from longtail.lab.data.formats.table_files import TableFile, open_table

__all__ = [
    "count_indicator",
    "LABEL_NAMES",
    "ClassName",
    "LabelColumn",
    "LabelCounts",
    "Labels",
    "count_labels",
    "encode",
    "find_array_labels",
    "find_column_labels",
    "find_labels",
    "read_labels",
]

LABEL_NAMES = ("label", "labels", "target", "targets", "class", "y")
"""What is read from a file with several columns or arrays, if nothing else is said."""
ClassName = int | str
Codes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LabelCounts:
    """Which distinct labels there are, and how often."""

    classes: tuple[ClassName, ...]
    """Sorted: all whole numbers or all strings."""
    counts: npt.NDArray[np.int64]
    """[C]."""
    num_missing: int
    """Rows without a label."""
    num_samples: int | None = None
    """Of multi-label data, how many samples there are; None: one label per sample."""


@dataclass(frozen=True)
class Labels:
    """A column of labels: which distinct ones there are, and which of them each row has."""

    classes: tuple[ClassName, ...]
    """The distinct labels, sorted: all whole numbers or all strings."""
    codes: Codes
    """[N] indices into ``classes``; -100 where the label is missing."""

    @property
    def num_missing(self) -> int:
        """Rows without a label."""
        return int((self.codes < 0).sum())


@dataclass(frozen=True)
class LabelColumn:
    """A column or array of labels that has not been read."""

    where: str
    """What a message calls it."""
    batches: Callable[[Progress | None], Iterator[pa.ChunkedArray]]
    num_bytes: int
    """What a progress counts up to."""
    is_text: bool = False
    """Whether it is text that may spell numbers, as in a CSV."""
    guessed_name: str | None = None
    """The first row of a CSV, if nobody said that it names the column."""

    def count(self, budget: int, progress: Progress | None = None) -> LabelCounts:
        """Which labels there are and how often, in memory that grows with the classes and not with the rows."""
        found = _Vocabulary(self.where, budget)
        for batch in self.batches(progress):
            found.add(batch)
        classes, rank = found.sort(self.is_text)
        self._check_first_row(classes)
        counts = np.zeros(len(classes) + 1, dtype=np.int64)
        np.add.at(counts, rank, found.counts)
        return LabelCounts(classes, counts[:-1], int(counts[-1]))

    def read(self, budget: int, progress: Progress | None = None) -> Labels:
        """The label of every row, in four bytes each."""
        found = _Vocabulary(self.where, budget)
        parts, num_bytes = [np.zeros(0, dtype=np.int32)], 0
        for batch in self.batches(progress):
            parts.append(found.add(batch))
            num_bytes += 2 * parts[-1].nbytes
            check_memory(num_bytes, self.where, budget)
        classes, rank = found.sort(self.is_text)
        self._check_first_row(classes)
        codes = np.concatenate(parts)
        rank[rank == len(classes)] = NO_LABEL
        return Labels(classes, rank[codes])

    def _check_first_row(self, classes: tuple[ClassName, ...]) -> None:
        if self.guessed_name is not None and self.guessed_name in classes:
            raise ValueError(
                f"{self.where}: the first row must name the column. Got {self.guessed_name!r}, which is a label too; "
                f"add a first row 'label', or say --label {self.guessed_name} if it is the name."
            )


def find_labels(sources: Source | Sequence[Source], column: str | None, budget: int) -> LabelColumn:
    """The column or array of labels in files, folders of parts or URLs: the wanted one, or the one that is clear."""
    parts = find_parts(sources)
    if not is_table(parts):
        arrays = ArrayFile(parts[0], budget)
        return find_array_labels(arrays, choose_name(arrays.name, arrays.headers, column, "--label", LABEL_NAMES))
    table = open_table(parts, budget)
    check_names(table, [] if column else table.names, "label")
    name = choose_name(table.name, table.names, column, "--label", LABEL_NAMES)
    found = find_column_labels(table, name)
    is_guess = column is None and name not in LABEL_NAMES and table.has_text_header
    return replace(found, guessed_name=name) if is_guess else found


def count_indicator(source: Source, column: str | None, budget: int) -> LabelCounts | None:
    """The labels of a matrix [N, C] of 0 and 1 in an .npy or .npz; None where there is no matrix."""
    parts = find_parts(source)
    if is_table(parts):
        return None
    arrays = ArrayFile(parts[0], budget)
    name = choose_name(arrays.name, arrays.headers, column, "--label", LABEL_NAMES)
    if len(arrays.header(name).shape) != 2:
        return None
    counts, num_samples = column_sums(arrays.read(name))
    return LabelCounts(tuple(range(len(counts))), counts, num_missing=0, num_samples=num_samples)


def find_column_labels(table: TableFile, name: str) -> LabelColumn:
    """The labels in a column of a table. A CSV's are read as text, so that 01 and 1 differ."""
    where = f"{table.name}: column {name!r}"
    if not table.has_text_header and pa.types.is_nested(table.schema().field(name).type):
        raise ValueError(f"{where} must have one label per row. Got {table.schema().field(name).type}.")

    def read_batches(progress: Progress | None) -> Iterator[pa.ChunkedArray]:
        return (batch.column(0) for batch in table.batches([name], {name: pa.string()}, progress))

    return LabelColumn(where, read_batches, table.num_bytes, table.has_text_header)


def find_array_labels(arrays: ArrayFile, name: str) -> LabelColumn:
    """The labels in a vector."""
    header = arrays.header(name)
    if len(header.shape) != 1:
        raise ValueError(f"{arrays.name}: labels must be a vector. Got shape {header.shape}.")
    if header.dtype.kind not in "iufbU":
        raise TypeError(f"{arrays.name}: labels must be whole numbers or strings. Got {header.dtype}.")

    def read_batches(progress: Progress | None) -> Iterator[pa.ChunkedArray]:
        for batch in arrays.batches(name):
            yield pa.chunked_array([pa.array(batch, from_pandas=True)])
            if progress:
                progress(batch.nbytes)

    return LabelColumn(arrays.name, read_batches, header.num_bytes)


def count_labels(sources: Source | Sequence[Source], column: str | None = None) -> LabelCounts:
    """Count labels of any kind: whole numbers or strings, some perhaps missing.

    Args:
        sources: files, folders of parts or URLs: CSV (``.csv.gz`` if packed), Parquet, or an .npy or .npz of a
            vector. In a CSV, labels are numbers if all are whole and written plainly; 01 and 1 are text, and differ.
        column: the column (CSV, Parquet) or array (.npz); default: the only one, or the one with a usual name.
    """
    budget = memory_budget()
    return find_labels(sources, column, budget).count(budget)


def read_labels(sources: Source | Sequence[Source], column: str | None = None) -> Labels:
    """Like :func:`count_labels`, but with the label of every row."""
    budget = memory_budget()
    return find_labels(sources, column, budget).read(budget)


class _Vocabulary:
    """The distinct labels of what was seen so far, in the order of their first row."""

    def __init__(self, where: str, budget: int) -> None:
        self.where, self.budget = where, budget
        self.values: pa.Array | None = None
        self.counts = np.zeros(1, dtype=np.int64)
        """Of each value, and last of what has no label."""

    def add(self, column: pa.ChunkedArray) -> Codes:
        """[N] the place of each label among the values; that after the last, -1, where it is missing."""
        return np.concatenate([np.zeros(0, dtype=np.int32), *(self._add_chunk(chunk) for chunk in column.chunks)])

    def _add_chunk(self, chunk: pa.Array) -> Codes:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words = _convert(encoded.dictionary, self.where)
        place_of: Codes = np.append(self._find(words), np.int32(-1))  # of words, and of no word
        indices = encoded.indices.fill_null(len(words)) if encoded.indices.null_count else encoded.indices
        local = indices.to_numpy(zero_copy_only=False)
        np.add.at(self.counts, place_of, np.bincount(local, minlength=len(place_of)))
        codes: Codes = place_of[local]
        return codes

    def _find(self, words: pa.Array) -> Codes:
        """Where these words are among the values, to which new ones are added; -1 for missing ones."""
        if self.values is None:
            self.values = words.slice(0, 0)
        places = pc.index_in(words, value_set=self.values)
        new = words.filter(pc.and_(pc.is_null(places), pc.is_valid(words))).unique()
        if len(new):
            num_classes = len(self.values) + len(new)
            num_bytes = num_classes * BYTES_PER_CLASS + self.values.nbytes + new.nbytes
            check_memory(num_bytes, f"{self.where}: {num_classes:,} different labels", self.budget)
            self.values = pa.concat_arrays([self.values, new])
            self.counts = np.insert(self.counts, -1, np.zeros(len(new), dtype=np.int64))
            places = pc.index_in(words, value_set=self.values)
        found: Codes = places.fill_null(-1).to_numpy(zero_copy_only=False)
        return found

    def sort(self, is_text: bool) -> tuple[tuple[ClassName, ...], npt.NDArray[np.int32]]:
        """The classes, and which of them each value is: one more than the last where it is none, as at the end."""
        values = pa.array([], pa.int64()) if self.values is None else self.values
        names = (_spell_out(values, self.where) if is_text else values).to_pylist()
        classes = tuple(sorted({name for name in names if name is not None}))
        index_of = {name: index for index, name in enumerate(classes)}
        rank = [len(classes) if name is None else index_of[name] for name in names]
        return classes, np.array([*rank, len(classes)], dtype=np.int32)


def encode(column: pa.ChunkedArray, where: str) -> Labels:
    """The labels of a column in memory."""
    return LabelColumn(where, lambda _: iter([column]), column.nbytes).read(memory_budget())


def _spell_out(text: pa.Array, where: str) -> pa.Array:
    """Distinct text of a CSV as whole numbers, if all are and are written as programs write them."""
    if not len(text):
        return text
    file = io.BytesIO()
    pyarrow.csv.write_csv(pa.table({"label": text}), file)
    numbers = parse_block(file.getvalue(), None, ",", true_values=[], false_values=[]).column(0)
    is_number = pa.types.is_integer(numbers.type) or pa.types.is_floating(numbers.type)
    if pa.types.is_string(numbers.type) or (is_number and is_lossy_text(numbers, pa.chunked_array([text]))):
        return text
    return _convert(numbers.combine_chunks(), where)


def _convert(values: pa.Array, where: str) -> pa.Array:
    """Labels as int64 or strings, missing ones as nulls."""
    kind = values.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.int64())
    if pa.types.is_floating(kind):  # how whole numbers with gaps are often stored
        wide = values.cast(pa.float64())
        wide = pc.if_else(pc.is_nan(wide), None, wide)
        fractions = wide.filter(pc.not_equal(wide, pc.floor(wide)))
        infinite = wide.filter(pc.is_inf(wide))
        for wrong in (fractions.drop_null(), infinite.drop_null()):
            if len(wrong):
                raise ValueError(f"{where}: labels must be whole numbers or strings. Got {wrong[0]}.")
        return wide.cast(pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.if_else(pc.equal(values, ""), None, values).cast(pa.large_string())
    raise TypeError(f"{where}: labels must be whole numbers or strings. Got {kind}.")
