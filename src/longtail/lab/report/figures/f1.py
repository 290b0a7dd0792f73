"""Multi-label: F1 of each class."""

from __future__ import annotations

import numpy as np

from longtail.lab.report.digests.multilabel import MultilabelComparison
from longtail.lab.report.figures.drawing import (
    MOST_BARS,
    Figure,
    Table,
    build_axis,
    build_bars,
    build_layout,
    build_trace,
    escape_class,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_methods,
)
from longtail.lab.report.text import clean, count, percent

__all__ = ["draw_f1"]


def draw_f1(comparison: MultilabelComparison) -> Figure | None:
    """F1 of each class, most frequent first; None where there are too many classes for bars."""
    labels = comparison.labels
    if labels.num_classes > MOST_BARS:
        return None
    order = labels.by_frequency
    traces, columns = [], []
    for series, method in pair_series(comparison):
        f1 = method.class_scores().f1.numpy()
        columns.append(f1)
        traces.append(
            build_trace(series)
            | build_bars(series)
            | {
                "x": [escape_markup(clean(labels.names[index], most=24)) for index in order],
                "y": round_numbers(f1[order]),
                "customdata": [
                    f"{escape_class(labels, i)}<br>{count(labels.counts[i])} training samples" for i in order
                ],
                "hovertemplate": "%{customdata}<br>F1 %{y:.1%}",
            }
        )
    layout = build_layout(
        x=build_axis("class, most frequent first", type="category"),
        y=build_axis("F1", tickformat=".0%", rangemode="tozero"),
    )
    layout |= {"barmode": "group", "bargap": 0.2, "bargroupgap": 0.05}
    rows = [
        (clean(labels.names[i]), count(labels.counts[i]), *(percent(float(f1[i])) for f1 in columns)) for i in order
    ]
    legend = series_of_methods(comparison)
    table = Table(("class", "training samples", *(series.label for series in legend)), rows)
    return Figure("f1-by-class", traces, layout, _summarize(comparison), table, legend)


def _summarize(comparison: MultilabelComparison) -> str:
    reference = comparison.reference
    if reference is None:
        return "F1 of each class."
    before, after = (method.class_scores().f1.numpy() for method in (reference, comparison.best))
    num_better = int((after > before).sum())
    return (
        f"{clean(comparison.best.label)} has a higher F1 than {clean(reference.label)} on {count(num_better)} of "
        f"{count(int(np.isfinite(before).sum()))} classes."
    )
