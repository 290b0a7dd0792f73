"""Figures of plotly.js as plain dictionaries, each with a sentence and a table that say what it shows.

Colors are names that the style sheet defines, written ``@name`` or ``@name alpha``: the page puts the colors of its
light or dark scheme in their place. Text that plotly shows is escaped here, because plotly reads some HTML in it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from longtail.lab.report.digest import (
    CALIBRATION_BINS,
    TAUS,
    Comparison,
    Estimate,
    FloatArray,
    IntArray,
    Labels,
    MethodResults,
    estimate,
)
from longtail.lab.report.embedded import NEIGHBORS, SCALES, map_to_plane
from longtail.lab.report.words import class_name, clean, count, listed, percent, points, with_interval
from longtail.metrics.calibration import reliability_from_counts

__all__ = [
    "Figure",
    "Series",
    "Table",
    "accuracy_by_epoch",
    "calibration",
    "class_accuracy",
    "class_distances",
    "embedding_maps",
    "group_bars",
    "label_distribution",
    "learning_rate",
    "margin_shares",
    "margins",
    "other_heads",
    "sample_rate_variance",
    "sample_rates",
    "tau_curve",
    "training_loss",
    "variance_bound",
    "weight_norms",
]

Json = dict[str, Any]

MOST_BARS = 200
"""Classes drawn as bars, and listed in tables; more are a line, and binned."""
MOST_JOINED = 30
"""Classes whose points are joined by a line; more have a line of means."""
MOST_POINTS = 6000
"""Points of one figure; more are binned."""
MOST_STEPS = 300
"""Points of one line."""
FREQUENCY_BINS = 20
MARGIN_STEPS = 101
"""Points of a cumulated distribution."""
MOST_MAPS = 4
"""Methods whose embeddings are mapped to the plane."""
MOST_TOLD = 3
"""Methods that a sentence names."""

NOTE_HEIGHT = 16
"""Of a line of words above a figure, in pixels."""

NUM_COLORS = 10
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot")
PATTERNS = ("", "/", ".")


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

    @staticmethod
    def of_method(index: int, method: MethodResults) -> Series:
        """Color, symbol and dash by the method's place; the three together tell 100 methods apart."""
        cycle = index // NUM_COLORS
        return Series(
            key=f"method-{index}",
            label=clean(method.label),
            color=f"method-{index % NUM_COLORS}",
            symbol=SYMBOLS[index % len(SYMBOLS)],
            dash=DASHES[cycle % len(DASHES)],
            pattern=PATTERNS[cycle % len(PATTERNS)],
        )

    @staticmethod
    def of_group(name: str) -> Series:
        """Head, torso, tail, or all classes."""
        return Series(key=f"group-{name}", label=name, color=name, symbol="circle")


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


def label_distribution(comparison: Comparison) -> Figure:
    """Training samples of each class, most frequent first, colored by group."""
    labels = comparison.labels
    order = labels.by_frequency
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(1, len(order) + 1)
    traces = []
    for name, classes in labels.groups.items():
        series = Series.of_group(name)
        ranked = classes[np.argsort(rank_of[classes])]
        shown = ranked if labels.num_classes <= MOST_BARS else ranked[_spaced(len(ranked))]
        traces.append(
            _trace(series)
            | (_bars(series) if labels.num_classes <= MOST_BARS else _area(series))
            | {
                "x": rank_of[shown].tolist(),
                "y": labels.counts[shown].tolist(),
                "customdata": [_name(labels, index) for index in shown],
                "hovertemplate": "%{customdata}<br>%{y:,} training samples<br>rank %{x}",
            }
        )
    ticks = {}
    if labels.num_classes <= MOST_JOINED:
        ticks = {
            "tickvals": list(range(1, len(order) + 1)),
            "ticktext": [_shown(clean(labels.names[index], most=14)) for index in order],
        }
    layout = _layout(
        x=_axis("class, most frequent first", **ticks),
        y=_axis("training samples", **_count_scale(labels.counts)),
        bargap=0.15,
    )
    largest, smallest = labels.counts.max(), labels.counts.min()
    ratio = f"{largest / smallest:,.0f} times as many" if smallest else "the rarest has none"
    in_groups = listed(f"{count(len(classes))} in the {name}" for name, classes in labels.groups.items())
    summary = (
        f"{count(labels.num_classes)} classes, {in_groups}. The most frequent has {count(largest)} training samples "
        f"and the rarest {count(smallest)}: {ratio}."
    )
    return Figure("label-distribution", traces, layout, summary, _label_table(labels), _group_legend(labels))


