"""Table 2 and Figures 1, 3 and 4 of Menon et al. (2021), "Long-tail learning via logit adjustment".

Post-hoc rows are made from the one training of plain cross-entropy. The paper takes the best tau for the test set
("best possible"); beside it, tau is chosen here on one half of the test set and measured on the other, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.lab.reproduce.study import (
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    find_column,
    find_errors,
)
from longtail.lab.reproduce.trials import make_experiment
from longtail.lab.runs.folder import CHECKPOINT, Run, read_checkpoint
from longtail.lab.training.evaluation import score_metrics
from longtail.metrics.classes import balanced_accuracy_from_counts, count_hits
from longtail.posthoc import adjust_logits, normalize_weights

__all__ = [
    "CITED",
    "EXPERIMENT",
    "REPORTED",
    "TABLES",
    "TAUS",
    "Options",
    "build_study",
    "measure_best",
    "read_head",
    "rescore_normalized",
    "sweep_tau",
]

TAUS = tuple(round(0.05 * step, 2) for step in range(61))
"""What is tried: 0 to 3."""

REPORTED: Mapping[str, tuple[float | None, ...]] = {
    "ERM": (27.16, 61.64, 53.11, 38.66),
    "Weight normalization (tau*)": (21.50, 58.76, 49.37, 34.45),
    "Class-balanced": (25.43, 60.40, None, 35.84),
    "Adaptive": (26.65, 60.40, 52.15, 33.31),
    "Adaptive + DRW": (22.97, 57.96, None, 32.00),
    "Equalized": (26.02, 57.26, 54.02, 38.37),
    "Post-hoc adjustment (tau = 1)": (22.60, 58.24, 49.66, 33.98),
    "Post-hoc adjustment (tau*)": (19.08, 57.90, 49.56, 33.80),
    "Logit-adjusted loss": (22.33, 56.11, 48.89, 33.64),
    "Logit-adjusted + adaptive": (22.42, 55.92, 51.25, 31.56),
}
"""Table 2: balanced error in percent on the data of ``study.COLUMNS``, exponential profile."""

CITED = {
    "Class-balanced": "the paper cites Cui et al. (2019); ELM's Table 2 has the number for their focal loss",
    "Adaptive": "the paper cites Cao et al. (2019) for CIFAR",
    "Adaptive + DRW": "the paper cites Cao et al. (2019)",
}
"""Rows whose published numbers are of other papers."""

METHODS = {
    "Class-balanced": "class_balanced",
    "Adaptive": "adaptive",
    "Adaptive + DRW": "adaptive_deferred",
    "Equalized": "threshold_equalized",
    "Logit-adjusted loss": "logit_adjusted",
    "Logit-adjusted + adaptive": "logit_adjusted_adaptive",
}
"""Rows that are a training of their own -> its method."""

PLAIN = Training("cross_entropy")
ADAM = Training("cross_entropy", ("train.optimizer=adamw", "train.learning_rate=0.001", "train.nesterov=false"))


@dataclass(frozen=True)
class Options(StudyOptions):
    """How to run the experiment."""


Rescore = Callable[[float], Tensor]
"""tau -> the scores [N, C] of the test samples with it."""


def read_head(run: Run) -> tuple[Tensor, Tensor | None]:
    """[C, D] class vectors and [C] bias, if there is one, of the trained head."""
    saved, _ = read_checkpoint(run.path / CHECKPOINT)
    weights = saved["model"] if saved.get("average") is None else saved["average"]
    found = {name.rpartition("head.")[2]: value for name, value in weights.items() if "head." in name}
    return found["weight"].float(), found["bias"].float() if "bias" in found else None


def rescore_adjusted(run: Run) -> Rescore:
    """Post-hoc logit adjustment, eq. (9)."""
    logits, prior = torch.from_numpy(run.predictions.logits), run.predictions.prior
    return lambda tau: adjust_logits(logits, prior, tau)


def rescore_normalized(run: Run) -> Rescore:
    """Post-hoc weight normalization, eq. (3), without the bias: logits less the bias, over norm^tau."""
    weight, bias = read_head(run)
    logits, prior = torch.from_numpy(run.predictions.logits), run.predictions.prior
    plain: Tensor = logits if bias is None else logits - bias

    def rescore(tau: float) -> Tensor:
        scaled: Tensor = (
            plain * normalize_weights(weight, prior, tau).norm(dim=1) / weight.norm(dim=1).clamp_min(1e-12)
        )
        return scaled

    return rescore


def _measure_balanced_error(scores: Tensor, labels: Tensor) -> float:
    return 100 * (1 - float(balanced_accuracy_from_counts(*count_hits(scores, labels))))


def sweep_tau(rescore: Rescore, labels: Tensor) -> dict[float, float]:
    """Balanced error in percent at every tau."""
    return {tau: _measure_balanced_error(rescore(tau), labels) for tau in TAUS}


def _split_halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves of the test set, with half of the samples of each class."""
    order = labels.argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return torch.nonzero(rank % 2 == 0).flatten(), torch.nonzero(rank % 2 == 1).flatten()


def _find_best(errors: Mapping[float, float]) -> float:
    """The tau with the least error; of equal ones the nearest to 1."""
    return min(errors, key=lambda tau: (errors[tau], abs(tau - 1)))


def _measure_scores(scores: Tensor, run: Run) -> dict[str, float]:
    metrics = score_metrics(scores, torch.from_numpy(run.predictions.labels), run.predictions.prior)
    return find_errors(metrics)


