"""Section 2.3 and Figure 1 of Jitkrittum et al., "ELM": embeddings of two moons, 5% of the samples in the tail class.

A network with 16, 8 and 2 hidden units and ReLU; the last two are the embedding, so it can be drawn. The paper gives
no noise and no schedule, and says that logit adjustment is near perfect on test data; noise of 0.1 is, and 0.15 is
not. Where classes overlap, no encoder can make them compact: a sample on the wrong side is as far from its class as
the classes are from each other.

Distances are told in three ways, for a regularizer may only shrink everything: as they are, divided by the largest
norm of an embedding (the paper's measure), and divided by the distance between the class means. They are those of the
training samples, which Figure 1 draws, and of the test samples.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from longtail.diagnostics import intraclass_distances
from longtail.lab.data.dataset import Split
from longtail.lab.reproduce._writing import csv_text, json_text, page, plots, write_files
from longtail.lab.training.embedding import embed_run
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import MethodRecipe, Recipe, with_settings

__all__ = [
    "BASELINE",
    "CLASSES",
    "MEASURES",
    "VARIANTS",
    "Trial",
    "mean_accuracy",
    "picture",
    "ratio",
    "run_trials",
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
MEASURES = ("raw", "by_norm", "by_class_means")
"""Of the largest distance inside a class; names as in ``diagnostics.IntraclassDistances``."""


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


def run_trials(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> Iterator[Trial]:
    """Every variant on the same moons and from the same weights, for each seed."""
    for seed in seeds:
        variant_of_seed = with_settings(recipe.with_seed(seed), [f"data.options.seed={seed}"])
        for name, method in VARIANTS.items():
            path = folder / "-".join(re.findall(r"\w+", name.lower())) / f"seed-{seed}"
            run = train(variant_of_seed.with_method(method.name, method.options), path, show_progress=False)
            embedded = embed_run(path)
            distances = {
                (split_name, *key): value
                for split_name, split in (("train", embedded.train), ("test", embedded.test))
                for key, value in largest_distances(split).items()
            }
            yield Trial(name, seed, run.metrics["balanced_accuracy"], distances, embedded.train)


def largest_distances(split: Split) -> dict[tuple[str, str], float]:
    """Class and measure -> the largest distance inside the class."""
    found = intraclass_distances(_embeddings(split), split.labels)
    return {
        (name, measure): float(getattr(found, measure)[split.labels == label].max())
        for label, name in enumerate(CLASSES)
        for measure in MEASURES
    }


def ratio(trials: Sequence[Trial], variant: str, key: tuple[str, str, str]) -> float:
    """The median over seeds of a variant's distance over that of logit adjustment on the same data."""
    base = {trial.seed: trial.distances[key] for trial in trials if trial.variant == BASELINE}
    return statistics.median(trial.distances[key] / base[trial.seed] for trial in trials if trial.variant == variant)


