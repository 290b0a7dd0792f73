"""A value of each class over the number of its training samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.digests.labels import FloatArray, IntArray, Labels
from longtail.lab.report.figures.drawing import (
    MOST_BARS,
    MOST_JOINED,
    Json,
    Series,
    Table,
    build_axis,
    build_layout,
    build_marked_line,
    build_trace,
    choose_scale,
    describe_methods,
    escape_class,
    place_counts,
    round_numbers,
)
from longtail.lab.report.text import clean, count

__all__ = ["build_frequency_layout", "describe_means", "describe_trends", "draw_over_frequency"]

Values = Sequence[tuple[Series, FloatArray]]
"""A value of each class, of every series."""

MOST_POINTS = 2000
"""Points of one figure; more are binned."""
NUM_BINS = 20


def draw_over_frequency(
    labels: Labels, values: Values, quantity: str, form: str, to_text: Callable[[float], str]
) -> tuple[list[Json], Table]:
    """Points while they are few, means over classes of like count, or both; and a table of the same.

    Args:
        labels: the classes.
        values: [C] of every series.
        quantity: what they are, in a word.
        form: how plotly writes them.
        to_text: how the table writes them.
    """
    has_points = labels.num_classes * len(values) <= MOST_POINTS
    has_means = labels.num_classes > MOST_JOINED
    bins = _bin_classes(labels.counts)
    traces: list[Json] = []
    for series, of_class in values:
        if has_points:
            traces.append(_draw_points(labels, series, of_class, f"{quantity} %{{y:{form}}}", is_faint=has_means))
        if has_means:
            traces.append(_draw_means(labels, series, of_class, bins, f"mean {quantity} %{{y:{form}}}"))
    columns = [series.label for series, _ in values]
    if labels.num_classes <= MOST_BARS:
        rows = [
            (clean(labels.names[i]), count(labels.counts[i]), *(to_text(of_class[i]) for _, of_class in values))
            for i in labels.by_frequency
        ]
        return traces, Table(("class", "training samples", *columns), rows)
    by_bin = np.array([_average_bins(of_class, bins) for _, of_class in values]).T
    rows = [
        (_describe_bin(labels.counts, members), *(to_text(mean) for mean in means))
        for members, means in zip(bins, by_bin, strict=True)
    ]
    return traces, Table(("classes", *columns), rows)


def build_frequency_layout(labels: Labels, y: Json) -> Json:
    """The layout of a figure over the number of training samples."""
    return build_layout(x=build_axis("training samples of the class", **choose_scale(labels.counts)), y=y)


def describe_means(labels: Labels) -> str:
    """A sentence about the lines, where they are means."""
    return " Lines are means over classes of like frequency." if labels.num_classes > MOST_JOINED else ""


def describe_trends(comparison: Comparison[Any], values: Values) -> str:
    """Rank correlations with the frequency, as part of a sentence."""
    counts = comparison.labels.counts
    trends = {series: _correlate(counts, of_class) for series, of_class in values}
    return describe_methods(comparison, trends, "for")


def _draw_points(labels: Labels, series: Series, of_class: FloatArray, hover: str, is_faint: bool) -> Json:
    classes = labels.by_frequency[np.isfinite(of_class[labels.by_frequency])]
    style = build_marked_line(series)
    if is_faint:
        style = {"type": "scatter", "mode": "markers", "marker": style["marker"] | {"size": 5, "opacity": 0.35}}
    return (
        build_trace(series)
        | style
        | {
            "x": place_counts(labels.counts[classes]).tolist(),
            "y": round_numbers(of_class[classes]),
            "customdata": [
                f"{escape_class(labels, i)}<br>{count(labels.counts[i])} training samples" for i in classes
            ],
            "hovertemplate": f"%{{customdata}}<br>{hover}",
        }
    )


def _draw_means(labels: Labels, series: Series, of_class: FloatArray, bins: Sequence[IntArray], hover: str) -> Json:
    return (
        build_trace(series)
        | build_marked_line(series)
        | {
            "x": round_numbers(_center_bin(labels.counts[members]) for members in bins),
            "y": round_numbers(_average_bins(of_class, bins)),
            "customdata": [_describe_bin(labels.counts, members) for members in bins],
            "hovertemplate": f"%{{customdata}}<br>{hover}",
        }
    )


def _bin_classes(counts: IntArray) -> list[IntArray]:
    """Classes of like count, most frequent last: bins of equal width on a log scale, empty ones left out."""
    logs = np.log(place_counts(counts))
    edges = np.linspace(logs.min(), logs.max(), NUM_BINS + 1)[1:-1]
    place = np.searchsorted(edges, logs)
    return [members for bin in range(NUM_BINS) if len(members := np.flatnonzero(place == bin))]


def _average_bins(of_class: FloatArray, bins: Sequence[IntArray]) -> list[float]:
    finite = [of_class[members][np.isfinite(of_class[members])] for members in bins]
    return [float(values.mean()) if len(values) else math.nan for values in finite]


def _center_bin(counts: IntArray) -> float:
    return float(np.exp(np.log(place_counts(counts)).mean()))


def _describe_bin(counts: IntArray, members: IntArray) -> str:
    low, high = counts[members].min(), counts[members].max()
    span = count(low) if low == high else f"{count(low)} to {count(high)}"
    return f"{count(len(members))} {'class' if len(members) == 1 else 'classes'} of {span}"


def _correlate(counts: IntArray, values: FloatArray) -> str:
    finite = np.isfinite(values)
    if np.ptp(values[finite]) == 0 or np.ptp(counts[finite]) == 0:
        return "none"
    correlation = float(stats.spearmanr(counts[finite], values[finite]).statistic)
    return f"{correlation:+.2f}".replace("-", "−")
