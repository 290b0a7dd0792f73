"""How good predictions are where a sample may have several labels: per class, for the rarest classes, and on average.

As in ``metrics``: pure functions that count and that turn counts into values, and ``torchmetrics`` metrics that add
up over batches and processes. A class without positives has no recall: its values are NaN, averages leave it out, and
``missing_classes`` names it. A class that is never predicted has precision 0, as scikit-learn has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail._core.checks import check_indicator, score_matrix
from longtail._core.label_curves import label_curves
from longtail.masking import count_bins
from longtail.metrics._base import check_groups, check_positive, classes_without_samples, synced
from longtail.posthoc.thresholds import apply_thresholds

__all__ = [
    "LabelCounts",
    "LabelScores",
    "count_labels",
    "exact_matches",
    "per_class_scores",
    "macro_scores",
    "micro_scores",
    "average_precision",
    "binned_average_precision",
    "MultilabelScores",
    "AveragePrecision",
    "BinnedAveragePrecision",
]


class LabelCounts(NamedTuple):
    """What precision, recall and F1 of each class follow from."""

    hits: Tensor
    """[C] int64, predicted and true."""
    predicted: Tensor
    """[C] int64, predicted."""
    positives: Tensor
    """[C] int64, true."""

    def of(self, classes: Tensor) -> LabelCounts:
        """The counts of some classes."""
        return LabelCounts(*(counts[classes.to(counts.device)] for counts in self))


class LabelScores(NamedTuple):
    """Precision, recall and F1: [C] each for classes, or scalars on average. float64."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def count_labels(predicted: Tensor, target: Tensor) -> LabelCounts:
    """Count true positives, predictions and positives of each class.

    Args:
        predicted: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> counts = count_labels(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [0, 1]]))
    >>> [part.tolist() for part in counts]
    [[1, 1], [2, 1], [1, 2]]
    """
    predicted, target = _both(predicted, target)
    return LabelCounts((predicted & target).sum(dim=0), predicted.sum(dim=0), target.sum(dim=0))


def exact_matches(predicted: Tensor, target: Tensor) -> Tensor:
    """How many samples have all their labels predicted, and no other: a scalar, int64.

    Args:
        predicted: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> exact_matches(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [1, 1]])).item()
    1

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (13), as a number of samples.
    """
    predicted, target = _both(predicted, target)
    return (predicted == target).all(dim=1).sum()


def per_class_scores(counts: LabelCounts) -> LabelScores:
    """Precision, recall and F1 of each class; NaN for a class without positives, precision 0 without predictions.

    Formula:
        hits / predicted, hits / positives, 2 * hits / (predicted + positives)

    Args:
        counts: from ``count_labels``.

    >>> scores = per_class_scores(LabelCounts(torch.tensor([1, 0]), torch.tensor([2, 1]), torch.tensor([1, 0])))
    >>> scores.precision.tolist(), scores.recall.tolist()
    ([0.5, nan], [1.0, nan])

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (9) and (11).
    """
    hits, predicted, positives = (part.double() for part in counts)
    precision = torch.where(positives > 0, hits / predicted.clamp_min(1), torch.nan)
    return LabelScores(precision, hits / positives, _f1(hits, predicted, positives))


def macro_scores(counts: LabelCounts) -> LabelScores:
    """The means of ``per_class_scores`` over the classes with positives; NaN if none has any.

    Args:
        counts: from ``count_labels``; ``counts.of(prior.rarest(K))`` for the K rarest classes.

    >>> macro_scores(LabelCounts(torch.tensor([1, 0]), torch.tensor([1, 1]), torch.tensor([2, 0]))).recall.item()
    0.5

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (10) and (12).
    """
    return LabelScores(*(values.nanmean() for values in per_class_scores(counts)))


def micro_scores(counts: LabelCounts) -> LabelScores:
    """Precision, recall and F1 of all labels of all classes together. Frequent classes decide.

    Args:
        counts: from ``count_labels``. Predictions of classes without positives count: they are wrong.

    >>> micro_scores(LabelCounts(torch.tensor([1, 0]), torch.tensor([1, 1]), torch.tensor([2, 0]))).precision.item()
    0.5
    """
    hits, predicted, positives = (part.sum().double() for part in counts)
    precision = torch.where(positives > 0, hits / predicted.clamp_min(1), torch.nan)
    return LabelScores(precision, hits / positives, _f1(hits, predicted, positives))


def average_precision(scores: Tensor, target: Tensor) -> Tensor:
    """[C] float64, the average precision of each class from all its scores; NaN for a class without positives.

    Formula:
        sum over thresholds of (recall increase) * precision; equal scores share a threshold

    Args:
        scores: [N, C]; any scores, the larger the surer.
        target: [N, C] of 0 and 1, or [N] class indices.

    Its ``nanmean`` is the mean average precision (mAP).

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).tolist()
    [0.8333333333333333]
    """
    scores = score_matrix(scores)
    is_positive = check_indicator(scores, target)
    result = torch.full((scores.shape[1],), torch.nan, dtype=torch.float64, device=scores.device)
    for columns, curve in label_curves(scores, is_positive):
        result[columns] = _area(curve.hits, curve.ranks, curve.is_cut)
    return result


def binned_average_precision(histogram: Tensor) -> Tensor:
    """``average_precision`` of probabilities that are known by their bin: those of a bin share a threshold.

    Args:
        histogram: [2, C, bins] from ``longtail.masking.count_bins``.

    Returns:
        [C] float64; NaN for a class without positives.

    >>> from longtail.masking import count_bins
    >>> histogram = count_bins(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]]), num_bins=100)
    >>> binned_average_precision(histogram).tolist()
    [0.8333333333333333]
    """
    from_the_top = histogram.flip(-1).cumsum(dim=-1).double()
    hits, total = from_the_top[1].T, from_the_top.sum(dim=0).T
    return _area(hits, total.clamp_min(1), torch.ones_like(hits, dtype=torch.bool))


