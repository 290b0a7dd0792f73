"""Figures 1 and 3 of the supplement of Ren et al., "Balanced Meta-Softmax": learned rates, and what re-sampling does.

Figure 1 trains a head on frozen features with the meta sampler, once with plain softmax and once with balanced
softmax, and shows the rates that each of them asks for. The reference does so on CIFAR-100-LT with ratio 200; any
recipe will do, and the default is a linear head on the digits that ship with scikit-learn. Where a head fits its
training data without error, all slopes vanish and the rates stay where they are.

Figure 3 trains a linear classifier of the plane on three points, which stand for 10,000, 100 and 1 samples. As all
samples of a class are one point, the mean over a batch has an expectation of three terms, and that is what is
minimized here, by gradient descent from 0: there is nothing random in it. The reference does not say where its points
are; here they are the corners of an equilateral triangle, so that a boundary that favors no class is symmetric.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.lab.reproduce._rows import Row, RowFormat, conclude, make_rows
from longtail.lab.reproduce._writing import json_text, layout, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe
from longtail.prior import ClassPrior

__all__ = [
    "COUNTS",
    "EXPERIMENT",
    "ITERATIONS",
    "REFERENCE_VARIANCE",
    "SETUPS",
    "Options",
    "RateRun",
    "Setup",
    "average_variance",
    "descend",
    "draw_picture",
    "measure_areas",
    "plan_rows",
    "run",
    "tabulate_areas",
    "tabulate_rates",
    "write_results",
]

TAUS = {"Softmax": 0.0, "Balanced softmax": 1.0}
"""Loss of the head -> strength of its logit adjustment."""

REFERENCE_VARIANCE = {"Softmax": 0.13, "Balanced softmax": 0.03}
"""Of the rates after convergence, section C.4: CIFAR-100-LT with ratio 200."""

Heads = dict[str, dict[int, Tensor]]
"""Setup -> iteration -> [3, 3] class vectors of a linear classifier of the plane; their last column is the bias."""

COUNTS = (10_000, 100, 1)
PRIOR = ClassPrior.from_counts(COUNTS)
POINTS = np.array([[math.cos(angle), math.sin(angle)] for angle in np.pi * np.array([1 / 2, 7 / 6, 11 / 6])])
ITERATIONS = (10, 100, 1_000, 10_000, 100_000)
REACH = 1.6


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    recipe: str = add_option("digits_balms", "What to learn sample rates on.")
    seeds: int = add_option(3, "How many runs of each loss, with seeds 0, 1, ...", minimum=1, adds_rows=True)
    settings: tuple[str, ...] = add_option((), "A setting, such as train.epochs=5.", flag="--set")


@dataclass(frozen=True)
class RateRun:
    """The rates that one run learned."""

    loss: str
    seed: int
    counts: tuple[int, ...]
    rates: list[list[float]]
    """[epochs, C]."""
    balanced_accuracy: float

    @property
    def variance(self) -> float:
        """Of the last rates, over classes."""
        return float(torch.tensor(self.rates[-1], dtype=torch.float64).var(correction=0))


@dataclass(frozen=True)
class Setup:
    """How the three points are trained on."""

    is_adjusted: bool
    """Balanced softmax, or plain."""
    is_class_balanced: bool
    """Class-balanced sampling, or every sample equally often."""


SETUPS = {
    "Softmax": Setup(False, False),
    "Softmax + CBS": Setup(False, True),
    "Balanced softmax": Setup(True, False),
    "Balanced softmax + CBS": Setup(True, True),
}


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Learn the rates, train the classifiers of three points, and summarize both."""
    recipe = load_recipe(find_recipe(options.recipe), options.settings)
    runs, missing = make_rows(plan_rows(recipe, folder, range(options.seeds)), FORMAT, folder, say)
    heads = descend()
    return conclude(
        runs,
        missing,
        folder,
        lambda done: [tabulate_rates(done), tabulate_areas(heads)],
        lambda done: write_results(done, heads, recipe, folder),
    )


