"""How good multi-label predictions are: per class, for the rarest classes, and on average.

A class without positives has no recall: its values are NaN, averages leave it out, and ``missing_classes`` of the
modules names it. A class that is never predicted has precision 0, as scikit-learn has it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longtail._core.checks import as_tensor, check_indicator, score_matrix
from longtail._core.label_curves import label_curves
from longtail.masking import count_bins

__all__ = [
    "LabelCounts",
    "LabelScores",
    "count_labels",
    "count_exact_matches",
    "exact_match",
    "per_class_scores",
    "per_class_scores_from_counts",
    "macro_scores",
    "macro_scores_from_counts",
    "micro_scores",
    "micro_scores_from_counts",
    "average_precision",
    "binned_average_precision",
    "binned_average_precision_from_counts",
]


class LabelCounts(NamedTuple):
    """What precision, recall and F1 of each class follow from; at J numbers of places, where labels are ranked."""

    hits: Tensor
    """[C] or [J, C] int64, how often the class is predicted and true."""
    predicted: Tensor
    """[C] or [J, C] int64, how often it is predicted."""
    positives: Tensor
    """[C] int64, how often it is true."""

    def of(self, classes: Tensor) -> LabelCounts:
        """The counts of some classes."""
        return LabelCounts(*(counts[..., classes.to(counts.device)] for counts in self))


class LabelScores(NamedTuple):
    """Precision, recall and F1: [C] each for classes, or scalars on average. float64."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def count_labels(predictions: Tensor, target: Tensor) -> LabelCounts:
    """Count true positives, predictions and positives of each class.

    Args:
        predictions: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> counts = count_labels(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [0, 1]]))
    >>> [part.tolist() for part in counts]
    [[1, 1], [2, 1], [1, 2]]
    """
    is_predicted, is_positive = _as_indicators(predictions, target)
    return LabelCounts((is_predicted & is_positive).sum(dim=0), is_predicted.sum(dim=0), is_positive.sum(dim=0))


def count_exact_matches(predictions: Tensor, target: Tensor) -> Tensor:
    """How many samples have all their labels predicted, and no other: a scalar, int64.

    Args:
        predictions: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> count_exact_matches(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [1, 1]])).item()
    1
    """
    is_predicted, is_positive = _as_indicators(predictions, target)
    return (is_predicted == is_positive).all(dim=1).sum()


def exact_match(predictions: Tensor, target: Tensor) -> Tensor:
    """The share of samples that have all their labels predicted, and no other: a float64 scalar, NaN without samples.

    Args:
        predictions: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> exact_match(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [1, 1]])).item()
    0.5

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (13).
    """
    matches = count_exact_matches(predictions, target).double()
    return matches / matches.new_tensor(len(predictions))


def per_class_scores(predictions: Tensor, target: Tensor) -> LabelScores:
    """Precision, recall and F1 of each class; NaN for a class without positives, precision 0 without predictions.

    Formula:
        hits / predicted, hits / positives, 2 * hits / (predicted + positives)

    Args:
        predictions: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> scores = per_class_scores(torch.tensor([[1, 1], [1, 0]]), torch.tensor([[1, 0], [0, 0]]))
    >>> scores.precision.tolist(), scores.recall.tolist()
    ([0.5, nan], [1.0, nan])

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (9) and (11).
    """
    return per_class_scores_from_counts(count_labels(predictions, target))


def per_class_scores_from_counts(counts: LabelCounts) -> LabelScores:
    """``per_class_scores`` of what ``count_labels`` counted.

    >>> counts = LabelCounts(torch.tensor([1, 0]), torch.tensor([2, 1]), torch.tensor([1, 0]))
    >>> per_class_scores_from_counts(counts).precision.tolist()
    [0.5, nan]
    """
    return _scores(*(part.double() for part in counts))


def macro_scores(predictions: Tensor, target: Tensor) -> LabelScores:
    """The means of ``per_class_scores`` over the classes with positives; NaN if none has any.

    Args:
        predictions: [N, C] of 0 and 1.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> macro_scores(torch.tensor([[1, 1], [0, 0]]), torch.tensor([[1, 0], [1, 0]])).recall.item()
    0.5

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (10) and (12).
    """
    return macro_scores_from_counts(count_labels(predictions, target))


def macro_scores_from_counts(counts: LabelCounts) -> LabelScores:
    """``macro_scores`` of what ``count_labels`` counted; ``counts.of(prior.rarest(K))`` for the K rarest classes.

    >>> counts = LabelCounts(torch.tensor([1, 0]), torch.tensor([1, 1]), torch.tensor([2, 0]))
    >>> macro_scores_from_counts(counts).recall.item()
    0.5
    """
    return LabelScores(*(values.nanmean() for values in per_class_scores_from_counts(counts)))


