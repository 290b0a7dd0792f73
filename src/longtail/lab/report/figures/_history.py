"""A quantity by epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.figures.drawing import (
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_layout,
    build_line,
    build_trace,
    describe_methods,
    pair_series,
    round_numbers,
    space_out,
)

__all__ = ["draw_history"]

MOST_ROWS = 20
"""Epochs that the table has of each method."""
AFTERWARDS = "after adjustment"
"""What a post-hoc method makes of the trained model."""


def draw_history(
    comparison: Comparison[Any], name: str, title: str, subject: str, form: str, to_text: Callable[[float], str]
) -> Figure | None:
    """A line for every method; None if the quantity was measured less than twice.

    A method that acts on the trained model has a mark where it ends, since training does not show what it does.

    Args:
        comparison: the runs.
        name: of the quantity in the history.
        title: of the axis.
        subject: what the sentence begins with.
        form: how plotly writes the quantity.
        to_text: how the table and the sentence write it.
    """
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    ends: dict[Series, str] = {}
    span: tuple[int, int] | None = None
    for series, method in pair_series(comparison):
        epochs, values = method.history(name)
        if len(epochs) < 2:
            continue
        span = span or (epochs[0], epochs[-1])
        steps = space_out(len(epochs))
        x, y = np.array(epochs)[steps], np.array(values)[steps]
        line = {"x": x.tolist(), "y": round_numbers(y), "hovertemplate": f"epoch %{{x}}: %{{y:{form}}}"}
        traces.append(build_trace(series) | build_line(series) | line)
        rows += [(series.label, str(x[row]), to_text(y[row])) for row in space_out(len(x), MOST_ROWS)]
        ends[series] = f"{to_text(y[0])} to {to_text(y[-1])}"
        final = method.metric(name)
        if method.is_posthoc and final.count:
            traces.append(_mark_end(series, int(x[-1]), float(y[-1]), final.mean, form))
            rows.append((series.label, AFTERWARDS, to_text(final.mean)))
            ends[series] += f" and {to_text(final.mean)} {AFTERWARDS}"
    if span is None:
        return None
    y_axis = build_axis(title, **({"tickformat": ".0%"} if form.endswith("%") else {"rangemode": "tozero"}))
    summary = f"{subject}, from epoch {span[0]} to {span[1]}: {describe_methods(comparison, ends, 'with')}."
    layout = build_layout(x=build_axis("epoch"), y=y_axis, height=300)
    return Figure(
        name.replace("_", "-"), traces, layout, summary, Table(("method", "epoch", title), rows), list(ends)
    )


def _mark_end(series: Series, epoch: int, trained: float, final: float, form: str) -> Json:
    """From where training ends to where the method does."""
    color = f"@{series.color}"
    return build_trace(series) | {
        "type": "scatter",
        "mode": "lines+markers+text",
        "line": {"color": color, "width": 1.5, "dash": "dot"},
        "marker": {"size": [0, 11], "color": "@card", "line": {"color": color, "width": 3}},
        "x": [epoch, epoch],
        "y": round_numbers([trained, final]),
        "text": ["", AFTERWARDS],
        "textposition": "middle left",
        "cliponaxis": False,
        "hovertemplate": f"{AFTERWARDS}: %{{y:{form}}}",
    }
