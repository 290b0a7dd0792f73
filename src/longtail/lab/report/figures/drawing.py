"""What figures are made of: series, traces, axes, layouts."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from longtail.lab.report.digests.base import AnyResults, Comparison, MethodResults
from longtail.lab.report.digests.labels import FloatArray, Group, IntArray, Labels
from longtail.lab.report.text import class_name, clean, join_words
from longtail.lab.runs.statistics import Estimate

__all__ = [
    "DASHES",
    "GROUPED_BARS",
    "MOST_BARS",
    "MOST_JOINED",
    "NUM_COLORS",
    "PATTERNS",
    "SYMBOLS",
    "Figure",
    "Json",
    "Series",
    "Table",
    "build_axis",
    "build_band",
    "build_bars",
    "build_error_bars",
    "build_layout",
    "build_line",
    "build_marked_line",
    "build_points",
    "build_share_axis",
    "build_trace",
    "choose_scale",
    "describe_methods",
    "draw_horizontal",
    "draw_vertical",
    "escape_class",
    "escape_markup",
    "pair_series",
    "place_counts",
    "round_number",
    "round_numbers",
    "series_of_groups",
    "series_of_methods",
    "space_out",
]

Json = dict[str, Any]

MOST_BARS = 200
"""Classes drawn as bars, and listed in tables; more are a line, and binned."""
MOST_JOINED = 30
"""Classes whose points are joined by a line; more have a line of means."""
MOST_STEPS = 300
"""Points of one line."""
MOST_DESCRIBED = 3
"""Methods that a sentence names."""

NUM_COLORS = 10
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", ".", "x", "-", "\\", "|", "+")
GROUPED_BARS = {"barmode": "group", "bargap": 0.25, "bargroupgap": 0.08}


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """How one method or group looks in every figure."""

    key: str
    label: str
    color: str
    symbol: str = "circle"
    dash: str = "solid"
    pattern: str = ""
    is_shown: bool = True
    """Whether figures show it at first."""

    @staticmethod
    def of_method(index: int, method: MethodResults[Any], is_shown: bool = True) -> Series:
        """Color, symbol, dash and pattern by the method's place.

        Neighbors differ in all four, so that gray prints and color-blind readers tell them apart; together they tell
        100 methods apart.
        """
        step = index + index // NUM_COLORS
        return Series(
            key=f"method-{index}",
            label=clean(method.label),
            color=f"method-{index % NUM_COLORS}",
            symbol=SYMBOLS[index % len(SYMBOLS)],
            dash=DASHES[step % len(DASHES)],
            pattern=PATTERNS[step % len(PATTERNS)],
            is_shown=is_shown,
        )

    @staticmethod
    def of_group(group: Group) -> Series:
        """Head, torso or tail, or a class: with a mark of its own."""
        symbol, dash = SYMBOLS[group.order % len(SYMBOLS)], DASHES[group.order % len(DASHES)]
        pattern = PATTERNS[group.order % len(PATTERNS)]
        return Series(f"group-{group.key}", group.name, group.color, symbol, dash, pattern)


@dataclass(frozen=True)
class Figure:
    """A picture, and the same in words and as a table."""

    key: str
    traces: Sequence[Json]
    layout: Json
    summary: str
    """What the picture shows, as plain text."""
    table: Table
    legend: Sequence[Series]


def pair_series(comparison: Comparison[AnyResults]) -> list[tuple[Series, AnyResults]]:
    """Every method, and how it looks."""
    shown = comparison.preselected
    return [
        (Series.of_method(index, method, any(method is one for one in shown)), method)
        for index, method in enumerate(comparison.methods)
    ]


def series_of_methods(comparison: Comparison[Any]) -> list[Series]:
    """How every method looks."""
    return [series for series, _ in pair_series(comparison)]


def series_of_groups(labels: Labels) -> list[Series]:
    """How every group looks."""
    return [Series.of_group(group) for group in labels.groups.values()]


def describe_methods(comparison: Comparison[Any], facts: Mapping[Series, str], preposition: str) -> str:
    """Facts of methods as part of a sentence: of all while they are few, else of the two that matter most."""
    chosen = facts
    if len(facts) > MOST_DESCRIBED:
        pair = (comparison.reference, comparison.best)
        chosen = {
            series: facts[series] for series, method in pair_series(comparison) if method in pair and series in facts
        }
    return join_words(f"{fact} {preposition} {series.label}" for series, fact in (chosen or facts).items())


def build_trace(series: Series) -> Json:
    """What all traces of a series have."""
    return {"name": escape_markup(series.label), "meta": series.key}


def build_bars(series: Series) -> Json:
    """The look of bars."""
    color = f"@{series.color}"
    pattern = {"shape": series.pattern, "bgcolor": color, "fgcolor": "@card", "size": 6, "solidity": 0.3}
    return {"type": "bar", "marker": {"color": color, "pattern": pattern}}


def build_points(series: Series, size: int = 7) -> Json:
    """The look of points that stand alone."""
    marker = {"color": f"@{series.color}", "size": size, "symbol": series.symbol}
    return {"type": "scatter", "mode": "markers", "marker": marker}


def build_line(series: Series) -> Json:
    """The look of a plain line."""
    line = {"color": f"@{series.color}", "width": 2, "dash": series.dash}
    return {"type": "scatter", "mode": "lines", "line": line}


def build_marked_line(series: Series) -> Json:
    """The look of a line through points."""
    return build_line(series) | {"mode": "lines+markers", "marker": build_points(series)["marker"]}


def build_band(series: Series, x: FloatArray, curve: Sequence[Estimate]) -> Json:
    """The interval around a curve of shares, as an area."""
    ends = [value.clip(0, 1) for value in curve]
    return build_trace(series) | {
        "type": "scatter",
        "mode": "lines",
        "x": round_numbers([*x, *x[::-1]]),
        "y": round_numbers([*(high for _, high in ends), *(low for low, _ in reversed(ends))]),
        "line": {"width": 0, "color": f"@{series.color}"},
        "fill": "toself",
        "fillcolor": f"@{series.color} 0.12",
        "hoverinfo": "skip",
    }


def build_error_bars(values: Sequence[Estimate], lowest: float = -math.inf, highest: float = math.inf) -> Json:
    """Intervals of bars, within what the quantity can be at all."""
    ends = [value.clip(lowest, highest) if value.has_interval else (value.mean, value.mean) for value in values]
    above = round_numbers(high - value.mean for value, (_, high) in zip(values, ends, strict=True))
    below = round_numbers(value.mean - low for value, (low, _) in zip(values, ends, strict=True))
    return {
        "type": "data",
        "array": above,
        **({"symmetric": False, "arrayminus": below} if above != below else {}),
        "visible": any(value.has_interval for value in values),
        "color": "@ink",
        "thickness": 1.5,
        "width": 3,
    }


def draw_vertical(x: float) -> Json:
    """A dotted line from bottom to top."""
    return _build_line_shape({"x0": round_number(x), "x1": round_number(x), "y0": 0, "y1": 1, "yref": "paper"})


def draw_horizontal(y: float) -> Json:
    """A dotted line from left to right."""
    return _build_line_shape({"y0": y, "y1": y, "x0": 0, "x1": 1, "xref": "paper"})


def _build_line_shape(ends: Json) -> Json:
    return {"type": "line", "layer": "below", "line": {"color": "@faint", "width": 1.5, "dash": "dot"}} | ends


def build_axis(title: str, **more: Any) -> Json:
    """An axis with a title that plotly reads as HTML."""
    return {
        **({"title": {"text": title, "standoff": 8, "font": {"size": 13, "color": "@muted"}}} if title else {}),
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "zeroline": False,
        "automargin": True,
        "ticklabeloverflow": "allow",
    } | more


def build_share_axis(title: str, **more: Any) -> Json:
    """An axis of shares, which never shows less than 0% or more than 100%."""
    return build_axis(title, tickformat=".0%", minallowed=0, maxallowed=1, **more)


def build_layout(x: Json, y: Json, height: int = 380, **more: Any) -> Json:
    """A figure's layout, in the colors of the page."""
    return {
        "height": height,
        "margin": {"l": 12, "r": 12, "t": 16, "b": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "@ink"},
        "hoverlabel": {"namelength": -1, "bgcolor": "@card", "bordercolor": "@faint", "font": {"color": "@ink"}},
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": {"showgrid": False} | x,
        "yaxis": y,
    } | more


