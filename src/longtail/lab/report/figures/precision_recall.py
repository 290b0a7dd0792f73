"""Multi-label: precision and recall of each class against its frequency."""

from __future__ import annotations

from longtail.lab.report.digests.multilabel import MultilabelComparison
from longtail.lab.report.figures._by_frequency import (
    build_frequency_layout,
    describe_means,
    describe_trends,
    draw_over_frequency,
)
from longtail.lab.report.figures.drawing import Figure, build_axis, pair_series, series_of_methods
from longtail.lab.report.text import percent

__all__ = ["draw_precision", "draw_recall"]


def draw_precision(comparison: MultilabelComparison) -> Figure:
    """Precision of each class against the number of its training samples."""
    return _draw_score(comparison, "precision")


def draw_recall(comparison: MultilabelComparison) -> Figure:
    """Recall of each class against the number of its training samples."""
    return _draw_score(comparison, "recall")


def _draw_score(comparison: MultilabelComparison, name: str) -> Figure:
    labels = comparison.labels
    values = [(series, getattr(method.class_scores(), name).numpy()) for series, method in pair_series(comparison)]
    traces, table = draw_over_frequency(labels, values, name, ".1%", percent)
    trends = describe_trends(comparison, values)
    summary = f"Rank correlation of a class's {name} with its frequency: {trends}.{describe_means(labels)}"
    layout = build_frequency_layout(labels, build_axis(f"{name} of the class", tickformat=".0%", range=[-0.03, 1.03]))
    return Figure(name, traces, layout, summary, table, series_of_methods(comparison))
