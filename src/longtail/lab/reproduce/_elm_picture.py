"""The table and the figures of the experiment on ELM, as one page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from longtail.lab.report.digests.embeddings import map_to_plane
from longtail.lab.reproduce._elm_results import (
    GROUPS,
    REFERENCE_ACCURACY,
    Result,
    average,
    list_groups,
    sort_by_strength,
    sort_into_rows,
)
from longtail.lab.reproduce._writing import layout, page, plots
from longtail.lab.runs.statistics import Estimate
from longtail.lab.training.recipe import Recipe

__all__ = ["draw_picture"]

COMPARED = ("CE", "LogAdj", "CE + DRO-LT", "ELM")
"""What Figures 3 to 5 compare."""

COLORS = {
    "CE": "#555555",
    "CB focal": "#e69f00",
    "LDAM + DRW": "#cc79a7",
    "LogAdj": "#0072b2",
    "CE + DRO-LT": "#009e73",
    "CE + weight norm": "#56b4e9",
    "ELM": "#d55e00",
}
"""Told apart also by color-blind readers (Okabe and Ito)."""
GROUP_COLORS = {"head": "#0072b2", "torso": "#9467bd", "tail": "#d55e00"}
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


def draw_picture(results: Sequence[Result], recipe: Recipe) -> str:
    """The table and the figures as one HTML page that needs no network."""
    rows = sort_into_rows(results, recipe)
    compared = {label: rows[label] for label in COMPARED}
    drawn = plots(
        [
            _draw_groups(rows),
            _draw_margins(compared),
            _draw_distances(compared),
            _draw_maps(compared),
            _draw_strengths(results, rows),
        ]
    )
    names = ("groups", "margins", "distances", "maps", "strengths")
    body = _BODY.format(
        recipe=html.escape(recipe.name), table=_build_table(rows), **dict(zip(names, drawn, strict=True))
    )
    return page("Embedding and logit margins: ELM and the methods it is compared with", body)


def _build_table(rows: Mapping[str, Sequence[Result]]) -> str:
    groups = list_groups(rows["CE"])
    rarest = groups[-1]
    columns = {
        "balanced accuracy": "balanced_accuracy",
        **{group: group for group in groups},
        f"{rarest} distance / largest norm": f"{rarest}_distance_by_norm",
        f"{rarest} distance / class means": f"{rarest}_distance_by_class_means",
        "nearest mean": "nearest_mean",
    }
    lines = []
    for label, found in rows.items():
        cells = [_format_cell(average(found, name), is_share="distance" not in name) for name in columns.values()]
        cells.append(f"{REFERENCE_ACCURACY[label]:.1%}")
        lines.append(f"<tr><th>{html.escape(label)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    heads = "".join(f"<th>{title}</th>" for title in ("method", *columns, "the paper's, CIFAR-10-LT"))
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _format_cell(value: Estimate, is_share: bool) -> str:
    if not math.isfinite(value.mean):
        return "–"
    form = ".1%" if is_share else ".2f"
    return f"{value.mean:{form}}" + (f" ± {value.half_width:{form}}" if value.has_interval else "")


def _draw_groups(rows: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 2: accuracy in head, torso and tail."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    groups = list_groups(rows["CE"])
    for label, found in rows.items():
        values = [average(found, group) for group in groups]
        figure.add_trace(
            graph_objects.Bar(
                x=groups,
                y=[value.mean for value in values],
                error_y={"array": [np.nan_to_num(value.half_width) for value in values], "thickness": 1},
                name=label,
                marker={"color": COLORS[label]},
                hovertemplate="%{x}: %{y:.1%}",
            )
        )
    figure.update_layout(barmode="group", **_build_layout(380))
    figure.update_yaxes(title="accuracy, mean over classes", tickformat=".0%", range=[0, 1.05])
    return figure


def _draw_margins(compared: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 3: logit margins of the test samples of one class of each group."""
    values = {
        label: {
            group: np.concatenate([result.digest.margins[group] for result in found])
            for group in list_groups(found)
            if all(group in result.digest.margins for result in found)
        }
        for label, found in compared.items()
    }
    figure = _draw_violins([values], ["logit margin"])
    figure.add_hline(y=0, line={"color": "#777777", "dash": "dot"})
    return figure