def group_bars(comparison: Comparison) -> Figure:
    """Accuracy in the head, the torso, the tail and over all classes, for every method."""
    columns = ["balanced_accuracy", *comparison.labels.groups]
    names = ["all classes", *comparison.labels.groups]
    traces, rows = [], []
    for series, method in _series(comparison):
        values = [method.metric(name) for name in columns]
        traces.append(
            _trace(series)
            | _bars(series)
            | {
                "x": names,
                "y": _numbers(value.mean for value in values),
                "error_y": _error_bars(values),
                "customdata": [_interval_words(value) for value in values],
                "hovertemplate": "%{x}: %{y:.1%}%{customdata}",
            }
        )
        rows.append((series.label, *(with_interval(value) for value in values)))
    layout = _layout(x=_axis(""), y=_axis("accuracy, mean over classes", tickformat=".0%", rangemode="tozero"))
    layout |= {"barmode": "group", "bargap": 0.25, "bargroupgap": 0.08}
    leaders = listed(_leader(comparison, column, name) for column, name in zip(columns, names, strict=True))
    kind = "Highest mean accuracy" if len(comparison.methods) > 1 else "Mean accuracy"
    summary = f"{kind}: {leaders}.{_interval_note(comparison)}"
    return Figure("groups", traces, layout, summary, Table(("method", *names), rows), _legend(comparison))


def class_accuracy(comparison: Comparison) -> Figure:
    """Accuracy of each class against the number of its training samples."""
    values = [(series, method.class_accuracy()) for series, method in _series(comparison)]
    traces, table = _against_frequency(comparison.labels, values, "accuracy", ".1%", percent)
    layout = _layout(
        x=_axis("training samples of the class", **_count_scale(comparison.labels.counts)),
        y=_axis("accuracy on the class", tickformat=".0%", range=[-0.03, 1.03]),
    )
    trends = _trends(comparison, values)
    summary = (
        f"Rank correlation of a class's accuracy with its frequency, 0 where rare classes do as well: {trends}."
        f"{_means_note(comparison.labels)}"
    )
    return Figure("class-accuracy", traces, layout, summary, table, _legend(comparison))


def weight_norms(comparison: Comparison) -> Figure | None:
    """Norm of each class's vector against the number of its training samples; None where no head has such vectors."""
    found = [(series, method.weight_norms()) for series, method in _series(comparison)]
    values = [(series, norms) for series, norms in found if norms is not None]
    if not values:
        return None
    traces, table = _against_frequency(comparison.labels, values, "norm", ".3f", lambda norm: f"{norm:.3f}")
    layout = _layout(
        x=_axis("training samples of the class", **_count_scale(comparison.labels.counts)),
        y=_axis("norm of the class vector", rangemode="tozero"),
    )
    trends = _trends(comparison, values)
    summary = (
        f"Rank correlation of a class's norm with its frequency: {trends}. Momentum tends to give frequent classes "
        f"longer vectors and Adam does not, so normalizing them is no general remedy.{_means_note(comparison.labels)}"
    )
    return Figure("weight-norms", traces, layout, summary, table, [series for series, _ in values])


def sample_rates(comparison: Comparison) -> Figure | None:
    """Learned sample rate of each class against the number of its training samples; None if none were learned."""
    found = [(series, method.sample_rates()) for series, method in _series(comparison)]
    values = [(series, rates) for series, rates in found if rates is not None]
    if not values:
        return None
    traces, table = _against_frequency(comparison.labels, values, "rate", ".3f", lambda rate: f"{rate:.3f}")
    layout = _layout(
        x=_axis("training samples of the class", **_count_scale(comparison.labels.counts)),
        y=_axis("learned sample rate", range=[0, 1]),
    )
    spreads = _told(comparison, {series: f"{np.var(rates):.3f}" for series, rates in values}, "with")
    summary = (
        "All rates begin at 0.5; a class is drawn in proportion to its samples times its rate. Variance of the rates "
        f"in the end: {spreads}.{_means_note(comparison.labels)}"
    )
    return Figure("sample-rates", traces, layout, summary, table, [series for series, _ in values])


def sample_rate_variance(comparison: Comparison) -> Figure | None:
    """Variance of the learned sample rates by epoch; None if none were learned."""
    return _history(
        comparison,
        "sample_rate_variance",
        "variance of the rates",
        "Variance of the sample rates over classes",
        ".3f",
        lambda value: f"{value:.3f}",
    )


