"""Multi-label metrics over batches and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import check_indicator, check_tensor, score_matrix
from longtail._core.collectives import is_initialized, largest
from longtail._core.label_curves import pass_thresholds
from longtail._core.predictions import check_groups, check_positive, find_missing
from longtail.masking import count_bins
from longtail.metrics._base import CountMetric
from longtail.metrics.multilabel import (
    LabelCounts,
    LabelScores,
    average_precision,
    binned_average_precision_from_counts,
    count_exact_matches,
    count_labels,
    macro_scores_from_counts,
    micro_scores_from_counts,
    per_class_scores_from_counts,
)

__all__ = ["MultilabelScores", "AveragePrecision", "BinnedAveragePrecision"]


class MultilabelScores(CountMetric):
    """Precision, recall, F1 and exact matches over batches and processes, on average and for groups of classes.

    Args:
        num_classes: C. The state is three vectors of this length and two numbers.
        threshold: a class is predicted where its score is at least this: a number, or [C] as ``f1_thresholds`` gives.
        groups: class indices by name, such as ``{"rarest 3": prior.rarest(3)}`` or ``prior.groups()``.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    ``compute`` gives a dictionary: "precision", "recall" and "f1" (macro averages over the classes with positives),
    "micro_precision", "micro_recall", "micro_f1", "exact_match", and for each group its macro averages as
    "name/precision", "name/recall", "name/f1".

    Use when:
        Data is multi-label, and you want to see head and tail apart.
    Avoid when:
        Scores are to be judged without a threshold: use ``AveragePrecision``.
    Special cases:
        scikit-learn's ``precision_recall_fscore_support`` with ``zero_division=0``, over the labels with positives.

    >>> metric = MultilabelScores(num_classes=3, groups={"rarest": torch.tensor([1])})
    >>> metric.update(torch.tensor([[0.9, 0.1, 0.2], [0.6, 0.7, 0.1]]), torch.tensor([[1, 0, 0], [0, 1, 0]]))
    >>> values = metric.compute()
    >>> values["precision"].item(), values["rarest/f1"].item(), values["exact_match"].item()
    (0.75, 1.0, 0.5)
    >>> metric.missing_classes().tolist()
    [2]

    Reference:
        Duarte et al., "PLM: Partial label masking", appendix A.
    """

    hits: Tensor
    predicted: Tensor
    positives: Tensor
    exact: Tensor
    samples: Tensor

    def __init__(
        self,
        num_classes: int,
        threshold: float | Tensor = 0.5,
        groups: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.add_counts([num_classes], "hits", "predicted", "positives")
        self.add_counts([], "exact", "samples")
        self.add_settings(*torch.as_tensor(threshold).flatten().tolist())
        self.num_classes = num_classes
        self.threshold = threshold
        self.groups = {} if groups is None else check_groups(groups, num_classes)

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: scores [N, C] (or predictions of 0 and 1), and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(predictions, self.num_classes)
        if len(predictions) == 0:
            return
        scores = predictions if predictions.is_floating_point() else predictions.float()
        predicted = pass_thresholds(scores, self.threshold)
        counts = count_labels(predicted, target)
        self.hits += counts.hits
        self.predicted += counts.predicted
        self.positives += counts.positives
        self.exact += count_exact_matches(predicted, target)
        self.samples += len(scores)

    def compute(self) -> dict[str, Tensor]:
        """Averages over all classes, and over each group."""
        counts = LabelCounts(self.hits, self.predicted, self.positives)
        values = _name(macro_scores_from_counts(counts), "") | _name(micro_scores_from_counts(counts), "micro_")
        values["exact_match"] = self.exact.double() / self.samples.double()
        for name, classes in self.groups.items():
            values |= _name(macro_scores_from_counts(counts.of(classes)), f"{name}/")
        return values

    def per_class(self) -> LabelScores:
        """[C] precision, recall and F1 so far. Like ``compute``, to be called by all processes."""
        with self.synced():
            return per_class_scores_from_counts(LabelCounts(self.hits, self.predicted, self.positives))

    def missing_classes(self) -> Tensor:
        """Indices of classes without positives so far. Like ``compute``, to be called by all processes."""
        with self.synced():
            return find_missing(self.positives)


class AveragePrecision(CountMetric):
    """The mean average precision over classes, exactly: it keeps all scores.

    Args:
        num_classes: C. The state grows by N * C scores, at least float32.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        The test set fits memory, and the ranking of samples within each class counts.
    Avoid when:
        N * C is too large to keep: use ``BinnedAveragePrecision``.
    Special cases:
        scikit-learn's ``average_precision_score`` with ``average="macro"``, over the labels with positives.

    >>> metric = AveragePrecision(num_classes=1)
    >>> metric(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).item()
    0.8333333333333333
    """

    scores: list[Tensor]
    target: list[Tensor]

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")
        self.num_classes = num_classes

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Keep a batch: scores [N, C], and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(predictions, self.num_classes)
        if len(predictions) == 0:
            return
        scores = score_matrix(predictions)
        # gloo and nccl don't gather bool.
        self.target.append(check_indicator(scores, target).to(torch.uint8))
        self.scores.append(scores.to(torch.promote_types(scores.dtype, torch.float32)))

    def compute(self) -> Tensor:
        """The mean average precision so far, over classes with positives: a scalar, NaN without samples."""
        scores, target = _join(self.scores), _join(self.target)
        if scores is None or target is None:
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        return average_precision(scores, target).nanmean()

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Gather the scores of all processes. One without samples sends no rows, of the others' width and dtype."""
        if should_sync and is_initialized() and isinstance(self.scores, list):
            self._align_states(process_group or self.process_group)
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def _align_states(self, group: Any) -> None:
        """One dtype in all processes, the widest, and one tensor at least."""
        is_wide = any(part.dtype == torch.float64 for part in self.scores)
        dtype = torch.float64 if largest(int(is_wide), group, self.device) else torch.float32
        rows = torch.zeros(0, self.num_classes, device=self.device)
        self.scores = [part.to(dtype) for part in self.scores] or [rows.to(dtype)]
        self.target = self.target or [rows.to(torch.uint8)]


