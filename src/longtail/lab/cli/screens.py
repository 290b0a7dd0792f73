"""What the commands print: tables and drawings for the terminal, of results that others computed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from longtail.lab.cli.cards import card_sections
from longtail.prior import ClassPrior

if TYPE_CHECKING:  # for annotations alone: a screen should not import what another one needs
    from longtail.lab.cli.adjusting import Measurement, TauChoice
    from longtail.lab.cli.explaining import Explanation
    from longtail.lab.cli.inspecting import Inspection
    from longtail.lab.cli.thresholding import LabelMeasurement
    from longtail.lab.runs.folder import Run
    from longtail.methods import Method
    from longtail.posthoc.thresholds import Thresholds

__all__ = [
    "adjustment",
    "comparison",
    "explanation",
    "inspection",
    "label_adjustment",
    "method_card",
    "method_table",
]

SAMPLE_PRIOR = ClassPrior.from_counts([1000, 300, 100, 30, 10])
"""A long tail to ask methods about: whether they are consistent does not depend on which one."""


def method_table(methods: Iterable[Method]) -> RenderableType:
    """One line a method, a table a family: so that one family's long names leave the others room for words."""
    families: dict[str, list[Method]] = {}
    for method in methods:
        families.setdefault(method.family, []).append(method)
    return Group(*(_family_table(family, members) for family, members in families.items()))


def _family_table(family: str, members: Sequence[Method]) -> RenderableType:
    answers = [_consistency(method) for method in members]
    is_known = any(answer != "-" for answer in answers)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(family, no_wrap=True)
    for heading in ("consistent", "what it is") if is_known else ("what it is",):
        table.add_column(heading)
    for method, answer in zip(members, answers, strict=True):
        words = Text(method.summary.replace("``", ""))
        table.add_row(Text(method.name, "bold"), *([answer] if is_known else []), words)
    return Group(table, Text())


def method_card(method: Method) -> RenderableType:
    """The method's docstring, its options, and whether it is consistent."""
    answers = {
        "yes": "Yes: with enough data and a rich model it minimizes the balanced error.",
        "no": "No: Theorem 1 of Menon et al. does not grant it, whatever the amount of data.",
        "-": "Not known.",
    }
    options = ", ".join(f"{name} = {value}" for name, value in method.options.items()) or "none"
    kind = ", ".join(filter(None, (method.family, method.variant)))
    parts: list[RenderableType] = [Text.assemble((method.name, "bold"), f"  ({kind})"), Text()]
    for section in card_sections((method.card.__doc__ or "").replace("``", "")):
        parts.extend(_section(section.title, section.text))
    parts.extend(_section("Options", options))
    parts.extend(_section("Consistent for the balanced error", answers[_consistency(method)]))
    return Group(*parts)


def inspection(found: Inspection) -> RenderableType:
    """Counts, a drawing of them, groups, and methods to try."""
    from longtail.lab.cli.inspecting import profile_chart

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
    groups = _table("group", "samples a class", "classes", "samples", "share")
    for group, meaning in zip(found.groups, ("100 or more", "21 to 99", "20 or fewer"), strict=True):
        numbers = (f"{group.num_classes:,}", f"{group.num_samples:,}", f"{group.num_samples / num_samples:.1%}")
        groups.add_row(group.name, meaning, *numbers)
    named = [f"{label} ({count:,})" for label, count in zip(found.classes, found.counts, strict=True)]
    extremes = [f"most frequent  {', '.join(named[:3])}", f"rarest         {', '.join(named[:-4:-1])}"]
    methods = _table("try", "because")
    for suggestion in found.suggestions:
        methods.add_row(Text(suggestion.method, "bold"), Text(suggestion.reason))
    drawing = Text("\n".join(profile_chart(found.counts)), "cyan", no_wrap=True)
    caption = Text("samples of each class, most frequent first, on a logarithmic scale", "dim")
    return Group(
        *lines, Text(), drawing, caption, Text(), *(Text(line) for line in extremes), Text(), groups, methods
    )


def adjustment(prior: ClassPrior, choice: TauChoice, before: Measurement, after: Measurement) -> RenderableType:
    """What adjustment changed, group by group."""
    chosen = ""
    if choice.interval is not None:
        low, high = choice.interval
        chosen = f", chosen on the holdout; {low:g} to {high:g} are as good within a standard error"
    return Group(Text(f"tau {choice.tau:g}{chosen}", "bold"), _before_and_after(prior, before, after))


def comparison(runs: Sequence[Run]) -> RenderableType:
    """One row a method: means over seeds with 95% intervals. Accuracy over all samples only where it differs."""
    from longtail.lab.runs.statistics import estimate

    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    are_several = any(run.predictions.is_multilabel for run in runs)
    headings = _multilabel_headings(runs) if are_several else _accuracy_headings(runs)
    shown = [name for name in headings if any(name in run.metrics for run in runs)]
    table = _table("method", *(headings[name] for name in shown), "s")
    for method, members in by_method.items():
        found = [estimate(run.metrics.get(name, math.nan) for run in members) for name in shown]
        intervals = [f" ±{100 * value.half_width:.1f}" if value.has_interval else "" for value in found]
        cells = [f"{100 * value.mean:.1f}{interval}" for value, interval in zip(found, intervals, strict=True)]
        seconds = sum(float(run.summary["seconds"]) for run in members) / len(members)
        table.add_row(method, *cells, f"{seconds:.1f}")
    seeds = sorted({len(members) for members in by_method.values()})
    over = "one seed" if seeds == [1] else f"means over {seeds[-1]} seeds with 95% intervals"
    measured = "Accuracy on the test set in percent"
    if are_several:
        rare = "".join(f"; rare: the {size} rarest classes" for size in _rarest_sizes(runs))
        measured = f"In percent, at a probability of 0.5{rare}"
    return Group(table, Text(f"{measured}: {over}.", "dim"))


