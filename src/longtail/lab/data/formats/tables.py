"""Files of scores and of one number per class: CSV, Parquet, .npy and .npz, none of them trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from longtail._core.memory import check_memory, memory_budget
from longtail.correction import ATTRIBUTE, Correction
from longtail.lab.data.formats.array_files import ArrayFile
from longtail.lab.data.formats.columns import check_names, choose_name, is_numeric, join_names
from longtail.lab.data.formats.labels import (
    ClassName,
    LabelColumn,
    Labels,
    encode,
    find_array_labels,
    find_column_labels,
)
from longtail.lab.data.formats.sources import Progress, Source, find_parts, is_table
from longtail.lab.data.formats.table_files import TableFile, count_bytes, expand_text, open_table, read_columns

__all__ = [
    "ClassNumbers",
    "ScoreFile",
    "Scores",
    "open_indicators",
    "open_scores",
    "read_class_numbers",
    "read_indicators",
    "read_scores",
    "score_columns",
]

# What is read from a file with several columns or arrays, if nothing else is said.
NUMBER_NAMES = ("count", "counts", "probability", "probabilities")
SCORE_NAMES = ("scores", "logits", "probabilities")

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]
Batch = tuple[FloatArray, pa.Table | None]


@dataclass(frozen=True)
class ClassNumbers:
    """One number per class, with the classes they belong to or in the order of the score columns."""

    values: npt.NDArray[Any]
    classes: tuple[ClassName, ...] | None


@dataclass(frozen=True)
class Scores:
    """What a model said about each sample: one finite number per class."""

    values: FloatArray
    """[N, C]."""
    columns: tuple[str, ...] | None = None
    """The classes' column names in the file; None where columns have no names."""
    class_names: tuple[str, ...] | None = None
    """The classes' names: ``columns`` without their common prefix."""
    others: pa.Table | None = None
    """Columns that are no scores, such as ids, to be kept beside the predictions."""
    labels: Labels | None = None
    """The true labels, where the file has them."""

    @property
    def num_classes(self) -> int:
        """C."""
        return int(self.values.shape[1])

    def name_of(self, index: int) -> str:
        """The name of a class, or its index."""
        return self.class_names[index] if self.class_names else str(index)

    def positions(self, classes: Sequence[ClassName], where: object) -> IntArray:
        """The score columns that ``classes`` mean.

        Strings are names. Whole numbers are names if all names are such or all of them are names, and else positions
        from 0. ``where`` is what an error names as the source of the classes.
        """
        index_of = self._index_by_label(classes, where)
        unknown = [label for label in classes if label not in index_of]
        if unknown:
            raise ValueError(
                f"{where}: classes must be among those of the scores ({join_names(index_of)}). Got {unknown[0]!r}."
            )
        return np.array([index_of[label] for label in classes], dtype=np.int64)

    def _index_by_label(self, classes: Sequence[ClassName], where: object) -> dict[ClassName, int]:
        if self.class_names is None:
            return {index: index for index in range(self.num_classes)}
        if any(isinstance(label, str) for label in classes):
            return {name: index for index, name in enumerate(self.class_names)}
        numbers = self._index_by_number(self.class_names)
        named = [label for label in classes if label in numbers]
        if len(numbers) == self.num_classes or (named and len(named) == len(classes)):
            return numbers
        if named:
            other = next(label for label in classes if label not in numbers)
            raise ValueError(
                f"{where}: classes must all be names of score columns, or all be positions. "
                f"Got {named[0]!r}, which is a name, and {other!r}, which is none."
            )
        return {index: index for index in range(self.num_classes)}

    @staticmethod
    def _index_by_number(names: Sequence[str]) -> dict[ClassName, int]:
        """Positions of names that are whole numbers; of names that are the same one, as 1 and 01, the plain one's."""
        whole = {index: name for index, name in enumerate(names) if name.removeprefix("-").isdecimal()}
        if len({int(name) for name in whole.values()}) < len(whole):
            whole = {index: name for index, name in whole.items() if str(int(name)) == name}
        return {int(name): index for index, name in whole.items()}


