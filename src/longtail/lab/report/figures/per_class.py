"""Accuracy of each class against its frequency."""

from __future__ import annotations

from longtail.lab.report.digests.single_label import SingleLabelComparison
from longtail.lab.report.figures._by_frequency import (
    build_frequency_layout,
    describe_means,
    describe_trends,
    draw_over_frequency,
)
from longtail.lab.report.figures.drawing import Figure, build_axis, pair_series, series_of_methods
from longtail.lab.report.text import percent

__all__ = ["draw_class_accuracy"]


def draw_class_accuracy(comparison: SingleLabelComparison) -> Figure:
    """Accuracy of each class against the number of its training samples."""
    labels = comparison.labels
    values = [(series, method.class_accuracy()) for series, method in pair_series(comparison)]
    traces, table = draw_over_frequency(labels, values, "accuracy", ".1%", percent)
    axis = build_axis("accuracy on the class", tickformat=".0%", range=[-0.03, 1.03])
    summary = (
        "Rank correlation of a class's accuracy with its frequency, 0 where rare classes do as well: "
        f"{describe_trends(comparison, values)}.{describe_means(labels)}"
    )
    layout = build_frequency_layout(labels, axis)
    return Figure("class-accuracy", traces, layout, summary, table, series_of_methods(comparison))
