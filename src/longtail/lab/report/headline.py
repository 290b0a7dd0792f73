"""What was found, in words: on the page and below the table of ``longtail compare``.

Only what the seeds can tell is said: methods that they cannot tell from the best are named with it, one seed names no
winner, and what the gain costs is said with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longtail.lab.report.digests.base import BASELINES, Comparison, MethodResults
from longtail.lab.report.kinds import LabelKind, choose_kind
from longtail.lab.report.text import clean, join_words, percent, points
from longtail.lab.report.usage import write_usage
from longtail.lab.runs.statistics import Estimate

__all__ = ["Headline", "find_ties", "write_headline"]

MOST_NAMED = 4
"""Methods that a sentence names."""


@dataclass(frozen=True)
class Headline:
    """The main finding."""

    subject: str
    """What is set in bold."""
    rest: str
    """The end of the first sentence."""
    sentences: Sequence[str]
    code: str
    """How to use the best method; nothing if none is, or if it needs no code."""

    @property
    def text(self) -> str:
        """All of it but the code, as plain text."""
        return " ".join([self.subject + self.rest, *self.sentences])


def write_headline(comparison: Comparison[Any]) -> Headline:
    """What the runs say."""
    kind = choose_kind(comparison.labels)
    best, reference = comparison.best, comparison.reference
    value = best.metric(kind.MAIN_METRIC)
    name = clean(best.label)
    if reference is None:
        spread = f" (± {100 * value.half_width:.1f}, {value.count} seeds)" if value.has_interval else ""
        rest = f": {kind.MAIN_NAME} {percent(value.mean)}{spread}."
        return Headline(name, rest, kind.describe_levels(comparison), write_usage(best))
    ties = find_ties(comparison)
    changes = describe_changes(kind, comparison)
    difference = comparison.difference(kind.MAIN_METRIC)
    gain = f"{points(difference.mean)} points over {clean(reference.label)}{_write_interval(difference)}"
    if not difference.has_interval:
        first = f": highest {kind.MAIN_NAME} in these runs is {name}'s, {percent(value.mean)}, {gain}."
        subject = "No winner with one seed" if value.count < 2 else "No winner: the methods have different seeds"
        return Headline(subject, first, changes, "")
    if reference in ties and best.method in BASELINES:
        first = f" with {value.count} seeds: {kind.MAIN_NAME} {percent(value.mean)}, {gain}, which is next."
        return Headline(f"Nothing is better than {name}", first, changes, "")
    if reference in ties:
        subject = f"Nothing is clearly better than {clean(reference.label)}"
        first = f" with {value.count} seeds: highest is {name}, {kind.MAIN_NAME} {percent(value.mean)}, {gain}."
        return Headline(subject, first, changes, "")
    code = write_usage(best)
    if not ties:
        return Headline(name, f" is best: {kind.MAIN_NAME} {percent(value.mean)}, {gain}.", changes, code)
    rest = (
        f" are best, and {value.count} seeds cannot tell them apart: {kind.MAIN_NAME} "
        f"{_list_values([best, *ties], kind.MAIN_METRIC)}. {name}: {gain}."
    )
    return Headline(_list_names([best, *ties]), rest, changes, code)


def find_ties(comparison: Comparison[Any]) -> list[MethodResults[Any]]:
    """Methods whose difference from the best has a 95% interval that reaches 0, or none at all."""
    others = [method for method in comparison.ranked if method is not comparison.best]
    found = [comparison.difference(comparison.main_metric, comparison.best, other) for other in others]
    return [other for other, gap in zip(others, found, strict=True) if gap.mean == gap.mean and not gap.low > 0]


def describe_changes(kind: LabelKind, comparison: Comparison[Any]) -> list[str]:
    """Who gains from the best method, and who pays."""
    found = {name: points(change) for name, change in kind.find_changes(comparison).items() if change == change}
    gains = [f"{name} {change}" for name, change in found.items() if change.startswith("+")]
    losses = [f"{name} {change}" for name, change in found.items() if change.startswith("−")]
    if not gains and not losses:
        return []
    gain = f"Gain: {join_words(gains)} points." if gains else "Nothing gains."
    return [gain, f"Price: {join_words(losses)} points." if losses else "Nothing pays for it."]


def _write_interval(difference: Estimate) -> str:
    if not difference.has_interval:
        return ""
    low, high = difference.clip(-1, 1)
    return f" (95% interval {points(low)} to {points(high)}, {difference.count} seeds)"


def _list_names(methods: Sequence[MethodResults[Any]]) -> str:
    names = [clean(method.label) for method in methods]
    more = [f"{len(names) - MOST_NAMED + 1} others"] if len(names) > MOST_NAMED else []
    return join_words([*names[: MOST_NAMED - len(more)], *more])


def _list_values(methods: Sequence[MethodResults[Any]], metric: str) -> str:
    values = [percent(method.metric(metric).mean) for method in methods]
    return join_words(values) if len(values) <= MOST_NAMED else f"{values[-1]} to {values[0]}"
