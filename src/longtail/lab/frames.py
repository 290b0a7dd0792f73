"""What ``longtail inspect`` and ``longtail adjust`` do with files, for frames of polars, pandas and pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from torch import Tensor

from longtail._core.memory import memory_budget
from longtail.lab.cli.adjust.single_label import (
    adjust_scores,
    convert_to_logits,
    make_record,
    refuse_corrected,
)
from longtail.lab.cli.inspect import Inspection, inspect_labels
from longtail.lab.data.formats.columns import choose_name
from longtail.lab.data.formats.labels import LABEL_NAMES, LabelCounts, find_column_labels
from longtail.lab.data.formats.predictions import PredictionColumns
from longtail.lab.data.formats.table_files import open_frame
from longtail.lab.data.formats.tables import score_columns
from longtail.prior import ClassPrior

__all__ = ["adjust_frame", "count_frame_labels", "inspect_frame", "prior_for_frame"]


def count_frame_labels(frame: Any, label: str | None = None) -> LabelCounts:
    """The distinct labels of a column, sorted, and how often each occurs.

    Args:
        frame: of polars, pandas or pyarrow, or whatever else hands over Arrow data.
        label: the column; default: the only one, or the one with a usual name.
    """
    table = open_frame(frame)
    name = choose_name(table.name, table.names, label, "label=", LABEL_NAMES)
    return find_column_labels(table, name).count(memory_budget())


def inspect_frame(frame: Any, label: str | None = None) -> Inspection:
    """How imbalanced the labels of a column are, and which methods fit them; arguments as ``count_frame_labels``.

    >>> inspect_frame(pa.table({"label": ["cat"] * 9 + ["dog"]})).imbalance
    9.0
    """
    return inspect_labels(count_frame_labels(frame, label))


def prior_for_frame(labels: Any, scores: Any, label: str | None = None, columns: str | None = None) -> ClassPrior:
    """The class counts of a column of training labels, in the order of the score columns of another frame.

    Args:
        labels: a frame with the training labels.
        scores: a frame with one column per class.
        label: the column of labels; default: the only one, or the one with a usual name.
        columns: the prefix of the score columns; default: all numeric columns are classes.
    """
    found = count_frame_labels(labels, label)
    header = score_columns(open_frame(scores), columns, (), label).header
    counts = [0] * header.num_classes
    for place, count in zip(header.positions(found.classes, "the frame"), found.counts.tolist(), strict=True):
        counts[place] = count
    return ClassPrior.from_counts(counts)


def adjust_frame(
    frame: Any,
    prior: ClassPrior,
    tau: float = 1.0,
    target_prior: ClassPrior | Tensor | None = None,
    *,
    columns: str | None = None,
    id_columns: Sequence[str] = (),
    are_probabilities: bool = False,
) -> Any:
    """Adjusted predictions and probabilities for a frame of scores, as a frame of the same kind.

    Args:
        frame: of polars, pandas or pyarrow, with one column of scores per class.
        prior: the training prior, in the order of these columns.
        tau: strength, >= 0; see ``adjust_logits``.
        target_prior: the prior to predict for; None is uniform.
        columns: the prefix of the score columns; default: all numeric columns are classes.
        id_columns: numeric columns that are no scores.
        are_probabilities: whether the scores are probabilities; else they are logits.

    Returns:
        The columns that are no scores, ``prediction``, and one probability per class.

    >>> frame = pa.table({"id": ["x", "y"], "cat": [2.0, 0.5], "dog": [1.0, 0.4]})
    >>> adjust_frame(frame, ClassPrior.from_counts([90, 10])).column("prediction").to_pylist()
    ['dog', 'dog']
    """
    budget = memory_budget()
    scores = score_columns(open_frame(frame), columns, id_columns, None)
    refuse_corrected(scores)
    record = make_record(prior, prior.probs, tau, target_prior)
    beside = PredictionColumns(scores.header, scores.header.values.dtype, True, budget, record)
    tables, start = [], 0
    for batch in scores.batches():
        logits = convert_to_logits(batch, are_probabilities, start)
        adjusted = adjust_scores(logits, prior, tau, target_prior)
        tables.append(beside.make_table(batch, adjusted.probabilities, adjusted.after))
        start += len(logits)
    return _convert_like(pa.concat_tables(tables), frame)


def _convert_like(table: pa.Table, frame: Any) -> Any:
    """The table as a frame of the same package."""
    package = type(frame).__module__.partition(".")[0]
    if package == "pandas":
        return table.to_pandas()
    return importlib.import_module("polars").from_arrow(table) if package == "polars" else table
