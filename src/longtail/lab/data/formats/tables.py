"""Files of scores, labels and class counts: CSV, Parquet, .npy and .npz, none of them trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from longtail._core.files import replacing
from longtail.lab.data.locate import DAMAGES

__all__ = [
    "SUFFIXES",
    "ClassNumbers",
    "Labels",
    "Scores",
    "check_suffix",
    "read_class_numbers",
    "read_indicators",
    "read_labels",
    "read_scores",
    "write_label_predictions",
    "write_predictions",
    "write_thresholds",
]

SUFFIXES = (".csv", ".parquet", ".npy", ".npz")

# What is read from a file with several columns or arrays, if nothing else is said.
LABEL_NAMES = ("label", "labels", "target", "targets", "class", "y")
NUMBER_NAMES = ("count", "counts", "probability", "probabilities")
SCORE_NAMES = ("scores", "logits", "probabilities")

ClassName = int | str
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Labels:
    """A column of labels: which distinct ones there are, and which of them each row has."""

    classes: tuple[ClassName, ...]
    """The distinct labels, sorted: all whole numbers or all strings."""
    codes: IntArray
    """[N] indices into ``classes``; -1 where the label is missing."""

    @property
    def num_missing(self) -> int:
        """Rows without a label."""
        return int((self.codes < 0).sum())


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
                f"{where}: classes must be among those of the scores ({_join_names(index_of)}). Got {unknown[0]!r}."
            )
        return np.array([index_of[label] for label in classes], dtype=np.int64)

    def _index_by_label(self, classes: Sequence[ClassName], where: object) -> dict[ClassName, int]:
        if self.class_names is None:
            return {index: index for index in range(self.num_classes)}
        if any(isinstance(label, str) for label in classes):
            return {name: index for index, name in enumerate(self.class_names)}
        numbers: dict[ClassName, int] = {
            int(name): index for index, name in enumerate(self.class_names) if _is_whole_number(name)
        }
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


def check_suffix(path: Path) -> None:
    """Raise unless the file name says in which format it is."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}. Got {path.suffix!r}.")


def read_labels(path: Path, column: str | None = None) -> Labels:
    """Labels of any kind: whole numbers or strings, some perhaps missing.

    Args:
        path: a CSV or Parquet file, or an .npy or .npz of a vector.
        column: the column (CSV, Parquet) or array (.npz); default: the only one, or the one with a usual name.
    """
    if _is_table(path):
        table = _read_table(path)
        name = _pick(path, table.column_names, column, "--label", LABEL_NAMES)
        return _encode(table.column(name), f"{path}: column {name!r}")
    arrays = _read_arrays(path)
    name = _pick(path, arrays, column, "--label", LABEL_NAMES)
    return _encode_array(arrays[name], path)


def read_class_numbers(path: Path) -> ClassNumbers:
    """One number per class: counts or probabilities.

    A CSV or Parquet file has one column of numbers, and may have a column ``class`` that names the classes.
    """
    if not _is_table(path):
        arrays = _read_arrays(path)
        values = arrays[_pick(path, arrays, None, None, NUMBER_NAMES)]
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            raise ValueError(f"{path}: expected one number per class. Got {values.dtype} of shape {values.shape}.")
        return ClassNumbers(np.array(values), None)
    table = _read_table(path)
    numeric = [name for name in _numeric_columns(table) if name != "class"]
    name = _pick(path, numeric, None, None, NUMBER_NAMES)
    classes = None
    if "class" in table.column_names:
        labels = _encode(table.column("class"), f"{path}: column 'class'")
        if labels.num_missing or len(labels.classes) < len(labels.codes):
            raise ValueError(f"{path}: column 'class' must name each class once.")
        classes = tuple(labels.classes[code] for code in labels.codes)
    return ClassNumbers(_as_numpy(table.column(name)), classes)


