"""Accuracy in the head, the torso and the tail; or on each class, where they are few."""

from __future__ import annotations

import math
from collections.abc import Sequence

from longtail.lab.report.digests.base import MOST_SHOWN
from longtail.lab.report.digests.single_label import MAIN_METRIC, SingleLabelComparison
from longtail.lab.report.figures.drawing import (
    GROUPED_BARS,
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_bars,
    build_error_bars,
    build_layout,
    build_points,
    build_share_axis,
    build_trace,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_groups,
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
        traces.append(build_trace(series) | build_bars(series) | _place_bars(names, values))
        rows.append((series.label, *(with_interval(value) for value in values)))
    places = ["on all classes", *(group.place for group in groups.values())]
    leaders = join_words(_name_leader(comparison, key, place) for key, place in zip(keys, places, strict=True))
    kind = "Highest mean accuracy" if len(comparison.methods) > 1 else "Mean accuracy"
    order = " Bars are in the order of the names above." if 1 < len(comparison.methods) <= MOST_SHOWN else ""
    note = " Error bars are 95% intervals of the mean over seeds." if comparison.has_intervals else ""
    table = Table(("method", *names), rows)
    summary = f"{kind}: {leaders}.{order}{note}"
    if len(comparison.methods) > MOST_SHOWN:
        legend = [Series("group-all", "all classes", "ink"), *series_of_groups(comparison.labels)]
        return Figure("groups", *_draw_dots(comparison, legend, keys), summary, table, legend)
    layout = build_layout(x=build_axis(""), y=build_share_axis("accuracy, mean over classes", rangemode="tozero"))
    return Figure("groups", traces, layout | GROUPED_BARS, summary, table, series_of_methods(comparison))


def _place_bars(names: Sequence[str], values: Sequence[Estimate]) -> Json:
    return {
        "x": [escape_markup(name) for name in names],
        "y": round_numbers(value.mean for value in values),
        "error_y": build_error_bars(values, 0, 1),
        "customdata": [_describe_interval(value) for value in values],
        "hovertemplate": "%{x}: %{y:.1%}%{customdata}",
    }


def _draw_dots(
    comparison: SingleLabelComparison, legend: Sequence[Series], keys: Sequence[str]
) -> tuple[list[Json], Json]:
    """A line of dots per method, the best on top: many methods side by side, where bars would be slivers."""
    ranked = comparison.ranked[::-1]
    names = [escape_markup(clean(method.label, most=32)) for method in ranked]
    traces = []
    for series, key in zip(legend, keys, strict=True):
        values = [method.metric(key) for method in ranked]
        is_whole = key == MAIN_METRIC
        dots = {
            "x": round_numbers(value.mean for value in values),
            "y": names,
            "customdata": [_describe_interval(value) for value in values],
            "hovertemplate": f"%{{y}}, {escape_markup(series.label)}: %{{x:.1%}}%{{customdata}}",
        }
        bars = {"error_x": build_error_bars(values, 0, 1)} if is_whole else {}
        traces.append(build_trace(series) | build_points(series, size=11 if is_whole else 8) | dots | bars)
    layout = build_layout(
        x=build_share_axis("accuracy, mean over classes", showgrid=True),
        y=build_axis("", type="category"),
        height=110 + 26 * len(ranked),
    )
    return traces, layout


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
