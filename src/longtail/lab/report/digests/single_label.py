"""Runs with one label per sample: accuracy, confidence, margins, confusions, and what adjusting makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.numerics import row_chunks
from longtail.diagnostics import logit_margins
from longtail.lab.report.digests import base
from longtail.lab.report.digests.base import Comparison, Digest, MethodResults, adjusts_logits, split_rows
from longtail.lab.report.digests.embeddings import EmbeddingDigest, digest_embeddings
from longtail.lab.report.digests.labels import FloatArray, IntArray, Labels
from longtail.lab.runs.folder import Run
from longtail.lab.runs.statistics import Estimate, estimate
from longtail.metrics.calibration import bin_confidences, calibration_error_from_counts
from longtail.metrics.classes import (
    balanced_accuracy_from_counts,
    count_hits,
    group_accuracy_from_counts,
    per_class_accuracy_from_counts,
)
from longtail.posthoc.adjust import adjust_logits

__all__ = [
    "CALIBRATION_BINS",
    "MAIN_METRIC",
    "TAUS",
    "Confusion",
    "SingleLabelComparison",
    "SingleLabelDigest",
    "SingleLabelResults",
    "digest_run",
    "find_changed_classes",
    "find_plain",
]

Bins = tuple[Tensor, Tensor, Tensor]
"""Three [B]: samples, right ones and summed confidence in each bin of confidence."""

MAIN_METRIC = "balanced_accuracy"
BASELINE = "cross_entropy"
TAUS: FloatArray = np.linspace(0, 3, 25)
CALIBRATION_BINS = 15
MOST_SAMPLES = 5000
"""Margins that are stored of one group and run."""
MOST_CONFUSIONS = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class SingleLabelDigest(Digest):
    """A run with one label per sample. Its metrics: accuracy, balanced_accuracy, every group, calibration_error."""

    bins: Bins
    wrong: tuple[IntArray, IntArray, IntArray]
    """True class, predicted class and number of samples of every confusion that occurs."""
    margins: Mapping[str, FloatArray]
    """Score of the true label minus the best other, for test samples of each group's example."""
    group_margins: Mapping[str, FloatArray]
    """The same for test samples of the whole group."""
    tau_metrics: Mapping[str, FloatArray] | None
    """[T] balanced_accuracy and groups after adjusting by each of TAUS; None where that would adjust twice."""
    embeddings: EmbeddingDigest | None
    """None where the run kept none."""


@dataclass(frozen=True)
class Confusion:
    """Samples of one class that are taken for another."""

    true: int
    predicted: int
    samples: int
    of: int
    """Test samples of the true class, over all seeds."""

    @property
    def share(self) -> float:
        """The share of the true class's samples."""
        return self.samples / self.of


class SingleLabelResults(MethodResults[SingleLabelDigest]):
    """The runs of one method with one label per sample."""

    def class_accuracy(self) -> FloatArray:
        """[C] over the samples of all seeds; NaN for a class without test samples."""
        hits, counts = torch.from_numpy(self.hits()), torch.from_numpy(self.test_counts())
        return per_class_accuracy_from_counts(hits, counts).numpy()

    def bins(self) -> Bins:
        """Bins of confidence over all seeds."""
        return _sum_bins([run.bins for run in self.runs])

    def margins(self, group: str) -> FloatArray:
        """Logit margins of samples of the group's example, over all seeds."""
        return np.concatenate([run.margins[group] for run in self.runs])

    def group_margins(self, group: str) -> FloatArray:
        """Logit margins of the group's samples, over all seeds."""
        return np.concatenate([run.group_margins[group] for run in self.runs])

    @property
    def embeddings(self) -> tuple[EmbeddingDigest, ...]:
        """Of the runs that kept any."""
        return tuple(run.embeddings for run in self.runs if run.embeddings is not None)

    def tau_metric(self, name: str) -> list[Estimate] | None:
        """A metric at each of TAUS."""
        curves = [run.tau_metrics[name] for run in self.runs if run.tau_metrics is not None]
        return [estimate(values) for values in zip(*curves, strict=True)] if curves else None

    def worst_confusions(self) -> list[Confusion]:
        """The largest confusions. A share of few samples is less sure, so it is ranked by its lower 95% bound."""
        wrong = zip(*(run.wrong for run in self.runs), strict=True)
        true, predicted, samples = (np.concatenate(parts) for parts in wrong)
        of_class = self.test_counts()
        pairs, place = np.unique(np.stack([true, predicted]), axis=1, return_inverse=True)
        totals = np.bincount(place.ravel(), weights=samples, minlength=pairs.shape[1]).astype(np.int64)
        order = np.argsort(-_wilson_lower_bound(totals, of_class[pairs[0]]), kind="stable")[:MOST_CONFUSIONS]
        return [Confusion(*(int(v) for v in (*pairs[:, i], totals[i], of_class[pairs[0, i]]))) for i in order]


SingleLabelComparison = Comparison[SingleLabelResults]


def find_plain(comparison: SingleLabelComparison) -> SingleLabelResults | None:
    """The method whose logits the tau curve adjusts; None if no run has logits of plain cross-entropy."""
    return next((method for method in comparison.methods if method.tau_metric(MAIN_METRIC)), None)