def read_scores(
    path: Path, columns: str | None = None, id_columns: Sequence[str] = (), label: str | None = None
) -> Scores:
    """A matrix of scores, one column per class.

    Args:
        path: CSV or Parquet with one numeric column per class; or .npy or .npz with a matrix. An .npz may hold the
            class names as ``classes``.
        columns: the prefix of the class columns; default: all numeric columns are classes. In an .npz, the
            matrix's name.
        id_columns: numeric columns that are no classes.
        label: the column of true labels, if the file has it.
    """
    scores = (
        _scores_of_table(path, _read_table(path), columns, id_columns, label)
        if _is_table(path)
        else _scores_of_arrays(path, _read_arrays(path), columns, label)
    )
    _check_scores(path, scores)
    return scores


def read_indicators(path: Path, columns: str | None = None, id_columns: Sequence[str] = ()) -> Scores:
    """A matrix of 0 and 1, or of true and false: one column per class, as ``read_scores`` has it.

    Args:
        path: a file in any of the formats of scores.
        columns: the scores' prefix or array name, which labels may have or not.
        id_columns: the scores' numeric columns that are no classes, which labels may have or not.
    """
    if _is_table(path):
        table = _numbers_for_bools(_read_table(path, reads_bools=True))
        prefix = columns if columns and any(name.startswith(columns) for name in table.column_names) else None
        ids = [name for name in id_columns if name in table.column_names]
        return _scores_of_table(path, table, prefix, ids, label=None)
    arrays = _read_arrays(path)
    arrays = {name: array.astype(np.uint8) if array.dtype == bool else array for name, array in arrays.items()}
    return _scores_of_arrays(path, arrays, columns if columns in arrays else None, None)


def write_predictions(path: Path, scores: Scores, predictions: IntArray, probabilities: FloatArray) -> None:
    """Write the predicted classes and the class probabilities in the format of the suffix, whole or not at all.

    CSV and Parquet: the other columns of the scores, ``prediction``, and one column per class. .npz: arrays
    ``predictions``, ``probabilities`` and ``classes``. .npy: the probabilities alone.
    """
    names = np.array(scores.class_names) if scores.class_names else None
    named = predictions if names is None else names[predictions]
    if path.suffix in (".csv", ".parquet"):
        _write_table(path, _beside_others(scores, ["prediction", *_columns_of(scores)], [named, *probabilities.T]))
    else:
        arrays = {"probabilities": probabilities, "predictions": named} | _class_array(scores)
        _write_arrays(path, arrays)


def write_label_predictions(
    path: Path, scores: Scores, predicted: npt.NDArray[np.bool_], thresholds: FloatArray
) -> None:
    """Write 0 or 1 for each sample and class in the format of the suffix, whole or not at all.

    CSV and Parquet: the other columns of the scores, and one column per class. .npz: arrays ``predictions``,
    ``thresholds`` and ``classes``. .npy: the predictions alone.
    """
    numbers = predicted.astype(np.uint8)
    if path.suffix in (".csv", ".parquet"):
        _write_table(path, _beside_others(scores, _columns_of(scores), [*numbers.T]))
    else:
        _write_arrays(path, {"predictions": numbers, "thresholds": thresholds} | _class_array(scores))


def write_thresholds(path: Path, scores: Scores, thresholds: FloatArray, f1: FloatArray) -> None:
    """Write each class's threshold and its F1 on the holdout. .npy: the thresholds alone."""
    columns: dict[str, npt.NDArray[Any]] = {"threshold": thresholds, "holdout_f1": f1}
    if path.suffix in (".csv", ".parquet"):
        names = np.array([scores.name_of(index) for index in range(scores.num_classes)])
        _write_table(path, pa.table({"class": names} | columns))
    else:
        _write_arrays(path, columns | _class_array(scores))


def _write_table(path: Path, table: pa.Table) -> None:
    writer = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
    with replacing(path) as file:
        writer(table, file)


def _write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """All arrays in an .npz, the first one in an .npy."""
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.save(file, next(iter(arrays.values())))
        else:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def _columns_of(scores: Scores) -> tuple[str, ...]:
    return scores.columns or tuple(str(index) for index in range(scores.num_classes))


def _class_array(scores: Scores) -> dict[str, npt.NDArray[Any]]:
    return {} if scores.class_names is None else {"classes": np.array(scores.class_names)}


