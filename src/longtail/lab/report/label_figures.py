"""Figures for several labels a sample: precision and recall by frequency, F1, probabilities, and masked ratios."""

from __future__ import annotations

import numpy as np

from longtail.lab.report.digest import PROBABILITY_BINS, Comparison, FloatArray, IntArray, MethodResults
from longtail.lab.report.figures import (
    DASHES,
    MOST_BARS,
    NUM_COLORS,
    Figure,
    Json,
    Series,
    Table,
    _against_frequency,
    _axis,
    _bars,
    _count_scale,
    _history,
    _layout,
    _legend,
    _means_note,
    _name,
    _numbers,
    _series,
    _shown,
    _spaced,
    _told,
    _trace,
    _trends,
)
from longtail.lab.report.words import class_name, clean, count, listed, percent

__all__ = [
    "f1_by_class",
    "f1_by_epoch",
    "positive_ratios",
    "precision_by_frequency",
    "probabilities",
    "recall_by_frequency",
]

SHOWN_ENDS = 2
"""Classes of the head and of the tail whose probabilities are drawn, as in Figure 7 of the paper."""


def precision_by_frequency(comparison: Comparison) -> Figure:
    """Precision of each class against the number of its training samples."""
    return _score_by_frequency(comparison, "precision")


def recall_by_frequency(comparison: Comparison) -> Figure:
    """Recall of each class against the number of its training samples."""
    return _score_by_frequency(comparison, "recall")


def f1_by_epoch(comparison: Comparison) -> Figure | None:
    """The mean F1 by epoch; None if it was measured at the end alone."""
    return _history(comparison, "f1", "mean F1", "Mean F1 over classes", ".1%", percent)


def f1_by_class(comparison: Comparison) -> Figure | None:
    """F1 of each class, most frequent first; None where there are too many classes for bars."""
    labels = comparison.labels
    if labels.num_classes > MOST_BARS:
        return None
    order = labels.by_frequency
    traces, columns = [], []
    for series, method in _series(comparison):
        f1 = method.label_scores().f1.numpy()
        columns.append(f1)
        traces.append(
            _trace(series)
            | _bars(series)
            | {
                "x": [_shown(clean(labels.names[index], most=24)) for index in order],
                "y": _numbers(f1[order]),
                "customdata": [f"{_name(labels, i)}<br>{count(labels.counts[i])} training samples" for i in order],
                "hovertemplate": "%{customdata}<br>F1 %{y:.1%}",
            }
        )
    layout = _layout(
        x=_axis("class, most frequent first", type="category"),
        y=_axis("F1", tickformat=".0%", rangemode="tozero"),
    )
    layout |= {"barmode": "group", "bargap": 0.2, "bargroupgap": 0.05}
    rows = [
        (clean(labels.names[i]), count(labels.counts[i]), *(percent(float(f1[i])) for f1 in columns)) for i in order
    ]
    header = ("class", "training samples", *(series.label for series, _ in _series(comparison)))
    return Figure("f1-by-class", traces, layout, _f1_summary(comparison), Table(header, rows), _legend(comparison))


