"""Figures 2g-i, 8g-i, 9 and 10 of Rawat et al., "Disentangling sampling and labeling bias": real data, few negatives.

A hidden layer of 512 without an activation and 64 negatives, uniform or from the batch, with each of the four
weightings, beside cross-entropy over all labels. Recall is of pairs of a test sample and one of its labels, for
all of them and by how frequent the label is in training: 66 % and 33 % quantiles. Precision and its propensity-scored
form are of samples with all their labels. The same can be run on data with one label per sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail.estimators.extreme import ExtremeClassifier
from longtail.lab.data.sets.extreme_repository import REPOSITORY_SETS, read_repository_set
from longtail.lab.data.sets.tiny_imagenet_lt import load_tiny_imagenet_lt_features
from longtail.lab.report.figures.drawing import build_error_bars
from longtail.lab.reproduce._rows import Row, RowFormat, check_settings, conclude, make_rows
from longtail.lab.reproduce._schemes import COLORS, SCHEMES, Scheme
from longtail.lab.reproduce._writing import json_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.runs.statistics import Estimate, estimate
from longtail.metrics.label_hits import group_recall
from longtail.metrics.propensity import PROPENSITY_CONSTANTS, inverse_propensities, propensity_scored_precision_at_k
from longtail.metrics.retrieval import precision_at_k
from longtail.negatives.losses import CONTRASTIVE
from longtail.prior import ClassPrior

__all__ = [
    "ALL_LABELS",
    "EXPERIMENT",
    "PROBLEMS",
    "Options",
    "Problem",
    "Result",
    "draw_picture",
    "measure",
    "plan_rows",
    "run",
    "summarize",
    "tabulate_results",
    "write_results",
]

RECALL_PLACES = (1, 10, 50)
PRECISION_PLACES = (1, 3, 5)
ALL_LABELS = Scheme("all labels", "cross-entropy")
"""What the schemes are compared with: no negatives are drawn."""

AS_IN_PAPER = {
    "emphasis": 0.0,
    "hidden_size": 512,
    "n_estimators": 1,
    "activation": "identity",
    "dropout": 0.0,
    "excludes_other_labels": False,
    "epochs": 15,
    "batch_size": 256,
    "learning_rate": 2e-3,
    "uses_bfloat16": False,
    "uses_layerwise_rate": False,
}
"""A linear hidden layer; the other labels of a sample are negatives too."""


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    data: str = add_option(
        "delicious", "delicious, amazoncat13k, wikilshtc325k or tiny_imagenet_lt_features, in LONGTAIL_DATA."
    )
    seeds: int = add_option(3, "How many runs of each, with seeds 0, 1, ...", minimum=1, adds_rows=True)
    epochs: int = add_option(15, "Passes over the samples.", minimum=1)
    num_negatives: int = add_option(64, "m, how many negatives are drawn; the paper: 256 for larger sets.", minimum=1)
    loss: str = add_option("softmax", "softmax, or contrastive: the cosine contrastive loss.")


class Problem(NamedTuple):
    """Features and labels to learn from and to test on."""

    features: Any
    labels: Any
    test_features: Any
    test_labels: Any
    propensity: tuple[float, float] = PROPENSITY_CONSTANTS["other"]
    """A and B of the propensity-scored measures."""


@dataclass(frozen=True)
class Result:
    """One trained model: its values by name, such as "tail R@10"."""

    scheme: Scheme
    seed: int
    values: Mapping[str, float]
    seconds: float


def load_repository_set(root: Path | None = None, name: str = "delicious") -> Problem:
    """A set of the extreme-classification repository: multi-label."""
    train, test = read_repository_set(name, root)
    return Problem(train.features, train.labels, test.features, test.labels, REPOSITORY_SETS[name].propensity)


def load_tiny_imagenet_lt(root: Path | None = None) -> Problem:
    """Features of Tiny-ImageNet-LT: one label per sample, and a test set with every label alike."""
    data = load_tiny_imagenet_lt_features(None if root is None else str(root))
    parts = []
    for split in (data.train, data.test):
        labels = split.labels.numpy()
        truth = (np.ones(len(labels), dtype=np.bool_), (np.arange(len(labels)), labels))
        features = split.batch(torch.arange(len(labels)))
        parts += [np.asarray(features), csr_array(truth, shape=(len(labels), data.num_classes))]
    return Problem(*parts)


PROBLEMS: Mapping[str, Callable[[Path | None], Problem]] = {
    **{name: partial(load_repository_set, name=name) for name in REPOSITORY_SETS},
    "tiny_imagenet_lt_features": load_tiny_imagenet_lt,
}
"""Data sets by name."""


LOSSES: Mapping[str, Mapping[str, Any]] = {"softmax": {}, "contrastive": {"loss": CONTRASTIVE, "scale": 1.0}}
"""Losses by name, as settings of ``ExtremeClassifier``."""


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Train the models that the folder does not hold rows of, and summarize them."""
    if options.data not in PROBLEMS:
        raise ValueError(f"--data must be one of {', '.join(PROBLEMS)}. Got {options.data}.")
    if options.loss not in LOSSES:
        raise ValueError(f"--loss must be one of {', '.join(LOSSES)}. Got {options.loss}.")
    problem = PROBLEMS[options.data](None)
    check_settings(folder, options)
    settings = {"epochs": options.epochs, **LOSSES[options.loss]}
    rows = plan_rows(problem, range(options.seeds), options.num_negatives, settings)
    results, missing = make_rows(rows, FORMAT, folder, say)
    return conclude(
        results, missing, folder, tabulate_results, lambda done: write_results(done, folder, asdict(options))
    )