def write_results(trials: Sequence[Trial], folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Write ``trials.csv``, ``results.json`` and ``picture.html``, and return their paths."""
    keys = list(trials[0].distances)
    names = ["_".join(key) for key in keys]
    rows = [
        [trial.variant, trial.seed, trial.balanced_accuracy, *(trial.distances[key] for key in keys)]
        for trial in trials
    ]
    results = {
        "settings": dict(settings),
        "balanced_accuracy": {name: mean_accuracy(trials, name) for name in VARIANTS},
        "median_ratio_to_logit_adjustment": {
            variant: {name: ratio(trials, variant, key) for name, key in zip(names, keys, strict=True)}
            for variant in VARIANTS
        },
    }
    return write_files(
        folder,
        {
            "trials.csv": csv_text(["variant", "seed", "balanced_accuracy", *names], rows),
            "results.json": json_text(results),
            "picture.html": picture(trials, settings),
        },
    )


def mean_accuracy(trials: Sequence[Trial], variant: str) -> float:
    """The mean over seeds of the balanced accuracy on test samples."""
    return statistics.mean(trial.balanced_accuracy for trial in trials if trial.variant == variant)


COLORS = {"head": "#0072b2", "tail": "#e69f00"}
"""Told apart also by color-blind readers (Okabe and Ito)."""


def picture(trials: Sequence[Trial], settings: Mapping[str, Any]) -> str:
    """Figure 1 for the first seed, as it is and with every picture scaled to its class means, and the ratios."""
    first = [trial for trial in trials if trial.seed == trials[0].seed]
    shown = plots([_scatter(first, is_scaled=False), _scatter(first, is_scaled=True), _bars(trials)])
    setting = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    body = (
        '<p>Section 2.3 and Figure 1 of Jitkrittum et al., "ELM: embedding and logit margins for long-tail '
        f'learning". Setting: {setting}. Embeddings of the training samples, seed {trials[0].seed}. The axes are '
        f"shared, so that what shrinks looks smaller.</p>{shown[0]}"
        "<p>The same, with the distance between the class means scaled to 1 in each picture: what is smaller here "
        f"is tighter, not only smaller.</p>{shown[1]}"
        "<p>The largest distance inside a class over that under logit adjustment, medians over seeds: as it is, over "
        "the largest norm (the paper's measure), and over the distance between the class means.</p>"
        f"{shown[2]}"
    )
    return page("Two moons, 5% in the tail: where the embeddings lie", body)


def _scatter(trials: Sequence[Trial], is_scaled: bool) -> Any:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [f"{trial.variant}<br>{trial.balanced_accuracy:.1%} balanced accuracy" for trial in trials]
    figure = make_subplots(cols=len(trials), subplot_titles=titles, shared_xaxes="all", shared_yaxes="all")
    for column, trial in enumerate(trials, start=1):
        points = _embeddings(trial.train)
        if is_scaled:
            points = _scaled_to_means(points, trial.train.labels)
        for label, name in enumerate(CLASSES):
            chosen = points[trial.train.labels == label]
            trace = graph_objects.Scattergl(
                x=chosen[:, 0].tolist(),
                y=chosen[:, 1].tolist(),
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLORS[name], "size": 4 + 2 * label, "opacity": 0.7},
            )
            figure.add_trace(trace, row=1, col=column)
    figure.update_layout(
        template="plotly_white",
        height=380,
        margin={"l": 40, "r": 10, "t": 60, "b": 40},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": -0.15},
    )
    return figure


def _scaled_to_means(points: Tensor, labels: Tensor) -> Tensor:
    """The points around the middle of both class means, in units of the distance between these."""
    head, tail = (points[labels == label].mean(dim=0) for label in range(len(CLASSES)))
    scaled: Tensor = (points - (head + tail) / 2) / torch.linalg.vector_norm(head - tail)
    return scaled


def _bars(trials: Sequence[Trial]) -> Any:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = ["as it is", "over the largest norm", "over the distance of class means"]
    figure = make_subplots(cols=len(MEASURES), subplot_titles=titles, shared_yaxes=True)
    for column, measure in enumerate(MEASURES, start=1):
        for name in CLASSES:
            bars = graph_objects.Bar(
                x=list(VARIANTS),
                y=[ratio(trials, variant, ("train", name, measure)) for variant in VARIANTS],
                name=name,
                marker={"color": COLORS[name]},
                showlegend=column == 1,
            )
            figure.add_trace(bars, row=1, col=column)
        figure.add_hline(y=1, line={"dash": "dot", "color": "#555555"}, row=1, col=column)
    figure.update_layout(
        template="plotly_white",
        barmode="group",
        height=380,
        margin={"l": 40, "r": 10, "t": 40, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return figure


def _embeddings(split: Split) -> Tensor:
    embeddings = split.batch(torch.arange(len(split)))
    assert isinstance(embeddings, Tensor)
    return embeddings