def find_changed_classes(comparison: SingleLabelComparison, most: int = 5) -> list[int]:
    """Classes on which the best method gains most over the reference, then those on which it loses most.

    A change on few test samples is less sure, so it is weighted by the root of their number.
    """
    if comparison.reference is None:
        return []
    change = comparison.best.class_accuracy() - comparison.reference.class_accuracy()
    weighted = np.nan_to_num(change) * np.sqrt(comparison.labels.test_counts)
    order = np.argsort(-weighted, kind="stable")
    gains = [int(index) for index in order[:most] if weighted[index] > 0]
    losses = [int(index) for index in order[::-1][:most] if weighted[index] < 0]
    return gains + losses


def digest_run(run: Run, labels: Labels) -> SingleLabelDigest:
    """Reduce a run whose arrays fit together."""
    predictions = run.predictions
    scores = torch.from_numpy(predictions.scores)
    target = torch.from_numpy(predictions.labels.astype(np.int64, copy=False))
    predicted = scores.argmax(dim=1)
    margins = logit_margins(scores, target).double().numpy()
    hits, counts = count_hits(predicted, target, labels.num_classes)
    bins = _sum_bins([bin_confidences(scores[rows], target[rows], CALIBRATION_BINS) for rows in split_rows(scores)])
    # These have logits of plain cross-entropy, which still hold the training prior.
    is_plain = run.method == BASELINE or adjusts_logits(run.method)
    return SingleLabelDigest(
        **base.collect_facts(run),
        metrics={
            "accuracy": float(hits.sum() / counts.sum()),
            **_measure_groups(hits, counts, labels),
            "calibration_error": float(calibration_error_from_counts(*bins)),
            "seconds": float(run.summary["seconds"]),
        },
        hits=hits.numpy(),
        counts=counts.numpy(),
        bins=bins,
        wrong=_count_confusions(target, predicted),
        margins=_sample_values(margins, target.numpy(), {key: labels.example(key) for key in labels.groups}),
        group_margins=_sample_values(
            margins, target.numpy(), {key: group.classes for key, group in labels.groups.items()}
        ),
        tau_metrics=_measure_taus(predictions.logits, target, labels) if is_plain else None,
        embeddings=_load_embeddings(run, labels),
    )


def _sum_bins(parts: Sequence[Bins]) -> Bins:
    hits, counts, confidences = (torch.stack(values).sum(dim=0) for values in zip(*parts, strict=True))
    return hits, counts, confidences


def _measure_groups(hits: Tensor, counts: Tensor, labels: Labels) -> dict[str, float]:
    groups = {key: torch.from_numpy(group.classes) for key, group in labels.groups.items()}
    by_group = group_accuracy_from_counts(hits, counts, groups)
    return {
        MAIN_METRIC: float(balanced_accuracy_from_counts(hits, counts)),
        **{name: float(value) for name, value in by_group.items()},
    }


def _measure_taus(logits: npt.NDArray[np.float32], target: Tensor, labels: Labels) -> dict[str, FloatArray]:
    # Adjusting adds one number to each class's logit: adjusted zeros are these numbers, for every tau at once.
    zeros = np.zeros(labels.num_classes, dtype=logits.dtype)
    shifts = [adjust_logits(zeros, labels.prior, float(tau)) for tau in TAUS]
    predicted = np.empty((len(TAUS), len(logits)), dtype=np.int64)
    for rows in row_chunks(len(logits), labels.num_classes, base.CHUNK_ELEMENTS):
        for index, shift in enumerate(shifts):
            predicted[index, rows] = (logits[rows] + shift).argmax(axis=1)
    hits = (count_hits(row, target, labels.num_classes) for row in torch.from_numpy(predicted))
    curves = [_measure_groups(*counted, labels) for counted in hits]
    return {name: np.array([metrics[name] for metrics in curves]) for name in curves[0]}


def _count_confusions(target: Tensor, predicted: Tensor) -> tuple[IntArray, IntArray, IntArray]:
    is_wrong = target != predicted
    pairs = torch.stack([target[is_wrong], predicted[is_wrong]]).numpy()
    (true, wrongly), samples = np.unique(pairs, axis=1, return_counts=True)
    return true, wrongly, samples


def _wilson_lower_bound(samples: IntArray, of: IntArray) -> FloatArray:
    """The lower end of Wilson's 95% interval of a share."""
    z = 1.96
    share = samples / of
    center = share + z**2 / (2 * of)
    spread = z * np.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    bound: FloatArray = (center - spread) / (1 + z**2 / of)
    return bound


def _sample_values(values: FloatArray, target: IntArray, groups: Mapping[str, IntArray]) -> dict[str, FloatArray]:
    """Of each group that has samples, as many values as a page needs."""
    samples = {}
    for name, classes in groups.items():
        of_group = values[np.isin(target, classes)]
        if len(of_group):
            samples[name] = of_group[:: math.ceil(len(of_group) / MOST_SAMPLES)]
    return samples


def _load_embeddings(run: Run, labels: Labels) -> EmbeddingDigest | None:
    groups = {key: torch.from_numpy(group.classes) for key, group in labels.groups.items()}
    try:
        data = run.load_embeddings()
        return None if data is None else digest_embeddings(data, run.predictions.prior, groups)
    except ValueError as error:
        raise ValueError(f"{run.path}: its embeddings can't be used: {error}") from error
