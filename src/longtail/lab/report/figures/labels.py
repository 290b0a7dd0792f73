"""How the labels are distributed."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.figures.drawing import (
    MOST_BARS,
    MOST_JOINED,
    Figure,
    Series,
    Table,
    build_axis,
    build_bars,
    build_layout,
    build_line,
    build_points,
    build_trace,
    choose_scale,
    escape_class,
    escape_markup,
    series_of_groups,
    space_out,
)
from longtail.lab.report.text import clean, count, percent

__all__ = ["draw_labels"]


def draw_labels(comparison: Comparison[Any]) -> Figure:
    """Training samples of each class, most frequent first, colored by group."""
    labels = comparison.labels
    order = labels.by_frequency
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(1, len(order) + 1)
    scale = choose_scale(labels.counts)
    is_few = labels.num_classes <= MOST_BARS
    # Bars need a zero to stand on, which a logarithmic scale has not.
    build = build_line if not is_few else build_points if "type" in scale else build_bars
    traces = []
    for group in labels.groups.values():
        series = Series.of_group(group)
        ranked = group.classes[np.argsort(rank_of[group.classes])]
        classes = ranked if is_few else ranked[space_out(len(ranked))]
        traces.append(
            build_trace(series)
            | build(series)
            | {
                "x": rank_of[classes].tolist(),
                "y": labels.counts[classes].tolist(),
                "customdata": [escape_class(labels, index) for index in classes],
                "hovertemplate": "%{customdata}<br>%{y:,} training samples<br>rank %{x}",
            }
        )
    ticks = {}
    if labels.num_classes <= MOST_JOINED:
        ticks = {
            "tickvals": list(range(1, len(order) + 1)),
            "ticktext": [escape_markup(clean(labels.names[index], most=14)) for index in order],
        }
    layout = build_layout(
        x=build_axis("class, most frequent first", **ticks),
        y=build_axis("training samples", **scale),
        bargap=0.15,
    )
    return Figure(
        "label-distribution", traces, layout, _summarize(labels), _tabulate(labels), series_of_groups(labels)
    )


def _summarize(labels: Labels) -> str:
    largest, smallest = labels.counts.max(), labels.counts.min()
    ratio = f"{largest / smallest:,.0f} times as many" if smallest else "the rarest has none"
    text = (
        f"{count(labels.num_classes)} classes. The most frequent has {count(largest)} training samples "
        f"and the rarest {count(smallest)}: {ratio}. {labels.define_groups()}"
    )
    return text.rstrip()


def _tabulate(labels: Labels) -> Table:
    """Every class where they are few, else every group."""
    if labels.has_named_groups:
        rows = [(clean(labels.names[i]), count(labels.counts[i])) for i in labels.by_frequency]
        return Table(("class", "training samples"), rows)
    if labels.num_classes <= MOST_BARS:
        group_of = {int(one): group.name for group in labels.groups.values() for one in group.classes}
        return Table(
            ("class", "group", "training samples"),
            [(clean(labels.names[i]), group_of[int(i)], count(labels.counts[i])) for i in labels.by_frequency],
        )
    total = labels.counts.sum()
    counts_of = {group.name: labels.counts[group.classes] for group in labels.groups.values()}
    return Table(
        ("group", "classes", "largest class", "smallest class", "share of samples"),
        [
            (name, count(len(counts)), count(counts.max()), count(counts.min()), percent(counts.sum() / total))
            for name, counts in counts_of.items()
        ],
    )