def _beside_others(scores: Scores, names: Sequence[str], arrays: Sequence[npt.NDArray[Any]]) -> pa.Table:
    """A table of these columns beside those of the scores' file that are no scores."""
    table = pa.table({}) if scores.others is None else scores.others
    names = list(names)
    duplicates = [name for name in names if name in table.column_names or names.count(name) > 1]
    if duplicates:
        raise ValueError(f"the output would have two columns named {duplicates[0]!r}; rename one in the scores.")
    kept = [] if scores.others is None else table.columns
    return pa.table([*kept, *(pa.array(array) for array in arrays)], names=[*table.column_names, *names])


def _numbers_for_bools(table: pa.Table) -> pa.Table:
    bools = [index for index, field in enumerate(table.schema) if pa.types.is_boolean(field.type)]
    for index in bools:
        table = table.set_column(index, table.column_names[index], table.column(index).cast(pa.uint8()))
    return table


def _scores_of_table(
    path: Path, table: pa.Table, prefix: str | None, id_columns: Sequence[str], label: str | None
) -> Scores:
    missing = [name for name in id_columns if name not in table.column_names]
    if missing:
        raise ValueError(f"{path}: there is no column {missing[0]!r}. Got: {_join_names(table.column_names)}.")
    reserved = {*id_columns, label}
    candidates = [name for name in _numeric_columns(table) if name not in reserved]
    if prefix is None:
        _check_all_are_scores(path, table, candidates)
        columns = candidates
    else:
        columns = [name for name in candidates if name.startswith(prefix)]
    if not columns:
        wanted = "" if prefix is None else f" that start with {prefix!r}"
        raise ValueError(f"{path}: there are no numeric columns{wanted}. Got: {_join_names(table.column_names)}.")
    vectors = [_as_numpy(table.column(name)) for name in columns]
    others = table.drop_columns(columns)
    return Scores(
        values=np.column_stack(vectors).astype(np.result_type(np.float32, *vectors), copy=False),
        columns=tuple(columns),
        class_names=tuple(name.removeprefix(prefix or "") for name in columns),
        others=others if others.num_columns else None,
        labels=_encode(table.column(label), f"{path}: column {label!r}") if label in table.column_names else None,
    )


def _scores_of_arrays(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], key: str | None, label: str | None
) -> Scores:
    matrices = [name for name, array in arrays.items() if array.ndim == 2]
    if not matrices:
        shapes = _join_names(array.shape for array in arrays.values())
        raise ValueError(f"{path}: scores must be a matrix [samples, classes]. Got shapes {shapes}.")
    name = _pick(path, matrices, key, "--columns", SCORE_NAMES)
    values = np.array(arrays[name])  # a copy: the map of an .npy can't be written to, which torch warns of
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{path}: scores must be numbers. Got {values.dtype}.")
    classes = arrays.get("classes")
    if classes is not None and classes.shape != (values.shape[1],):
        raise ValueError(f"{path}: 'classes' must name {values.shape[1]} classes. Got shape {classes.shape}.")
    names = None if classes is None else tuple(str(name) for name in classes.tolist())
    return Scores(
        values=values.astype(np.result_type(np.float32, values), copy=False),
        columns=names,
        class_names=names,
        labels=_encode_array(arrays[label], path) if label and label in arrays else None,
    )


def _check_all_are_scores(path: Path, table: pa.Table, names: Sequence[str]) -> None:
    """A numeric id that is taken for a class would shift all classes: better ask."""
    whole = [name for name in names if not pa.types.is_floating(table.schema.field(name).type)]
    if whole and len(whole) < len(names):
        raise ValueError(
            f"{path}: column {whole[0]!r} has whole numbers, others have fractions, so it may be no score; "
            f"say --id {whole[0]} if it is an id, or name the class columns by their prefix with --columns."
        )


def _check_scores(path: Path, scores: Scores) -> None:
    values = scores.values
    if values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(f"{path}: scores must have at least 1 row and 2 classes. Got shape {values.shape}.")
    if scores.class_names is not None and len(set(scores.class_names)) < len(scores.class_names):
        raise ValueError(f"{path}: every class must have its own name. Got {_join_names(scores.class_names)}.")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0].tolist()
        raise ValueError(
            f"{path}: scores must be finite. Got {values[row, column]} in row {row}, class {scores.name_of(column)}."
        )


