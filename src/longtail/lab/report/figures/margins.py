"""Logit margins: the score of the true label minus that of the best other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longtail.lab.report.digests.labels import Group, IntArray, Labels
from longtail.lab.report.digests.single_label import SingleLabelComparison
from longtail.lab.report.figures._drawing import (
    Figure,
    Json,
    Table,
    build_axis,
    build_layout,
    build_line,
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
    for series, method in pair_series(comparison):
        samples = [method.margins(key) for key in keys]
        quantiles = [np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]) for values in samples]
        low, lower, middle, upper, high = (round_numbers(values) for values in zip(*quantiles, strict=True))
        traces.append(
            build_trace(series)
            | {
                "type": "box",
                "x": ticks,
                "lowerfence": low,
                "q1": lower,
                "median": middle,
                "q3": upper,
                "upperfence": high,
                "line": {"color": f"@{series.color}", "width": 1.5},
                "fillcolor": f"@{series.color} 0.25",
                "hoverinfo": "y+name",
            }
        )
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
    layout = build_layout(x=build_axis("", type="category"), y=build_axis(TITLE))
    layout |= {"boxmode": "group", "boxgap": 0.25, "boxgroupgap": 0.15, "shapes": [draw_horizontal(0)]}
    rarest = labels.groups[keys[-1]]
    place = rarest.place if rarest.is_class else f"{rarest.place} ({names[keys[-1]]})"
    summary = (
        f"Below 0 a sample is misclassified: {place} that is {describe_methods(comparison, below, 'with')}. "
        "Boxes hold the middle half of the samples, whiskers 5% to 95%."
    )
    table = Table(("method", "class", "5%", "25%", "median", "75%", "95%", "below 0"), rows)
    return Figure("margins", traces, layout, summary, table, series_of_methods(comparison))


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
    return f"all {count(len(classes))} classes"


def _label_tick(group: Group, name: str) -> str:
    if group.is_class:
        return escape_markup(name)
    return f"{group.name}<br>{escape_markup(clean(name, most=18))}"


def _title_row(group: Group, name: str) -> str:
    return name if group.is_class else f"{group.name}: {name}"
