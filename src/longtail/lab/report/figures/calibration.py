"""The reliability diagram: accuracy of predictions against their confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longtail.lab.report.digests.single_label import CALIBRATION_BINS, SingleLabelComparison
from longtail.lab.report.figures._drawing import (
    Figure,
    Json,
    Table,
    build_axis,
    build_layout,
    build_marked_line,
    build_trace,
    describe_methods,
    pair_series,
    round_numbers,
    series_of_methods,
)
from longtail.lab.report.text import percent
from longtail.metrics.calibration import reliability_from_counts

__all__ = ["draw_calibration"]


def draw_calibration(comparison: SingleLabelComparison) -> Figure:
    """Accuracy of predictions in bins of their confidence."""
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, 1],
            "y": [0, 1],
            "line": {"color": "@faint", "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    rows: list[Sequence[str]] = []
    errors = {}
    for series, method in pair_series(comparison):
        confidence, accuracy, share = (values.numpy() for values in reliability_from_counts(*method.bins()))
        used = share > 0
        traces.append(
            build_trace(series)
            | build_marked_line(series)
            | {
                "x": round_numbers(confidence[used]),
                "y": round_numbers(accuracy[used]),
                "customdata": round_numbers(share[used]),
                "hovertemplate": "confidence %{x:.1%}, right %{y:.1%}<br>%{customdata:.1%} of samples",
            }
        )
        traces[-1]["line"]["width"] = 1
        traces[-1]["marker"]["size"] = round_numbers(5 + 13 * np.sqrt(share[used]))
        bins = np.stack([confidence, accuracy, share], axis=1)[used]
        rows += [(series.label, *(percent(value) for value in row)) for row in bins]
        gap = float((confidence[used] - accuracy[used]) @ share[used])
        tendency = "overconfident" if gap > 0.01 else "underconfident" if gap < -0.01 else "about right"
        errors[series] = f"{percent(method.metric('calibration_error').mean)} ({tendency})"
    layout = build_layout(
        x=build_axis("confidence of the prediction", tickformat=".0%", range=[-0.02, 1.02]),
        y=build_axis("share that is right", tickformat=".0%", range=[-0.02, 1.02]),
    )
    summary = (
        f"Calibration error over {CALIBRATION_BINS} bins: {describe_methods(comparison, errors, 'for')}. On the "
        "dotted line a confidence is as often right as it says; below it predictions are too confident. Larger marks "
        "hold more samples."
    )
    table = Table(("method", "confidence", "right", "share of samples"), rows)
    return Figure("calibration", traces, layout, summary, table, series_of_methods(comparison))
