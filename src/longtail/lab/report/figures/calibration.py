"""The reliability diagram: accuracy of predictions against their confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longtail.lab.report.digests.single_label import CALIBRATION_BINS, SingleLabelComparison
from longtail.lab.report.figures.drawing import (
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

FEWEST_SAMPLES = 20
"""A bin with fewer says nothing of how often it is right."""


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
        bins = _pool_bins(*method.bins())
        confidence, accuracy, share = (values.numpy() for values in reliability_from_counts(*bins))
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
        found = np.stack([confidence, accuracy, share], axis=1)[used]
        rows += [(series.label, *(percent(value) for value in row)) for row in found]
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
        f"hold more samples; bins with fewer than {FEWEST_SAMPLES} are drawn together with the next."
    )
    table = Table(("method", "confidence", "right", "share of samples"), rows)
    return Figure("calibration", traces, layout, summary, table, series_of_methods(comparison))


def _pool_bins(hits: Tensor, counts: Tensor, confidences: Tensor) -> tuple[Tensor, ...]:
    """The bins by rising confidence, sparse ones put together with the next, and the last with the one before."""
    places, total = [], 0
    place = 0
    for number in counts.tolist():
        places.append(place)
        total += number
        if total >= FEWEST_SAMPLES:
            place, total = place + 1, 0
    if total and place:
        places = [min(one, place - 1) for one in places]
    index = torch.tensor(places)
    return tuple(part.new_zeros(max(places) + 1).index_add_(0, index, part) for part in (hits, counts, confidences))