def tabulate_rates(runs: Sequence[RateRun]) -> Summary:
    """How far apart the learned sample rates are, for each loss."""
    rows = []
    for loss, reference in REFERENCE_VARIANCE.items():
        members = [run for run in runs if run.loss == loss]
        if members:
            last = [rate for run in members for rate in run.rates[-1]]
            accuracy = sum(run.balanced_accuracy for run in members) / len(members)
            spread = f"{min(last):.2f} to {max(last):.2f}"
            rows.append((loss, f"{average_variance(runs, loss):.3f}", f"{reference}", spread, f"{accuracy:.1%}"))
    note = f"Runs of each: {len(runs) // len(rows)}. The paper's are of CIFAR-100-LT with ratio 200."
    return Summary(("method", "variance", "in the paper", "sample rates", "balanced accuracy"), rows, note)


def tabulate_areas(heads: Heads) -> Summary:
    """How much of the plane the classes of 10,000, 100 and 1 samples get, over iterations."""
    rows = [
        (name, *("/".join(f"{100 * share:.0f}" for share in measure_areas(head)) for head in found.values()))
        for name, found in heads.items()
    ]
    note = "Percent of the plane for the classes of 10,000, 100 and 1 samples after so many iterations."
    return Summary(("method", *(f"{iteration:,}" for iteration in ITERATIONS)), rows, note)


def plan_rows(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> list[Row[RateRun]]:
    """Train the recipe's model, then its head with the meta sampler for as many epochs, for both losses."""

    def postpone(loss: str, seed: int) -> Callable[[], RateRun]:
        return lambda: _learn_rates(recipe, folder, loss, seed)

    return [Row((loss, seed), postpone(loss, seed)) for loss in TAUS for seed in seeds]


def _learn_rates(recipe: Recipe, folder: Path, loss: str, seed: int) -> RateRun:
    tau = TAUS[loss]
    variant = recipe.with_method("balanced_meta_softmax", {"tau": tau, "share": 1.0}).with_seed(seed)
    run = train(variant, folder / f"tau-{tau:g}" / f"seed-{seed}", show_progress=False)
    rates = [row["sample_rates"] for row in run.history if "sample_rates" in row]
    counts = tuple(run.predictions.prior.counts.tolist())
    return RateRun(loss, seed, counts, rates, run.metrics["balanced_accuracy"])


def _split_run(run: RateRun) -> list[dict[str, float]]:
    return [
        {"epoch": epoch, "class": c, "samples": run.counts[c], "rate": rate}
        for epoch, rates in enumerate(run.rates)
        for c, rate in enumerate(rates)
    ]


FORMAT = RowFormat(("loss", "seed"), _split_run)


def average_variance(runs: Sequence[RateRun], loss: str) -> float:
    """The mean over seeds of the variance of the rates."""
    found = [run.variance for run in runs if run.loss == loss]
    return sum(found) / len(found)


def descend(iterations: Sequence[int] = ITERATIONS, learning_rate: float = 1.0) -> Heads:
    """Train the linear classifier in every setup at once, and keep it at these iterations."""
    probs, log_probs = (value.numpy() for value in (PRIOR.probs, PRIOR.log_probs))
    shares = np.stack([np.full(3, 1 / 3) if setup.is_class_balanced else probs for setup in SETUPS.values()])
    shifts = np.stack([log_probs if setup.is_adjusted else np.zeros(3) for setup in SETUPS.values()])[:, None]
    inputs = np.concatenate([POINTS, np.ones((3, 1))], axis=1)
    scaled_inputs = learning_rate * shares[:, :, None] * inputs
    heads, found = np.zeros((len(SETUPS), 3, 3)), []
    for iteration in range(1, max(iterations) + 1):
        odds = np.exp(inputs @ heads + shifts)
        residuals = odds / odds.sum(2, keepdims=True) - np.eye(3)
        heads = heads - scaled_inputs.transpose(0, 2, 1) @ residuals
        if iteration in iterations:
            found.append(heads)
    return {
        name: {iteration: torch.from_numpy(kept[k].T) for iteration, kept in zip(iterations, found, strict=True)}
        for k, name in enumerate(SETUPS)
    }


def decide_places(head: Tensor, resolution: int = 121) -> Tensor:
    """[resolution, resolution] the class of each place in the plane; rows go up."""
    axis = torch.linspace(-REACH, REACH, resolution, dtype=torch.float64)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    places = torch.stack([first, second, torch.ones_like(first)], dim=-1)
    return (places @ head.T).argmax(-1)


def measure_areas(head: Tensor) -> list[float]:
    """How much of a circle around the points each class gets."""
    classes = decide_places(head)
    axis = torch.linspace(-REACH, REACH, len(classes), dtype=torch.float64)
    inside = axis[:, None] ** 2 + axis**2 <= REACH**2
    return (classes[inside].bincount(minlength=3) / inside.sum()).tolist()


def write_results(runs: Sequence[RateRun], heads: Heads, recipe: Recipe, folder: Path) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    results = _collect_results(runs, recipe, heads)
    contents = {"results.json": json_text(results), "picture.html": draw_picture(runs, recipe, heads)}
    return write_files(folder, contents)


def _collect_results(runs: Sequence[RateRun], recipe: Recipe, heads: Heads) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "rate_variance": {loss: average_variance(runs, loss) for loss in TAUS},
        "rate_variance_of_the_reference": REFERENCE_VARIANCE,
        "balanced_accuracy": {loss: [run.balanced_accuracy for run in runs if run.loss == loss] for loss in TAUS},
        "area_shares": {
            name: {str(iteration): measure_areas(head) for iteration, head in found.items()}
            for name, found in heads.items()
        },
    }


