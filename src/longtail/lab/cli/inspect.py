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

from longtail.lab.cli._console import make_table, print_screen, printable
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
    "describe_skew",
    "profile_chart",
    "render_inspection",
    "suggest_command",
    "suggest_methods",
]

NEARLY_BALANCED = 1.5
"""Up to this imbalance there is nothing to correct."""
FEW_SAMPLES = 20
"""A class with fewer is what ``ClassPrior.groups`` calls tail."""
MANY_CLASSES = 1000


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=LABEL_FILE)],
    label: LabelColumn = None,
    memory: Memory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the count of every class.")] = False,
) -> None:
    """Look at labels: how imbalanced they are, and which methods fit them."""
    from longtail.lab.cli._labels import count_any_labels

    inspection = inspect_labels(count_any_labels(files, label, memory))
    if as_json:
        typer.echo(json.dumps(inspection.as_json(), indent=2))
    else:
        print_screen(render_inspection(inspection))
        print_screen(suggest_command(files, label))


def suggest_command(files: Sequence[str], label: str | None = None) -> rich.console.RenderableType:
    """What to type next: compare methods on a recipe, or adjust the scores of a model that was trained on labels."""
    if files[0].endswith(".toml"):
        command = f"longtail compare {files[0]}"
        reason = "to see which method is best on these data"
    else:
        column = f" --label {label}" if label else ""
        labels = files[0] if len(files) == 1 else "FOLDER"
        command = f"longtail adjust SCORES --train-labels {labels}{column} --output predictions.csv"
        reason = "to correct a model that was trained on these labels, with its SCORES in a file"
    return rich.console.Group(Text(), Text(f"Next, {reason}:"), Text(f"  {printable(command)}", "bold"))


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

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        return {
            "num_samples": sum(self.counts),
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
        suggestions=tuple(suggest_methods(prior)),
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
                f"the rarest class has {smallest:,} samples: a larger margin helps where classes separate well.",
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


def render_inspection(found: Inspection) -> rich.console.RenderableType:
    """Counts, a drawing of them, groups, and methods to try."""
    num_samples = sum(found.counts)
    facts = f"{num_samples:,} samples, {len(found.counts):,} classes, imbalance {found.imbalance:,.1f}"
    lines = [Text(facts, "bold")]
    if found.num_missing:
        lines.append(Text(f"{found.num_missing:,} rows have no label and are left out.", "yellow"))
    if found.num_skipped:
        lines.append(
            Text(
                f"{found.num_skipped:,} numbers below the largest label do not occur: classes without samples?",
                "yellow",
            )
        )
    methods = make_table("try", "because")
    for suggestion in found.suggestions:
        methods.add_row(Text(suggestion.method, "bold"), Text(suggestion.reason))
    drawing = Text("\n".join(profile_chart(found.counts)), "cyan", no_wrap=True)
    caption = Text("samples of each class, most frequent first, on a logarithmic scale", "dim")
    lines.append(Text(describe_skew(found.counts)))
    parts = _render_groups(found) if found.has_useful_groups else [_tabulate_classes(found)]
    return rich.console.Group(*lines, Text(), drawing, caption, Text(), *parts, Text(), methods)


def describe_skew(counts: tuple[int, ...]) -> str:
    """How much the frequent classes have, and how little the rare half: a logarithmic drawing hides it.

    >>> describe_skew((90, 6, 3, 1))
    'The most frequent class has 90.0% of the samples, the rarer half of the classes 4.0%.'
    """
    total = max(1, sum(counts))
    rare = sum(counts[-(len(counts) // 2) :]) if len(counts) > 1 else 0
    return (
        f"The most frequent class has {counts[0] / total:.1%} of the samples, the rarer half of the classes "
        f"{rare / total:.1%}."
    )


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
