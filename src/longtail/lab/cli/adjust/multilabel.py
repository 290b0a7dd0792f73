"""``longtail adjust --multilabel``: a threshold per class from a holdout, and what it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Group, RenderableType
from rich.text import Text

from longtail.lab.cli._console import make_table, percents, print_screen, printable, say, show_progress
from longtail.lab.cli.adjust.request import Request
from longtail.lab.data.formats.predictions import write_thresholds, writing_label_predictions
from longtail.lab.data.formats.sources import Source
from longtail.lab.data.formats.tables import ScoreFile, Scores
from longtail.metrics.multilabel import (
    LabelCounts,
    count_exact_matches,
    count_labels,
    macro_scores_from_counts,
    micro_scores_from_counts,
)
from longtail.posthoc.thresholds import Thresholds, apply_thresholds, f1_thresholds, precision_thresholds

__all__ = [
    "LabelMeasurement",
    "LabelTally",
    "TargetRows",
    "adjust_label_file",
    "choose_thresholds",
    "predict_labels",
    "read_target",
    "render_label_adjustment",
]

BoolArray = npt.NDArray[np.bool_]
MIN_F1 = 0.1
"""Classes that no threshold serves better on the holdout keep to their surest prediction."""


class LabelMeasurement(NamedTuple):
    """Predictions in numbers: the share of samples and labels, and F1 where the labels are known."""

    labels_per_sample: float
    macro_f1: float | None
    micro_f1: float | None
    exact_match: float | None


class LabelTally:
    """What becomes known of predictions some rows at a time."""

    def __init__(self) -> None:
        self.num_rows = self.num_labels = self.num_exact = 0
        self.counts: LabelCounts | None = None

    def add(self, predicted: BoolArray, target: BoolArray | None) -> None:
        """Take in predictions [N, C], and where they are known the labels [N, C]."""
        self.num_rows += len(predicted)
        self.num_labels += int(predicted.sum())
        if target is not None:
            pair = torch.from_numpy(predicted), torch.from_numpy(target)
            more = count_labels(*pair)
            self.counts = more if self.counts is None else LabelCounts(*map(torch.add, self.counts, more))
            self.num_exact += int(count_exact_matches(*pair))

    def measure(self) -> LabelMeasurement:
        """The predictions in numbers."""
        labels_per_sample = self.num_labels / self.num_rows
        if self.counts is None:
            return LabelMeasurement(labels_per_sample, None, None, None)
        return LabelMeasurement(
            labels_per_sample,
            macro_f1=float(macro_scores_from_counts(self.counts).f1),
            micro_f1=float(micro_scores_from_counts(self.counts).f1),
            exact_match=self.num_exact / self.num_rows,
        )


class TargetRows:
    """Labels [N, C] that come some rows at a time, and are taken some others at a time."""

    def __init__(self, batches: Iterator[BoolArray]) -> None:
        self.batches, self.rest = batches, next(batches)

    def take(self, num_rows: int) -> BoolArray:
        """The next so many rows."""
        parts, missing = [self.rest[:num_rows]], num_rows - len(self.rest)
        self.rest = self.rest[num_rows:]
        while missing > 0:
            self.rest = next(self.batches)
            parts.append(self.rest[:missing])
            self.rest, missing = self.rest[missing:], missing - len(self.rest)
        return np.concatenate(parts)


def adjust_label_file(request: Request) -> None:
    """Read scores, choose thresholds on the holdout, write predictions and print what changed."""
    if request.holdout_scores is None or request.holdout_labels is None:
        raise ValueError("--multilabel needs --holdout-scores and --holdout-labels, of samples not trained on.")
    scores, holdout = request.open_scores(request.scores), request.open_scores([request.holdout_scores])
    header = scores.header
    target = None
    if request.labels is not None:
        target = TargetRows(read_target(request.open_indicators(request.labels), scores, request.labels))
    held_labels = request.open_indicators(request.holdout_labels)
    held_target = np.concatenate([*read_target(held_labels, holdout, request.holdout_labels)])
    request.check_scale(scores)
    default = 0.5 if request.probabilities else 0.0
    chosen = choose_thresholds(holdout.read(request.budget), header, held_target, request.precision_floor, default)
    thresholds = chosen.values.numpy()
    was, became, num_changed = LabelTally(), LabelTally(), 0
    with (
        writing_label_predictions(request.output, header, scores.num_rows, thresholds, request.budget) as sink,
        show_progress("Adjusting", scores.num_bytes) as progress,
    ):
        for batch in scores.batches(progress):
            before, after = (predict_labels(batch, values) for values in (default, chosen.values))
            sink.write(batch, after.view(np.uint8))
            known = None if target is None else target.take(len(after))
            was.add(before, known)
            became.add(after, known)
            num_changed += int((before != after).sum())
    if request.thresholds is not None:
        write_thresholds(request.thresholds, header, thresholds, chosen.f1.numpy())
    names = [header.name_of(index) for index in range(header.num_classes)]
    print_screen(render_label_adjustment(chosen, was.measure(), became.measure(), names, default))
    num_labels = scores.num_rows * header.num_classes
    say(f"{num_changed:,} of {num_labels:,} labels changed. Wrote {request.output}.")


def read_target(labels: ScoreFile, like: ScoreFile, source: Source) -> Iterator[BoolArray]:
    """[N, C] from a file of 0 and 1 with the rows and classes of ``like``, some rows at a time."""
    shape, wanted = ((file.num_rows, file.header.num_classes) for file in (labels, like))
    if shape != wanted:
        raise ValueError(
            f"{source}: there must be a row per sample and a column per class, {wanted} as the scores. Got {shape}."
        )
    _check_same_classes(labels.header, like.header, source)
    for batch in labels.batches():
        wrong = batch.values[(batch.values != 0) & (batch.values != 1)]
        if len(wrong):
            raise ValueError(f"{source}: labels must be 0 or 1. Got {wrong[0]:g}.")
        yield batch.values.astype(bool, order="C")


def choose_thresholds(
    holdout: Scores, like: Scores, target: BoolArray, precision_floor: float | None, default: float
) -> Thresholds:
    """A threshold for each class of ``like``; ``default`` where the holdout has no positives."""
    if holdout.num_classes != like.num_classes:
        raise ValueError(
            f"the holdout must have the classes of the scores, {like.num_classes}. Got {holdout.num_classes}."
        )
    _check_same_classes(holdout, like, "the holdout")
    scores = torch.from_numpy(holdout.values)
    if precision_floor is None:
        return f1_thresholds(scores, target, default, min_f1=MIN_F1)
    return precision_thresholds(scores, target, precision_floor, default)


def predict_labels(scores: Scores, thresholds: Any) -> BoolArray:
    """[N, C] where scores are at least their thresholds."""
    predicted: BoolArray = apply_thresholds(torch.from_numpy(scores.values), thresholds).numpy()
    return np.ascontiguousarray(predicted)


def render_label_adjustment(
    thresholds: Thresholds, before: LabelMeasurement, after: LabelMeasurement, names: Sequence[str], default: float
) -> RenderableType:
    """What thresholds per class changed, and which classes they are not for."""
    low, high = float(thresholds.values.min()), float(thresholds.values.max())
    lines = [Text(f"thresholds {low:.3g} to {high:.3g}, chosen on the holdout", "bold")]
    undecided = [printable(names[index]) for index in thresholds.undecided.tolist()]
    if undecided:
        shown = ", ".join(undecided[:5]) + (", ..." if len(undecided) > 5 else "")
        lines.append(Text(f"{len(undecided):,} without positives there, left at {default:g}: {shown}", "yellow"))
    table = make_table("", "before", "after")
    table.add_row("labels per sample", f"{before.labels_per_sample:.2f}", f"{after.labels_per_sample:.2f}")
    if after.macro_f1 is not None:
        table.add_row("exact match", *percents(before.exact_match, after.exact_match))
        table.add_row("micro-F1", *percents(before.micro_f1, after.micro_f1))
        table.add_row(Text("macro-F1", "bold"), *percents(before.macro_f1, after.macro_f1))
    return Group(*lines, table)


def _check_same_classes(one: Scores, like: Scores, where: object) -> None:
    if one.class_names is not None and like.class_names is not None and one.class_names != like.class_names:
        raise ValueError(f"{where}: classes must be those of the scores, in the same order.")
