"""``longtail inspect``: what a column of labels is like, and which methods fit it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import rich.console
import typer
from rich.text import Text

from longtail.lab.cli._console import make_table, print_screen, printable, say
from longtail.lab.cli._options import LABEL_FILE, LabelColumn, Memory

if TYPE_CHECKING:
    from longtail.lab.data.formats.labels import ClassName, LabelCounts
    from longtail.prior import ClassPrior

__all__ = [
    "Group",
    "Inspection",
    "Suggestion",
    "inspect",
    "inspect_labels",
    "count_of",
    "describe_imbalance",
    "profile_chart",
    "render_inspection",
    "suggest_adjustment",
    "suggest_methods",
    "suggest_multilabel_methods",
]

NEARLY_BALANCED = 1.5
"""Up to this imbalance there is nothing to correct."""
FEW_SAMPLES = 20
"""A class with fewer is what ``ClassPrior.groups`` calls tail."""
MANY_CLASSES = 1000


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help=LABEL_FILE)],
    label: LabelColumn = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="FILE has the number of samples of each class, not labels.")
    ] = False,
    memory: Memory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the count of every class.")] = False,
) -> None:
    """Look at labels: how imbalanced they are, and which methods fit them."""
    from longtail.lab.cli._labels import count_any_labels, is_recipe

    inspection = inspect_labels(count_any_labels(files, label, memory, counts))
    if as_json:
        typer.echo(json.dumps(inspection.as_json(), indent=2))
        return
    print_screen(render_inspection(inspection))
    if is_recipe(files[0]):
        reason, command = "to see which method is best on these data", f"longtail compare {files[0]}"
    elif inspection.imbalance <= NEARLY_BALANCED and not inspection.is_multilabel:
        return
    else:
        reason, command = suggest_adjustment(files, label, counts, inspection.is_multilabel)
    say("")
    say(f"Next, {reason}:")
    say(f"  {command}")  # in one line, to be copied


def suggest_adjustment(
    files: Sequence[str], label: str | None = None, are_counts: bool = False, is_multilabel: bool = False
) -> tuple[str, str]:
    """What for, and the command to type: it adjusts the scores of a model that was trained on these labels.

    >>> suggest_adjustment(["train.csv"], "class")[1]
    'longtail adjust SCORES --train-labels train.csv --label class --output predictions.csv'
    """
    if is_multilabel:
        return (
            "to choose a threshold for each label of a trained model, with SCORES of new and of held-out samples",
            "longtail adjust SCORES --multilabel --holdout-scores HELD_OUT --holdout-labels LABELS "
            "--output predictions.csv",
        )
    column = f" --label {label}" if label else ""
    labels = files[0] if len(files) == 1 else "FOLDER"
    source = f"--counts {labels}" if are_counts else f"--train-labels {labels}{column}"
    return (
        "to correct a model that was trained on these labels, with its SCORES in a file",
        f"longtail adjust SCORES {source} --output predictions.csv",
    )


class Group(NamedTuple):
    """One of head, torso and tail."""

    name: str
    num_classes: int
    num_samples: int


class Suggestion(NamedTuple):
    """A method of METHODS, and why the data speaks for it."""

    method: str
    reason: str


@dataclass(frozen=True)
class Inspection:
    """What is known about a column of labels."""

    classes: tuple[ClassName, ...]
    """By falling count."""
    counts: tuple[int, ...]
    num_missing: int
    num_skipped: int
    """Whole numbers between 0 and the largest label that do not occur, where labels look like class indices."""
    imbalance: float
    groups: tuple[Group, ...]
    has_useful_groups: bool
    """Whether to show groups, or every class by its name."""
    suggestions: tuple[Suggestion, ...]
    num_samples: int
    is_multilabel: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        return {
            "num_samples": self.num_samples,
            "is_multilabel": self.is_multilabel,
            "num_missing": self.num_missing,
            "num_classes": len(self.classes),
            "num_skipped": self.num_skipped,
            "imbalance": self.imbalance if math.isfinite(self.imbalance) else None,
            "groups": [group._asdict() for group in self.groups],
            "methods": [suggestion._asdict() for suggestion in self.suggestions],
            "classes": [
                {"class": label, "count": count} for label, count in zip(self.classes, self.counts, strict=True)
            ],
        }


def inspect_labels(labels: LabelCounts) -> Inspection:
    """Group the classes of labels and choose methods."""
    from longtail.lab.cli._labels import make_prior

    prior = make_prior(labels)
    order = prior.counts.argsort(descending=True, stable=True)
    return Inspection(
        classes=tuple(labels.classes[index] for index in order.tolist()),
        counts=tuple(prior.counts[order].tolist()),
        num_missing=labels.num_missing,
        num_skipped=_count_skipped(labels.classes),
        imbalance=prior.imbalance,
        groups=tuple(
            Group(name, len(members), int(prior.counts[members].sum())) for name, members in prior.groups().items()
        ),
        has_useful_groups=prior.has_useful_groups,
        suggestions=tuple(
            suggest_methods(prior) if labels.num_samples is None else suggest_multilabel_methods(prior)
        ),
        num_samples=prior.num_samples if labels.num_samples is None else labels.num_samples,
        is_multilabel=labels.num_samples is not None,
    )


def suggest_methods(prior: ClassPrior) -> list[Suggestion]:
    """Methods to try, the first one first.

    >>> from longtail import ClassPrior
    >>> [method for method, _ in suggest_methods(ClassPrior.from_counts([500, 50, 5]))]
    ['logit_adjusted', 'posthoc_adjusted', 'logit_adjusted_adaptive', 'class_balanced']
    """
    imbalance, smallest = prior.imbalance, int(prior.counts.min())
    if imbalance <= NEARLY_BALANCED:
        return [Suggestion("cross_entropy", f"the classes are nearly balanced (ratio {imbalance:.2g}).")]
    found = [
        Suggestion(
            "logit_adjusted",
            "you train the model: one changed line, no extra cost, and consistent for the balanced error.",
        ),
        Suggestion(
            "posthoc_adjusted",
            "the model is trained already: its scores are enough (longtail adjust); choose tau on a holdout.",
        ),
    ]
    if prior.num_classes >= MANY_CLASSES:
        found += [
            Suggestion(
                "logit_adjusted_adaptive",
                f"{prior.num_classes:,} classes: a further margin for rare ones was best on iNaturalist.",
            ),
            Suggestion(
                "threshold_equalized",
                f"{prior.num_classes:,} classes: rare ones drown in gradients from samples of all the others.",
            ),
        ]
    elif smallest < FEW_SAMPLES:
        found.append(
            Suggestion(
                "logit_adjusted_adaptive",
                f"the rarest class has {count_of(smallest, 'sample')}: a larger margin helps where classes separate.",
            )
        )
    if smallest >= FEW_SAMPLES:
        found.append(
            Suggestion(
                "power_weighted",
                f"every class has at least {FEW_SAMPLES} samples: weights do for a model too small to fit them all.",
            )
        )
    elif prior.num_classes < MANY_CLASSES:
        found.append(
            Suggestion(
                "class_balanced", f"ratio {imbalance:,.0f}: weights, switched on in the last part of training."
            )
        )
    return found


def suggest_multilabel_methods(prior: ClassPrior) -> list[Suggestion]:
    """Methods to try where a sample may have any number of labels, the first one first."""
    smallest = count_of(int(prior.counts.min()), "sample")
    return [
        Suggestion("asymmetric", "you train the model: rare labels are predicted at 0.5 already."),
        Suggestion("balanced_sigmoid", f"the rarest label has {smallest}: the prior of each label is taken out."),
        Suggestion("partial_label_masking", "recall of rare labels counts more than precision; around any loss."),
    ]


def count_of(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count_of(1, "sample"), count_of(2000, "sample")
    ('1 sample', '2,000 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_inspection(found: Inspection) -> rich.console.RenderableType:
    """Counts, a drawing of them, groups, and methods to try."""
    facts = (
        f"{count_of(found.num_samples, 'sample')}, {len(found.counts):,} classes, imbalance {found.imbalance:,.1f}"
    )
    if found.is_multilabel:
        per_sample = sum(found.counts) / found.num_samples
        facts = facts.replace("classes", f"labels, {per_sample:.2g} of them per sample")
    lines = [Text(facts, "bold")]
    if found.num_missing:
        lines.append(Text(f"{found.num_missing:,} rows have no label and are left out.", "yellow"))
    if found.num_skipped:
        lines.append(
            Text(
                f"Unused below the largest label: {count_of(found.num_skipped, 'number')}; classes without samples?",
                "yellow",
            )
        )
    methods = make_table("try", "because")
    for suggestion in found.suggestions:
        methods.add_row(Text(suggestion.method, "bold"), Text(suggestion.reason))
    drawing = Text("\n".join(profile_chart(found.counts)), "cyan", no_wrap=True)
    caption = Text("samples of each class, most frequent first, on a logarithmic scale", "dim")
    lines.append(Text(describe_imbalance(found.counts, found.num_samples if found.is_multilabel else None)))
    parts = _render_groups(found) if found.has_useful_groups else [_tabulate_classes(found)]
    return rich.console.Group(*lines, Text(), drawing, caption, Text(), *parts, Text(), methods)


def describe_imbalance(counts: tuple[int, ...], num_samples: int | None = None) -> str:
    """How much the frequent classes have, and how little the rare half: a logarithmic drawing hides it.

    Args:
        counts: of each class, falling.
        num_samples: of multi-label data.

    >>> describe_imbalance((90, 6, 3, 1))
    'The most frequent class has 90.0% of the samples, the rarer half of the classes 4.0%.'
    """
    total = max(1, sum(counts))
    rare = sum(counts[-(len(counts) // 2) :]) / total if len(counts) > 1 else 0
    if num_samples is not None:
        share = counts[0] / max(1, num_samples)
        return (
            f"The most frequent label is in {share:.1%} of the samples; the rarer half has {rare:.1%} of all labels."
        )
    share = counts[0] / total
    return f"The most frequent class has {share:.1%} of the samples, the rarer half of the classes {rare:.1%}."


def _render_groups(found: Inspection) -> list[rich.console.RenderableType]:
    named = [f"{printable(str(label))} ({count:,})" for label, count in zip(found.classes, found.counts, strict=True)]
    table = make_table("group", "samples per class", "classes", "samples", "share")
    for group, meaning in zip(found.groups, ("100 or more", "20 to 99", "19 or fewer"), strict=True):
        share = f"{group.num_samples / sum(found.counts):.1%}"
        table.add_row(group.name, meaning, f"{group.num_classes:,}", f"{group.num_samples:,}", share)
    frequent, rarest = f"most frequent  {', '.join(named[:3])}", f"rarest         {', '.join(named[:-4:-1])}"
    return [Text(frequent), Text(rarest), Text(), table]


def _tabulate_classes(found: Inspection) -> rich.console.RenderableType:
    table = make_table("class", "samples", "share")
    for label, count in zip(found.classes, found.counts, strict=True):
        table.add_row(Text(printable(str(label))), f"{count:,}", f"{count / sum(found.counts):.1%}")
    return table


def profile_chart(counts: tuple[int, ...], width: int = 64, height: int = 8) -> list[str]:
    """Rows of a drawing of counts, which fall from left to right, on a logarithmic scale from 1 to the largest.

    A class takes several columns where there is room, and with more classes than columns only some are drawn.

    Args:
        counts: falling; 0 has no bar.
        width: the most columns to take.
        height: rows.

    >>> print("\\n".join(profile_chart((100, 10, 1), width=6, height=2)))
    100 ┤██
      1 ┤████▁▁
    """
    num_columns = max(1, width // len(counts)) * min(width, len(counts))
    drawn = [counts[column * len(counts) // num_columns] for column in range(num_columns)]
    scale = math.log(max(counts[0], 2)) / height
    eighths = [max(1, round(8 * math.log(count) / scale)) if count else 0 for count in drawn]
    ticks = {min(height - 1, int(math.log(tick) / scale)): tick for tick in [*_powers_of_ten(counts[0]), counts[0]]}
    margin = len(f"{counts[0]:,}")
    rows = []
    for row in reversed(range(height)):
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, eighth - 8 * row))] for eighth in eighths)
        label = f"{ticks[row]:,}" if row in ticks else ""
        rows.append(f"{label:>{margin}} {'┤' if label else '│'}{cells}".rstrip())
    return rows


def _powers_of_ten(largest: int) -> list[int]:
    return [10**exponent for exponent in range(len(str(largest))) if 10**exponent < largest]


def _count_skipped(classes: tuple[ClassName, ...]) -> int:
    """How many class indices are unused. Numbers with mostly gaps are ids, not indices."""
    whole = [label for label in classes if isinstance(label, int)]
    if len(whole) < len(classes) or not whole or whole[0] < 0:
        return 0
    skipped = whole[-1] + 1 - len(whole)
    return skipped if skipped < len(whole) else 0
