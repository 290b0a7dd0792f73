"""Figures 2g-i, 8g-i, 9 and 10 of Rawat et al., "Disentangling sampling and labeling bias": real data, few negatives.

A hidden layer of 512 without an activation and 64 negatives, uniform or from the batch, with each of the four
weightings, beside cross-entropy over all labels. Recall is of pairs of a test sample and one of its labels, for
all of them and by how frequent the label is in training: 66 % and 33 % quantiles. Precision and its propensity-scored
form are of samples with all their labels. The same can be run on data with one label a sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail.estimators.extreme import ExtremeClassifier
from longtail.lab.data.sets.delicious import read_delicious
from longtail.lab.data.sets.tiny_imagenet_lt import load_tiny_imagenet_lt_features
from longtail.lab.report.digest import Estimate, estimate
from longtail.lab.reproduce._schemes import COLORS, SCHEMES, Scheme
from longtail.lab.reproduce._writing import csv_text, json_text, page, plots, write_files
from longtail.metrics.label_hits import count_label_hits, group_recall
from longtail.metrics.propensity import inverse_propensities, propensity_scored_precision_at_k
from longtail.metrics.retrieval import precision_at_k
from longtail.prior import ClassPrior

__all__ = [
    "ALL_LABELS",
    "PROBLEMS",
    "Outcome",
    "Problem",
    "measure",
    "picture",
    "run_all",
    "summarize",
    "write_results",
]

RECALL_PLACES = (1, 10, 50)
PRECISION_PLACES = (1, 3, 5)
ALL_LABELS = Scheme("all labels", "cross-entropy")
"""What the schemes are compared with: no negatives are drawn."""


class Problem(NamedTuple):
    """Features and labels to learn from and to test on."""

    features: Any
    labels: Any
    test_features: Any
    test_labels: Any


@dataclass(frozen=True)
class Outcome:
    """One trained model: its values by name, such as "tail R@10"."""

    scheme: Scheme
    seed: int
    values: Mapping[str, float]
    seconds: float


def delicious(root: Path | None = None) -> Problem:
    """Delicious: several labels a sample."""
    train, test = read_delicious(root)
    return Problem(train.features, train.labels, test.features, test.labels)


def tiny_imagenet_lt(root: Path | None = None) -> Problem:
    """Features of Tiny-ImageNet-LT: one label a sample, and a test set with every label alike."""
    data = load_tiny_imagenet_lt_features(None if root is None else str(root))
    parts = []
    for split in (data.train, data.test):
        labels = split.labels.numpy()
        truth = (np.ones(len(labels), dtype=np.bool_), (np.arange(len(labels)), labels))
        features = split.batch(torch.arange(len(labels)))
        parts += [np.asarray(features), csr_array(truth, shape=(len(labels), data.num_classes))]
    return Problem(*parts)


PROBLEMS = {"delicious": delicious, "tiny_imagenet_lt_features": tiny_imagenet_lt}
"""Data sets by name."""


def run_all(
    problem: Problem, seeds: Sequence[int], num_negatives: int, settings: Mapping[str, Any]
) -> Iterator[Outcome]:
    """Train every scheme with every seed, one after the other.

    Args:
        problem: the data.
        seeds: one run each.
        num_negatives: how many to draw for a batch.
        settings: other settings of ``ExtremeClassifier``.
    """
    for seed in seeds:
        for scheme in (ALL_LABELS, *SCHEMES):
            started = time.perf_counter()
            model = ExtremeClassifier(**settings, **_sampling(scheme, problem, num_negatives), random_state=seed)
            model.fit(problem.features, problem.labels)
            seconds = time.perf_counter() - started
            best = torch.from_numpy(model.predict_topk(problem.test_features, max(RECALL_PLACES)))
            yield Outcome(scheme, seed, measure(best, problem.test_labels, model.prior_), seconds)


def _sampling(scheme: Scheme, problem: Problem, num_negatives: int) -> dict[str, Any]:
    if scheme == ALL_LABELS:
        return {}
    prior = ClassPrior.from_indicator(problem.labels)
    distribution, weighting = scheme.build(prior if bool((prior.counts > 0).all()) else prior.smoothed(1))
    return {"distribution": lambda _: distribution, "weighting": weighting, "num_negatives": num_negatives}


def measure(best: Tensor, truth: Any, prior: ClassPrior) -> dict[str, float]:
    """Percent: recall by slice, precision and propensity-scored precision of ranked labels."""
    groups = {"full": torch.arange(prior.num_classes), **prior.quantile_groups()}
    recalls = group_recall(count_label_hits(best, truth, RECALL_PLACES), groups)
    places = max(PRECISION_PLACES)
    precisions = {
        "P": precision_at_k(best, truth, places),
        "PSP": propensity_scored_precision_at_k(best, truth, places, inverse_propensities(prior)),
    }
    values = {f"{group} R@{k}": recall[i] for group, recall in recalls.items() for i, k in enumerate(RECALL_PLACES)}
    values |= {f"{name}@{k}": value[k - 1] for name, value in precisions.items() for k in PRECISION_PLACES}
    return {name: 100 * float(value) for name, value in values.items()}


def summarize(outcomes: Sequence[Outcome]) -> dict[Scheme, dict[str, Estimate]]:
    """The mean over seeds of every value, with its interval, by scheme."""
    return {
        scheme: {
            name: estimate(outcome.values[name] for outcome in outcomes if outcome.scheme == scheme)
            for name in outcomes[0].values
        }
        for scheme in dict.fromkeys(outcome.scheme for outcome in outcomes)
    }


def write_results(outcomes: Sequence[Outcome], folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Write ``runs.csv``, ``results.json`` and ``picture.html``, and return their paths."""
    names = list(outcomes[0].values)
    rows = [[*outcome.scheme, outcome.seed, outcome.seconds, *outcome.values.values()] for outcome in outcomes]
    summary = {
        str(scheme): {name: value.mean for name, value in values.items()}
        for scheme, values in summarize(outcomes).items()
    }
    contents = {
        "runs.csv": csv_text(["sampling", "weighting", "seed", "seconds", *names], rows),
        "results.json": json_text({"settings": settings, "percent": summary}),
        "picture.html": picture(outcomes, settings),
    }
    return write_files(folder, contents)