COLORS = {"Softmax": "#0072b2", "Balanced softmax": "#d55e00"}
POINT_COLORS = ("#c0392b", "#e1a100", "#2471a3")
"""Of 10,000, 100 and 1 samples: red, yellow and blue, as in the reference."""


def draw_picture(runs: Sequence[RateRun], recipe: Recipe, heads: Heads) -> str:
    """Both figures as one HTML page that needs no network."""
    rates, times, surfaces = plots([_draw_rates(runs), _draw_rate_times(runs), _draw_surfaces(heads)])
    found = ", ".join(f"{average_variance(runs, loss):.3f} for {loss.lower()}" for loss in TAUS)
    body = _BODY.format(recipe=html.escape(recipe.name), variances=found, rates=rates, times=times, surfaces=surfaces)
    return page("Balanced Meta-Softmax: learned sample rates, and what re-sampling does", body, width=1200)


def _rank_classes(run: RateRun) -> list[int]:
    return sorted(range(len(run.counts)), key=lambda c: -run.counts[c])


def _draw_rates(runs: Sequence[RateRun]) -> Any:
    """Figure 1: the last rates, means over seeds, most frequent class first."""
    from plotly import graph_objects

    order = _rank_classes(runs[0])
    figure = graph_objects.Figure()
    for loss in TAUS:
        last = torch.tensor([run.rates[-1] for run in runs if run.loss == loss])[:, order]
        figure.add_trace(
            graph_objects.Bar(
                x=list(range(len(order))),
                y=last.mean(0).tolist(),
                name=loss,
                marker={"color": COLORS[loss]},
                customdata=[[c, runs[0].counts[c]] for c in order],
                hovertemplate="class %{customdata[0]}, %{customdata[1]:,} samples: rate %{y:.3f}",
            )
        )
    figure.update_layout(barmode="group", **_build_layout(380))
    figure.update_xaxes(title="classes, most frequent first", showticklabels=False)
    figure.update_yaxes(title="learned sample rate", range=[0, 1])
    figure.add_hline(y=0.5, line={"color": "#777777", "dash": "dot"})
    return figure


