"""What ``longtail adjust --multilabel`` does: thresholds per class from a holdout, and what they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from longtail.lab.data.formats.tables import Scores
from longtail.metrics.multilabel import (
    count_labels,
    exact_match,
    macro_scores_from_counts,
    micro_scores_from_counts,
)
from longtail.posthoc.thresholds import Thresholds, apply_thresholds, f1_thresholds, precision_thresholds

__all__ = ["LabelMeasurement", "check_options", "choose_thresholds", "measure_labels", "predict_labels", "truth_of"]

BoolArray = npt.NDArray[np.bool_]
MIN_F1 = 0.1
"""Classes that no threshold serves better on the holdout keep to their surest prediction."""


class LabelMeasurement(NamedTuple):
    """Predictions in numbers: the share of samples and labels, and F1 where the truth is known."""

    labels_a_sample: float
    macro_f1: float | None
    micro_f1: float | None
    exact_match: float | None


def check_options(is_multilabel: bool, single: dict[str, bool], several: dict[str, bool]) -> None:
    """Raise for options that are given and belong to the other kind of labels."""
    wrong = [name for name, is_given in (single if is_multilabel else several).items() if is_given]
    if wrong:
        kind = "is for one label a sample, not for --multilabel" if is_multilabel else "needs --multilabel"
        raise ValueError(f"{wrong[0]} {kind}.")


def truth_of(labels: Scores, like: Scores, path: Path) -> BoolArray:
    """[N, C] from a file of 0 and 1 with the rows and classes of ``like``."""
    if labels.values.shape != like.values.shape:
        raise ValueError(
            f"{path}: there must be a row a sample and a column a class, {like.values.shape} as the scores. "
            f"Got {labels.values.shape}."
        )
    _check_same_classes(labels, like, path)
    wrong = labels.values[(labels.values != 0) & (labels.values != 1)]
    if len(wrong):
        raise ValueError(f"{path}: labels must be 0 or 1. Got {wrong[0]:g}.")
    truth: BoolArray = labels.values.astype(bool)
    return truth


def choose_thresholds(
    holdout: Scores, like: Scores, truth: BoolArray, precision_floor: float | None, default: float
) -> Thresholds:
    """A threshold for each class of ``like``; ``default`` where the holdout has no positives."""
    if holdout.num_classes != like.num_classes:
        raise ValueError(
            f"the holdout must have the classes of the scores, {like.num_classes}. Got {holdout.num_classes}."
        )
    _check_same_classes(holdout, like, "the holdout")
    scores = torch.from_numpy(holdout.values)
    if precision_floor is None:
        return f1_thresholds(scores, truth, default, min_f1=MIN_F1)
    return precision_thresholds(scores, truth, precision_floor, default)


def predict_labels(scores: Scores, thresholds: Any) -> BoolArray:
    """[N, C] where scores are at least their thresholds."""
    predicted: BoolArray = apply_thresholds(torch.from_numpy(scores.values), thresholds).numpy()
    return predicted


def measure_labels(predicted: BoolArray, truth: BoolArray | None) -> LabelMeasurement:
    """Measure predictions with or without the truth."""
    labels_a_sample = float(predicted.sum(axis=1).mean())
    if truth is None:
        return LabelMeasurement(labels_a_sample, None, None, None)
    pair = torch.from_numpy(predicted), torch.from_numpy(truth)
    counts = count_labels(*pair)
    return LabelMeasurement(
        labels_a_sample,
        macro_f1=float(macro_scores_from_counts(counts).f1),
        micro_f1=float(micro_scores_from_counts(counts).f1),
        exact_match=float(exact_match(*pair)),
    )


def _check_same_classes(one: Scores, like: Scores, where: object) -> None:
    if one.class_names is not None and like.class_names is not None and one.class_names != like.class_names:
        raise ValueError(f"{where}: classes must be those of the scores, in the same order.")
