"""Figures from points: lines, bars, clouds and densities, one panel beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longtail.lab.reproduce._writing import layout
from longtail.lab.reproduce.ledger import Line
from longtail.lab.reproduce.study import Figure

__all__ = ["draw_figure"]

COLORS = (
    "#555555",
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6d31",
    "#332288",
    "#aa4466",
)
"""Of series, in order; the first seven are told apart also by color-blind readers (Okabe and Ito)."""


def draw_figure(figure: Figure, points: Sequence[Line]) -> Any:
    """The figure of plotly; None if there are no points for it."""
    from plotly.subplots import make_subplots

    own = [{**point, "row": point["series"] or point["row"]} for point in points if point["figure"] == figure.name]
    if not own:
        return None
    panels = list(dict.fromkeys(point["panel"] for point in own))
    series = list(dict.fromkeys(point["row"] for point in own))
    rows = -(-len(panels) // 3)
    drawn = make_subplots(
        rows=rows,
        cols=min(3, len(panels)),
        subplot_titles=panels if panels != [""] else None,
        horizontal_spacing=0.06,
        vertical_spacing=0.22 / rows,
    )
    for place, panel in enumerate(panels):
        at = {"row": 1 + place // 3, "col": 1 + place % 3}
        for number, name in enumerate(series):
            found = [point for point in own if point["panel"] == panel and point["row"] == name]
            style = {"name": name, "legendgroup": name, "showlegend": place == 0}
            for trace in _draw_series(figure.kind, found, style, COLORS[number % len(COLORS)]):
                drawn.add_trace(trace, **at)
        drawn.update_yaxes(title=figure.y if at["col"] == 1 else None, **at)
        drawn.update_xaxes(title=figure.x, type="log" if figure.log_x else None, **at)
    drawn.update_layout(barmode="group", violinmode="group", **layout(120 + 330 * rows, top=90, legend_at=1.1))
    return drawn


def _draw_series(kind: str, points: Sequence[Line], style: Mapping[str, Any], color: str) -> list[Any]:
    from plotly import graph_objects

    if not points:
        return []
    x, y = [_to_number(point["x"]) for point in points], [float(point["y"]) for point in points]
    if kind == "scatter":
        return [graph_objects.Scatter(x=x, y=y, mode="markers", marker={"color": color, "size": 5}, **style)]
    if kind == "violins":
        line = {"color": color, "width": 1.5}
        return [graph_objects.Violin(x=x, y=y, line=line, points=False, meanline={"visible": True}, **style)]
    places = list(dict.fromkeys(x))
    values = [np.array([b for a, b in zip(x, y, strict=True) if a == place]) for place in places]
    shown = {
        "x": places,
        "y": [float(found.mean()) for found in values],
        "error_y": {"array": [float(found.std()) for found in values], "thickness": 1},
    }
    if all(len(found) == 1 for found in values):
        del shown["error_y"]
    if kind == "bars":
        return [graph_objects.Bar(marker={"color": color}, **shown, **style)]
    return [graph_objects.Scatter(mode="lines+markers", line={"color": color, "width": 2}, **shown, **style)]


def _to_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