def _is_table(path: Path) -> bool:
    check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return path.suffix in (".csv", ".parquet")


def _read_table(path: Path, reads_bools: bool = False) -> pa.Table:
    try:
        if path.suffix == ".csv":
            # Only an empty field is missing: NA or null may be the name of a class, and so may true and false.
            bools: dict[str, list[str]] = {} if reads_bools else {"true_values": [], "false_values": []}
            convert = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, **bools)
            parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
            table = pyarrow.csv.read_csv(path, convert_options=convert, parse_options=parse)
        else:
            table = pyarrow.parquet.ParquetFile(path).read()
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: this is no readable {path.suffix} file: {reason}") from error
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: every column must have its own name. Got {_join_names(names)}.")
    return table


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz by name; that of an .npy, which has none, by the empty name."""
    try:
        if path.suffix == ".npy":
            # Mapping checks its size against the file before any memory is taken.
            return {"": _to_common_type(np.lib.format.open_memmap(path, mode="r"))}
        # np.load leaves a damaged file open, so it is not the one to open it.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: _to_common_type(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, MemoryError, *DAMAGES) as error:
        raise ValueError(f"{path}: this is no readable {path.suffix} file of plain arrays.") from error


def _to_common_type(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the byte order of this machine and at most 64 bits per number, which is all that others read."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _pick(path: Path, names: Iterable[str], wanted: str | None, option: str | None, usual: tuple[str, ...]) -> str:
    """The column or array to read: the wanted one, which ``option`` names, the only one, or the one usual name."""
    names = list(names)
    if names == [""]:  # an .npy
        return ""
    if wanted is not None:
        if wanted not in names:
            raise ValueError(f"{path}: there is no column or array {wanted!r}. Got: {_join_names(names)}.")
        return wanted
    known = names if len(names) == 1 else [name for name in names if name in usual]
    if len(known) != 1:
        found = _join_names(names) if names else "none that fits"
        remedy = f"name it with {option}" if option else f"call it {usual[0]!r}"
        raise ValueError(f"{path}: which column or array to read is not clear; {remedy}. Got: {found}.")
    return known[0]


def _numeric_columns(table: pa.Table) -> list[str]:
    return [
        field.name for field in table.schema if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
    ]


def _as_numpy(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A numeric column; a missing number is NaN."""
    array: npt.NDArray[Any] = column.to_numpy()
    return array


def _encode_array(array: npt.NDArray[Any], path: Path) -> Labels:
    if array.ndim != 1:
        raise ValueError(f"{path}: labels must be a vector. Got shape {array.shape}.")
    if array.dtype.kind not in "iufbU":
        raise TypeError(f"{path}: labels must be whole numbers or strings. Got {array.dtype}.")
    return _encode(pa.chunked_array([pa.array(np.asarray(array), from_pandas=True)]), str(path))


def _encode(column: pa.ChunkedArray, where: str) -> Labels:
    plain = _plain_labels(column, where)
    encoded = plain.dictionary_encode().combine_chunks()
    values = encoded.dictionary.to_pylist()
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[order] = np.arange(len(values))
    rank[-1] = -1
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return Labels(tuple(values[index] for index in order), rank[codes])


def _plain_labels(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Labels as int64 or strings, missing ones as nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain_labels(column.cast(kind.value_type), where)
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):  # how whole numbers with gaps are often stored
        column = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        column = pc.if_else(pc.is_nan(column), None, column)
        fractions = column.filter(pc.not_equal(column, pc.floor(column)))
        infinite = column.filter(pc.is_inf(column))
        for wrong in (fractions.drop_null(), infinite.drop_null()):
            if len(wrong):
                raise ValueError(f"{where}: labels must be whole numbers or strings. Got {wrong[0]}.")
        return column.cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.if_else(pc.equal(column, ""), None, column)
    raise TypeError(f"{where}: labels must be whole numbers or strings. Got {kind}.")


def _is_whole_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _join_names(names: Iterable[object], most: int = 8) -> str:
    shown = [str(name) for name in names]
    more = f", ... ({len(shown)} in all)" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