@dataclass(frozen=True)
class ScoreFile:
    """Scores that are read some rows at a time."""

    name: str
    """What a message calls it."""
    header: Scores
    """Its classes and other columns, without a row."""
    num_rows: int
    num_bytes: int
    """What a progress counts up to."""
    read_rows: Callable[[Progress | None], Iterator[Batch]]
    label_column: LabelColumn | None = None
    """The true labels, where the file has them."""
    correction: Correction | None = None
    """What was done to the scores, where the file says so."""

    def __post_init__(self) -> None:
        shape = (self.num_rows, self.header.num_classes)
        if shape[0] < 1 or shape[1] < 2:
            raise ValueError(f"{self.name}: scores must have at least 1 row and 2 classes. Got shape {shape}.")
        names = self.header.class_names
        if names is not None and len(set(names)) < len(names):
            raise ValueError(f"{self.name}: every class must have its own name. Got {join_names(names)}.")

    def batches(self, progress: Progress | None = None) -> Iterator[Scores]:
        """The rows in order, which must be finite."""
        start = 0
        for values, others in self.read_rows(progress):
            if not np.isfinite(values).all():
                row, column = np.argwhere(~np.isfinite(values))[0].tolist()
                raise ValueError(
                    f"{self.name}: scores must be finite. Got {values[row, column]} in row {start + row}, "
                    f"class {self.header.name_of(column)}."
                )
            yield Scores(values, self.header.columns, self.header.class_names, others)
            start += len(values)

    def read(self, budget: int) -> Scores:
        """All rows, if they fit into the budget."""
        kind = self.header.values.dtype
        check_memory(self.num_rows * self.header.num_classes * kind.itemsize, self.name, budget)
        values = np.empty((self.num_rows, self.header.num_classes), dtype=kind)
        others, start, num_bytes = [], 0, values.nbytes
        for batch in self.batches():
            values[start : start + len(batch.values)] = batch.values
            start += len(batch.values)
            if batch.others is not None:
                num_bytes += count_bytes(batch.others)
                check_memory(num_bytes, self.name, budget)
                others.append(expand_text(batch.others))
        labels = None if self.label_column is None else self.label_column.read(budget)
        beside = pa.concat_tables(others) if others else self.header.others
        return Scores(values, self.header.columns, self.header.class_names, beside, labels)


def read_class_numbers(source: Source, budget: int | None = None) -> ClassNumbers:
    """One number per class: counts or probabilities.

    A CSV or Parquet file has one column of numbers, and may have a column that names the classes: ``class``, else the
    only other column of text, else of whole numbers. So it reads what ``value_counts().to_csv()`` of pandas writes.
    """
    limit = memory_budget() if budget is None else budget
    parts = find_parts(source)
    if not is_table(parts):
        arrays = ArrayFile(parts[0], limit)
        name = choose_name(arrays.name, arrays.headers, None, None, NUMBER_NAMES)
        shape, _, dtype, _ = arrays.header(name)
        if len(shape) != 1 or dtype.kind not in "iuf":
            raise ValueError(f"{arrays.name}: expected one number per class. Got {dtype} of shape {shape}.")
        return ClassNumbers(arrays.read(name), None)
    table = open_table(parts, limit)
    schema = table.schema({"class"})
    numeric = [field.name for field in schema if field.name != "class" and is_numeric(field.type)]
    check_names(table, numeric, "count")
    name = choose_name(table.name, numeric, None, None, NUMBER_NAMES)
    names = _find_class_names(table.name, schema, name)
    if names is not None and names != "class":
        schema = table.schema({names})
    columns = read_columns(table, [name] if names is None else [name, names], _types_of(schema), limit)
    classes = None
    if names is not None:
        labels = encode(columns.column(names), f"{table.name}: column {names!r}")
        if labels.num_missing or len(labels.classes) < len(labels.codes):
            raise ValueError(f"{table.name}: column {names!r} must name each class once.")
        classes = tuple(labels.classes[code] for code in labels.codes)
    return ClassNumbers(columns.column(name).to_numpy(), classes)


def _find_class_names(where: str, schema: pa.Schema, number: str) -> str | None:
    """The column beside the numbers that names the classes; None where there is none."""
    others = {field.name: field.type for field in schema if field.name != number}
    if "class" in others:
        return "class"
    texts = [name for name, kind in others.items() if not is_numeric(kind)]
    found = texts or [name for name, kind in others.items() if pa.types.is_integer(kind)]
    if len(found) > 1:
        raise ValueError(
            f"{where}: which column names the classes is not clear; call it 'class'. Got: {join_names(found)}."
        )
    return found[0] if found else None


