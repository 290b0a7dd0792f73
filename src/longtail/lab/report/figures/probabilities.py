"""Multi-label: predicted probabilities in head and tail."""

from __future__ import annotations

import numpy as np

from longtail.lab.report.digests.labels import FloatArray, IntArray, Labels
from longtail.lab.report.digests.multilabel import PROBABILITY_BINS, MultilabelComparison, MultilabelResults
from longtail.lab.report.figures.drawing import (
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_bars,
    build_layout,
    build_trace,
    describe_methods,
    pair_series,
    round_numbers,
    series_of_methods,
)
from longtail.lab.report.text import class_name, join_words, percent

__all__ = ["draw_probabilities"]

NUM_ENDS = 2
"""Classes of the head and of the tail whose probabilities are drawn, as in Figure 7 of the paper."""


def draw_probabilities(comparison: MultilabelComparison, is_positive: bool) -> Figure:
    """Histograms of the predicted probabilities of samples that have a label, or lack it, in head and tail."""
    labels = comparison.labels
    known = labels.by_frequency[labels.test_counts[labels.by_frequency] > 0]
    ends = min(NUM_ENDS, len(known) // 2)
    groups = {"most frequent": known[:ends], "rarest": known[len(known) - ends :]}
    edges = np.arange(PROBABILITY_BINS) / PROBABILITY_BINS
    traces: list[Json] = []
    rows = []
    facts: dict[str, dict[Series, str]] = {name: {} for name in groups}
    for series, method in pair_series(comparison):
        for place, (name, classes) in enumerate(groups.items()):
            shares = _share_bins(method, classes, is_positive)
            traces.append(
                build_trace(series)
                | build_bars(series)
                | {
                    "x": round_numbers(edges + 0.5 / PROBABILITY_BINS),
                    "y": round_numbers(shares),
                    "xaxis": "x" if place == 0 else "x2",
                    "hovertemplate": f"{name}, probability %{{x:.2f}}: %{{y:.1%}} of the samples",
                }
            )
            rows += [
                (series.label, name, f"{edge:.1f} to {edge + 1 / PROBABILITY_BINS:.1f}", percent(share))
                for edge, share in zip(edges, shares, strict=True)
            ]
            below = float(shares[: PROBABILITY_BINS // 2].sum())
            facts[name][series] = percent(below if is_positive else 1 - below)
    kind = "have the label" if is_positive else "lack the label"
    layout = build_layout(
        x=build_axis("probability,<br>most frequent", range=[0, 1], domain=[0, 0.46]),
        y=build_axis(f"share of samples that {kind}", tickformat=".0%", rangemode="tozero"),
        xaxis2=build_axis("probability,<br>rarest", range=[0, 1], domain=[0.54, 1.0]),
        barmode="group",
        bargap=0.1,
    )
    wrong = "below 0.5, so are missed" if is_positive else "at least 0.5, so are false alarms"
    parts = "; ".join(
        f"{name} classes ({_name_classes(labels, groups[name])}) {describe_methods(comparison, of, 'with')}"
        for name, of in facts.items()
    )
    summary = f"Of the test samples that {kind}, so many are {wrong}: {parts}."
    key = "positive-probabilities" if is_positive else "negative-probabilities"
    table = Table(("method", "classes", "probability", "share"), rows)
    return Figure(key, traces, layout, summary, table, series_of_methods(comparison))


def _share_bins(method: MultilabelResults, classes: IntArray, is_positive: bool) -> FloatArray:
    """[bins] the mean over classes of the share of samples in each bin of probability."""
    histogram = method.probabilities()[int(is_positive)][classes]
    shares: FloatArray = (histogram / histogram.sum(axis=1, keepdims=True)).mean(axis=0)
    return shares


def _name_classes(labels: Labels, classes: IntArray) -> str:
    return join_words(class_name(labels.names[index], 20) for index in classes)