def tabulate_results(results: Sequence[Result]) -> list[Summary]:
    """Recall by slice, and precision, for each way to sample negatives."""
    # Two narrow tables: one of all columns would not fit into 80 characters.
    parts = (["full R@10", "head R@10", "torso R@10", "tail R@10"], ["P@1", "P@5", "PSP@1", "PSP@5"])
    notes = ("", "Percent; head, torso and tail by training frequency. 95 % intervals over seeds.")
    found = summarize(results)
    return [
        Summary(
            ("method", *names),
            [(str(scheme), *(_format_estimate(values[name]) for name in names)) for scheme, values in found.items()],
            note,
        )
        for names, note in zip(parts, notes, strict=True)
    ]


def _format_estimate(value: Estimate) -> str:
    return f"{value.mean:.1f} \u00b1 {value.half_width:.1f}" if value.has_interval else f"{value.mean:.1f}"


def plan_rows(
    problem: Problem, seeds: Sequence[int], num_negatives: int, settings: Mapping[str, Any]
) -> list[Row[Result]]:
    """Every scheme with every seed.

    Args:
        problem: the data.
        seeds: one run each.
        num_negatives: how many to draw for a batch.
        settings: other settings of ``ExtremeClassifier``.
    """

    def postpone(scheme: Scheme, seed: int) -> Callable[[], Result]:
        return lambda: _train(problem, scheme, seed, num_negatives, settings)

    return [Row((*scheme, seed), postpone(scheme, seed)) for seed in seeds for scheme in (ALL_LABELS, *SCHEMES)]


def _train(problem: Problem, scheme: Scheme, seed: int, num_negatives: int, settings: Mapping[str, Any]) -> Result:
    started = time.perf_counter()
    shared: dict[str, Any] = {**AS_IN_PAPER, **settings}
    model = ExtremeClassifier(**shared, **_build_sampling(scheme, problem, num_negatives), random_state=seed)
    model.fit(problem.features, problem.labels)
    seconds = time.perf_counter() - started
    best = torch.from_numpy(model.predict_topk(problem.test_features, max(RECALL_PLACES)))
    return Result(scheme, seed, measure(best, problem.test_labels, model.label_prior_, problem.propensity), seconds)


def _split_result(result: Result) -> list[dict[str, float]]:
    return [{"seconds": result.seconds, **result.values}]


def _join_result(key: tuple[str, ...], lines: Sequence[Mapping[str, str]]) -> Result:
    sampling, weighting, seed = key
    values = {name: float(value) for name, value in lines[0].items()}
    seconds = values.pop("seconds")
    return Result(Scheme(sampling, weighting), int(seed), values, seconds)


FORMAT = RowFormat(("sampling", "weighting", "seed"), _split_result, _join_result)


def _build_sampling(scheme: Scheme, problem: Problem, num_negatives: int) -> dict[str, Any]:
    if scheme == ALL_LABELS:
        return {}
    prior = ClassPrior.from_indicator(problem.labels)
    distribution, weighting = scheme.build(prior if bool((prior.counts > 0).all()) else prior.smoothed(1))
    return {"distribution": lambda _: distribution, "weighting": weighting, "num_negatives": num_negatives}


