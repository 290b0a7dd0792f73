"""Figures of plotly as panels of a page: one below the other on a phone, in the colors of its scheme."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longtail.lab.report.blocks import Panels
from longtail.lab.report.document import read_resource
from longtail.lab.report.figures.drawing import (
    DASHES,
    PATTERNS,
    SYMBOLS,
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_bars,
    build_layout,
)
from longtail.lab.report.text import clean, join_words

__all__ = ["PALETTE", "to_panels"]

PALETTE: Mapping[str, str] = {
    color: name
    for name, color in re.findall(
        r"--([\w-]+): (#\w{6})", read_resource("templates/page.css").partition("prefers-color-scheme: dark")[0]
    )
}
"""The colors of the light scheme, and their names: the page puts the color of its scheme in their place."""
MOST_NUMBERS = 60
"""Points of one series that the table below a panel lists."""
PLACES = ("domain", "anchor", "matches", "scaleanchor", "showticklabels")
"""What says where an axis is among others."""
HEIGHT, TITLE_LINE = 360, 18


def to_panels(figure: Any, key: str) -> Panels:
    """Every pair of axes of a figure as a panel of its own, under one legend.

    Args:
        figure: of plotly, whose subplots all have a title or none; what it shows may be its layout's ``meta``.
        key: what names of its panels begin with.
    """
    drawn = json.loads(figure.to_json())
    traces: list[Json] = drawn["data"]
    layout: Json = drawn["layout"]
    legend = {} if layout.get("showlegend") is False else _list_series(traces, key)
    places = sorted({(trace.get("xaxis", "x"), trace.get("yaxis", "y")) for trace in traces}, key=_number_place)
    titles = [note["text"] for note in layout.get("annotations", ()) if note.get("xref") == "paper"]
    panels = []
    for number, (x, y) in enumerate(places):
        own = [trace for trace in traces if (trace.get("xaxis", "x"), trace.get("yaxis", "y")) == (x, y)]
        title = titles[number] if len(titles) == len(places) else ""
        axes = [_take_axis(layout, traces, place) for place in (x, y)]
        subject = layout.get("meta", "")
        panels.append(_build_panel(f"{key}-{number}", subject, title, own, axes, _take_rest(layout, y), legend))
    return Panels(panels)


def _build_panel(
    key: str,
    subject: str,
    title: str,
    traces: Sequence[Json],
    axes: Sequence[Json],
    rest: Json,
    legend: Mapping[str, Series],
) -> Figure:
    painted = [_paint(_style_trace(trace, legend.get(_name_series(trace)))) for trace in traces]
    lines = title.count("<br>") + 1 if title else 0
    layout = build_layout(axes[0], axes[1], height=HEIGHT, **_paint(rest))
    if title:
        text = {"text": f"<b>{title}</b>", "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container"}
        # Plotly raises a title of several lines by half of those that follow the first.
        raised = TITLE_LINE * (lines - 1) // 2
        layout["title"] = text | {"pad": {"t": 8 + raised, "l": 4}, "font": {"size": 13}}
        layout["margin"] = layout["margin"] | {"t": 14 + TITLE_LINE * lines}
    names = list(dict.fromkeys(series.label for trace in traces if (series := legend.get(_name_series(trace)))))
    x, y = (_plain(axis.get("title", {}).get("text", "")) for axis in axes)
    shown = ": ".join(part for part in (subject, _plain(title), y) if part)
    words = (f"{shown} against {x}" if shown and x else shown or x) or "A picture"
    compared = f", for {join_words(names)}" if 1 < len(names) <= len(SYMBOLS) else ""
    table = Table(("series", x or "x", y or "y"), list(_list_numbers(traces)))
    return Figure(key, painted, layout, f"{words[0].upper()}{words[1:]}{compared}.", table, list(legend.values()))


def _list_series(traces: Iterable[Json], key: str) -> dict[str, Series]:
    """How every name of the legend looks: as its first trace, with a mark, a dash and a pattern of its own."""
    found: dict[str, Series] = {}
    for trace in traces:
        name = _name_series(trace)
        if name in found or trace.get("showlegend") is False or not name:
            continue
        marker, line = trace.get("marker", {}), trace.get("line", {})
        color = marker.get("color") or line.get("color") or ""
        place = len(found)
        found[name] = Series(
            f"{key}-series-{place}",
            clean(_plain(name)),
            PALETTE.get(color, "ink"),
            marker.get("symbol") or SYMBOLS[place % len(SYMBOLS)],
            line.get("dash") or DASHES[0],
            PATTERNS[place % len(PATTERNS)],
        )
    return found


def _style_trace(trace: Json, series: Series | None) -> Json:
    """The trace without its place among others, with its series' mark."""
    kept = {
        name: value for name, value in trace.items() if name not in ("xaxis", "yaxis", "legendgroup", "showlegend")
    }
    if series is None:
        return kept
    marker = dict(kept.get("marker", {}))
    if kept["type"] == "bar":
        marker["pattern"] = build_bars(series)["marker"]["pattern"]
        kept["error_y"] = kept.get("error_y", {}) | {"color": "@ink"}
    elif kept["type"] == "scatter":
        marker.setdefault("symbol", series.symbol)
    return kept | {"meta": series.key} | ({"marker": marker} if marker else {})


