"""Multi-label runs: what is predicted at a probability of 0.5, and how the probabilities are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from longtail.lab.report.digests.base import Comparison, Digest, MethodResults, collect_facts, split_rows
from longtail.lab.report.digests.labels import FloatArray, IntArray, Labels
from longtail.lab.runs.folder import Run
from longtail.lab.training.label_metrics import multilabel_metrics
from longtail.masking import count_bins
from longtail.metrics.multilabel import LabelCounts, LabelScores, count_labels, per_class_scores_from_counts

__all__ = [
    "MAIN_METRIC",
    "PROBABILITY_BINS",
    "MultilabelComparison",
    "MultilabelDigest",
    "MultilabelResults",
    "digest_run",
]

MAIN_METRIC = "f1"
PROBABILITY_BINS = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class MultilabelDigest(Digest):
    """A multi-label run. Its metrics are those of ``multilabel_metrics``; its hits, the positives it predicts."""

    predicted: IntArray
    """[C] samples for which each class is predicted."""
    histogram: IntArray
    """[2, C, PROBABILITY_BINS] probabilities of each class, of its negatives and its positives."""


class MultilabelResults(MethodResults[MultilabelDigest]):
    """The multi-label runs of one method."""

    def class_scores(self) -> LabelScores:
        """Precision, recall and F1 [C], over the samples of all seeds."""
        predicted: IntArray = np.sum([run.predicted for run in self.runs], axis=0)
        parts = (self.hits(), predicted, self.test_counts())
        return per_class_scores_from_counts(LabelCounts(*(torch.from_numpy(part) for part in parts)))

    def probabilities(self) -> IntArray:
        """[2, C, bins] histograms of probabilities, of negatives and positives, over the samples of all seeds."""
        total: IntArray = np.sum([run.histogram for run in self.runs], axis=0)
        return total

    def positive_ratios(self) -> tuple[list[int], FloatArray] | None:
        """Epochs, and [T, C] the ratios of positives to negatives that labels were masked to; None if none was."""
        rows = [row for row in self.runs[0].history if isinstance(row.get("positive_ratios"), list)]
        if not rows or any(len(row["positive_ratios"]) != len(self.test_counts()) for row in rows):
            return None
        ratios = np.array([[math.nan if r is None else float(r) for r in row["positive_ratios"]] for row in rows])
        return [int(row["epoch"]) for row in rows], ratios


MultilabelComparison = Comparison[MultilabelResults]


def digest_run(run: Run, labels: Labels) -> MultilabelDigest:
    """Reduce a run whose arrays fit together."""
    predictions = run.predictions
    scores, target = torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels)
    counts = count_labels(scores >= 0, target)
    parts = (count_bins(scores[rows].sigmoid(), target[rows], PROBABILITY_BINS) for rows in split_rows(scores))
    return MultilabelDigest(
        **collect_facts(run),
        metrics=multilabel_metrics(scores, target, predictions.prior) | {"seconds": float(run.summary["seconds"])},
        hits=counts.hits.numpy(),
        counts=counts.positives.numpy(),
        predicted=counts.predicted.numpy(),
        histogram=sum(parts, torch.tensor(0)).numpy(),
    )