def open_scores(
    sources: Source | Sequence[Source],
    columns: str | None = None,
    id_columns: Sequence[str] = (),
    label: str | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
) -> ScoreFile:
    """A matrix of scores, one column per class, to be read some rows at a time.

    Args:
        sources: CSV or Parquet with one numeric column per class, in any number of files, folders of parts or URLs;
            or one .npy or .npz with a matrix. An .npz may hold the class names as ``classes``.
        columns: the prefix of the class columns; default: all numeric columns are classes. In an .npz, the
            matrix's name.
        id_columns: numeric columns that are no classes.
        label: the column of true labels, if the file has it.
        budget: bytes of memory for what is read; default: see ``memory_budget``.
        progress: told how many bytes were read to find out what the columns of a CSV hold.
    """
    limit = memory_budget() if budget is None else budget
    parts = find_parts(sources)
    if is_table(parts):
        return score_columns(open_table(parts, limit), columns, id_columns, label, progress=progress)
    return _score_array(ArrayFile(parts[0], limit), columns, label)


def open_indicators(
    sources: Source | Sequence[Source],
    columns: str | None = None,
    id_columns: Sequence[str] = (),
    budget: int | None = None,
) -> ScoreFile:
    """A matrix of 0 and 1, or of true and false: one column per class, as :func:`open_scores` has it.

    Args:
        sources: a file in any of the formats of scores.
        columns: the scores' prefix or array name, which labels may have or not.
        id_columns: the scores' numeric columns that are no classes, which labels may have or not.
        budget: bytes of memory for what is read; default: see ``memory_budget``.
    """
    limit = memory_budget() if budget is None else budget
    parts = find_parts(sources)
    if not is_table(parts):
        arrays = ArrayFile(parts[0], limit)
        return _score_array(arrays, columns if columns in arrays.headers else None, None, accepts_bools=True)
    table = open_table(parts, limit, reads_bools=True)
    prefix = columns if columns and any(name.startswith(columns) for name in table.names) else None
    ids = [name for name in id_columns if name in table.names]
    return score_columns(table, prefix, ids, label=None, accepts_bools=True)


def read_scores(
    sources: Source | Sequence[Source],
    columns: str | None = None,
    id_columns: Sequence[str] = (),
    label: str | None = None,
    budget: int | None = None,
) -> Scores:
    """All rows of :func:`open_scores`."""
    limit = memory_budget() if budget is None else budget
    return open_scores(sources, columns, id_columns, label, limit).read(limit)


def read_indicators(
    sources: Source | Sequence[Source],
    columns: str | None = None,
    id_columns: Sequence[str] = (),
    budget: int | None = None,
) -> Scores:
    """All rows of :func:`open_indicators`."""
    limit = memory_budget() if budget is None else budget
    return open_indicators(sources, columns, id_columns, limit).read(limit)


