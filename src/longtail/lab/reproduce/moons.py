"""Section 2.3 and Figure 1 of Jitkrittum et al., "ELM": embeddings of two moons, 5% of the samples in the tail class.

A network with 16, 8 and 2 hidden units and ReLU; the last two are the embedding, so it can be drawn. The paper gives
no noise and no schedule, and says that logit adjustment is near perfect on test data; noise of 0.1 is, and 0.15 is
not. Where classes overlap, no encoder can make them compact: a sample on the wrong side is as far from its class as
the classes are from each other.

Distances are given in three ways, for a regularizer may only shrink everything: as they are, divided by the largest
norm of an embedding (the paper's measure), and divided by the distance between the class means. They are those of the
training samples, which Figure 1 draws, and of the test samples.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from longtail.diagnostics import intraclass_distances
from longtail.lab.data.dataset import Split
from longtail.lab.reproduce._rows import Row, RowFormat, conclude, make_rows
from longtail.lab.reproduce._writing import json_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.training.embedding import embed_run
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import MethodRecipe, Recipe, find_recipe, load_recipe, with_settings

__all__ = [
    "BASELINE",
    "CLASSES",
    "EXPERIMENT",
    "MEASURES",
    "VARIANTS",
    "Options",
    "Trial",
    "average_accuracy",
    "compare_distances",
    "draw_picture",
    "plan_rows",
    "run",
    "tabulate_trials",
    "write_results",
]

BASELINE = "Logit adjustment"

VARIANTS: Mapping[str, MethodRecipe] = MappingProxyType(
    {
        BASELINE: MethodRecipe("logit_adjusted"),
        "ELM": MethodRecipe("elm"),
        "ELM + memory": MethodRecipe("elm", {"memory_size": 64}),
        "ELM, balanced": MethodRecipe("elm", {"balanced": True, "scale": 5.0, "strength": 0.03}),
        "ELM, balanced, strong": MethodRecipe("elm", {"balanced": True, "scale": 10.0, "strength": 0.1}),
    }
)
"""What is compared: logit adjustment, ELM as in the paper for CIFAR-10-LT, and what was tried for the tail."""

CLASSES = ("head", "tail")
MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "raw": ", as it is",
        "by_norm": " divided by the largest norm of an embedding",
        "by_class_means": " divided by the distance between the class means",
    }
)
"""Of the largest distance inside a class, named as in ``diagnostics.IntraclassDistances``, and how it is scaled."""


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    seeds: int = add_option(5, "How many samples of moons, with seeds 0, 1, ...", minimum=1, adds_rows=True)
    settings: tuple[str, ...] = add_option((), "A setting, such as train.epochs=5.", flag="--set")


@dataclass(frozen=True)
class Trial:
    """One variant on one sample of moons."""

    variant: str
    seed: int
    balanced_accuracy: float
    distances: Mapping[tuple[str, str, str], float]
    """Split, class and measure -> the largest distance inside the class."""
    train: Split
    """Embeddings [N, 2] of the training samples, and their labels."""


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Train every variant, and summarize what became of the embeddings."""
    recipe = load_recipe(find_recipe("moons"), ["data.options.noise=0.1", *options.settings])
    trials, missing = make_rows(plan_rows(recipe, folder, range(options.seeds)), FORMAT, folder, say)
    settings = {"seeds": options.seeds, "noise": recipe.data.options["noise"]}
    return conclude(
        trials,
        missing,
        folder,
        tabulate_trials,
        lambda done: write_results(done, folder, settings),
    )


def tabulate_trials(trials: Sequence[Trial]) -> list[Summary]:
    """How far apart the samples of a class are, against logit adjustment: a table for each of three measures."""
    return [_tabulate_measure(trials, measure) for measure in MEASURES]


def _tabulate_measure(trials: Sequence[Trial], measure: str) -> Summary:
    places = [(split, name) for split in ("train", "test") for name in CLASSES]
    shown = [variant for variant in VARIANTS if any(trial.variant == variant for trial in trials)]
    rows = []
    for variant in shown:
        ratios = (compare_distances(trials, variant, (*place, measure)) for place in places)
        rows.append((variant, f"{average_accuracy(trials, variant):.1%}", *(f"{ratio:.2f}" for ratio in ratios)))
    note = (
        f"Largest distance inside a class{MEASURES[measure]}, over that of logit adjustment; medians over "
        f"{len(trials) // len(rows)} seeds."
    )
    return Summary(("method", "accuracy", *(f"{name}, {split}" for split, name in places)), rows, note)


