"""One page of text on a classifier: head, torso and tail, and the classes it does worst on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail._core.predictions import check_groups, rate_confidence, take_counted
from longtail.metrics.multilabel import LabelCounts, per_class_scores_from_counts
from longtail.prior import ClassPrior

__all__ = ["ReportRow", "ClassificationReport", "classification_report"]

_NAME_WIDTH = 26
_CELL_WIDTHS = (8, 8, 8, 11, 7, 12)


class ReportRow(NamedTuple):
    """What is known of one class, or of a group's classes: sums of ``train`` and ``support``, means of the rest."""

    train: int
    """Training samples, from the prior."""
    support: int
    """Samples that the predictions were compared on."""
    recall: float
    """The share of them that is right, also called the accuracy of the class; NaN without samples."""
    precision: float
    """The share of right ones among samples predicted as the class; 0 if none is, NaN without samples."""
    f1: float
    """2 / (1 / recall + 1 / precision)."""
    confidence: float
    """The mean probability of what is predicted for its samples; NaN where predictions are indices."""


_HEADINGS = ("train", "support", "recall", "precision", "F1", "confidence")


@dataclass(frozen=True, eq=False)
class ClassificationReport:
    """What ``classification_report`` found. ``print`` it, or take its parts."""

    accuracy: float
    """The share of samples that is right."""
    balanced_accuracy: float
    """The mean recall of the classes with samples."""
    class_names: tuple[str, ...]
    groups: Mapping[str, Tensor]
    """Class indices by name."""
    values: Mapping[str, Tensor]
    """[C] each: the fields of ``ReportRow`` for every class."""
    listed: Tensor
    """Indices of the classes that the table lists: all of few, the worst of many."""

    def row_of(self, classes: Tensor) -> ReportRow:
        """One row for some classes: sums of samples, and means over the classes that have a value."""
        picked = {name: values[classes] for name, values in self.values.items()}
        means = (float(picked[name].nanmean()) for name in ReportRow._fields[2:])
        return ReportRow(int(picked["train"].sum()), int(picked["support"].sum()), *means)

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers: accuracies, and a row for all classes, every group and every class."""
        every = torch.arange(len(self.class_names))
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "all classes": self.row_of(every)._asdict(),
            "groups": {name: self.row_of(classes)._asdict() for name, classes in self.groups.items()},
            "classes": {name: self.row_of(every[i : i + 1])._asdict() for i, name in enumerate(self.class_names)},
        }

    def to_markdown(self) -> str:
        """The same words, and the table in Markdown."""
        rows = [("", *_HEADINGS), ("---", *["---:"] * len(_HEADINGS))]
        rows += [(_escape(name), *cells) for name, *cells in self._cells() if name]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"{self._words()}\n\n{table}\n"

    def __str__(self) -> str:
        lines = [_align("", _HEADINGS)]
        lines += [_align(name, cells) if name else "" for name, *cells in self._cells()]
        return "\n".join([self._words(), "", *lines])

    def _words(self) -> str:
        support = self.values["support"]
        num_classes = int((support > 0).sum())
        lines = [
            f"Accuracy {_percent(self.accuracy)}, balanced accuracy {_percent(self.balanced_accuracy)}, of "
            f"{int(support.sum()):,} samples of {num_classes:,} class{'' if num_classes == 1 else 'es'}."
        ]
        rows = {name: self.row_of(classes) for name, classes in self.groups.items()}
        seen = {name: row for name, row in rows.items() if row.support}
        if len(seen) > 1:
            lines.append(f"Recall is {_enumerate([f'{_percent(row.recall)} for {n}' for n, row in seen.items()])}.")
        if seen:
            name, row = list(seen.items())[-1]
            if not math.isnan(row.confidence):
                lines.append(
                    f"On {name} classes the model is {_percent(row.confidence)} sure and "
                    f"{_percent(row.recall)} right."
                )
        silent = int(((self.values["precision"] == 0) & (self.values["recall"] == 0)).sum())
        if silent:
            lines.append(f"{silent:,} {'class is' if silent == 1 else 'classes are'} never predicted right.")
        return "\n".join(lines)

    def _cells(self) -> list[tuple[str, ...]]:
        """Name and cells of each row of the table; an empty name is a gap."""
        every = torch.arange(len(self.class_names))
        parts = {"all classes": every, **{f"{name} ({len(c):,})": c for name, c in self.groups.items()}}
        rows: list[tuple[str, ...]] = [(name, *_cells_of(self.row_of(classes))) for name, classes in parts.items()]
        title = "" if len(self.listed) == len(every) else f"worst {len(self.listed)} of {len(every):,}"
        rows += [("",), (title, *[""] * len(_HEADINGS))] if title else [("",)]
        return rows + [(self.class_names[i], *_cells_of(self.row_of(every[i : i + 1]))) for i in self.listed.tolist()]


def classification_report(
    predictions: Tensor,
    target: Tensor,
    prior: ClassPrior,
    class_names: Sequence[str] | None = None,
    *,
    groups: Mapping[str, Tensor] | None = None,
    max_classes: int = 10,
    num_worst: int = 5,
    ignore_index: int = -100,
) -> ClassificationReport:
    """Say in words and a table how a classifier does on head, torso and tail, and on single classes.

    Rows of groups are means over their classes with samples, so that every class counts the same.

    Args:
        predictions: [N, C] logits, or [N] predicted class indices (then there are no confidences).
        target: [N] class indices.
        prior: of the training data; it says which classes are head, torso and tail.
        class_names: C names; None for their indices.
        groups: class indices by name, from frequent to rare; None for ``prior.groups()``.
        max_classes: up to this many classes are all listed, in order.
        num_worst: of more classes, the table lists this many with the lowest F1, and of equal ones the rarest.
        ignore_index: a sample with this target does not count.

    Returns:
        A report: ``print`` it, or take ``as_dict()`` or ``to_markdown()``.

    Use when:
        You want to see at a glance what a model does to rare classes.
    Avoid when:
        Data is multi-label: use ``MultilabelScores``.
    Special cases:
        scikit-learn's ``classification_report`` with ``zero_division=0``, per class.

    >>> prior = ClassPrior.from_counts([500, 50, 5])
    >>> logits = torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0]])
    >>> print(classification_report(logits, torch.tensor([0, 0, 1, 2]), prior, ["cat", "lynx", "puma"]))
    Accuracy 75.0 %, balanced accuracy 66.7 %, of 4 samples of 3 classes.
    Recall is 100.0 % for head, 100.0 % for torso and 0.0 % for tail.
    On tail classes the model is 100.0 % sure and 0.0 % right.
    1 class is never predicted right.
    <BLANKLINE>
                                 train support  recall  precision     F1  confidence
    all classes                    555       4   0.667      0.556  0.600       1.000
    head (1)                       500       2   1.000      0.667  0.800       1.000
    torso (1)                       50       1   1.000      1.000  1.000       1.000
    tail (1)                         5       1   0.000      0.000  0.000       1.000
    <BLANKLINE>
    cat                            500       2   1.000      0.667  0.800       1.000
    lynx                            50       1   1.000      1.000  1.000       1.000
    puma                             5       1   0.000      0.000  0.000       1.000
    """
    num_classes = prior.num_classes
    names = tuple(str(index) for index in range(num_classes)) if class_names is None else tuple(class_names)
    if len(names) != num_classes:
        raise ValueError(f"class_names must be {num_classes} names, one per class of the prior. Got {len(names)}.")
    predictions, target, _ = take_counted(predictions, target, num_classes, ignore_index)
    values = _values_of_classes(predictions.cpu(), target.cpu(), prior)
    support = values["support"].sum()
    return ClassificationReport(
        accuracy=float((values["recall"].nan_to_num() * values["support"]).sum() / support),
        balanced_accuracy=float(values["recall"].nanmean()),
        class_names=names,
        groups=prior.groups() if groups is None else check_groups(groups, num_classes),
        values=values,
        listed=_list_classes(values, max_classes, num_worst),
    )


def _values_of_classes(predictions: Tensor, target: Tensor, prior: ClassPrior) -> dict[str, Tensor]:
    num_classes = prior.num_classes
    confidence = torch.full((len(target),), torch.nan)
    predicted = predictions
    if predictions.ndim == 2:
        confidence, predicted = rate_confidence(predictions)
    support = torch.bincount(target, minlength=num_classes)
    hits = torch.bincount(target[predicted == target], minlength=num_classes)
    counts = LabelCounts(hits, torch.bincount(predicted, minlength=num_classes), support)
    scores = per_class_scores_from_counts(counts)
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, target, confidence.double())
    return {
        "train": prior.counts,
        "support": support,
        "recall": scores.recall,
        "precision": scores.precision,
        "f1": scores.f1,
        "confidence": sums / support,
    }


def _list_classes(values: Mapping[str, Tensor], max_classes: int, num_worst: int) -> Tensor:
    num_classes = len(values["f1"])
    if num_classes <= max_classes:
        return torch.arange(num_classes)
    by_rarity = values["train"].argsort(stable=True)
    order = by_rarity[values["f1"][by_rarity].nan_to_num(nan=math.inf).argsort(stable=True)]
    seen = order[values["support"][order] > 0]
    return seen[:num_worst]


def _cells_of(row: ReportRow) -> tuple[str, ...]:
    shares = ("-" if math.isnan(value) else f"{value:.3f}" for value in row[2:])
    return (str(row.train), str(row.support), *shares)


def _align(name: str, cells: Sequence[str]) -> str:
    """A line of at most 80 characters."""
    short = name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
    numbers = "".join(cell.rjust(width) for cell, width in zip(cells, _CELL_WIDTHS, strict=True))
    return f"{short:<{_NAME_WIDTH}}{numbers}".rstrip()


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{100 * share:.1f} %"


def _enumerate(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _escape(name: str) -> str:
    return " ".join(name.replace("\\", "\\\\").replace("|", "\\|").split())