def _take_axis(layout: Json, traces: Iterable[Json], place: str) -> Json:
    """An axis that stands alone; one that was shared keeps the range of all."""
    letter, number = place[0], place[1:]
    axis: Json = layout.get(f"{letter}axis{number}", {})
    title = axis.get("title", {}).get("text", "")
    kept = {name: value for name, value in axis.items() if name not in ("title", *PLACES)}
    if axis.get("scaleanchor"):
        kept["scaleanchor"] = "x"
    others = (value for name, value in layout.items() if name.startswith(f"{letter}axis"))
    if "range" not in kept and any(other.get("matches") for other in others):
        values = [value for trace in traces for value in trace.get(letter, ()) if isinstance(value, int | float)]
        if values:
            room = 0.05 * (max(values) - min(values))
            kept["range"] = [min(values) - room, max(values) + room]
    return build_axis(title, **kept)


def _take_rest(layout: Json, y: str) -> Json:
    """What else a panel keeps of the layout: how bars stand, and lines across it."""
    modes = {name: value for name, value in layout.items() if name.endswith(("mode", "gap"))}
    lines = [
        shape | {"xref": re.sub(r"\d+", "", shape["xref"]), "yref": "y"}
        for shape in layout.get("shapes", ())
        if shape.get("yref") == y
    ]
    return modes | ({"shapes": lines} if lines else {})


def _paint(value: Any) -> Any:
    """With the names of colors in place of the colors that have one."""
    if isinstance(value, dict):
        return {name: _paint(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_paint(part) for part in value] if value and isinstance(value[0], dict) else value
    return f"@{PALETTE[value]}" if isinstance(value, str) and value in PALETTE else value


def _list_numbers(traces: Iterable[Json]) -> Iterable[Sequence[str]]:
    """The points of series that have few."""
    for trace in traces:
        x, y = trace.get("x"), trace.get("y")
        if isinstance(x, list) and isinstance(y, list) and len(x) == len(y) <= MOST_NUMBERS:
            name = clean(_plain(_name_series(trace))) or "–"
            yield from ((name, *map(_write_value, pair)) for pair in zip(x, y, strict=True))


def _write_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else _plain(str(value)) if value is not None else "–"


def _name_series(trace: Json) -> str:
    return str(trace.get("legendgroup") or trace.get("name") or "")


def _plain(text: str) -> str:
    """Text without plotly's markup."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", "", text.replace("<br>", " ")).split()))


def _number_place(place: tuple[str, str]) -> tuple[int, int]:
    first, second = (int(part[1:] or 1) for part in place)
    return first, second
