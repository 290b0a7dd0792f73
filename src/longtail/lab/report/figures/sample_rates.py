"""Sample rates that a sampler learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.figures._by_frequency import build_frequency_layout, describe_means, draw_over_frequency
from longtail.lab.report.figures._history import draw_history
from longtail.lab.report.figures.drawing import Figure, build_axis, describe_methods, pair_series

__all__ = ["draw_sample_rate_variance", "draw_sample_rates"]


def draw_sample_rates(comparison: Comparison[Any]) -> Figure | None:
    """Learned sample rate of each class against the number of its training samples; None if none were learned."""
    labels = comparison.labels
    found = [(series, method.sample_rates()) for series, method in pair_series(comparison)]
    values = [(series, rates) for series, rates in found if rates is not None]
    if not values:
        return None
    traces, table = draw_over_frequency(labels, values, "rate", ".3f", lambda rate: f"{rate:.3f}")
    spreads = describe_methods(comparison, {series: f"{np.var(rates):.3f}" for series, rates in values}, "with")
    summary = (
        "All rates begin at 0.5; a class is drawn in proportion to its samples times its rate. Variance of the rates "
        f"in the end: {spreads}.{describe_means(labels)}"
    )
    layout = build_frequency_layout(labels, build_axis("learned sample rate", range=[0, 1]))
    return Figure("sample-rates", traces, layout, summary, table, [series for series, _ in values])


def draw_sample_rate_variance(comparison: Comparison[Any]) -> Figure | None:
    """Variance of the learned sample rates by epoch; None if none were learned."""
    subject = "Variance of the sample rates over classes"
    return draw_history(
        comparison, "sample_rate_variance", "variance of the rates", subject, ".3f", lambda value: f"{value:.3f}"
    )