def tau_curve(comparison: Comparison) -> Figure | None:
    """Accuracy after subtracting tau log pi from logits of plain cross-entropy; None if no run has such logits."""
    plain = comparison.plain
    if plain is None:
        return None
    names = {"balanced_accuracy": "all classes", **{name: name for name in comparison.labels.groups}}
    curves = {name: plain.tau_metric(name) or [] for name in names}
    legend = [
        Series("group-all", "all classes", "ink"),
        *(Series.of_group(name) for name in comparison.labels.groups),
    ]
    balanced = curves["balanced_accuracy"]
    traces = []
    if balanced[0].has_interval:
        traces.append(_band(legend[0], TAUS, balanced))
    for series, (name, curve) in zip(legend, curves.items(), strict=True):
        is_whole = name == "balanced_accuracy"
        line = {"color": f"@{series.color}", "width": 3 if is_whole else 1.5, "dash": "solid" if is_whole else "dash"}
        traces.append(
            _trace(series)
            | {
                "type": "scatter",
                "mode": "lines",
                "line": line,
                "x": _numbers(TAUS),
                "y": _numbers(value.mean for value in curve),
                "hovertemplate": "tau %{x}: %{y:.1%}",
            }
        )
    means = np.array([value.mean for value in balanced])
    marks = _tau_marks(comparison, means)
    heights = np.interp(list(marks), TAUS, means)
    traces.append(
        _trace(legend[0])
        | {
            "type": "scatter",
            "mode": "markers",
            "marker": {"size": 11, "color": "@card", "line": {"color": "@ink", "width": 3}},
            "x": _numbers(marks),
            "y": _numbers(heights),
            "customdata": list(marks.values()),
            "hovertemplate": "%{customdata}: %{y:.1%}",
        }
    )
    layout = _layout(x=_axis("tau"), y=_axis("accuracy, mean over classes", tickformat=".0%"))
    layout["annotations"] = [_note(tau, words, level) for level, (tau, words) in enumerate(marks.items())]
    layout["margin"] |= {"t": 16 + NOTE_HEIGHT * len(marks)}
    layout["shapes"] = [_vertical(tau) for tau in marks]
    summary = (
        f"Balanced accuracy of {clean(plain.label)} is {percent(means[0])} as trained (tau = 0), "
        f"{percent(float(np.interp(1, TAUS, means)))} at tau = 1 and at most {percent(means.max())}, at tau = "
        f"{TAUS[means.argmax()]:g}."
    )
    rows = [(f"{tau:g}", *(with_interval(curve[i]) for curve in curves.values())) for i, tau in enumerate(TAUS)]
    return Figure("tau", traces, layout, summary, Table(("tau", *names.values()), rows), legend)


def _tau_marks(comparison: Comparison, means: FloatArray) -> dict[float, str]:
    """The values of tau to point out, and what they are: 1, the best, and those that methods of the page use."""
    marks: dict[float, list[str]] = {1.0: []}
    for series, method in _series(comparison):
        if method.adjusted_by is not None:
            marks.setdefault(method.adjusted_by, []).append(_shown(series.label))
    marks.setdefault(float(TAUS[means.argmax()]), []).append("the best")
    return {
        tau: f"tau = {tau:g}" + (f" ({', '.join(words)})" if words else "")
        for tau, words in marks.items()
        if tau <= TAUS[-1]
    }


def calibration(comparison: Comparison) -> Figure:
    """The reliability diagram: accuracy of predictions against their confidence."""
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
    for series, method in _series(comparison):
        bins = method.bins()
        confidence, accuracy, share = (values.numpy() for values in reliability_from_counts(*bins))
        used = share > 0
        traces.append(
            _trace(series)
            | _line_with_markers(series)
            | {
                "x": _numbers(confidence[used]),
                "y": _numbers(accuracy[used]),
                "customdata": _numbers(share[used]),
                "hovertemplate": "confidence %{x:.1%}, right %{y:.1%}<br>%{customdata:.1%} of samples",
            }
        )
        traces[-1]["line"]["width"] = 1
        traces[-1]["marker"]["size"] = _numbers(5 + 13 * np.sqrt(share[used]))
        drawn = np.stack([confidence, accuracy, share], axis=1)[used]
        rows += [(series.label, *(percent(value) for value in row)) for row in drawn]
        gap = float((confidence[used] - accuracy[used]) @ share[used])
        tendency = "overconfident" if gap > 0.01 else "underconfident" if gap < -0.01 else "about right"
        errors[series] = f"{percent(method.metric('calibration_error').mean)} ({tendency})"
    layout = _layout(
        x=_axis("confidence of the prediction", tickformat=".0%", range=[-0.02, 1.02]),
        y=_axis("share that is right", tickformat=".0%", range=[-0.02, 1.02]),
    )
    summary = (
        f"Calibration error over {CALIBRATION_BINS} bins: {_told(comparison, errors, 'for')}. On the dotted line a "
        "confidence is as often right as it says; below it predictions are too confident. Larger marks hold more "
        "samples."
    )
    table = Table(("method", "confidence", "right", "share of samples"), rows)
    return Figure("calibration", traces, layout, summary, table, _legend(comparison))


