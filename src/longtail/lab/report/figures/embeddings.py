"""Embeddings: distances within classes, other heads, variances against their bound, and maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from longtail.lab.report.digests.embeddings import NEIGHBORS, SCALES, map_to_plane
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.digests.single_label import MAIN_METRIC, SingleLabelComparison, SingleLabelResults
from longtail.lab.report.figures.drawing import (
    GROUPED_BARS,
    MOST_BARS,
    SYMBOLS,
    Figure,
    Json,
    Series,
    Table,
    build_axis,
    build_bars,
    build_error_bars,
    build_layout,
    build_share_axis,
    build_trace,
    describe_methods,
    escape_class,
    escape_markup,
    pair_series,
    round_numbers,
    series_of_groups,
    space_out,
)
from longtail.lab.report.text import clean, count, percent, with_interval
from longtail.lab.runs.statistics import Estimate, estimate

__all__ = ["draw_distances", "draw_maps", "draw_other_heads", "draw_variance_bound"]

MOST_MAPS = 4
"""Methods whose embeddings are mapped to the plane."""


def draw_distances(comparison: SingleLabelComparison, scale: str) -> Figure | None:
    """The largest distance to a sample of the same class, by group; None if no run kept embeddings."""
    found = _choose_embedded(comparison)
    if not found:
        return None
    groups = comparison.labels.groups
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    last = {}
    for series, method in found:
        values = [estimate(one.distances[scale][key] for one in method.embeddings) for key in groups]
        traces.append(
            build_trace(series)
            | build_bars(series)
            | {
                "x": [escape_markup(group.name) for group in groups.values()],
                "y": round_numbers(value.mean for value in values),
                "error_y": build_error_bars(values),
                "hovertemplate": "%{x}: %{y:.3g}",
            }
        )
        rows.append((series.label, *(_format_distance(value) for value in values)))
        last[series] = _format_distance(values[-1])
    title = f"largest distance within the class<br>{SCALES[scale]}"
    layout = build_layout(x=build_axis(""), y=build_axis(title, rangemode="tozero"), height=320)
    names = [group.name for group in groups.values()]
    place = list(groups.values())[-1].place
    summary = f"Mean over test samples; {place}: {describe_methods(comparison, last, 'with')}."
    key = f"class-distances-{scale.replace('_', '-')}"
    table = Table(("method", *names), rows)
    return Figure(key, traces, layout | GROUPED_BARS, summary, table, [series for series, _ in found])


def draw_other_heads(comparison: SingleLabelComparison) -> Figure | None:
    """Balanced accuracy of the trained head and of simple heads on the same embeddings; None if none were kept."""
    found = _choose_embedded(comparison)
    if not found:
        return None
    names = {"nearest_mean": "nearest class mean", "nearest_neighbors": f"{NEIGHBORS} nearest neighbors"}
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    by_mean = {}
    for series, method in found:
        values = [method.metric(MAIN_METRIC)]
        values += [estimate(one.accuracy[name] for one in method.embeddings) for name in names]
        traces.append(
            build_trace(series)
            | build_bars(series)
            | {
                "x": ["its own head", *names.values()],
                "y": round_numbers(value.mean for value in values),
                "error_y": build_error_bars(values, 0, 1),
                "hovertemplate": "%{x}: %{y:.1%}",
            }
        )
        rows.append((series.label, *(with_interval(value) for value in values)))
        by_mean[series] = percent(values[1].mean)
    layout = build_layout(x=build_axis(""), y=build_share_axis("balanced accuracy", rangemode="tozero"), height=320)
    summary = (
        f"By the nearest class mean: {describe_methods(comparison, by_mean, 'with')}. It weighs classes equally; "
        "neighbors are counted among training samples, which are imbalanced. From the samples "
        "whose embeddings were kept."
    )
    table = Table(("method", "its own head", *names.values()), rows)
    return Figure("other-heads", traces, layout | GROUPED_BARS, summary, table, [series for series, _ in found])


def draw_variance_bound(comparison: SingleLabelComparison) -> Figure | None:
    """The variance of each class's embeddings against its bound by Proposition 1 of ELM; None if none were kept."""
    found = _choose_embedded(comparison)
    labels = comparison.labels
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    ends: list[float] = []
    for series, method in found:
        one = method.embeddings[0]
        classes = labels.by_frequency[(one.variances > 0)[labels.by_frequency]]
        classes = classes[space_out(len(classes), MOST_BARS)] if len(classes) else classes
        traces.append(
            build_trace(series)
            | {
                "type": "scatter",
                "mode": "markers",
                "marker": {"color": f"@{series.color}", "size": 7, "symbol": series.symbol, "opacity": 0.8},
                "x": round_numbers(one.bounds[classes]),
                "y": round_numbers(one.variances[classes]),
                "customdata": [
                    f"{escape_class(labels, i)}, {count(labels.counts[i])} training samples" for i in classes
                ],
                "hovertemplate": "%{customdata}<br>variance %{y:.3g}, bound %{x:.3g}",
            }
        )
        ends += [*one.bounds[classes], *one.variances[classes]]
        rows += [
            (series.label, clean(labels.names[i]), f"{one.variances[i]:.3g}", f"{one.bounds[i]:.3g}") for i in classes
        ]
    if not ends:
        return None
    diagonal = {"mode": "lines", "line": {"color": "@faint", "width": 1.5, "dash": "dot"}, "hoverinfo": "skip"}
    span = round_numbers([min(ends), max(ends)])
    traces.append({"type": "scatter", "x": span, "y": span} | diagonal)
    layout = build_layout(
        x=build_axis("bound of Proposition 1", type="log"),
        y=build_axis("variance of the class's embeddings", type="log"),
        height=320,
    )
    summary = (
        "Each mark is a class, of one seed; alpha is the share of its training samples. No mark can be above the "
        "dotted line: what the pull lowers is the bound."
    )
    table = Table(("method", "class", "variance", "bound"), rows)
    return Figure("variance-bound", traces, layout, summary, table, [series for series, _ in found])