def picture(outcomes: Sequence[Outcome], settings: Mapping[str, Any]) -> str:
    """The figures as one HTML page that needs no network."""
    slices = ("full", "head", "torso", "tail")
    recalls = {f"R@{k}": {part: f"{part} R@{k}" for part in slices} for k in RECALL_PLACES}
    precisions = {name: {f"{name}@{k}": f"{name}@{k}" for k in PRECISION_PLACES} for name in ("P", "PSP")}
    summary = summarize(outcomes)
    first, second = plots([_bars(summary, recalls), _bars(summary, precisions)])
    said = ", ".join(f"{name} {value}" for name, value in settings.items())
    body = f"""<p>Rawat et al., "Disentangling sampling and labeling bias", section 5.2. Setting: {said}. Percent;
whiskers are 95 % intervals over seeds. Gray: cross-entropy over all labels.</p>
<h2>Recall of pairs, by frequency of the label (Figures 2 and 8)</h2>
{first}
<h2>Precision, and propensity-scored precision (Figures 9 and 10)</h2>
{second}"""
    return page("Negatives and their weights on real data", body)


def _bars(summary: Mapping[Scheme, Mapping[str, Estimate]], panels: Mapping[str, Mapping[str, str]]) -> Any:
    """A panel for each kind of negatives and each of ``panels``, which say what stands below bars of which value."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    samplings = list(dict.fromkeys(scheme.sampling for scheme in SCHEMES))[::-1]
    titles = [f"{sampling}: {title}" for sampling in samplings for title in panels]
    figure = make_subplots(
        rows=len(samplings), cols=len(panels), subplot_titles=titles, vertical_spacing=0.12, horizontal_spacing=0.05
    )
    for row, sampling in enumerate(samplings, start=1):
        shown = [scheme for scheme in summary if scheme.sampling in (sampling, ALL_LABELS.sampling)]
        for column, names in enumerate(panels.values(), start=1):
            for scheme in shown:
                values = [summary[scheme][name] for name in names.values()]
                bars = graph_objects.Bar(
                    x=list(names),
                    y=[value.mean for value in values],
                    error_y={"type": "data", "array": [value.half_width for value in values], "thickness": 1},
                    name=scheme.weighting,
                    legendgroup=scheme.weighting,
                    showlegend=row == column == 1,
                    marker={"color": COLORS[scheme.weighting]},
                    hovertemplate=f"{scheme.weighting}, %{{x}}: %{{y:.2f}} %<extra></extra>",
                )
                figure.add_trace(bars, row=row, col=column)
    figure.update_yaxes(rangemode="tozero", ticksuffix=" %")
    figure.update_layout(
        template="plotly_white", barmode="group", height=800, font={"family": "system-ui, sans-serif", "size": 14}
    )
    return figure