def margins(comparison: Comparison) -> Figure:
    """Quartiles of the logit margin, for a class of the head, of the torso and of the tail."""
    labels = comparison.labels
    examples = {group: labels.example(group) for group in labels.groups}
    groups = [group for group, classes in examples.items() if labels.test_counts[classes].sum()]
    names = {group: _example_name(labels, examples[group]) for group in groups}
    ticks = [f"{group}<br>{_shown(clean(names[group], most=18))}" for group in groups]
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    below = {}
    for series, method in _series(comparison):
        samples = [method.margins(group) for group in groups]
        quantiles = [np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]) for values in samples]
        low, lower, middle, upper, high = (_numbers(values) for values in zip(*quantiles, strict=True))
        traces.append(
            _trace(series)
            | {
                "type": "box",
                "x": ticks,
                "lowerfence": low,
                "q1": lower,
                "median": middle,
                "q3": upper,
                "upperfence": high,
                "line": {"color": f"@{series.color}", "width": 1.5},
                "fillcolor": f"@{series.color} 0.25",
                "hoverinfo": "y+name",
            }
        )
        rows += [
            (
                series.label,
                f"{group}: {names[group]}",
                *(f"{q:.2f}" for q in five),
                percent(float((v < 0).mean())),
            )
            for group, five, v in zip(groups, quantiles, samples, strict=True)
        ]
        below[series] = percent(float((samples[-1] < 0).mean()))
    layout = _layout(x=_axis("", type="category"), y=_axis("score of the true label − best other"))
    layout |= {"boxmode": "group", "boxgap": 0.25, "boxgroupgap": 0.15, "shapes": [_horizontal(0)]}
    summary = (
        f"Below 0 a sample is misclassified: in the {groups[-1]} ({names[groups[-1]]}) that is "
        f"{_told(comparison, below, 'with')}. "
        "Boxes hold the middle half of the samples, whiskers 5% to 95%."
    )
    table = Table(("method", "class", "5%", "25%", "median", "75%", "95%", "below 0"), rows)
    return Figure("margins", traces, layout, summary, table, _legend(comparison))


