"""What the metric modules share: states that add up over batches and processes, and settings that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail._core.predictions import check_k, check_positive, find_missing
from longtail.metrics.calibration import Reliability, bin_confidences, reliability_from_counts
from longtail.metrics.classes import count_hits

__all__ = ["CountMetric", "ClassCountMetric", "ConfidenceMetric"]


class CountMetric(Metric):
    """A metric whose states are sums over samples.

    ``MetricCollection`` lets metrics share one update where their states are equal after the first batch. The state
    ``settings`` never changes: metrics that count differently are never taken for equal.
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    settings: Tensor

    def add_counts(self, shape: Sequence[int], *names: str, dtype: torch.dtype = torch.int64) -> None:
        """Add states of zeros."""
        for name in names:
            self.add_state(name, torch.zeros(tuple(shape), dtype=dtype), dist_reduce_fx="sum")

    def add_settings(self, *values: float) -> None:
        """Add the state that tells what is counted."""
        self.add_state("settings", torch.tensor(values, dtype=torch.float64), dist_reduce_fx="max")

    def synced(self) -> AbstractContextManager[None]:
        """Within it, the states are those of all processes, as they are in ``compute``."""
        return self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute)


class ClassCountMetric(CountMetric):
    """Hits and counts of each class: what all accuracies follow from, so a collection of them counts once."""

    hits: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, k: int = 1, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        check_k(k, num_classes)
        self.add_counts([num_classes], "hits", "counts")
        self.add_settings(k, ignore_index)
        self.num_classes, self.k, self.ignore_index = num_classes, k, ignore_index

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] or predicted indices [N], and targets [N]."""
        hits, counts = count_hits(predictions, target, self.num_classes, self.k, ignore_index=self.ignore_index)
        self.hits += hits
        self.counts += counts

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with self.synced():
            return find_missing(self.counts)


class ConfidenceMetric(CountMetric):
    """Hits, counts and confidences in bins of confidence; with classes, of each class."""

    higher_is_better: bool = False

    hits: Tensor
    counts: Tensor
    confidences: Tensor

    def __init__(self, num_classes: int | None, num_bins: int, ignore_index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_bins", num_bins)
        shape = [num_bins]
        if num_classes is not None:
            check_positive("num_classes", num_classes)
            shape = [num_classes, num_bins]
        self.add_counts(shape, "hits", "counts")
        self.add_counts(shape, "confidences", dtype=torch.float64)
        self.add_settings(ignore_index)
        self.num_classes, self.num_bins, self.ignore_index = num_classes, num_bins, ignore_index

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] and targets [N]."""
        by_class = self.num_classes is not None
        if by_class and logits.shape[1:] != (self.num_classes,):
            raise ValueError(f"logits must be [N, {self.num_classes}]. Got shape {tuple(logits.shape)}.")
        hits, counts, confidences = bin_confidences(
            logits, target, self.num_bins, by_class=by_class, ignore_index=self.ignore_index
        )
        self.hits += hits
        self.counts += counts
        self.confidences += confidences

    def bins(self) -> tuple[Tensor, Tensor, Tensor]:
        """Hits, counts and confidences so far, three [B]."""
        return self.hits, self.counts, self.confidences

    def reliability(self) -> Reliability:
        """The reliability diagram's rows so far. Like ``compute``, to be called by all processes."""
        with self.synced():
            return reliability_from_counts(*self.bins())
