"""Logit margins: the score of the true label minus that of the best other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from longtail.lab.report.digests.labels import FloatArray, Group, IntArray, Labels
from longtail.lab.report.digests.single_label import SingleLabelComparison
from longtail.lab.report.figures.drawing import (
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_layout,
    build_line,
    build_points,
    build_trace,
    describe_methods,
    draw_horizontal,
    draw_vertical,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_methods,
)
from longtail.lab.report.text import class_name, clean, count, percent

__all__ = ["draw_margin_shares", "draw_margins"]

NUM_STEPS = 101
"""Points of a cumulated distribution."""
QUANTILES = ("5%", "25%", "median", "75%", "95%")
SPREAD = 0.8
"""Of the room of a class, the part that its methods share."""
TITLE = "score of the true label − best other"


def draw_margins(comparison: SingleLabelComparison) -> Figure:
    """Quartiles of the logit margin, for a class of every group."""
    labels = comparison.labels
    examples = {key: labels.example(key) for key in labels.groups}
    keys = [key for key, classes in examples.items() if labels.test_counts[classes].sum()]
    names = {key: _name_example(labels, labels.groups[key], examples[key]) for key in keys}
    ticks = [_label_tick(labels.groups[key], names[key]) for key in keys]
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    below = {}
    num_methods = len(comparison.methods)
    for order, (series, method) in enumerate(pair_series(comparison)):
        samples = [method.margins(key) for key in keys]
        quantiles = [np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]) for values in samples]
        x = [index + SPREAD * ((order + 0.5) / num_methods - 0.5) for index in range(len(keys))]
        traces += _draw_quantiles(series, x, quantiles)
        rows += [
            (
                series.label,
                _title_row(labels.groups[key], names[key]),
                *(f"{q:.2f}" for q in five),
                percent(float((values < 0).mean())),
            )
            for key, five, values in zip(keys, quantiles, samples, strict=True)
        ]
        below[series] = percent(float((samples[-1] < 0).mean()))
    ends = [-0.5, len(keys) - 0.5]
    layout = build_layout(
        x=build_axis("", tickvals=list(range(len(keys))), ticktext=ticks, range=ends),
        y=build_axis(TITLE),
        shapes=[draw_horizontal(0)],
    )
    rarest = labels.groups[keys[-1]]
    place = rarest.place if rarest.is_class else f"{rarest.place} ({names[keys[-1]]})"
    summary = (
        f"Below 0 a sample is misclassified: {place} that is {describe_methods(comparison, below, 'with')}. "
        "Marks are medians, thick lines hold the middle half of the samples, thin ones 5% to 95%."
    )
    table = Table(("method", "class", *QUANTILES, "below 0"), rows)
    return Figure("margins", traces, layout, summary, table, series_of_methods(comparison))


def _draw_quantiles(series: Series, x: Sequence[float], quantiles: Sequence[FloatArray]) -> list[Json]:
    """The median as a mark, the middle half as a thick line, 5% to 95% as a thin one."""
    spans = {
        index: [value for five in quantiles for value in (five[index], five[4 - index], math.nan)] for index in (0, 1)
    }
    places = [value for one in x for value in (one, one, math.nan)]
    lines = [
        build_trace(series)
        | build_line(series)
        | {"x": round_numbers(places), "y": round_numbers(spans[index]), "hoverinfo": "skip"}
        | {"line": {"color": f"@{series.color}{alpha}", "width": width}}
        for index, width, alpha in ((0, 1.5, ""), (1, 7, " 0.45"))
    ]
    told = [
        "<br>".join(f"{name} {value:.2f}" for name, value in zip(QUANTILES, five, strict=True)) for five in quantiles
    ]
    medians = {"x": round_numbers(x), "y": round_numbers(five[2] for five in quantiles), "customdata": told}
    hover = {"hovertemplate": "%{customdata}"}
    return [*lines, build_trace(series) | build_points(series, size=9) | medians | hover]


def draw_margin_shares(comparison: SingleLabelComparison, group: Group) -> Figure | None:
    """The cumulated share of a group's test samples over their logit margin; None for a group without any."""
    if group.key not in comparison.methods[0].runs[0].group_margins:
        return None
    shares = np.linspace(0, 1, NUM_STEPS)
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    below = {}
    for series, method in pair_series(comparison):
        values = method.group_margins(group.key)
        quantiles = np.quantile(values, shares)
        traces.append(
            build_trace(series)
            | build_line(series)
            | {
                "x": round_numbers(quantiles),
                "y": round_numbers(shares),
                "hovertemplate": "margin at most %{x:.2f}: %{y:.1%}",
            }
        )
        rows.append((series.label, *(f"{q:.2f}" for q in quantiles[:: NUM_STEPS // 4])))
        below[series] = percent(float((values < 0).mean()))
    layout = build_layout(
        x=build_axis(TITLE),
        y=build_axis(f"share of {escape_markup(group.of_samples)}", tickformat=".0%", range=[-0.02, 1.02]),
        height=320,
        shapes=[draw_vertical(0)],
    )
    subject = group.name if group.is_class else group.name.capitalize()
    summary = (
        f"{subject}: the lower a line left of the dotted one, the fewer samples are misclassified; "
        f"here {describe_methods(comparison, below, 'with')}. A steep line has margins that vary little."
    )
    table = Table(("method", "smallest", "25%", "median", "75%", "largest"), rows)
    return Figure(f"margin-shares-{group.key}", traces, layout, summary, table, series_of_methods(comparison))


def _name_example(labels: Labels, group: Group, classes: IntArray) -> str:
    if group.is_class:
        return group.name
    if len(classes) == 1:
        return class_name(labels.names[int(classes[0])])
    return f"{count(len(classes))} classes"


def _label_tick(group: Group, name: str) -> str:
    if group.is_class:
        return escape_markup(name)
    return f"{group.name}<br>{escape_markup(clean(name, most=18))}"


def _title_row(group: Group, name: str) -> str:
    return name if group.is_class else f"{group.name}: {name}"
