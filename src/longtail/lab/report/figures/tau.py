"""Accuracy against tau, the strength of an adjustment of the logits after training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from longtail.lab.report.digests.labels import FloatArray
from longtail.lab.report.digests.single_label import MAIN_METRIC, TAUS, SingleLabelComparison, find_plain
from longtail.lab.report.figures.drawing import (
    DASHES,
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_band,
    build_layout,
    build_share_axis,
    build_trace,
    draw_vertical,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_groups,
)
from longtail.lab.report.text import clean, percent, with_interval

__all__ = ["draw_tau"]

NOTE_HEIGHT = 16
"""Of a line of words above the figure, in pixels."""


def draw_tau(comparison: SingleLabelComparison) -> Figure | None:
    """Accuracy after subtracting tau log pi from logits of plain cross-entropy; None if no run has such logits."""
    plain = find_plain(comparison)
    if plain is None:
        return None
    groups = comparison.labels.groups
    curves = {key: plain.tau_metric(key) or [] for key in (MAIN_METRIC, *groups)}
    legend = [Series("group-all", "all classes", "ink"), *(_dash(one) for one in series_of_groups(comparison.labels))]
    balanced = curves[MAIN_METRIC]
    traces = [build_band(legend[0], TAUS, balanced)] if balanced[0].has_interval else []
    for series, (key, curve) in zip(legend, curves.items(), strict=True):
        is_whole = key == MAIN_METRIC
        line = {"color": f"@{series.color}", "width": 3 if is_whole else 1.5, "dash": series.dash}
        traces.append(
            build_trace(series)
            | {
                "type": "scatter",
                "mode": "lines",
                "line": line,
                "x": round_numbers(TAUS),
                "y": round_numbers(value.mean for value in curve),
                "hovertemplate": "tau %{x}: %{y:.1%}",
            }
        )
    means = np.array([value.mean for value in balanced])
    marks = _choose_marks(comparison, means)
    traces.append(_draw_marks(legend[0], marks, means))
    layout = build_layout(
        x=build_axis("tau", range=round_numbers([TAUS[0], TAUS[-1]])),
        y=build_share_axis("accuracy, mean over classes"),
    )
    layout["annotations"] = [_write_note(words, level) for level, words in enumerate(marks.values())]
    layout["margin"] |= {"t": 16 + NOTE_HEIGHT * len(marks)}
    layout["shapes"] = [draw_vertical(tau) for tau in marks]
    summary = (
        f"Balanced accuracy of {clean(plain.label)} is {percent(means[0])} as trained (tau = 0), "
        f"{percent(float(np.interp(1, TAUS, means)))} at tau = 1 and at most {percent(means.max())}, at tau = "
        f"{TAUS[means.argmax()]:g}."
    )
    rows = [(f"{tau:g}", *(with_interval(curve[i]) for curve in curves.values())) for i, tau in enumerate(TAUS)]
    return Figure("tau", traces, layout, summary, Table(("tau", *(one.label for one in legend)), rows), legend)


def _dash(series: Series) -> Series:
    """The line of a group; a solid one is that of all classes."""
    return replace(series, dash=DASHES[1 + DASHES.index(series.dash) % (len(DASHES) - 1)])


def _choose_marks(comparison: SingleLabelComparison, means: FloatArray) -> dict[float, str]:
    """The values of tau to point out, and what they are: 1, the best, and those that methods of the page use."""
    marks: dict[float, list[str]] = {1.0: []}
    for series, method in pair_series(comparison):
        if method.adjusted_by is not None:
            marks.setdefault(method.adjusted_by, []).append(escape_markup(series.label))
    marks.setdefault(float(TAUS[means.argmax()]), []).append("the best")
    return {
        tau: f"tau = {tau:g}" + (f" ({', '.join(words)})" if words else "")
        for tau, words in marks.items()
        if tau <= TAUS[-1]
    }


def _draw_marks(series: Series, marks: dict[float, str], means: FloatArray) -> Json:
    return build_trace(series) | {
        "type": "scatter",
        "mode": "markers",
        "marker": {"size": 11, "color": "@card", "line": {"color": "@ink", "width": 3}},
        "x": round_numbers(marks),
        "y": round_numbers(np.interp(list(marks), TAUS, means)),
        "cliponaxis": False,
        "customdata": list(marks.values()),
        "hovertemplate": "%{customdata}: %{y:.1%}",
    }


def _write_note(words: str, level: int) -> Json:
    """Words above the figure, each note on a line of its own, from the right: long ones have room on a phone."""
    return {
        "x": 1,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "text": words,
        "font": {"size": 12},
        "showarrow": False,
        "xanchor": "right",
        "yanchor": "bottom",
        "yshift": NOTE_HEIGHT * level,
    }
