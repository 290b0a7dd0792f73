"""Table 2 and Figures 2 to 5 and 7 of Jitkrittum et al., "ELM: embedding and logit margins for long-tail learning".

The methods of Table 2 that train one model, and weight normalization on top of plain cross-entropy, are trained on
one recipe with the same seeds, and ELM once more for each of several strengths. The paper uses CIFAR and larger sets;
any recipe with an encoder will do, and the default is the digits that ship with scikit-learn. ELM has the recipe's
own options, or the paper's where the recipe's name has one of its data sets in it, so that Tiny-ImageNet-LT gets
those of ImageNet-LT, or those of CIFAR-10-LT.

The paper draws margins and distances of three labels. Which samples the margins are of it does not say; here they are
test samples of one class of each group. Distances and maps are of training samples, as far as they were kept.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.diagnostics import intraclass_distances, split_by_group
from longtail.lab.report.digest import Digest, Estimate, digest, estimate
from longtail.lab.report.embedded import SCALES, map_to_plane
from longtail.lab.reproduce._writing import csv_text, json_text, layout, page, plots, write_files
from longtail.lab.runs.folder import Run
from longtail.lab.training.comparison import Job, plan_jobs
from longtail.lab.training.recipe import Recipe
from longtail.methods.embedding import ELM_SETTINGS
from longtail.methods.table import get_method
from longtail.prior import ClassPrior

__all__ = [
    "REFERENCE_ACCURACY",
    "ROWS",
    "STRENGTHS",
    "Result",
    "at_strengths",
    "groups_with_classes",
    "in_rows",
    "measured",
    "picture",
    "plan",
    "reduce_run",
    "write_results",
]

ROWS = {
    "CE": "cross_entropy",
    "CB focal": "class_balanced_focal",
    "LDAM + DRW": "adaptive_deferred",
    "LogAdj": "logit_adjusted",
    "CE + DRO-LT": "dro_lt",
    "CE + weight norm": "weight_normalized",
    "ELM": "elm",
}
"""A row of Table 2 -> the method that it is here. DRO-LT is in one stage, weight normalization after training."""

REFERENCE_ACCURACY = {
    "CE": 0.7284,
    "CB focal": 0.7457,
    "LDAM + DRW": 0.7703,
    "LogAdj": 0.7767,
    "CE + DRO-LT": 0.7270,
    "CE + weight norm": 0.7850,
    "ELM": 0.7795,
}
"""Balanced accuracy on CIFAR-10-LT, ratio 100: Table 2."""

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of Figure 7."""
COMPARED = ("CE", "LogAdj", "CE + DRO-LT", "ELM")
"""What Figures 3 to 5 compare."""
KEPT = 2000
"""Embeddings that each run keeps of its training and of its test samples."""
GROUPS = ("head", "torso", "tail")
QUANTITIES = (
    "balanced_accuracy",
    *GROUPS,
    *(f"{group}_distance_{scale}" for scale in SCALES for group in GROUPS),
    "nearest_mean",
    "nearest_neighbors",
)
"""What is written of each run; distances are means over test samples."""


@dataclass(frozen=True, eq=False)
class Result:
    """One run, reduced to what the table and the figures need."""

    method: str
    strength: float | None
    """Of ELM; None for other methods."""
    digest: Digest
    prior: ClassPrior
    distances: Mapping[str, Mapping[str, Tensor]]
    """Scale -> group -> the largest distance within the class, of the group's training samples."""

    def quantity(self, name: str) -> float:
        """One of ``QUANTITIES``; NaN for a group without classes."""
        embeddings = self.digest.embeddings
        assert embeddings is not None
        if name in embeddings.accuracy:
            return embeddings.accuracy[name]
        group, _, scale = name.partition("_distance_")
        if scale:
            return embeddings.distances[scale].get(group, math.nan)
        return self.digest.metrics.get(name, math.nan)


