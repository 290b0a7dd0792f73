"""Accuracy in the head, the torso and the tail; or on each class, where they are few."""

from __future__ import annotations

import math

from longtail.lab.report.digests.single_label import MAIN_METRIC, SingleLabelComparison
from longtail.lab.report.figures._drawing import (
    GROUPED_BARS,
    Figure,
    Table,
    build_axis,
    build_bars,
    build_error_bars,
    build_layout,
    build_share_axis,
    build_trace,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_methods,
)
from longtail.lab.report.text import clean, join_words, percent, points, with_interval
from longtail.lab.runs.statistics import Estimate

__all__ = ["draw_groups"]


def draw_groups(comparison: SingleLabelComparison) -> Figure:
    """Accuracy in every group and over all classes, for every method."""
    groups = comparison.labels.groups
    keys = [MAIN_METRIC, *groups]
    names = ["all classes", *(group.name for group in groups.values())]
    traces, rows = [], []
    for series, method in pair_series(comparison):
        values = [method.metric(key) for key in keys]
        traces.append(
            build_trace(series)
            | build_bars(series)
            | {
                "x": [escape_markup(name) for name in names],
                "y": round_numbers(value.mean for value in values),
                "error_y": build_error_bars(values, 0, 1),
                "customdata": [_describe_interval(value) for value in values],
                "hovertemplate": "%{x}: %{y:.1%}%{customdata}",
            }
        )
        rows.append((series.label, *(with_interval(value) for value in values)))
    layout = build_layout(x=build_axis(""), y=build_share_axis("accuracy, mean over classes", rangemode="tozero"))
    places = ["on all classes", *(group.place for group in groups.values())]
    leaders = join_words(_name_leader(comparison, key, place) for key, place in zip(keys, places, strict=True))
    kind = "Highest mean accuracy" if len(comparison.methods) > 1 else "Mean accuracy"
    note = " Error bars are 95% intervals of the mean over seeds." if comparison.has_intervals else ""
    table = Table(("method", *names), rows)
    summary = f"{kind}: {leaders}.{note}"
    return Figure("groups", traces, layout | GROUPED_BARS, summary, table, series_of_methods(comparison))


def _name_leader(comparison: SingleLabelComparison, key: str, place: str) -> str:
    """The best method on all classes or in a group, and its value; the value alone if there is but one method."""
    means = {method.label: method.metric(key).mean for method in comparison.methods}
    best = max(means, key=lambda label: means[label] if math.isfinite(means[label]) else -math.inf)
    who = f"with {clean(best)} " if len(means) > 1 else ""
    return f"{percent(means[best])} {who}{place}"


def _describe_interval(value: Estimate) -> str:
    if not value.has_interval:
        return ""
    low, high = value.clip(0, 1)
    if (low, high) == (value.low, value.high):
        return f" ± {points(value.half_width).removeprefix('+')} points"
    return f", {percent(low)} to {percent(high)}"