def measure(
    best: Tensor, truth: Any, prior: ClassPrior, propensity: tuple[float, float] = PROPENSITY_CONSTANTS["other"]
) -> dict[str, float]:
    """Percent: recall by slice, precision and propensity-scored precision of ranked labels."""
    groups = {"full": torch.arange(prior.num_classes), **prior.quantile_groups()}
    recalls = group_recall(best, truth, groups, RECALL_PLACES)
    places = max(PRECISION_PLACES)
    precisions = {
        "P": precision_at_k(best, truth, places),
        "PSP": propensity_scored_precision_at_k(best, truth, places, inverse_propensities(prior, *propensity)),
    }
    values = {f"{group} R@{k}": recall[i] for group, recall in recalls.items() for i, k in enumerate(RECALL_PLACES)}
    values |= {f"{name}@{k}": value[k - 1] for name, value in precisions.items() for k in PRECISION_PLACES}
    return {name: 100 * float(value) for name, value in values.items()}


def summarize(results: Sequence[Result]) -> dict[Scheme, dict[str, Estimate]]:
    """The mean over seeds of every value, with its interval, by scheme."""
    return {
        scheme: {
            name: estimate(result.values[name] for result in results if result.scheme == scheme)
            for name in results[0].values
        }
        for scheme in dict.fromkeys(result.scheme for result in results)
    }


def write_results(results: Sequence[Result], folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    summary = {
        str(scheme): {name: value.mean for name, value in values.items()}
        for scheme, values in summarize(results).items()
    }
    contents = {
        "results.json": json_text({"settings": settings, "percent": summary}),
        "picture.html": draw_picture(results, settings),
    }
    return write_files(folder, contents)


def draw_picture(results: Sequence[Result], settings: Mapping[str, Any]) -> str:
    """The figures as one HTML page that needs no network."""
    slices = ("full", "head", "torso", "tail")
    recalls = {f"R@{k}": {part: f"{part} R@{k}" for part in slices} for k in RECALL_PLACES}
    precisions = {name: {f"{name}@{k}": f"{name}@{k}" for k in PRECISION_PLACES} for name in ("P", "PSP")}
    summary = summarize(results)
    first, second = plots([_draw_bars(summary, recalls), _draw_bars(summary, precisions)])
    setting = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    body = f"""<p>Rawat et al., "Disentangling sampling and labeling bias", section 5.2. Setting: {setting}. Percent;
whiskers are 95 % intervals over seeds. Gray: cross-entropy over all labels.</p>
<h2>Recall of pairs, by frequency of the label (Figures 2 and 8)</h2>
{first}
<h2>Precision, and propensity-scored precision (Figures 9 and 10)</h2>
{second}"""
    return page("Negatives and their weights on real data", body)


def _draw_bars(summary: Mapping[Scheme, Mapping[str, Estimate]], panels: Mapping[str, Mapping[str, str]]) -> Any:
    """A panel for each kind of negatives and each of ``panels``, which say what stands below bars of which value."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    samplings = list(dict.fromkeys(scheme.sampling for scheme in SCHEMES))[::-1]
    titles = [f"{sampling}: {title}" for sampling in samplings for title in panels]
    figure = make_subplots(rows=len(samplings), cols=len(panels), subplot_titles=titles)
    for row, sampling in enumerate(samplings, start=1):
        shown = [scheme for scheme in summary if scheme.sampling in (sampling, ALL_LABELS.sampling)]
        for column, names in enumerate(panels.values(), start=1):
            for scheme in shown:
                values = [summary[scheme][name] for name in names.values()]
                bars = graph_objects.Bar(
                    x=list(names),
                    y=[value.mean for value in values],
                    error_y=build_error_bars(values, 0, 100) | {"color": None},  # the page's
                    name=scheme.weighting,
                    legendgroup=scheme.weighting,
                    showlegend=row == column == 1,
                    marker={"color": COLORS[scheme.weighting]},
                    hovertemplate=f"{scheme.weighting}, %{{x}}: %{{y:.2f}} %<extra></extra>",
                )
                figure.add_trace(bars, row=row, col=column)
    figure.update_yaxes(rangemode="tozero", minallowed=0, ticksuffix=" %")
    figure.update_layout(barmode="group")
    return figure


EXPERIMENT = Experiment(
    'Rawat et al. (2021), "Disentangling sampling and labeling bias", Figures 2, 8, 9 and 10.',
    Options,
    run,
)
