"""Predictions as files, some rows at a time: CSV, Parquet, .npy and .npz, each written whole or not at all."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from longtail._core.files import replacing
from longtail._core.memory import check_memory
from longtail.correction import ATTRIBUTE, Correction
from longtail.lab.data.formats.table_files import count_bytes, expand_text
from longtail.lab.data.formats.tables import Scores

__all__ = ["PredictionColumns", "Sink", "write_thresholds", "writing_label_predictions", "writing_predictions"]

Array = npt.NDArray[Any]


class Sink(Protocol):
    """Where predictions go."""

    def write(self, scores: Scores, matrix: Array, predictions: Array | None = None) -> None:
        """Add rows.

        Args:
            scores: what the predictions are for, with its other columns.
            matrix: [N, C], a column per class.
            predictions: [N] class indices, for one label per sample.
        """


@contextmanager
def writing_predictions(
    path: Path, header: Scores, num_rows: int, budget: int, record: Correction | None = None
) -> Iterator[Sink]:
    """Write predicted classes and class probabilities in the format of the suffix, whole or not at all.

    CSV and Parquet: the other columns of the scores, ``prediction``, and one column per class. .npz: arrays
    ``probabilities``, ``predictions`` and ``classes``. .npy: the probabilities alone. Parquet and .npz keep the
    record of what was done.
    """
    kind, shape = header.values.dtype, (num_rows, header.num_classes)
    if _has_columns(path):
        with _writing_table(path, PredictionColumns(header, kind, True, budget, record)) as table:
            yield table
    else:
        with _writing_arrays(path, "probabilities", shape, kind) as arrays:
            yield arrays
            codes = np.concatenate([np.zeros(0, dtype=np.int64), *arrays.predictions])
            names = None if header.class_names is None else np.array(header.class_names)
            arrays.add({"predictions": codes if names is None else names[codes]} | _name_classes(header))
            if record is not None:
                arrays.add({ATTRIBUTE: np.array(json.dumps(record.to_json()))})


@contextmanager
def writing_label_predictions(
    path: Path, header: Scores, num_rows: int, thresholds: Array, budget: int
) -> Iterator[Sink]:
    """Write 0 or 1 for each sample and class in the format of the suffix, whole or not at all.

    CSV and Parquet: the other columns of the scores, and one column per class. .npz: arrays ``predictions``,
    ``thresholds`` and ``classes``. .npy: the predictions alone.
    """
    kind, shape = np.dtype(np.uint8), (num_rows, header.num_classes)
    if _has_columns(path):
        with _writing_table(path, PredictionColumns(header, kind, False, budget)) as table:
            yield table
    else:
        with _writing_arrays(path, "predictions", shape, kind) as arrays:
            yield arrays
            arrays.add({"thresholds": thresholds} | _name_classes(header))


def write_thresholds(path: Path, header: Scores, thresholds: Array, f1: Array) -> None:
    """Write each class's threshold and its F1 on the holdout. .npy: the thresholds alone."""
    if _has_columns(path):
        names = [header.name_of(index) for index in range(header.num_classes)]
        table = pa.table({"class": names, "threshold": thresholds, "holdout_f1": f1})
        with replacing(path) as file, _open_writer(path, file, table.schema) as writer:
            writer.write_table(table)
    else:
        with _writing_arrays(path, "threshold", thresholds.shape, thresholds.dtype) as arrays:
            arrays.write(header, thresholds)
            arrays.add({"holdout_f1": f1} | _name_classes(header))


class PredictionColumns:
    """The columns of predictions beside those of the scores' file that are no scores.

    Args:
        header: the scores, without rows.
        kind: dtype of the columns of classes.
        is_named: whether there is a column ``prediction``.
        budget: bytes that some rows may take.
        record: of what was done, kept with the schema.
    """

    def __init__(
        self, header: Scores, kind: np.dtype[Any], is_named: bool, budget: int, record: Correction | None = None
    ) -> None:
        self.budget, self.is_named = budget, is_named
        self.names = None if header.class_names is None else pa.array(header.class_names)
        fields = [] if header.others is None else [*header.others.schema]
        if is_named:
            fields.append(pa.field("prediction", pa.int64() if self.names is None else pa.string()))
        columns = header.columns or [str(index) for index in range(header.num_classes)]
        fields += [pa.field(name, pa.from_numpy_dtype(kind)) for name in columns]
        duplicate, times = Counter(field.name for field in fields).most_common(1)[0]
        if times > 1:
            hint = "; if the scores are adjusted already, use them as they are" if duplicate == "prediction" else ""
            raise ValueError(
                f"the output would have two columns named {duplicate!r}; rename one in the scores{hint}."
            )
        self.schema = pa.schema(fields, None if record is None else {ATTRIBUTE: json.dumps(record.to_json())})

    def make_table(self, scores: Scores, matrix: Array, predictions: Array | None = None) -> pa.Table:
        """The columns for some rows."""
        columns: list[Any] = []
        if scores.others is not None:
            check_memory(count_bytes(scores.others), "the columns beside the scores", self.budget)
            columns = [*expand_text(scores.others).columns]
        if predictions is not None:
            codes = pa.array(predictions)
            columns.append(codes if self.names is None else self.names.take(codes))
        return pa.table([*columns, *map(pa.array, matrix.T)], schema=self.schema)


@dataclass(frozen=True)
class _TableSink:
    """A CSV or Parquet file."""

    writer: Any
    columns: PredictionColumns

    def write(self, scores: Scores, matrix: Array, predictions: Array | None = None) -> None:
        self.writer.write_table(self.columns.make_table(scores, matrix, predictions))


class _ArraySink:
    """An .npz, or an .npy of its first array."""

    def __init__(self, file: BinaryIO, archive: zipfile.ZipFile | None) -> None:
        self.file, self.archive = file, archive
        self.predictions: list[Array] = []

    def write(self, scores: Scores, matrix: Array, predictions: Array | None = None) -> None:
        self.file.write(np.ascontiguousarray(matrix).data)
        if predictions is not None and self.archive is not None:
            self.predictions.append(predictions)

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Further arrays, which only an .npz has room for, once the rows are written."""
        if self.archive is not None:
            self.file.close()
            for name, array in arrays.items():
                with self.archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(cast(BinaryIO, member), array, allow_pickle=False)


@contextmanager
def _writing_table(path: Path, columns: PredictionColumns) -> Iterator[_TableSink]:
    with replacing(path) as file, _open_writer(path, file, columns.schema) as writer:
        yield _TableSink(writer, columns)


@contextmanager
def _writing_arrays(path: Path, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Iterator[_ArraySink]:
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.lib.format.write_array_header_1_0(file, header)
            yield _ArraySink(file, None)
            return
        with zipfile.ZipFile(file, "w") as archive, archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(cast(BinaryIO, member), header)
            yield _ArraySink(cast(BinaryIO, member), archive)


def _has_columns(path: Path) -> bool:
    return path.suffix in (".csv", ".parquet")


def _open_writer(path: Path, file: BinaryIO, schema: pa.Schema) -> Any:
    if path.suffix == ".csv":
        return pyarrow.csv.CSVWriter(file, schema)
    # Probabilities hardly repeat: a dictionary of them takes nine times as long to write, and more bytes.
    repeated = [field.name for field in schema if not pa.types.is_floating(field.type)]
    return pyarrow.parquet.ParquetWriter(file, schema, use_dictionary=repeated)


def _name_classes(scores: Scores) -> dict[str, Array]:
    return {} if scores.class_names is None else {"classes": np.array(scores.class_names)}