def margin_shares(comparison: Comparison, group: str) -> Figure | None:
    """The cumulated share of a group's test samples over their logit margin; None for a group without any."""
    if group not in comparison.methods[0].runs[0].group_margins:
        return None
    shares = np.linspace(0, 1, MARGIN_STEPS)
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    below = {}
    for series, method in _series(comparison):
        values = method.group_margins(group)
        quantiles = np.quantile(values, shares)
        traces.append(
            _trace(series)
            | {
                "type": "scatter",
                "mode": "lines",
                "line": {"color": f"@{series.color}", "width": 2, "dash": series.dash},
                "x": _numbers(quantiles),
                "y": _numbers(shares),
                "hovertemplate": "margin at most %{x:.2f}: %{y:.1%}",
            }
        )
        rows.append((series.label, *(f"{q:.2f}" for q in quantiles[:: MARGIN_STEPS // 4])))
        below[series] = percent(float((values < 0).mean()))
    layout = _layout(
        x=_axis("score of the true label − best other"),
        y=_axis(f"share of the {group}'s samples", tickformat=".0%", range=[-0.02, 1.02]),
        height=320,
        shapes=[_vertical(0)],
    )
    summary = (
        f"{group.capitalize()}: the lower a line left of the dotted one, the fewer samples are misclassified; "
        f"here {_told(comparison, below, 'with')}. A steep line has margins that vary little."
    )
    table = Table(("method", "smallest", "25%", "median", "75%", "largest"), rows)
    return Figure(f"margin-shares-{group}", traces, layout, summary, table, _legend(comparison))


def class_distances(comparison: Comparison, scale: str) -> Figure | None:
    """The largest distance to a sample of the same class, by group; None if no run kept embeddings."""
    found = _embedded(comparison)
    if not found:
        return None
    groups = list(comparison.labels.groups)
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    last = {}
    for series, method in found:
        values = [estimate(one.distances[scale][group] for one in method.embeddings) for group in groups]
        traces.append(
            _trace(series)
            | _bars(series)
            | {
                "x": groups,
                "y": _numbers(value.mean for value in values),
                "error_y": _error_bars(values),
                "hovertemplate": "%{x}: %{y:.3g}",
            }
        )
        rows.append((series.label, *(_measured(value) for value in values)))
        last[series] = _measured(values[-1])
    title = f"largest distance within the class<br>{SCALES[scale]}"
    layout = _layout(x=_axis(""), y=_axis(title, rangemode="tozero"), height=320)
    layout |= {"barmode": "group", "bargap": 0.25, "bargroupgap": 0.08}
    summary = f"Mean over test samples; in the {groups[-1]}: {_told(comparison, last, 'with')}."
    key = f"class-distances-{scale.replace('_', '-')}"
    return Figure(key, traces, layout, summary, Table(("method", *groups), rows), [series for series, _ in found])


def other_heads(comparison: Comparison) -> Figure | None:
    """Balanced accuracy of the trained head and of simple heads on the same embeddings; None if none were kept."""
    found = _embedded(comparison)
    if not found:
        return None
    names = {"nearest_mean": "nearest class mean", "nearest_neighbors": f"{NEIGHBORS} nearest neighbors"}
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    by_mean = {}
    for series, method in found:
        values = [method.metric("balanced_accuracy")]
        values += [estimate(one.accuracy[name] for one in method.embeddings) for name in names]
        traces.append(
            _trace(series)
            | _bars(series)
            | {
                "x": ["its own head", *names.values()],
                "y": _numbers(value.mean for value in values),
                "error_y": _error_bars(values),
                "hovertemplate": "%{x}: %{y:.1%}",
            }
        )
        rows.append((series.label, *(with_interval(value) for value in values)))
        by_mean[series] = percent(values[1].mean)
    layout = _layout(x=_axis(""), y=_axis("balanced accuracy", tickformat=".0%", rangemode="tozero"), height=320)
    layout |= {"barmode": "group", "bargap": 0.25, "bargroupgap": 0.08}
    summary = (
        f"By the nearest class mean: {_told(comparison, by_mean, 'with')}. It weighs classes equally; neighbors are "
        "counted among training samples, which are skewed. From the samples whose embeddings were kept."
    )
    table = Table(("method", "its own head", *names.values()), rows)
    return Figure("other-heads", traces, layout, summary, table, [series for series, _ in found])


def variance_bound(comparison: Comparison) -> Figure | None:
    """The variance of each class's embeddings against its bound by Proposition 1 of ELM; None if none were kept."""
    found = _embedded(comparison)
    labels = comparison.labels
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    ends: list[float] = []
    for series, method in found:
        one = method.embeddings[0]
        shown = labels.by_frequency[(one.variances > 0)[labels.by_frequency]]
        shown = shown[_spaced(len(shown), MOST_BARS)] if len(shown) else shown
        traces.append(
            _trace(series)
            | {
                "type": "scatter",
                "mode": "markers",
                "marker": {"color": f"@{series.color}", "size": 7, "symbol": series.symbol, "opacity": 0.8},
                "x": _numbers(one.bounds[shown]),
                "y": _numbers(one.variances[shown]),
                "customdata": [f"{_name(labels, i)}, {count(labels.counts[i])} training samples" for i in shown],
                "hovertemplate": "%{customdata}<br>variance %{y:.3g}, bound %{x:.3g}",
            }
        )
        ends += [*one.bounds[shown], *one.variances[shown]]
        rows += [
            (series.label, clean(labels.names[i]), f"{one.variances[i]:.3g}", f"{one.bounds[i]:.3g}") for i in shown
        ]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    diagonal = {"mode": "lines", "line": {"color": "@faint", "width": 1.5, "dash": "dot"}, "hoverinfo": "skip"}
    traces.append({"type": "scatter", "x": _numbers([low, high]), "y": _numbers([low, high])} | diagonal)
    layout = _layout(
        x=_axis("bound of Proposition 1", type="log"),
        y=_axis("variance of the class's embeddings", type="log"),
        height=320,
    )
    summary = (
        "Each mark is a class, of one seed; alpha is the share of its training samples. No mark can be above the "
        "dotted line: what the pull lowers is the bound."
    )
    table = Table(("method", "class", "variance", "bound"), rows)
    return Figure("variance-bound", traces, layout, summary, table, [series for series, _ in found])


def embedding_maps(comparison: Comparison) -> list[Figure]:
    """Training samples of some classes of each group by t-SNE, one figure a method."""
    found = _embedded(comparison)
    if len(found) > MOST_MAPS:
        chosen = (comparison.reference, comparison.best)
        found = sorted(found, key=lambda pair: pair[1] not in chosen)[:MOST_MAPS]
    maps = [_embedding_map(comparison.labels, series, method) for series, method in found]
    return [figure for figure in maps if figure is not None]


def _embedding_map(labels: Labels, series: Series, method: MethodResults) -> Figure | None:
    one = method.embeddings[0]
    places = map_to_plane(one.sample)
    if places is None:
        return None
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    for group, members in labels.groups.items():
        is_member = np.isin(one.sample_labels, members)
        classes = np.unique(one.sample_labels[is_member])
        rows.append((group, ", ".join(clean(labels.names[c]) for c in classes), count(is_member.sum())))
        for place, c in enumerate(classes):
            shown = one.sample_labels == c
            traces.append(
                _trace(Series.of_group(group))
                | {
                    "type": "scatter",
                    "mode": "markers",
                    "marker": {"color": f"@{group}", "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
                    "x": _numbers(places[shown, 0]),
                    "y": _numbers(places[shown, 1]),
                    "customdata": [_name(labels, c)] * int(shown.sum()),
                    "hovertemplate": "%{customdata}",
                }
            )
    hidden = {"showticklabels": False, "showgrid": False}
    layout = _layout(x=_axis(_shown(series.label), **hidden), y=_axis("", **hidden), height=360)
    summary = (
        f"{series.label}: training samples by t-SNE, colored by group, with a symbol for each class of a group. "
        "Distances between clusters, and their sizes, mean little; whether a class stays together does."
    )
    table = Table(("group", "classes", "samples"), rows)
    return Figure(f"map-{series.key}", traces, layout, summary, table, _group_legend(labels))


def _embedded(comparison: Comparison) -> list[tuple[Series, MethodResults]]:
    return [(series, method) for series, method in _series(comparison) if method.embeddings]


def _measured(value: Estimate) -> str:
    spread = f" ± {value.half_width:.2g}" if value.has_interval else ""
    return f"{value.mean:.3g}{spread}" if math.isfinite(value.mean) else "–"


def training_loss(comparison: Comparison) -> Figure | None:
    """Training loss by epoch; None if it was not recorded."""
    return _history(comparison, "train_loss", "training loss", "Training loss", ".4g", lambda value: f"{value:.4g}")


def learning_rate(comparison: Comparison) -> Figure | None:
    """Learning rate by epoch; None if it was not recorded."""
    return _history(
        comparison, "learning_rate", "learning rate", "Learning rate", ".3g", lambda value: f"{value:.3g}"
    )


def accuracy_by_epoch(comparison: Comparison) -> Figure | None:
    """Balanced accuracy on the test set by epoch; None if it was measured at the end only."""
    return _history(
        comparison, "balanced_accuracy", "balanced accuracy", "Balanced accuracy on the test set", ".1%", percent
    )


def _history(comparison: Comparison, name: str, title: str, subject: str, form: str, words: Any) -> Figure | None:
    measured = [(series, *method.history(name)) for series, method in _series(comparison)]
    measured = [(series, epochs, values) for series, epochs, values in measured if len(epochs) > 1]
    if not measured:
        return None
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    ends = {}
    for series, epochs, values in measured:
        kept = _spaced(len(epochs))
        x, y = np.array(epochs)[kept], np.array(values)[kept]
        traces.append(
            _trace(series)
            | {
                "type": "scatter",
                "mode": "lines",
                "line": {"color": f"@{series.color}", "width": 2, "dash": series.dash},
                "x": x.tolist(),
                "y": _numbers(y),
                "hovertemplate": f"epoch %{{x}}: %{{y:{form}}}",
            }
        )
        listed_rows = _spaced(len(x), most=20)
        rows += [(series.label, str(x[row]), words(y[row])) for row in listed_rows]
        ends[series] = f"{words(y[0])} to {words(y[-1])}"
    y_axis = _axis(title, **({"tickformat": ".0%"} if form.endswith("%") else {"rangemode": "tozero"}))
    summary = f"{subject}, from epoch {measured[0][1][0]} to {measured[0][1][-1]}: {_told(comparison, ends, 'with')}."
    legend = [series for series, _, _ in measured]
    layout = _layout(x=_axis("epoch"), y=y_axis, height=300)
    return Figure(name.replace("_", "-"), traces, layout, summary, Table(("method", "epoch", title), rows), legend)


def _label_table(labels: Labels) -> Table:
    """Every class where they are few, else every group."""
    if labels.num_classes <= MOST_BARS:
        group_of = {int(one): name for name, classes in labels.groups.items() for one in classes}
        order = labels.by_frequency
        rows = [(clean(labels.names[i]), group_of[int(i)], count(labels.counts[i])) for i in order]
        return Table(("class", "group", "training samples"), rows)
    total = labels.counts.sum()
    counts_of = {name: labels.counts[classes] for name, classes in labels.groups.items()}
    return Table(
        ("group", "classes", "largest class", "smallest class", "share of samples"),
        [
            (name, count(len(counts)), count(counts.max()), count(counts.min()), percent(counts.sum() / total))
            for name, counts in counts_of.items()
        ],
    )


def _against_frequency(
    labels: Labels, values: Sequence[tuple[Series, FloatArray]], quantity: str, form: str, words: Any
) -> tuple[list[Json], Table]:
    """A value of each class over its count: points while they are few, means over classes of like count, or both."""
    order = labels.by_frequency
    has_points = labels.num_classes * len(values) <= MOST_POINTS
    has_means = labels.num_classes > MOST_JOINED
    bins = _frequency_bins(labels.counts)
    traces: list[Json] = []
    for series, of_class in values:
        if has_points:
            shown = order[np.isfinite(of_class[order])]
            style = _line_with_markers(series)
            if has_means:
                style = {
                    "type": "scatter",
                    "mode": "markers",
                    "marker": style["marker"] | {"size": 5, "opacity": 0.35},
                }
            traces.append(
                _trace(series)
                | style
                | {
                    "x": _places(labels.counts[shown]).tolist(),
                    "y": _numbers(of_class[shown]),
                    "customdata": [
                        f"{_name(labels, i)}<br>{count(labels.counts[i])} training samples" for i in shown
                    ],
                    "hovertemplate": f"%{{customdata}}<br>{quantity} %{{y:{form}}}",
                }
            )
        if has_means:
            means = _bin_means(of_class, bins)
            traces.append(
                _trace(series)
                | _line_with_markers(series)
                | {
                    "x": _numbers(_bin_center(labels.counts[members]) for members in bins),
                    "y": _numbers(means),
                    "customdata": [_bin_words(labels.counts, members) for members in bins],
                    "hovertemplate": f"%{{customdata}}<br>mean {quantity} %{{y:{form}}}",
                }
            )
    columns = [series.label for series, _ in values]
    if labels.num_classes <= MOST_BARS:
        rows = [
            (clean(labels.names[i]), count(labels.counts[i]), *(words(of_class[i]) for _, of_class in values))
            for i in order
        ]
        return traces, Table(("class", "training samples", *columns), rows)
    by_bin = np.array([_bin_means(of_class, bins) for _, of_class in values]).T
    rows = [
        (_bin_words(labels.counts, members), *(words(mean) for mean in means))
        for members, means in zip(bins, by_bin, strict=True)
    ]
    return traces, Table(("classes", *columns), rows)


def _means_note(labels: Labels) -> str:
    return " Lines are means over classes of like frequency." if labels.num_classes > MOST_JOINED else ""


def _frequency_bins(counts: IntArray) -> list[IntArray]:
    """Classes of like count, most frequent last: bins of equal width on a log scale, empty ones left out."""
    logs = np.log(_places(counts))
    edges = np.linspace(logs.min(), logs.max(), FREQUENCY_BINS + 1)[1:-1]
    place = np.searchsorted(edges, logs)
    return [members for bin in range(FREQUENCY_BINS) if len(members := np.flatnonzero(place == bin))]


def _bin_means(of_class: FloatArray, bins: Sequence[IntArray]) -> list[float]:
    finite = [of_class[members][np.isfinite(of_class[members])] for members in bins]
    return [float(values.mean()) if len(values) else math.nan for values in finite]


def _bin_center(counts: IntArray) -> float:
    return float(np.exp(np.log(_places(counts)).mean()))


def _places(counts: IntArray) -> FloatArray:
    """Where counts are on a log scale; a class without samples is left of one with a single sample."""
    return np.maximum(counts, 0.5)


def _bin_words(counts: IntArray, members: IntArray) -> str:
    low, high = counts[members].min(), counts[members].max()
    span = count(low) if low == high else f"{count(low)} to {count(high)}"
    return f"{count(len(members))} {'class' if len(members) == 1 else 'classes'} of {span}"


def _trends(comparison: Comparison, values: Sequence[tuple[Series, FloatArray]]) -> str:
    counts = comparison.labels.counts
    return _told(comparison, {series: _correlation(counts, of_class) for series, of_class in values}, "for")


def _correlation(counts: IntArray, values: FloatArray) -> str:
    finite = np.isfinite(values)
    if np.ptp(values[finite]) == 0 or np.ptp(counts[finite]) == 0:
        return "none"
    correlation = float(stats.spearmanr(counts[finite], values[finite]).statistic)
    return f"{correlation:+.2f}".replace("-", "−")


def _example_name(labels: Labels, classes: IntArray) -> str:
    if len(classes) == 1:
        return class_name(labels.names[int(classes[0])])
    return f"all {count(len(classes))} classes"


def _series(comparison: Comparison) -> list[tuple[Series, MethodResults]]:
    return [(Series.of_method(index, method), method) for index, method in enumerate(comparison.methods)]


def _told(comparison: Comparison, facts: Mapping[Series, str], preposition: str) -> str:
    """Facts of methods as part of a sentence: of all while they are few, else of the two that matter most."""
    told = facts
    if len(facts) > MOST_TOLD:
        chosen = (comparison.reference, comparison.best)
        told = {
            series: facts[series] for series, method in _series(comparison) if method in chosen and series in facts
        }
    return listed(f"{fact} {preposition} {series.label}" for series, fact in (told or facts).items())


def _legend(comparison: Comparison) -> list[Series]:
    return [series for series, _ in _series(comparison)]


def _group_legend(labels: Labels) -> list[Series]:
    return [Series.of_group(name) for name in labels.groups]


def _trace(series: Series) -> Json:
    return {"name": _shown(series.label), "meta": series.key}


def _bars(series: Series) -> Json:
    color = f"@{series.color}"
    pattern = {"shape": series.pattern, "bgcolor": color, "fgcolor": "@card", "size": 6, "solidity": 0.3}
    return {"type": "bar", "marker": {"color": color, "pattern": pattern}}


def _area(series: Series) -> Json:
    line = {"color": f"@{series.color}", "width": 2}
    return {"type": "scatter", "mode": "lines", "line": line, "fill": "tozeroy", "fillcolor": f"@{series.color} 0.35"}


def _line_with_markers(series: Series) -> Json:
    color = f"@{series.color}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": color, "width": 2, "dash": series.dash},
        "marker": {"color": color, "size": 7, "symbol": series.symbol},
    }


def _band(series: Series, x: FloatArray, curve: Sequence[Estimate]) -> Json:
    """The interval around a curve, as an area."""
    return _trace(series) | {
        "type": "scatter",
        "mode": "lines",
        "x": _numbers([*x, *x[::-1]]),
        "y": _numbers([*(value.high for value in curve), *(value.low for value in reversed(curve))]),
        "line": {"width": 0, "color": f"@{series.color}"},
        "fill": "toself",
        "fillcolor": f"@{series.color} 0.12",
        "hoverinfo": "skip",
    }


def _error_bars(values: Sequence[Estimate]) -> Json:
    return {
        "type": "data",
        "array": _numbers(value.half_width if value.has_interval else 0.0 for value in values),
        "visible": any(value.has_interval for value in values),
        "color": "@ink",
        "thickness": 1.5,
        "width": 3,
    }


def _note(tau: float, words: str, level: int) -> Json:
    """Words above the figure, each note on a line of its own."""
    is_left = tau < TAUS[-1] / 2
    return {
        "x": _number(tau),
        "y": 1,
        "yref": "paper",
        "text": words,
        "font": {"size": 12},
        "showarrow": False,
        "xanchor": "left" if is_left else "right",
        "yanchor": "bottom",
        "yshift": NOTE_HEIGHT * level,
    }


def _vertical(x: float) -> Json:
    return _line_shape({"x0": _number(x), "x1": _number(x), "y0": 0, "y1": 1, "yref": "paper"})


def _horizontal(y: float) -> Json:
    return _line_shape({"y0": y, "y1": y, "x0": 0, "x1": 1, "xref": "paper"})


def _line_shape(ends: Json) -> Json:
    return {"type": "line", "layer": "below", "line": {"color": "@faint", "width": 1.5, "dash": "dot"}} | ends


def _axis(title: str, **more: Any) -> Json:
    return {
        **({"title": {"text": title, "standoff": 8, "font": {"size": 13, "color": "@muted"}}} if title else {}),
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "zeroline": False,
        "automargin": True,
        "ticklabeloverflow": "allow",
    } | more


def _layout(x: Json, y: Json, height: int = 380, **more: Any) -> Json:
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


def _count_scale(counts: IntArray) -> Json:
    """A log scale where classes differ much."""
    is_wide = counts.max() >= 10 * _places(counts).min()
    return {"type": "log", "dtick": 1} if is_wide else {"rangemode": "tozero"}


def _spaced(length: int, most: int = MOST_STEPS) -> IntArray:
    """At most ``most`` places from first to last, evenly spaced."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def _numbers(values: Iterable[float] | npt.NDArray[Any]) -> list[float | None]:
    """Numbers for JSON; what is not finite is a gap."""
    return [_number(value) if math.isfinite(value) else None for value in values]


def _number(value: float) -> float:
    """To four digits, which is more than can be seen."""
    return float(f"{value:.4g}")


def _name(labels: Labels, index: int) -> str:
    return _shown(class_name(labels.names[index]))


def _shown(text: str) -> str:
    """Text that plotly shows as it is."""
    return html.escape(text, quote=False)


def _leader(comparison: Comparison, column: str, name: str) -> str:
    """The best method on all classes or in a group, and its value; the value alone if there is but one method."""
    means = {method.label: method.metric(column).mean for method in comparison.methods}
    best = max(means, key=lambda label: means[label] if math.isfinite(means[label]) else -math.inf)
    place = "on all classes" if column == "balanced_accuracy" else f"in the {name}"
    who = f"{clean(best)} " if len(means) > 1 else ""
    return f"{percent(means[best])} {who and 'with '}{who}{place}"


def _interval_words(value: Estimate) -> str:
    return f" ± {points(value.half_width).removeprefix('+')} points" if value.has_interval else ""


def _interval_note(comparison: Comparison) -> str:
    has_intervals = any(len(method.runs) > 1 for method in comparison.methods)
    return " Error bars are 95% intervals of the mean over seeds." if has_intervals else ""