def plan(recipe: Recipe, seeds: Sequence[int], folder: Path) -> list[Job]:
    """The runs to make: every row of the table, and ELM at every strength."""
    if recipe.model.name == "linear":
        raise ValueError("ELM moves embeddings, and the model 'linear' has none to train; set model.name=mlp.")
    options = dict(_elm_options(recipe))
    kept = recipe.train.save_embeddings or KEPT
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, save_embeddings=kept))
    elm = recipe.with_method("elm", options)
    jobs = plan_jobs(elm, list(ROWS.values()), seeds, folder)
    for strength in STRENGTHS:
        if strength != _elm_strength(options):
            variant = recipe.with_method("elm", options | {"strength": strength})
            jobs += [Job(variant.with_seed(seed), folder / f"elm-{strength:g}" / f"seed-{seed}") for seed in seeds]
    return jobs


def reduce_run(run: Run) -> Result:
    """What is needed of a run."""
    reduced, data = digest(run), run.load_embeddings()
    if data is None:
        raise ValueError(f"{run.path} kept no embeddings; train it again in another folder.")
    inputs = data.train.inputs
    assert isinstance(inputs, Tensor)
    found = intraclass_distances(inputs, data.train.labels)
    groups = run.predictions.prior.groups()
    return Result(
        method=run.method,
        strength=_elm_strength(run.summary["options"]) if run.method == "elm" else None,
        digest=reduced,
        prior=run.predictions.prior,
        distances={scale: split_by_group(getattr(found, scale), data.train.labels, groups) for scale in SCALES},
    )


def in_rows(results: Sequence[Result], recipe: Recipe) -> dict[str, list[Result]]:
    """The results of each row of Table 2."""
    strength = _elm_strength(_elm_options(recipe))
    return {
        label: [result for result in results if result.method == method and result.strength in (None, strength)]
        for label, method in ROWS.items()
    }


def at_strengths(results: Sequence[Result]) -> dict[float, list[Result]]:
    """The results of ELM by their strength, ascending."""
    found = sorted({result.strength for result in results if result.strength is not None})
    return {strength: [result for result in results if result.strength == strength] for strength in found}


def groups_with_classes(results: Iterable[Result]) -> list[str]:
    """Head, torso and tail, as far as there are classes of that frequency; the rarest is last."""
    groups = next(iter(results)).prior.groups()
    return [name for name in GROUPS if len(groups[name])]


def measured(results: Iterable[Result], name: str) -> Estimate:
    """The mean of one of ``QUANTITIES`` over seeds, and its interval."""
    return estimate(result.quantity(name) for result in results)


def write_results(results: Sequence[Result], recipe: Recipe, folder: Path) -> list[Path]:
    """Write ``runs.csv``, ``results.json`` and ``picture.html``, and return their paths."""
    rows = [
        (result.method, result.strength, result.digest.seed, *(result.quantity(name) for name in QUANTITIES))
        for result in results
    ]
    contents = {
        "runs.csv": csv_text(["method", "strength", "seed", *QUANTITIES], rows),
        "results.json": json_text(_summary(results, recipe)),
        "picture.html": picture(results, recipe),
    }
    return write_files(folder, contents)


def picture(results: Sequence[Result], recipe: Recipe) -> str:
    """The table and the figures as one HTML page that needs no network."""
    rows = in_rows(results, recipe)
    compared = {label: rows[label] for label in COMPARED}
    drawn = plots(
        [_groups(rows), _margins(compared), _distances(compared), _maps(compared), _strengths(results, rows)]
    )
    names = ("groups", "margins", "distances", "maps", "strengths")
    body = _BODY.format(recipe=html.escape(recipe.name), table=_table(rows), **dict(zip(names, drawn, strict=True)))
    return page("Embedding and logit margins: ELM and the methods it is compared with", body)


def _elm_options(recipe: Recipe) -> Mapping[str, Any]:
    """The recipe's own, or the paper's where the recipe's name has one of its data sets in it."""
    if recipe.method.name == "elm":
        return recipe.method.options
    return next((found for name, found in ELM_SETTINGS.items() if name in recipe.name), {})


def _elm_strength(options: Mapping[str, Any]) -> float:
    return float(options.get("strength", get_method("elm").options["strength"]))


