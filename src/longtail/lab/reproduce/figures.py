"""Figures from points: lines, bars, clouds and densities, one panel beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longtail.lab.report.figures.drawing import DASHES
from longtail.lab.reproduce.ledger import Line
from longtail.lab.reproduce.panels import PALETTE
from longtail.lab.reproduce.study import Figure

__all__ = ["draw_figure"]

COLORS = tuple(color for color, name in PALETTE.items() if name.startswith("method-"))
"""Of series, in order."""
MOST_TICKS = 6
"""Places on a logarithmic axis that are all named; more are named by powers of ten."""


def draw_figure(figure: Figure, points: Sequence[Line]) -> Any:
    """The figure of plotly; None if there are no points for it."""
    from plotly.subplots import make_subplots

    own = [{**point, "row": point["series"] or point["row"]} for point in points if point["figure"] == figure.name]
    if not own:
        return None
    panels = list(dict.fromkeys(point["panel"] for point in own))
    series = list(dict.fromkeys(point["row"] for point in own))
    drawn = make_subplots(rows=len(panels), subplot_titles=panels if panels != [""] else None)
    for place, panel in enumerate(panels):
        at = {"row": 1 + place, "col": 1}
        for number, name in enumerate(series):
            found = [point for point in own if point["panel"] == panel and point["row"] == name]
            style = {"name": name, "legendgroup": name, "showlegend": place == 0}
            for trace in _draw_series(
                figure.kind, found, style, COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
            ):
                drawn.add_trace(trace, **at)
        drawn.update_yaxes(title=figure.y, **at)
        drawn.update_xaxes(title=figure.x, type="log" if figure.log_x else None, **at)
    places = sorted({float(point["x"]) for point in own}) if figure.log_x else []
    if 0 < len(places) <= MOST_TICKS:
        drawn.update_xaxes(tickvals=places, ticktext=[f"{place:g}" for place in places])
    drawn.update_layout(barmode="group", violinmode="group", meta=figure.title)
    return drawn


def _draw_series(kind: str, points: Sequence[Line], style: Mapping[str, Any], color: str, dash: str) -> list[Any]:
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
    line = {"color": color, "width": 2, "dash": dash}
    return [graph_objects.Scatter(mode="lines+markers", line=line, **shown, **style)]


def _to_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