def micro_scores(predictions: Tensor, target: Tensor) -> LabelScores:
    """Precision, recall and F1 of all labels of all classes together. Frequent classes decide.

    Args:
        predictions: [N, C] of 0 and 1. Those of classes without positives count: they are wrong.
        target: [N, C] of 0 and 1, or [N] class indices.

    >>> micro_scores(torch.tensor([[1, 1], [0, 0]]), torch.tensor([[1, 0], [1, 0]])).precision.item()
    0.5
    """
    return micro_scores_from_counts(count_labels(predictions, target))


def micro_scores_from_counts(counts: LabelCounts) -> LabelScores:
    """``micro_scores`` of what ``count_labels`` counted.

    >>> counts = LabelCounts(torch.tensor([1, 0]), torch.tensor([1, 1]), torch.tensor([2, 0]))
    >>> micro_scores_from_counts(counts).precision.item()
    0.5
    """
    return _scores(*(part.sum().double() for part in counts))


def average_precision(predictions: Tensor, target: Tensor) -> Tensor:
    """[C] float64, the average precision of each class from all its scores; NaN for a class without positives.

    Formula:
        sum over thresholds of (recall increase) * precision; equal scores share a threshold

    Args:
        predictions: [N, C]; any scores, the larger the surer.
        target: [N, C] of 0 and 1, or [N] class indices.

    Its ``nanmean`` is the mean average precision (mAP).

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).tolist()
    [0.8333333333333333]
    """
    predictions, target = as_tensor(predictions), as_tensor(target)
    scores = score_matrix(predictions) if len(predictions) else predictions
    is_positive = check_indicator(scores, target)
    result = torch.full((scores.shape[1],), torch.nan, dtype=torch.float64, device=scores.device)
    if len(scores) == 0:
        return result
    for columns, curve in label_curves(scores, is_positive):
        result[columns] = _area(curve.hits, curve.ranks, curve.is_cut)
    return result


def binned_average_precision(predictions: Tensor, target: Tensor, num_bins: int = 1000) -> Tensor:
    """``average_precision`` of probabilities that are known by their bin: those of a bin share a threshold.

    Args:
        predictions: [N, C] probabilities.
        target: [N, C] of 0 and 1, or [N] class indices.
        num_bins: bins of equal width on [0, 1].

    Returns:
        [C] float64; NaN for a class without positives.

    >>> binned_average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]])).tolist()
    [0.8333333333333333]
    """
    return binned_average_precision_from_counts(count_bins(predictions, target, num_bins))


def binned_average_precision_from_counts(histogram: Tensor) -> Tensor:
    """``binned_average_precision`` of the histograms [2, C, B] that ``longtail.masking.count_bins`` counted.

    >>> from longtail.masking import count_bins
    >>> histogram = count_bins(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]]), 100)
    >>> binned_average_precision_from_counts(histogram).tolist()
    [0.8333333333333333]
    """
    from_the_top = histogram.flip(-1).cumsum(dim=-1).double()
    hits, total = from_the_top[1].T, from_the_top.sum(dim=0).T
    return _area(hits, total.clamp_min(1), torch.ones_like(hits, dtype=torch.bool))


def _area(hits: Tensor, ranks: Tensor, is_cut: Tensor) -> Tensor:
    """[C] sum of precision times recall increase over the cuts; hits and ranks [M, C] count from the top."""
    # Hits at the last cut before each place; all places between cuts have the same, so increases are those of cuts.
    at_cuts = torch.where(is_cut, hits, 0.0)
    before = at_cuts.cummax(dim=0).values.roll(1, dims=0)
    before[0] = 0
    increases = torch.where(is_cut, hits - before, 0.0)
    return (increases * hits / ranks).sum(dim=0) / hits[-1]


def _scores(hits: Tensor, predicted: Tensor, positives: Tensor) -> LabelScores:
    precision = torch.where(positives > 0, hits / predicted.clamp_min(1), torch.nan)
    f1 = torch.where(positives > 0, 2 * hits / (predicted + positives), torch.nan)
    return LabelScores(precision, hits / positives, f1)


def _as_indicators(predictions: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both as [N, C] bool."""
    predictions, target = as_tensor(predictions), as_tensor(target)
    return check_indicator(predictions, predictions), check_indicator(predictions, target)