def _summary(results: Sequence[Result], recipe: Recipe) -> dict[str, Any]:
    def means(found: Sequence[Result]) -> dict[str, dict[str, float]]:
        estimates = {name: measured(found, name) for name in QUANTITIES}
        return {
            name: {"mean": value.mean} | ({"half_width": value.half_width} if value.has_interval else {})
            for name, value in estimates.items()
            if math.isfinite(value.mean)
        }

    return {
        "recipe": recipe.name,
        "seeds": sorted({result.digest.seed for result in results}),
        "rows": {label: means(found) for label, found in in_rows(results, recipe).items()},
        "balanced_accuracy_on_cifar10_lt_in_the_paper": REFERENCE_ACCURACY,
        "by_strength": {f"{strength:g}": means(found) for strength, found in at_strengths(results).items()},
    }


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


def _table(rows: Mapping[str, Sequence[Result]]) -> str:
    groups = groups_with_classes(rows["CE"])
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
        cells = [_cell(measured(found, name), is_share="distance" not in name) for name in columns.values()]
        cells.append(f"{REFERENCE_ACCURACY[label]:.1%}")
        lines.append(f"<tr><th>{html.escape(label)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    heads = "".join(f"<th>{title}</th>" for title in ("method", *columns, "the paper's, CIFAR-10-LT"))
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _cell(value: Estimate, is_share: bool) -> str:
    if not math.isfinite(value.mean):
        return "–"
    form = ".1%" if is_share else ".2f"
    return f"{value.mean:{form}}" + (f" ± {value.half_width:{form}}" if value.has_interval else "")


def _groups(rows: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 2: accuracy in head, torso and tail."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    groups = groups_with_classes(rows["CE"])
    for label, found in rows.items():
        values = [measured(found, group) for group in groups]
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
    figure.update_layout(barmode="group", **_layout(380))
    figure.update_yaxes(title="accuracy, mean over classes", tickformat=".0%", range=[0, 1.05])
    return figure


def _margins(compared: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 3: logit margins of the test samples of one class of each group."""
    values = {
        label: {
            group: np.concatenate([result.digest.margins[group] for result in found])
            for group in groups_with_classes(found)
            if all(group in result.digest.margins for result in found)
        }
        for label, found in compared.items()
    }
    figure = _violins([values], ["logit margin"])
    figure.add_hline(y=0, line={"color": "#777777", "dash": "dot"})
    return figure


def _distances(compared: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 4: the largest distance within the class, of training samples, on two scales."""
    scales = ("by_norm", "by_class_means")
    values = [
        {
            label: {
                group: torch.cat([result.distances[scale][group] for result in found]).numpy()
                for group in groups_with_classes(found)
            }
            for label, found in compared.items()
        }
        for scale in scales
    ]
    return _violins(values, ["/ largest norm", "/ class means"])


def _violins(rows: Sequence[Mapping[str, Mapping[str, Any]]], titles: Sequence[str]) -> Any:
    """One row a quantity, one column a group, one violin a method."""
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
    figure.update_layout(**_layout(140 + 280 * len(rows)))
    return figure


def _maps(compared: Mapping[str, Sequence[Result]]) -> Any:
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
    figure.update_layout(**_layout(420))
    return figure


def _strengths(results: Sequence[Result], rows: Mapping[str, Sequence[Result]]) -> Any:
    """Figure 7: balanced accuracy of ELM against its strength; without the pull it is logit adjustment."""
    from plotly import graph_objects

    found = at_strengths(results)
    values = [measured(members, "balanced_accuracy") for members in found.values()]
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
        level = measured(rows[label], "balanced_accuracy").mean
        line = {"color": COLORS[label], "width": 2, "dash": "dash"}
        figure.add_trace(
            graph_objects.Scatter(x=[min(found), max(found)], y=[level, level], mode="lines", name=label, line=line)
        )
    ticks = {"tickvals": list(found), "ticktext": [f"{strength:g}" for strength in found]}
    figure.update_xaxes(type="log", title="lambda, the strength of the pull", **ticks)
    figure.update_yaxes(title="balanced accuracy", tickformat=".0%")
    figure.update_layout(**_layout(380))
    return figure


def _layout(height: int) -> dict[str, Any]:
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