def choose_scale(counts: IntArray) -> Json:
    """A log scale where classes differ much."""
    low, high = place_counts(counts).min(), counts.max()
    if high < 10 * low:
        return {"rangemode": "tozero"}
    if high > 100 * low:
        return {"type": "log", "dtick": 1}
    ticks = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if low / 2 <= tick <= 2 * high]
    return {"type": "log", "tickvals": shown, "ticktext": [f"{tick:,}" for tick in shown]}


def place_counts(counts: IntArray) -> FloatArray:
    """Where counts are on a log scale; a class without samples is left of one with a single sample."""
    return np.maximum(counts, 0.5)


def space_out(length: int, most: int = MOST_STEPS) -> IntArray:
    """At most ``most`` places from first to last, evenly spaced."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def round_numbers(values: Iterable[float] | npt.NDArray[Any]) -> list[float | None]:
    """Numbers for JSON; what is not finite is a gap."""
    return [round_number(value) if math.isfinite(value) else None for value in values]


def round_number(value: float) -> float:
    """To four digits, which is more than can be seen."""
    return float(f"{value:.4g}")


def escape_class(labels: Labels, index: int) -> str:
    """A class's name that plotly shows as it is."""
    return escape_markup(class_name(labels.names[index]))


def escape_markup(text: str) -> str:
    """Text that plotly shows as it is."""
    return html.escape(text, quote=False)