class MultilabelScores(Metric):
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
        A sample may have several labels, and you want to see head and tail apart.
    Avoid when:
        Scores are to be judged without a threshold: use ``AveragePrecision``.
    Equals:
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

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

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
        for name in ("hits", "predicted", "positives"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("exact", "samples"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.num_classes = num_classes
        self.threshold = threshold
        self.groups = {} if groups is None else check_groups(groups, num_classes)

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Count a batch: scores [N, C] (or predictions of 0 and 1), and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(scores, self.num_classes)
        if len(scores) == 0:
            return
        scores = scores if scores.is_floating_point() else scores.float()
        predicted = apply_thresholds(scores, self.threshold)
        counts = count_labels(predicted, target)
        self.hits += counts.hits
        self.predicted += counts.predicted
        self.positives += counts.positives
        self.exact += exact_matches(predicted, target)
        self.samples += len(scores)

    def compute(self) -> dict[str, Tensor]:
        """Averages over all classes, and over each group."""
        counts = LabelCounts(self.hits, self.predicted, self.positives)
        values = _named(macro_scores(counts), "") | _named(micro_scores(counts), "micro_")
        values["exact_match"] = self.exact.double() / self.samples.double()
        for name, classes in self.groups.items():
            values |= _named(macro_scores(counts.of(classes)), f"{name}/")
        return values

    def per_class(self) -> LabelScores:
        """[C] precision, recall and F1 so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return per_class_scores(LabelCounts(self.hits, self.predicted, self.positives))

    def missing_classes(self) -> Tensor:
        """Indices of classes without positives so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.positives)


class AveragePrecision(Metric):
    """The mean average precision over classes, exactly: it keeps all scores.

    Args:
        num_classes: C. The state grows by N * C scores.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        The test set fits memory, and the ranking of samples within each class counts.
    Avoid when:
        N * C is too large to keep: use ``BinnedAveragePrecision``.
    Equals:
        scikit-learn's ``average_precision_score`` with ``average="macro"``, over the labels with positives.

    >>> metric = AveragePrecision(num_classes=1)
    >>> metric(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).item()
    0.8333333333333333
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    scores: list[Tensor]
    targets: list[Tensor]

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")
        self.num_classes = num_classes

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Keep a batch: scores [N, C], and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(scores, self.num_classes)
        scores = score_matrix(scores)
        # gloo and nccl don't gather bool.
        self.targets.append(check_indicator(scores, target).to(torch.uint8))
        self.scores.append(scores)

    def compute(self) -> Tensor:
        """The mean average precision so far, over classes with positives: a scalar."""
        return average_precision(_joined(self.scores), _joined(self.targets)).nanmean()


class BinnedAveragePrecision(Metric):
    """The mean average precision over classes in bounded memory: probabilities are kept as histograms.

    Args:
        num_classes: C. The state is 2 * C * bins numbers.
        bins: of equal width on [0, 1]; probabilities of one bin count as equal.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        There are many classes or samples, and scores are probabilities.
    Avoid when:
        Most probabilities lie below 1 / bins, as rare labels' often do: those all count as equal.
    Equals:
        ``AveragePrecision`` of the probabilities rounded down to multiples of 1 / bins.

    >>> metric = BinnedAveragePrecision(num_classes=1)
    >>> metric(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).item()
    0.8333333333333333
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    histogram: Tensor

    def __init__(self, num_classes: int, bins: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.add_state("histogram", torch.zeros(2, num_classes, bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.num_classes = num_classes
        self.bins = bins

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Count a batch: probabilities [N, C], and targets [N, C] of 0 and 1 or [N] indices."""
        _check_width(probs, self.num_classes)
        self.histogram += count_bins(probs, target, self.bins)

    def compute(self) -> Tensor:
        """The mean average precision so far, over classes with positives: a scalar."""
        return binned_average_precision(self.histogram).nanmean()


def _area(hits: Tensor, ranks: Tensor, is_cut: Tensor) -> Tensor:
    """[C] sum of precision times recall increase over the cuts; hits and ranks [M, C] count from the top."""
    # Hits at the last cut before each place; all places between cuts have the same, so increases are those of cuts.
    at_cuts = torch.where(is_cut, hits, 0.0)
    before = at_cuts.cummax(dim=0).values.roll(1, dims=0)
    before[0] = 0
    increases = torch.where(is_cut, hits - before, 0.0)
    return (increases * hits / ranks).sum(dim=0) / hits[-1]


def _f1(hits: Tensor, predicted: Tensor, positives: Tensor) -> Tensor:
    return torch.where(positives > 0, 2 * hits / (predicted + positives), torch.nan)


def _both(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both as [N, C] bool."""
    is_predicted = check_indicator(predicted, predicted)
    return is_predicted, check_indicator(predicted, target)


def _named(scores: LabelScores, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in scores._asdict().items()}


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    """One tensor of the batches; after a sync torchmetrics has joined them already."""
    return torch.cat(parts) if isinstance(parts, list) else parts


def _check_width(scores: Tensor, num_classes: int) -> None:
    if scores.ndim != 2 or scores.shape[1] != num_classes:
        raise ValueError(f"scores must be [N, {num_classes}]. Got {tuple(scores.shape)}.")
