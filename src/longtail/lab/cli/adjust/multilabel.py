"""``longtail adjust --multilabel``: a threshold per class from a holdout, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Group, RenderableType
from rich.text import Text

from longtail.lab.cli._console import make_table, percents, print_screen, printable, say
from longtail.lab.cli.adjust.request import Request
from longtail.lab.data.formats.tables import Scores, write_label_predictions, write_thresholds
from longtail.metrics.multilabel import (
    count_exact_matches,
    count_labels,
    macro_scores_from_counts,
    micro_scores_from_counts,
)
from longtail.posthoc.thresholds import Thresholds, apply_thresholds, f1_thresholds, precision_thresholds

__all__ = [
    "LabelMeasurement",
    "adjust_label_file",
    "check_target",
    "choose_thresholds",
    "measure_labels",
    "predict_labels",
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


def adjust_label_file(request: Request) -> None:
    """Read scores, choose thresholds on the holdout, write predictions and print what changed."""
    if request.holdout_scores is None or request.holdout_labels is None:
        raise ValueError("--multilabel needs --holdout-scores and --holdout-labels, of samples not trained on.")
    scores, holdout = request.read_scores(request.scores), request.read_scores(request.holdout_scores)
    target = None
    if request.labels is not None:
        target = check_target(request.read_indicators(request.labels), scores, request.labels)
    held_target = check_target(request.read_indicators(request.holdout_labels), holdout, request.holdout_labels)
    default = 0.5 if request.probabilities else 0.0
    chosen = choose_thresholds(holdout, scores, held_target, request.precision_floor, default)
    before, after = (predict_labels(scores, values) for values in (default, chosen.values))
    write_label_predictions(request.output, scores, after, chosen.values.numpy())
    if request.thresholds is not None:
        write_thresholds(request.thresholds, scores, chosen.values.numpy(), chosen.f1.numpy())
    was, became = (measure_labels(predicted, target) for predicted in (before, after))
    names = [scores.name_of(index) for index in range(scores.num_classes)]
    print_screen(render_label_adjustment(chosen, was, became, names, default))
    say(f"{(before != after).sum():,} of {after.size:,} labels changed. Wrote {request.output}.")


def check_target(labels: Scores, like: Scores, path: Path) -> BoolArray:
    """[N, C] from a file of 0 and 1 with the rows and classes of ``like``."""
    if labels.values.shape != like.values.shape:
        raise ValueError(
            f"{path}: there must be a row per sample and a column per class, {like.values.shape} as the scores. "
            f"Got {labels.values.shape}."
        )
    _check_same_classes(labels, like, path)
    wrong = labels.values[(labels.values != 0) & (labels.values != 1)]
    if len(wrong):
        raise ValueError(f"{path}: labels must be 0 or 1. Got {wrong[0]:g}.")
    target: BoolArray = labels.values.astype(bool)
    return target


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
    return predicted


def measure_labels(predicted: BoolArray, target: BoolArray | None) -> LabelMeasurement:
    """Measure predictions with or without the true labels."""
    labels_per_sample = float(predicted.sum(axis=1).mean())
    if target is None:
        return LabelMeasurement(labels_per_sample, None, None, None)
    pair = torch.from_numpy(predicted), torch.from_numpy(target)
    counts = count_labels(*pair)
    return LabelMeasurement(
        labels_per_sample,
        macro_f1=float(macro_scores_from_counts(counts).f1),
        micro_f1=float(micro_scores_from_counts(counts).f1),
        exact_match=int(count_exact_matches(*pair)) / len(target),
    )


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