def probabilities(comparison: Comparison, is_positive: bool) -> Figure:
    """Histograms of the predicted probabilities of samples that have a label, or lack it, in head and tail."""
    labels = comparison.labels
    known = labels.by_frequency[labels.test_counts[labels.by_frequency] > 0]
    ends = min(SHOWN_ENDS, len(known) // 2)
    groups = {"most frequent": known[:ends], "rarest": known[len(known) - ends :]}
    edges = np.arange(PROBABILITY_BINS) / PROBABILITY_BINS
    traces: list[Json] = []
    rows = []
    facts: dict[str, dict[Series, str]] = {name: {} for name in groups}
    for series, method in _series(comparison):
        for place, (name, classes) in enumerate(groups.items()):
            shares = _shares(method, classes, is_positive)
            traces.append(
                _trace(series)
                | _bars(series)
                | {
                    "x": _numbers(edges + 0.5 / PROBABILITY_BINS),
                    "y": _numbers(shares),
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
    layout = _layout(
        x=_axis(f"probability, {_classes(comparison, groups['most frequent'])}", range=[0, 1], domain=[0, 0.48]),
        y=_axis(f"share of samples that {kind}", tickformat=".0%", rangemode="tozero"),
    )
    layout |= {
        "xaxis2": _axis(f"probability, {_classes(comparison, groups['rarest'])}", range=[0, 1], domain=[0.52, 1.0]),
        "barmode": "group",
        "bargap": 0.1,
    }
    wrong = "below 0.5, so are missed" if is_positive else "at least 0.5, so are false alarms"
    told = "; ".join(f"{name} classes {_told(comparison, found, 'with')}" for name, found in facts.items())
    summary = f"Of the test samples that {kind}, so many are {wrong}: {told}."
    key = "positive-probabilities" if is_positive else "negative-probabilities"
    table = Table(("method", "classes", "probability", "share"), rows)
    return Figure(key, traces, layout, summary, table, _legend(comparison))


def positive_ratios(comparison: Comparison) -> Figure | None:
    """The ratio of positives to negatives that the labels of each class are masked to, by epoch; None if none is."""
    masked = [method for method in comparison.methods if method.positive_ratios() is not None]
    found = masked[0].positive_ratios() if masked else None
    if found is None:
        return None
    epochs, ratios = found
    labels = comparison.labels
    ranked = [int(i) for i in labels.by_frequency if np.isfinite(ratios[:, i]).all()]
    shown = [ranked[i] for i in _spaced(len(ranked), most=NUM_COLORS)]
    traces, legend, rows = [], [], []
    kept = _spaced(len(epochs))
    for place, index in enumerate(shown):
        series = Series(
            f"class-{place}", class_name(labels.names[index], 24), f"method-{place}", dash=DASHES[place % len(DASHES)]
        )
        legend.append(series)
        traces.append(
            _trace(series)
            | {
                "type": "scatter",
                "mode": "lines",
                "line": {"color": f"@{series.color}", "width": 2, "dash": series.dash},
                "x": [epochs[i] + 1 for i in kept],
                "y": _numbers(ratios[kept, index]),
                "hovertemplate": f"{_shown(series.label)}, epoch %{{x}}: %{{y:.4f}}",
            }
        )
        rows.append(
            (series.label, count(labels.counts[index]), f"{ratios[0, index]:.4f}", f"{ratios[-1, index]:.4f}")
        )
    head, tail = (ratios[-1, index] / ratios[0, index] for index in (ranked[0], ranked[-1]))
    summary = (
        f"{clean(masked[0].label)}, seed {masked[0].runs[0].seed}: from its first to its last epoch the ratio of the "
        f"most frequent class went to {head:.2g} times what it was, that of the rarest to {tail:.2g} times."
    )
    layout = _layout(x=_axis("epoch"), y=_axis("positives over negatives", type="log"))
    table = Table(("class", "training samples", "after the first epoch", "in the end"), rows)
    return Figure("positive-ratios", traces, layout, summary, table, legend)


def _score_by_frequency(comparison: Comparison, name: str) -> Figure:
    values: list[tuple[Series, FloatArray]] = [
        (series, getattr(method.label_scores(), name).numpy()) for series, method in _series(comparison)
    ]
    traces, table = _against_frequency(comparison.labels, values, name, ".1%", percent)
    layout = _layout(
        x=_axis("training samples of the class", **_count_scale(comparison.labels.counts)),
        y=_axis(f"{name} of the class", tickformat=".0%", range=[-0.03, 1.03]),
    )
    summary = (
        f"Rank correlation of a class's {name} with its frequency: {_trends(comparison, values)}."
        f"{_means_note(comparison.labels)}"
    )
    return Figure(name, traces, layout, summary, table, _legend(comparison))


def _shares(method: MethodResults, classes: IntArray, is_positive: bool) -> FloatArray:
    """[bins] the mean over classes of the share of samples in each bin of probability."""
    histogram = method.probabilities()[int(is_positive)][classes]
    shares: FloatArray = (histogram / histogram.sum(axis=1, keepdims=True)).mean(axis=0)
    return shares


def _classes(comparison: Comparison, classes: IntArray) -> str:
    return _shown(listed(class_name(comparison.labels.names[index], 20) for index in classes))


def _f1_summary(comparison: Comparison) -> str:
    reference = comparison.reference
    if reference is None:
        return "F1 of each class."
    before, after = (method.label_scores().f1.numpy() for method in (reference, comparison.best))
    gained = int((after > before).sum())
    return (
        f"{clean(comparison.best.label)} has a higher F1 than {clean(reference.label)} on {count(gained)} of "
        f"{count(int(np.isfinite(before).sum()))} classes."
    )