class BinnedAveragePrecision(CountMetric):
    """The mean average precision over classes in bounded memory: probabilities are kept as histograms.

    Args:
        num_classes: C. The state is 2 * C * num_bins numbers.
        num_bins: bins of equal width on [0, 1]; probabilities of one bin count as equal.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        There are many classes or samples, and scores are probabilities.
    Avoid when:
        Most probabilities lie below 1 / num_bins, as rare labels' often do: those all count as equal.
    Special cases:
        ``AveragePrecision`` of the probabilities rounded down to multiples of 1 / num_bins.

    >>> metric = BinnedAveragePrecision(num_classes=1)
    >>> metric(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).item()
    0.8333333333333333
    """

    histogram: Tensor

    def __init__(self, num_classes: int, num_bins: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.add_counts([2, num_classes, num_bins], "histogram")
        self.num_classes, self.num_bins = num_classes, num_bins

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: probabilities [N, C], and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(predictions, self.num_classes)
        if len(predictions):
            self.histogram += count_bins(predictions, target, self.num_bins)

    def compute(self) -> Tensor:
        """The mean average precision so far, over classes with positives: a scalar."""
        return binned_average_precision_from_counts(self.histogram).nanmean()


def _name(scores: LabelScores, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in scores._asdict().items()}


def _join(parts: list[Tensor] | Tensor) -> Tensor | None:
    """One tensor of the batches, if there are any; after a sync torchmetrics has joined them already."""
    if isinstance(parts, list):
        return torch.cat(parts) if parts else None
    return parts


def _check_width(scores: Tensor, num_classes: int) -> None:
    check_tensor(scores, "scores")
    if scores.ndim != 2 or scores.shape[1] != num_classes:
        raise ValueError(f"scores must be [N, {num_classes}]. Got {tuple(scores.shape)}.")
