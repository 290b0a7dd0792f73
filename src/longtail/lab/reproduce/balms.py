"""Tables 2 and 3 and Figures 1 to 3 of the supplement of Ren et al. (2020), "Balanced Meta-Softmax".

Table 3 trains features in three ways, and on each of them a new head in three ways: nine cells from three trainings,
whose models the heads take over. Figure 1 shows the sample rates that a head asks for with softmax and with balanced
softmax; where a head fits its training data without error, all slopes vanish and the rates stay where they are.

Figure 3 trains a linear classifier of the plane on three points, which stand for 10,000, 100 and 1 samples. As all
samples of a class are one point, the mean over a batch has an expectation of three terms, and that is what is
minimized here, by gradient descent from 0: there is nothing random in it. The reference does not say where its points
are; here they are the corners of an equilateral triangle, so that a boundary that favors no class is symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.lab.report.digests.embeddings import map_to_plane
from longtail.lab.report.text import class_name
from longtail.lab.reproduce._writing import page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.reproduce.logit_adjustment import CITED
from longtail.lab.reproduce.study import (
    DATA,
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    choose_recipe,
)
from longtail.lab.reproduce.trials import run_study
from longtail.lab.runs.folder import Run
from longtail.prior import ClassPrior

__all__ = [
    "COUNTS",
    "EXPERIMENT",
    "FEATURES",
    "ITERATIONS",
    "SETUPS",
    "TABLES",
    "Options",
    "Setup",
    "build_study",
    "descend",
    "measure_areas",
    "tabulate_areas",
]

FEATURES = {
    "Softmax": "cross_entropy",
    "Softmax + CBS": "class_balanced_sampling",
    "Balanced softmax": "logit_adjusted",
}
"""Ways to train features -> methods."""
STRENGTHS = {"Softmax": (0.0, 1.0), "Softmax + CBS": (0.0, 0.0), "Balanced softmax": (1.0, 1.0)}
"""Way to train -> strength of the adjustment, and power of the class size in sampling."""

CELLS = {
    "Softmax": (69.53, 57.06, 65.75),
    "Softmax + CBS": (76.59, 63.96, 75.35),
    "Balanced softmax": (78.53, 68.24, 77.04),
}
"""Table 3: head -> accuracy in percent with each of ``FEATURES``, CIFAR-10-LT, ratio 200."""

RATIOS = (200, 100, 10)
LITERATURE: dict[str, tuple[str, dict[str, tuple[float | None, ...]]]] = {
    "Focal loss": ("focal", {"cifar10": (65.29, 70.38, 86.66), "cifar100": (35.62, 38.41, 55.78)}),
    "Class-balanced loss": ("class_balanced", {"cifar10": (68.89, 74.57, 87.49), "cifar100": (36.23, 39.60, 57.99)}),
    "LDAM-DRW": ("ldam_drw", {"cifar10": (None, 77.03, 88.16), "cifar100": (None, 42.04, 58.71)}),
    "BALMS": ("balanced_meta_softmax", {"cifar10": (81.5, 84.9, 91.3), "cifar100": (45.5, 50.8, 63.0)}),
}
"""Table 2: row -> method, and accuracy in percent by ``RATIOS``. All but BALMS are numbers of other papers."""

VARIANCES = {"Softmax": 0.13, "Balanced softmax": 0.03}
"""Of the rates after convergence, section C.4: CIFAR-100-LT with ratio 200."""

Heads = dict[str, dict[int, Tensor]]
"""Setup -> iteration -> [3, 3] class vectors of a linear classifier of the plane; their last column is the bias."""

COUNTS = (10_000, 100, 1)
PRIOR = ClassPrior.from_counts(COUNTS)
POINTS = np.array([[math.cos(angle), math.sin(angle)] for angle in np.pi * np.array([1 / 2, 7 / 6, 11 / 6])])
ITERATIONS = (10, 100, 1_000, 10_000, 100_000)
REACH = 1.6
MAPPED_CLASSES = 10


@dataclass(frozen=True)
class Options(StudyOptions):
    """How to run the experiment."""

    data: str = add_option("digits_balms", f"{', '.join(DATA)}, or a recipe.")
    seeds: int = add_option(3, "How many runs of each row, with seeds 0, 1, ...", minimum=1)
    share: float = add_option(
        0.0, "Length of the head's training over the features'; 0: 2/13 as in the paper, 0.5 with --fast."
    )
    head_learning_rate: float = add_option(0.0, "Of the head's training; 0: 0.1 as in the paper.")
    head_batch_size: int = add_option(
        0, "Of the head's training; 0: 512 as in the paper, the recipe's with --fast.", minimum=0
    )


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


def measure_accuracy(run: Run) -> dict[str, float]:
    """Accuracies in percent, and the variance of learned rates over classes."""
    metrics = {name: run.metrics[name] for name in ("accuracy", "head", "torso", "tail") if name in run.metrics}
    found = {name if name == "accuracy" else f"{name}_accuracy": 100 * value for name, value in metrics.items()}
    rates = [row["sample_rates"] for row in run.history if "sample_rates" in row]
    if rates:
        found["rate_variance"] = float(np.var(rates[-1]))
    return found


def locate_rates(run: Run) -> Iterator[Point]:
    """Figure 1: the last rates, most frequent class first."""
    rates = [row["sample_rates"] for row in run.history if "sample_rates" in row]
    order = np.argsort(-run.predictions.train_counts, kind="stable")
    yield from (Point("Figure 1", rank, rates[-1][c]) for rank, c in enumerate(order))


def locate_map(run: Run, name: str) -> Iterator[Point]:
    """Figure 2: test samples of some classes by t-SNE, of the first seed; one color for each class."""
    data = run.load_embeddings() if run.seed == 0 else None
    if data is None:
        return
    step = max(1, data.num_classes // MAPPED_CLASSES)
    chosen = torch.nonzero((data.test.labels % step == 0) & (data.test.labels < step * MAPPED_CLASSES)).flatten()[
        :1000
    ]
    places = map_to_plane(np.asarray(data.test.batch(chosen)))
    if places is None:
        return
    for place, label in zip(places, data.test.labels[chosen].tolist(), strict=True):
        shown = class_name(data.class_names[label])
        yield Point("Figure 2", float(place[0]), float(place[1]), panel=name, series=shown)


def _set_head(options: Options) -> tuple[float, tuple[str, ...]]:
    """Length of the head's training, and its settings: the paper's, but the recipe's for other data.

    A short schedule has a longer stage in smaller batches, which is near the paper's 2,000 steps; its share and its
    batches would leave 130.
    """
    recipe = choose_recipe(options)
    is_paper_s = options.data in DATA
    is_long = is_paper_s and not options.fast
    share = options.share or (round(2 / 13, 4) if is_long else recipe.method.options.get("share", 0.5))
    rate = options.head_learning_rate or (0.1 if is_paper_s else recipe.train.learning_rate)
    batch_size = options.head_batch_size or (512 if is_long else recipe.train.batch_size)
    return share, (f"train.head_learning_rate={rate}", f"train.head_batch_size={batch_size}")


def build_study(options: Options) -> Study:
    """The cells of Table 3, the rows of Table 2, and the rates of Figure 1."""
    share, settings = _set_head(options)
    is_exponential = options.profile == "exponential"
    bases = {name: Training(method) for name, method in FEATURES.items()}
    entries = [
        Entry("Figure 2", name, base, measure=measure_accuracy, locate=partial(locate_map, name=name))
        for name, base in bases.items()
    ]
    for head, values in CELLS.items():
        for (features, base), value in zip(bases.items(), values, strict=True):
            (feature_tau, feature_power), (tau, power) = STRENGTHS[features], STRENGTHS[head]
            stages = f"feature_tau={feature_tau},feature_power={feature_power},tau={tau},power={power}"
            method = f"decoupled({stages},share={share})"
            is_published = options.data == "cifar10" and is_exponential and options.ratio == 200
            reported = {"accuracy": value} if is_published else {}
            name = f"{features} features; {head[0].lower()}{head[1:]} head"
            entries.append(
                Entry("Table 3", name, Training(method, settings, base), reported, measure=measure_accuracy)
            )
    for name, (method, by_data) in LITERATURE.items():
        training = Training(method)
        if name == "BALMS":
            training = Training(f"{method}(share={share})", settings, bases["Softmax"])
        known = by_data.get(options.data, ()) if is_exponential and options.ratio in RATIOS else ()
        accuracy = known[RATIOS.index(options.ratio)] if known else None
        reported = {} if accuracy is None else {"accuracy": accuracy}
        note = {"Class-balanced loss": CITED["Class-balanced"], "LDAM-DRW": CITED["Adaptive + DRW"]}.get(name, "")
        entries.append(Entry("Table 2", name, training, reported, note, measure_accuracy))
    for name, variance in VARIANCES.items():
        tau = STRENGTHS[name][0]
        method = (
            f"balanced_meta_softmax(tau={tau},share={share})" if tau != 1 else f"balanced_meta_softmax(share={share})"
        )
        reported = {"rate_variance": variance} if options.data == "cifar100" and options.ratio == 200 else {}
        training = Training(method, settings, bases["Softmax"])
        row = f"{name} with learned rates"
        entries.append(Entry("Figure 1", row, training, reported, "", measure_accuracy, locate_rates))
    return Study("balms", "Balanced Meta-Softmax", entries, TABLES, FIGURES, NOTE)


ACCURACIES = {"accuracy": "accuracy, %", "head_accuracy": "head", "torso_accuracy": "torso", "tail_accuracy": "tail"}
TABLES = (
    PaperTable("Table 2", "Table 2", ACCURACIES),
    PaperTable("Table 3", "Table 3", ACCURACIES),
    PaperTable("Figure 1", "Figure 1", {"rate_variance": "variance of the rates", **ACCURACIES}),
    PaperTable("Figure 2", "The features of Table 3, with their own heads", ACCURACIES),
)
FIGURES = (
    Figure("Figure 1", "learned sample rates", "classes, most frequent first", "rate", "bars"),
    Figure("Figure 2", "features of test samples by t-SNE", "", "", "scatter", note="One color for each class."),
)
NOTE = (
    "Accuracy on the test set in percent, after the last epoch. The paper trains 13,000 steps with AutoAugment and "
    "2,000 of the head, batches of 512."
)


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Train what the rows need, and write the tables and figures."""
    study, heads = build_study(options), descend()
    outcome = run_study(study, options, folder, say)
    summaries = [*outcome.summaries, tabulate_areas(heads)]
    return Outcome(summaries, [*outcome.written, *write_surfaces(heads, folder)], outcome.missing)