def score_columns(
    table: TableFile,
    prefix: str | None,
    id_columns: Sequence[str],
    label: str | None,
    accepts_bools: bool = False,
    progress: Progress | None = None,
) -> ScoreFile:
    """The scores in the columns of a table; see :func:`open_scores`."""
    missing = [name for name in id_columns if name not in table.names]
    if missing:
        raise ValueError(f"{table.name}: there is no column {missing[0]!r}. Got: {join_names(table.names)}.")
    reserved = {*id_columns, label}
    as_spelled = {name for name in table.names if name in reserved or not name.startswith(prefix or "")}
    schema = table.schema(as_spelled, progress)
    candidates = [
        field.name
        for field in schema
        if field.name not in reserved
        and (is_numeric(field.type) or (accepts_bools and pa.types.is_boolean(field.type)))
    ]
    check_names(table, candidates, "a class each", may_be_numbers=True)
    types = _types_of(schema)
    if prefix is None:
        _check_all_are_scores(table.name, types, candidates)
    columns = [name for name in candidates if name.startswith(prefix or "")]
    if not columns:
        wanted = "" if prefix is None else f" that start with {prefix!r}"
        raise ValueError(f"{table.name}: there are no numeric columns{wanted}. Got: {join_names(table.names)}.")
    chosen = set(columns)
    others = [name for name in table.names if name not in chosen]
    kind = np.result_type(np.float32, *{np.dtype(types[name].to_pandas_dtype()) for name in columns})

    def read_rows(progress: Progress | None) -> Iterator[Batch]:
        for batch in table.batches([*columns, *others], types, progress):
            beside = batch.select(range(len(columns), batch.num_columns)) if others else None
            yield _stack(batch.columns[: len(columns)], batch.num_rows, kind), beside

    header = Scores(
        values=np.empty((0, len(columns)), dtype=kind),
        columns=tuple(columns),
        class_names=tuple(name.removeprefix(prefix or "") for name in columns),
        others=expand_text(pa.schema([(name, types[name]) for name in others]).empty_table()) if others else None,
    )
    labels = find_column_labels(table, label) if label in others else None
    record = _read_record(table.record, table.name)
    return ScoreFile(table.name, header, table.num_rows, table.num_bytes, read_rows, labels, record)


def _score_array(arrays: ArrayFile, key: str | None, label: str | None, accepts_bools: bool = False) -> ScoreFile:
    matrices = [name for name, header in arrays.headers.items() if len(header.shape) == 2]
    if not matrices:
        shapes = join_names(header.shape for header in arrays.headers.values())
        raise ValueError(f"{arrays.name}: scores must be a matrix [samples, classes]. Got shapes {shapes}.")
    name = choose_name(arrays.name, matrices, key, "--columns", SCORE_NAMES)
    header = arrays.header(name)
    if header.dtype.kind not in ("iufb" if accepts_bools else "iuf"):
        raise ValueError(f"{arrays.name}: scores must be numbers. Got {header.dtype}.")
    names = None
    if "classes" in arrays.headers:
        if arrays.headers["classes"].shape != header.shape[1:]:
            shape = arrays.headers["classes"].shape
            raise ValueError(f"{arrays.name}: 'classes' must name {header.shape[1]} classes. Got shape {shape}.")
        names = tuple(str(name) for name in arrays.read("classes").tolist())
    kind = np.result_type(np.float32, header.dtype.newbyteorder("="))
    kind = np.dtype(np.float64) if kind.itemsize > 8 else kind

    def read_rows(progress: Progress | None) -> Iterator[Batch]:
        for batch in arrays.batches(name):
            yield batch.astype(kind), None
            if progress:
                progress(batch.nbytes)

    return ScoreFile(
        arrays.name,
        Scores(values=np.empty((0, header.shape[1]), dtype=kind), columns=names, class_names=names),
        header.shape[0],
        header.num_bytes,
        read_rows,
        find_array_labels(arrays, label) if label and label in arrays.headers else None,
        _read_record(str(arrays.read(ATTRIBUTE)), arrays.name) if ATTRIBUTE in arrays.headers else None,
    )


def _read_record(text: str | bytes | None, where: str) -> Correction | None:
    try:
        return None if text is None else Correction.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: the record {ATTRIBUTE} can't be read: {error}") from None


def _types_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(schema.names, schema.types, strict=True))


def _stack(columns: Sequence[pa.ChunkedArray], num_rows: int, kind: np.dtype[Any]) -> FloatArray:
    """[N, C] with each column in one piece of memory, as tables have and write them."""
    values = np.empty((num_rows, len(columns)), dtype=kind, order="F")
    for index, column in enumerate(columns):
        numbers = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
        values[:, index] = numbers.to_numpy()
    return values


def _check_all_are_scores(where: str, types: dict[str, pa.DataType], names: Sequence[str]) -> None:
    """A numeric id that is taken for a class would shift all classes: better ask."""
    whole = [name for name in names if not pa.types.is_floating(types[name])]
    if whole and len(whole) < len(names):
        remedy = f"say --id {whole[0]} if it is an id" if whole[0] else "write the table without its index"
        raise ValueError(
            f"{where}: column {whole[0]!r} has whole numbers, others have fractions, so it may be no score; "
            f"{remedy}, "
            "or name the class columns by their prefix with --columns."
        )