def _draw_distances(compared: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 4: the largest distance within the class, of training samples, on two scales."""
    scales = ("by_norm", "by_class_means")
    values = [
        {
            label: {
                group: torch.cat([result.distances[scale][group] for result in found]).numpy()
                for group in list_groups(found)
            }
            for label, found in compared.items()
        }
        for scale in scales
    ]
    return _draw_violins(values, ["/ largest norm", "/ class means"])


def _draw_violins(rows: Sequence[Mapping[str, Mapping[str, Any]]], titles: Sequence[str]) -> Any:
    """One row per quantity, one column per group, one violin per method."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    groups = list(next(iter(rows[0].values())))
    titles_above = [group.capitalize() for group in groups]
    figure = make_subplots(rows=len(rows), cols=len(groups), column_titles=titles_above, horizontal_spacing=0.05)
    for row, (quantity, title) in enumerate(zip(rows, titles, strict=True), start=1):
        for label, by_group in quantity.items():
            for column, group in enumerate(groups, start=1):
                violin = graph_objects.Violin(
                    y=np.asarray(by_group[group]).round(4).tolist(),
                    name=label,
                    legendgroup=label,
                    line={"color": COLORS[label], "width": 1.5},
                    points=False,
                    meanline={"visible": True},
                    showlegend=row == column == 1,
                )
                figure.add_trace(violin, row=row, col=column)
        figure.update_yaxes(title=title, row=row, col=1)
    figure.update_xaxes(showticklabels=False)
    figure.update_layout(**_build_layout(140 + 280 * len(rows)))
    return figure


def _draw_maps(compared: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 5: training samples of some classes of each group by t-SNE, of the first seed."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=len(compared), subplot_titles=list(compared), horizontal_spacing=0.02)
    for column, found in enumerate(compared.values(), start=1):
        reduced = found[0].digest
        assert reduced.embeddings is not None
        places, labels = map_to_plane(reduced.embeddings.sample), reduced.embeddings.sample_labels
        groups = found[0].prior.groups()
        classes = {group: np.intersect1d(labels, groups[group].numpy()) for group in GROUPS}
        for group in GROUPS if places is not None else ():
            for number, c in enumerate(classes[group]):
                assert places is not None
                marker = {"color": GROUP_COLORS[group], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 6}
                trace = graph_objects.Scatter(
                    x=places[labels == c, 0].round(2).tolist(),
                    y=places[labels == c, 1].round(2).tolist(),
                    mode="markers",
                    name=group,
                    legendgroup=group,
                    marker=marker,
                    showlegend=column == 1 and number == 0,
                    hovertemplate=f"class {c}",
                )
                figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(showticklabels=False, showgrid=False, zeroline=False)
    figure.update_yaxes(showticklabels=False, showgrid=False, zeroline=False)
    figure.update_layout(**_build_layout(420))
    return figure


def _draw_strengths(results: Sequence[Result], rows: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 7: balanced accuracy of ELM against its strength; without the pull it is logit adjustment."""
    from plotly import graph_objects

    found = sort_by_strength(results)
    values = [average(members, "balanced_accuracy") for members in found.values()]
    figure = graph_objects.Figure(
        graph_objects.Scatter(
            x=list(found),
            y=[value.mean for value in values],
            error_y={"array": [np.nan_to_num(value.half_width) for value in values], "thickness": 1},
            mode="lines+markers",
            name="ELM",
            line={"color": COLORS["ELM"], "width": 3},
            hovertemplate="lambda %{x}: %{y:.1%}",
        )
    )
    for label in ("LogAdj", "CE"):
        level = average(rows[label], "balanced_accuracy").mean
        line = {"color": COLORS[label], "width": 2, "dash": "dash"}
        figure.add_trace(
            graph_objects.Scatter(x=[min(found), max(found)], y=[level, level], mode="lines", name=label, line=line)
        )
    ticks = {"tickvals": list(found), "ticktext": [f"{strength:g}" for strength in found]}
    figure.update_xaxes(type="log", title="lambda, the strength of the pull", **ticks)
    figure.update_yaxes(title="balanced accuracy", tickformat=".0%")
    figure.update_layout(**_build_layout(380))
    return figure


def _build_layout(height: int) -> dict[str, Any]:
    return layout(height, top=80, legend_at=1.08)


_BODY = """
<p>Table 2 and Figures 2 to 5 and 7 of Jitkrittum et al., "ELM: embedding and logit margins for long-tail learning",
on the recipe {recipe}. Means over seeds with 95% intervals. The numbers of the paper are of CIFAR-10-LT on its own
long schedule: compare gaps between methods, not numbers.</p>
{table}
<h2>Head, torso and tail (Figure 2)</h2>
{groups}
<h2>Logit margins (Figure 3)</h2>
<p>Of the test samples of one class of each group, over all seeds. Below 0 a sample is misclassified.</p>
{margins}
<h2>The largest distance within the class (Figure 4)</h2>
<p>Of training samples: above as in the paper, against the largest norm of all embeddings; below against the distance
between class means, which a regularizer that only shrinks or moves everything can't improve.</p>
{distances}
<h2>Embeddings of training samples (Figure 5)</h2>
<p>By t-SNE, of the first seed; a color for each group, and a symbol for each of its classes.</p>
{maps}
<h2>How strong the pull should be (Figure 7)</h2>
{strengths}
"""
