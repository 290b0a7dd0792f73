"""Norms of the class vectors."""

from __future__ import annotations

from typing import Any

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.figures._by_frequency import (
    build_frequency_layout,
    describe_means,
    describe_trends,
    draw_over_frequency,
)
from longtail.lab.report.figures.drawing import Figure, build_axis, pair_series

__all__ = ["draw_norms"]


def draw_norms(comparison: Comparison[Any]) -> Figure | None:
    """Norm of each class's vector against the number of its training samples; None where no head has such vectors."""
    labels = comparison.labels
    found = [(series, method.weight_norms()) for series, method in pair_series(comparison)]
    values = [(series, norms) for series, norms in found if norms is not None]
    if not values:
        return None
    traces, table = draw_over_frequency(labels, values, "norm", ".3f", lambda norm: f"{norm:.3f}")
    summary = (
        f"Rank correlation of a class's norm with its frequency: {describe_trends(comparison, values)}. Momentum "
        "tends to give frequent classes longer vectors and Adam does not, so normalizing them is no general remedy."
        f"{describe_means(labels)}"
    )
    layout = build_frequency_layout(labels, build_axis("norm of the class vector", rangemode="tozero"))
    return Figure("weight-norms", traces, layout, summary, table, [series for series, _ in values])