def measure_fixed(run: Run, rescorer: Callable[[Run], Rescore], tau: float) -> dict[str, float]:
    """Errors at one tau."""
    return {**_measure_scores(rescorer(run)(tau), run), "tau": tau}


def measure_best(run: Run, rescorer: Callable[[Run], Rescore]) -> dict[str, float]:
    """Errors at the tau that is best on the test set itself, as in the paper."""
    tau = _find_best(sweep_tau(rescorer(run), torch.from_numpy(run.predictions.labels)))
    return measure_fixed(run, rescorer, tau)


def measure_chosen(run: Run, rescorer: Callable[[Run], Rescore]) -> dict[str, float]:
    """Errors where tau is chosen on one half of the test set and measured on the other; means of both ways."""
    rescore, labels = rescorer(run), torch.from_numpy(run.predictions.labels)
    found = []
    for chosen_on, measured_on in zip(halves := _split_halves(labels), reversed(halves), strict=True):
        tau = _find_best(sweep_tau(lambda tau, kept=chosen_on: rescore(tau)[kept], labels[chosen_on]))  # type: ignore[misc]
        metrics = score_metrics(rescore(tau)[measured_on], labels[measured_on], run.predictions.prior)
        found.append({**find_errors(metrics), "tau": tau})
    return {name: sum(part[name] for part in found) / len(found) for name in found[0]}


def locate_norms(run: Run) -> list[Point]:
    """Figure 1: norms of the class vectors, most frequent class first."""
    norms, counts = read_head(run)[0].norm(dim=1), run.predictions.train_counts
    order = np.argsort(-counts, kind="stable")
    return [Point("Figure 1", rank, float(norms[c])) for rank, c in enumerate(order)]


def locate_curve(run: Run, rescorer: Callable[[Run], Rescore]) -> list[Point]:
    """Figure 3: balanced error against tau."""
    errors = sweep_tau(rescorer(run), torch.from_numpy(run.predictions.labels))
    return [Point("Figure 3", tau, error) for tau, error in errors.items()]


RESCORERS = {"Post-hoc adjustment": rescore_adjusted, "Weight normalization": rescore_normalized}


def build_study(options: Options) -> Study:
    """The rows of Table 2 for the chosen data, and what the figures need besides."""
    column = find_column(options)

    def build_entry(name: str, training: Training, note: str = "", **more: Any) -> Entry:
        value = REPORTED[name][column] if column is not None and name in REPORTED else None
        reported = {} if value is None else {"balanced_error": value}
        return Entry("Table 2", name, training, reported, note or CITED.get(name, ""), **more)

    best, chosen = "tau best for the test set", "tau chosen on the other half of the test set"
    posthoc = {
        kind: [
            build_entry(
                f"{kind} (tau*)",
                PLAIN,
                best,
                measure=partial(measure_best, rescorer=rescorer),
                locate=partial(locate_curve, rescorer=rescorer),
            ),
            build_entry(f"{kind} (tau chosen)", PLAIN, chosen, measure=partial(measure_chosen, rescorer=rescorer)),
        ]
        for kind, rescorer in RESCORERS.items()
    }
    fixed = partial(measure_fixed, rescorer=rescore_adjusted, tau=1.0)
    trained = {name: build_entry(name, Training(method)) for name, method in METHODS.items()}
    entries = [
        build_entry("ERM", PLAIN, locate=locate_norms),
        *posthoc["Weight normalization"],
        *(trained[name] for name in ("Class-balanced", "Adaptive", "Adaptive + DRW", "Equalized")),
        build_entry("Post-hoc adjustment (tau = 1)", PLAIN, measure=fixed),
        *posthoc["Post-hoc adjustment"],
        *(trained[name] for name in ("Logit-adjusted loss", "Logit-adjusted + adaptive")),
        Entry("Figure 1", "ERM (Adam)", ADAM, note="AdamW at a rate of 0.001", locate=locate_norms),
        Entry(
            "Figure 1",
            "Weight normalization (Adam)",
            ADAM,
            note=best,
            measure=partial(measure_best, rescorer=rescore_normalized),
        ),
    ]
    return Study("logit-adjustment", "Long-tail learning via logit adjustment", entries, TABLES, FIGURES, NOTE)


QUANTITIES = {
    "balanced_error": "balanced error, %",
    "head_error": "head",
    "torso_error": "torso",
    "tail_error": "tail",
    "tau": "tau",
}
TABLES = (
    PaperTable("Table 2", "Table 2", QUANTITIES),
    PaperTable("Figure 1", "Figure 1, under Adam", QUANTITIES),
)
FIGURES = (
    Figure("Figure 1", "norms of the class vectors", "classes, most frequent first", "norm"),
    Figure("Figure 3", "post-hoc methods against tau", "tau", "balanced error, %"),
    Figure(
        "Figure 4",
        "errors by group",
        "",
        "error, %",
        "bars",
        note="Classes with at least 100, 20 to 99 and at most 19 training samples.",
        quantities={"head_error": "head", "torso_error": "torso", "tail_error": "tail"},
        table="Table 2",
    ),
)
NOTE = (
    "Balanced error on the test set in percent, after the last epoch. The paper's are means over 5 trials on its own "
    "long schedule. Rows with tau* have the best tau for the test set itself, as in the paper."
)


EXPERIMENT = make_experiment(
    'Menon et al. (2021), "Long-tail learning via logit adjustment", Table 2, Figures 1, 3 and 4.',
    Options,
    build_study,
)