def plan_rows(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> list[Row[Trial]]:
    """Every variant on the same moons and from the same weights, for each seed."""

    def postpone(name: str, seed: int) -> Callable[[], Trial]:
        return lambda: _train_variant(recipe, name, seed, folder)

    return [Row((name, seed), postpone(name, seed)) for seed in seeds for name in VARIANTS]


def _train_variant(recipe: Recipe, name: str, seed: int, folder: Path) -> Trial:
    method = VARIANTS[name]
    of_seed = with_settings(recipe.with_seed(seed), [f"data.options.seed={seed}"])
    path = folder / "-".join(re.findall(r"\w+", name.lower())) / f"seed-{seed}"
    run = train(of_seed.with_method(method.name, method.options), path, show_progress=False)
    embedded = embed_run(path)
    distances = {
        (split_name, *key): value
        for split_name, split in (("train", embedded.train), ("test", embedded.test))
        for key, value in measure_distances(split).items()
    }
    return Trial(name, seed, run.metrics["balanced_accuracy"], distances, embedded.train)


def _split_trial(trial: Trial) -> list[dict[str, float]]:
    distances = {"_".join(key): value for key, value in trial.distances.items()}
    return [{"balanced_accuracy": trial.balanced_accuracy, **distances}]


FORMAT = RowFormat(("variant", "seed"), _split_trial)


def measure_distances(split: Split) -> dict[tuple[str, str], float]:
    """Class and measure -> the largest distance inside the class."""
    found = intraclass_distances(_take_embeddings(split), split.labels)
    return {
        (name, measure): float(getattr(found, measure)[split.labels == label].max())
        for label, name in enumerate(CLASSES)
        for measure in MEASURES
    }


def compare_distances(trials: Sequence[Trial], variant: str, key: tuple[str, str, str]) -> float:
    """The median over seeds of a variant's distance over that of logit adjustment on the same data; NaN without."""
    base = {trial.seed: trial.distances[key] for trial in trials if trial.variant == BASELINE}
    members = [trial for trial in trials if trial.variant == variant and trial.seed in base]
    return statistics.median(trial.distances[key] / base[trial.seed] for trial in members) if members else math.nan


def write_results(trials: Sequence[Trial], folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    results = {
        "settings": dict(settings),
        "balanced_accuracy": {name: average_accuracy(trials, name) for name in VARIANTS},
        "median_ratio_to_logit_adjustment": {
            variant: {"_".join(key): compare_distances(trials, variant, key) for key in trials[0].distances}
            for variant in VARIANTS
        },
    }
    contents = {"results.json": json_text(results), "picture.html": draw_picture(trials, settings)}
    return write_files(folder, contents)


def average_accuracy(trials: Sequence[Trial], variant: str) -> float:
    """The mean over seeds of the balanced accuracy on test samples."""
    return statistics.mean(trial.balanced_accuracy for trial in trials if trial.variant == variant)


COLORS = {"head": "#0072b2", "tail": "#c44e00"}
"""Of the report, told apart also by color-blind readers."""


def draw_picture(trials: Sequence[Trial], settings: Mapping[str, Any]) -> str:
    """Figure 1 for the first seed, as it is and with every picture scaled to its class means, and the ratios."""
    first = [trial for trial in trials if trial.seed == trials[0].seed]
    raw, scaled, ratios = plots([_draw_points(first, False), _draw_points(first, True), _draw_ratios(trials)])
    setting = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    body = (
        '<p>Section 2.3 and Figure 1 of Jitkrittum et al., "ELM: embedding and logit margins for long-tail '
        f'learning". Setting: {setting}. Embeddings of the training samples, seed {trials[0].seed}. The axes are '
        f"shared, so that what shrinks looks smaller.</p>{raw}"
        "<p>The same, with the distance between the class means scaled to 1 in each picture: what is smaller here "
        f"is tighter, not only smaller.</p>{scaled}"
        "<p>The largest distance inside a class over that under logit adjustment, medians over seeds: as it is, over "
        "the largest norm (the paper's measure), and over the distance between the class means.</p>"
        f"{ratios}"
    )
    return page("Two moons, 5% in the tail: where the embeddings lie", body)


def _draw_points(trials: Sequence[Trial], is_scaled: bool) -> Any:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [f"{trial.variant}<br>{trial.balanced_accuracy:.1%} balanced accuracy" for trial in trials]
    figure = make_subplots(cols=len(trials), subplot_titles=titles, shared_xaxes="all", shared_yaxes="all")
    for column, trial in enumerate(trials, start=1):
        points = _take_embeddings(trial.train)
        if is_scaled:
            points = _scale_to_means(points, trial.train.labels)
        for label, name in enumerate(CLASSES):
            chosen = points[trial.train.labels == label]
            trace = graph_objects.Scatter(
                x=chosen[:, 0].tolist(),
                y=chosen[:, 1].tolist(),
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLORS[name], "size": 4 + 2 * label, "opacity": 0.7},
            )
            figure.add_trace(trace, row=1, col=column)
    return figure


def _scale_to_means(points: Tensor, labels: Tensor) -> Tensor:
    """The points around the middle of both class means, in units of the distance between these."""
    head, tail = (points[labels == label].mean(dim=0) for label in range(len(CLASSES)))
    scaled: Tensor = (points - (head + tail) / 2) / torch.linalg.vector_norm(head - tail)
    return scaled


def _draw_ratios(trials: Sequence[Trial]) -> Any:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = ["as it is", "over the largest norm", "over the distance of class means"]
    figure = make_subplots(cols=len(MEASURES), subplot_titles=titles, shared_yaxes=True)
    for column, measure in enumerate(MEASURES, start=1):
        for name in CLASSES:
            bars = graph_objects.Bar(
                x=list(VARIANTS),
                y=[compare_distances(trials, variant, ("train", name, measure)) for variant in VARIANTS],
                name=name,
                marker={"color": COLORS[name]},
                showlegend=column == 1,
            )
            figure.add_trace(bars, row=1, col=column)
        figure.add_hline(y=1, line={"dash": "dot", "color": "#59636f"}, row=1, col=column)
    figure.update_layout(barmode="group")
    return figure


def _take_embeddings(split: Split) -> Tensor:
    embeddings = split.batch(torch.arange(len(split)))
    assert isinstance(embeddings, Tensor)
    return embeddings


EXPERIMENT = Experiment(
    'Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", section 2.3 and Figure 1.',
    Options,
    run,
)