def draw_maps(comparison: SingleLabelComparison) -> list[Figure]:
    """Training samples of some classes of each group by t-SNE, one figure per method."""
    found = _choose_embedded(comparison)
    if len(found) > MOST_MAPS:
        chosen = (comparison.reference, comparison.best)
        found = sorted(found, key=lambda pair: pair[1] not in chosen)[:MOST_MAPS]
    maps = [_draw_map(comparison.labels, series, method) for series, method in found]
    return [figure for figure in maps if figure is not None]


def _draw_map(labels: Labels, series: Series, method: SingleLabelResults) -> Figure | None:
    one = method.embeddings[0]
    places = map_to_plane(one.sample)
    if places is None:
        return None
    traces: list[Json] = []
    rows: list[Sequence[str]] = []
    for group in labels.groups.values():
        is_member = np.isin(one.sample_labels, group.classes)
        classes = np.unique(one.sample_labels[is_member])
        rows.append((group.name, ", ".join(clean(labels.names[c]) for c in classes), count(is_member.sum())))
        for place, c in enumerate(classes):
            chosen = one.sample_labels == c
            traces.append(
                build_trace(Series.of_group(group))
                | {
                    "type": "scatter",
                    "mode": "markers",
                    "marker": {"color": f"@{group.color}", "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
                    "x": round_numbers(places[chosen, 0]),
                    "y": round_numbers(places[chosen, 1]),
                    "customdata": [escape_class(labels, c)] * int(chosen.sum()),
                    "hovertemplate": "%{customdata}",
                }
            )
    hidden = {"showticklabels": False, "showgrid": False}
    layout = build_layout(x=build_axis(escape_markup(series.label), **hidden), y=build_axis("", **hidden), height=360)
    summary = (
        f"{series.label}: training samples by t-SNE, colored by group, with a symbol for each class of a group. "
        "Distances between clusters, and their sizes, mean little; whether a class stays together does."
    )
    table = Table(("group", "classes", "samples"), rows)
    return Figure(f"map-{series.key}", traces, layout, summary, table, series_of_groups(labels))


def _choose_embedded(comparison: SingleLabelComparison) -> list[tuple[Series, SingleLabelResults]]:
    """The methods that kept embeddings."""
    return [(series, method) for series, method in pair_series(comparison) if method.embeddings]


def _format_distance(value: Estimate) -> str:
    spread = f" ± {value.half_width:.2g}" if value.has_interval else ""
    return f"{value.mean:.3g}{spread}" if math.isfinite(value.mean) else "–"