def tabulate_areas(heads: Heads) -> Summary:
    """How much of the plane the classes of 10,000, 100 and 1 samples get, over iterations."""
    rows = [
        (name, *("/".join(f"{100 * share:.0f}" for share in measure_areas(head)) for head in found.values()))
        for name, found in heads.items()
    ]
    note = "Figure 3: percent of the plane for the classes of 10,000, 100 and 1 samples after so many iterations."
    return Summary(("method", *(f"{iteration:,}" for iteration in next(iter(heads.values())))), rows, note)


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


POINT_COLORS = ("#c0392b", "#e1a100", "#2471a3")
"""Of 10,000, 100 and 1 samples: red, yellow and blue, as in the reference."""


def draw_surfaces(heads: Heads) -> Any:
    """Figure 3: one row a setup, one column an iteration."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [f"{name}<br>after {iteration:,} iterations" for name, found in heads.items() for iteration in found]
    columns = len(next(iter(heads.values())))
    figure = make_subplots(rows=len(heads), cols=columns, subplot_titles=titles)
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
    figure.update_layout(showlegend=False)
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


def write_surfaces(heads: Heads, folder: Path) -> list[Path]:
    """Write Figure 3."""
    (surfaces,) = plots([draw_surfaces(heads)])
    return write_files(
        folder, {"surfaces.html": page("Balanced Meta-Softmax: what re-sampling does", _BODY + surfaces)}
    )


_BODY = """
<p>Figure 3 of the supplement of Ren et al. A linear classifier learns three points: red stands for 10,000 samples,
yellow for 100, blue for 1. Softmax moves to symmetric boundaries, at once with class-balanced sampling (CBS) and
slowly without it. Balanced softmax moves the boundaries from the rare classes toward the frequent ones. With CBS
on top the rarest class has most of the plane from the start: the over-balance that learned rates are to avoid. The
points can be separated, so weights keep growing, and after very long training this shift fades: in the end,
sampling does not change the solution.</p>"""


EXPERIMENT = Experiment(
    'Ren et al. (2020), "Balanced Meta-Softmax", supplement, Tables 2 and 3, Figures 1-3.',
    Options,
    run,
)