def _draw_rate_times(runs: Sequence[RateRun]) -> Any:
    """The rates of every class after each epoch of the head's training, one seed."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, subplot_titles=list(TAUS), shared_yaxes=True, horizontal_spacing=0.04)
    for column, loss in enumerate(TAUS, start=1):
        run = next(run for run in runs if run.loss == loss)
        order = _rank_classes(run)
        history = [[0.5] * len(order), *([rates[c] for c in order] for rates in run.rates)]
        figure.add_trace(
            graph_objects.Heatmap(
                z=list(map(list, zip(*history, strict=True))),
                zmin=0,
                zmax=1,
                colorscale="RdBu",
                colorbar={"title": "rate"},
                hovertemplate="epoch %{x}, class of rank %{y}: rate %{z:.3f}<extra></extra>",
                showscale=column == 1,
            ),
            row=1,
            col=column,
        )
    figure.update_xaxes(title="epochs of the head")
    figure.update_yaxes(title="class, most frequent on top", autorange="reversed", showticklabels=False, col=1)
    figure.update_layout(**_build_layout(360))
    return figure


def _draw_surfaces(heads: Heads) -> Any:
    """Figure 3: one row a setup, one column an iteration."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [f"{name}<br>after {iteration:,}" for name, found in heads.items() for iteration in found]
    columns = len(next(iter(heads.values())))
    figure = make_subplots(
        rows=len(heads), cols=columns, subplot_titles=titles, vertical_spacing=0.07, horizontal_spacing=0.02
    )
    shades = [[k / 3 + side / 3, color] for k, color in enumerate(POINT_COLORS) for side in (0, 1)]
    for row, found in enumerate(heads.values(), start=1):
        for column, head in enumerate(found.values(), start=1):
            classes = decide_places(head)
            axis = torch.linspace(-REACH, REACH, len(classes)).tolist()
            surface = {"z": classes.tolist(), "x": axis, "y": axis, "zmin": -0.5, "zmax": 2.5, "colorscale": shades}
            figure.add_trace(
                graph_objects.Heatmap(**surface, opacity=0.35, showscale=False, hoverinfo="skip"), row=row, col=column
            )
            figure.add_trace(_draw_points(), row=row, col=column)
            number = (row - 1) * columns + column
            figure.update_yaxes(scaleanchor="x" if number == 1 else f"x{number}", row=row, col=column)
    figure.update_xaxes(visible=False, range=[-REACH, REACH], constrain="domain")
    figure.update_yaxes(visible=False, range=[-REACH, REACH], constrain="domain")
    figure.update_annotations(font={"size": 13})
    figure.update_layout(showlegend=False, **_build_layout(260 * len(heads)))
    return figure


def _draw_points() -> Any:
    from plotly import graph_objects

    return graph_objects.Scatter(
        x=POINTS[:, 0].tolist(),
        y=POINTS[:, 1].tolist(),
        mode="markers",
        marker={"color": POINT_COLORS, "size": [16, 12, 9], "line": {"color": "white", "width": 1.5}},
        text=[f"{count:,} samples" for count in COUNTS],
        hovertemplate="%{text}<extra></extra>",
    )


def _build_layout(height: int) -> dict[str, Any]:
    return layout(height, top=60, legend_at=1.02)


_BODY = """
<p>Figures 1 and 3 of the supplement of Ren et al., "Balanced Meta-Softmax for long-tailed visual recognition".</p>
<h2>Learned sample rates</h2>
<p>A head is trained on frozen features of the recipe {recipe}; its batches are drawn by class rates that start at 0.5
and are learned. Variance of the rates over classes: {variances}. The supplement has 0.13 for softmax and 0.03 for
balanced softmax, on CIFAR-100-LT with ratio 200: balanced softmax leaves less for the sampler to mend.</p>
{rates}
<h2>Rates over time</h2>
{times}
<h2>What re-sampling does</h2>
<p>A linear classifier learns three points: red stands for 10,000 samples, yellow for 100, blue for 1. Softmax moves
to symmetric boundaries, at once with class-balanced sampling (CBS) and slowly without it. Balanced softmax moves the
boundaries from the rare classes toward the frequent ones. With CBS on top the rarest class has most of the plane from
the start: the over-balance that learned rates are to avoid. The points can be separated, so weights keep growing, and
after very long training this shift fades: in the end, sampling does not change the solution.</p>
{surfaces}"""


EXPERIMENT = Experiment(
    "balms",
    "Learned sample rates, and what re-sampling does to the boundaries of classes.",
    'Ren et al. (2020), "Balanced Meta-Softmax for long-tailed visual recognition", supplement, Figures 1 and 3.',
    Options,
    run,
)