def _accuracy_headings(runs: Sequence[Run]) -> dict[str, str]:
    headings = {"balanced_accuracy": "balanced", "head": "head", "torso": "torso", "tail": "tail"}
    if any(abs(run.metrics["accuracy"] - run.metrics["balanced_accuracy"]) > 1e-6 for run in runs):
        headings["accuracy"] = "all"
    return headings


def _multilabel_headings(runs: Sequence[Run]) -> dict[str, str]:
    """Averages over all classes, and over the fewest of the rarest ones that are measured."""
    sizes = _rarest_sizes(runs)
    rare = {
        f"{name}_rarest_{size}": f"rare {word}"
        for size in sizes
        for name, word in (("f1", "F1"), ("recall", "recall"))
    }
    return {"f1": "F1", "recall": "recall", **rare, "mean_average_precision": "mAP"}


def _rarest_sizes(runs: Sequence[Run]) -> list[int]:
    """The smallest number of rare classes that is measured, if any is."""
    return sorted({int(name.rpartition("_")[2]) for name in runs[0].metrics if "_rarest_" in name})[:1]


def explanation(found: Explanation) -> RenderableType:
    """The implied loss of a sampling scheme, its formula, and who gains."""
    gains = {
        "tail": "Favors the tail: rare labels must win by more, or are pushed down less, than frequent ones.",
        "head": "Favors the head: frequent labels must win by more, or are pushed down less, than rare ones.",
        "neither": "Favors neither head nor tail, other than plain cross-entropy does.",
    }
    balanced = "It is consistent for the balanced error." if found.is_consistent else ""
    facts = _table("true label", "negative", "counts as")
    facts.add_row("rarest", "most frequent", f"{found.rarest_against_most_frequent:.4g}")
    facts.add_row("most frequent", "rarest", f"{found.most_frequent_against_rarest:.4g}")
    return Group(
        Text(f"{found.sampling} negatives, {found.weighting} weighting w = {found.weight_formula}", "bold"),
        Text(f"optimize: {found.name}"),
        Padding(Text(found.formula, "green"), (1, 0, 1, 4)),
        Text(f"{gains[found.favors]} {balanced}".strip()),
        Text(),
        facts,
        Text("How often a negative counts against a true label, in expectation; 1 in cross-entropy.", "dim"),
    )


def label_adjustment(
    thresholds: Thresholds, before: LabelMeasurement, after: LabelMeasurement, names: Sequence[str], default: float
) -> RenderableType:
    """What thresholds per class changed, and which classes they are not for."""
    low, high = float(thresholds.values.min()), float(thresholds.values.max())
    lines = [Text(f"thresholds {low:.3g} to {high:.3g}, chosen on the holdout", "bold")]
    undecided = [names[index] for index in thresholds.undecided.tolist()]
    if undecided:
        shown = ", ".join(undecided[:5]) + (", ..." if len(undecided) > 5 else "")
        lines.append(Text(f"{len(undecided):,} without positives there, left at {default:g}: {shown}", "yellow"))
    table = _table("", "before", "after")
    table.add_row("labels a sample", f"{before.labels_a_sample:.2f}", f"{after.labels_a_sample:.2f}")
    if after.macro_f1 is not None:
        table.add_row("exact match", *_percents(before.exact_match, after.exact_match))
        table.add_row("micro-F1", *_percents(before.micro_f1, after.micro_f1))
        table.add_row(Text("macro-F1", "bold"), *_percents(before.macro_f1, after.macro_f1))
    return Group(*lines, table)


def _before_and_after(prior: ClassPrior, before: Measurement, after: Measurement) -> Table:
    """Shares of predictions by group; with labels, accuracies too."""
    table = _table("", "classes", "before", "after")
    groups = prior.groups()
    for name in before.shares:
        table.add_row(
            f"predicted {name}", f"{len(groups[name]):,}", *_percents(before.shares[name], after.shares[name])
        )
    if before.group_accuracy is None or after.group_accuracy is None:
        return table
    table.add_section()
    for name in before.group_accuracy:
        row = _percents(before.group_accuracy[name], after.group_accuracy[name])
        table.add_row(f"{name} recall", f"{len(groups[name]):,}", *row)
    table.add_section()
    table.add_row("accuracy", "", *_percents(before.accuracy, after.accuracy))
    table.add_row(
        Text("balanced accuracy", "bold"), "", *_percents(before.balanced_accuracy, after.balanced_accuracy)
    )
    return table


def _percents(*values: float | None) -> list[str]:
    return ["-" if value is None or value != value else f"{value:.1%}" for value in values]


def _consistency(method: Method) -> str:
    return {True: "yes", False: "no", None: "-"}[method.is_consistent(SAMPLE_PRIOR)]


def _table(*headings: str) -> Table:
    """A plain table; all columns but the first and wordy ones are numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    words = {"method", "family", "what it is", "because", "try", "group", "consistent", ""}
    for heading in headings:
        table.add_column(
            heading, justify="left" if heading in words else "right", no_wrap=heading in {"method", "try"}
        )
    return table


def _section(title: str, text: str) -> Iterator[RenderableType]:
    """Prose is joined, to be wrapped to the terminal; formulas and examples stay as they are."""
    if title:
        yield Text(title, "bold cyan")
    indent = (0, 0, 0, 4 if title else 0)
    if title in ("Formula", "Example"):
        yield Padding(Text(text, "green"), indent)
    else:
        for part in re.split(r"\n(?! )" if title == "Args" else r"\n\n", text):
            yield Padding(Text(" ".join(part.split())), indent)
    yield Text()
