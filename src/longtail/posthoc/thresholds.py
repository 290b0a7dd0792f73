"""A threshold for each class, chosen on samples that the model was not trained on: the tau of multi-label data.

A class is predicted where its score is at least its threshold. Any scores will do: probabilities, logits, distances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail._core.checks import check_indicator, score_matrix
from longtail._core.label_curves import LabelCurve, label_curves, pass_thresholds

__all__ = ["Thresholds", "f1_thresholds", "precision_thresholds", "apply_thresholds"]


class Thresholds(NamedTuple):
    """Thresholds, and what they reach on the samples they were chosen on."""

    values: Tensor
    """[C] in the dtype of the scores."""
    f1: Tensor
    """[C] float64, F1 reached on these samples; NaN for a class that was not decided."""
    undecided: Tensor
    """Indices of classes on which the samples have no say: without positives, or without enough of them."""


def f1_thresholds(
    scores: Any, target: Any, default: float = 0.5, min_positives: int = 1, min_f1: float = 0.0
) -> Thresholds:
    """For each class the threshold with the largest F1 on held-out samples.

    Formula:
        argmax_t 2 * TP(t) / (predicted(t) + positives), t midway between two neighboring scores

    Args:
        scores: [N, C] of samples not trained on; a tensor or what ``torch.as_tensor`` takes.
        target: [N, C] of 0 and 1, dense or SciPy sparse, or [N] class indices.
        default: threshold of classes with too few positives: 0.5 for probabilities, 0 for logits.
        min_positives: how many positives a class needs to be decided.
        min_f1: a class whose best F1 is lower gets its highest score as threshold instead. The best threshold of a
            positive that is ranked far down predicts the class nearly everywhere; 0.1 already prevents that.

    Returns:
        Thresholds. Of equally good ones, the highest.

    Use when:
        F1 of each class counts, whatever loss the scores come from; it is the strongest multi-label baseline.
    Avoid when:
        There are no samples to hold out, or most classes have next to no positives among them.
    Special cases:
        For one class, scikit-learn's ``TunedThresholdClassifierCV`` with F1, without its grid.

    >>> scores = torch.tensor([[0.9], [0.4], [0.3], [0.1]])
    >>> f1_thresholds(scores, torch.tensor([[1], [1], [0], [0]])).values
    tensor([0.3500])

    Reference:
        Yang (2001), "A study of thresholding strategies for text categorization" (SCut, and fbr for ``min_f1``); Fan
        and Lin (2007), "A study on threshold selection for multi-label classification" (SCutFBR.1).
    """
    if not 0 <= min_f1 <= 1:
        raise ValueError(f"f1_thresholds: min_f1 must be in [0, 1]. Got {min_f1}.")

    def best_cut(curve: LabelCurve, positives: Tensor) -> Tensor:
        f1 = 2 * curve.hits / (curve.ranks + positives)
        best = torch.where(curve.is_cut, f1, -1.0).max(dim=0)
        first = curve.is_cut.to(torch.uint8).argmax(dim=0)  # behind the highest score, and all that equal it
        return torch.where(best.values < min_f1, first, best.indices)

    return _choose_thresholds(scores, target, best_cut, default, min_positives)


def precision_thresholds(
    scores: Any, target: Any, floor: float, default: float = 0.5, min_positives: int = 1
) -> Thresholds:
    """For each class the threshold with the largest recall whose precision on held-out samples reaches a floor.

    Formula:
        the smallest t with TP(t) / predicted(t) >= floor; infinite, so never predicted, where there is none

    Args:
        scores: [N, C] of samples not trained on.
        target: [N, C] of 0 and 1, dense or SciPy sparse, or [N] class indices.
        floor: in (0, 1].
        default: threshold of classes with too few positives.
        min_positives: how many positives a class needs to be decided.

    Returns:
        Thresholds.

    Use when:
        A false alarm costs, and what is predicted must be right this often.
    Avoid when:
        Classes have few positives among the samples: a precision of 1 out of 1 promises nothing.
    Special cases:
        Predicting everything, for a floor below the class's frequency.

    >>> scores = torch.tensor([[0.9], [0.4], [0.3], [0.1]])
    >>> precision_thresholds(scores, torch.tensor([[1], [0], [1], [0]]), floor=0.6).values
    tensor([0.2000])
    """
    if not 0 < floor <= 1:
        raise ValueError(f"precision_thresholds: floor must be in (0, 1]. Got {floor}.")

    def last_cut(curve: LabelCurve, positives: Tensor) -> Tensor:
        reaches = curve.is_cut & (curve.hits / curve.ranks >= floor)
        return torch.where(reaches, curve.ranks, 0.0).argmax(dim=0) - (~reaches.any(dim=0)).long()

    return _choose_thresholds(scores, target, last_cut, default, min_positives)


def apply_thresholds(scores: Any, thresholds: Any) -> Tensor:
    """[N, C] bool, where scores [N, C] are at least their class's threshold [C] (or one for all).

    >>> apply_thresholds(torch.tensor([[0.2, 0.2]]), torch.tensor([0.1, 0.3])).tolist()
    [[True, False]]
    """
    return pass_thresholds(scores, thresholds)


def _choose_thresholds(
    scores: Any,
    target: Any,
    cut_of: Callable[[LabelCurve, Tensor], Tensor],
    default: float,
    min_positives: int,
) -> Thresholds:
    """Thresholds behind the cuts, given as positions in the order of scores; -1 is before all of them."""
    if min_positives < 1:
        raise ValueError(f"min_positives must be at least 1. Got {min_positives}.")
    scores = score_matrix(scores)
    target = target.toarray() if hasattr(target, "toarray") else target  # SciPy sparse
    is_positive = check_indicator(scores, torch.as_tensor(target, device=scores.device))
    positives = is_positive.sum(dim=0).double()
    values = torch.full(positives.shape, default, dtype=scores.dtype, device=scores.device)
    f1 = torch.full_like(positives, torch.nan)
    is_decided = positives >= min_positives
    for columns, curve in label_curves(scores, is_positive):
        cut = cut_of(curve, positives[columns])
        hits = curve.hits.gather(0, cut.clamp_min(0)[None])[0] * (cut >= 0)
        decided = is_decided[columns]
        values[columns] = torch.where(decided, _behind(curve.scores, cut), values[columns])
        f1[columns] = torch.where(decided, 2 * hits / (cut + 1 + positives[columns]), torch.nan)
    return Thresholds(values, f1, torch.nonzero(~is_decided).flatten())


def _behind(ordered: Tensor, cut: Tensor) -> Tensor:
    """[C] midway between the score at the cut and the next one; the lowest score behind the last, infinity at -1."""
    upper = ordered.gather(0, cut.clamp_min(0)[None])[0]
    lower = ordered.gather(0, (cut + 1).clamp_max(len(ordered) - 1)[None])[0]
    middle = lower / 2 + upper / 2  # their difference could overflow
    # Midway can round to the lower score, which must stay out; behind the last, both are the same score.
    middle = torch.where(middle > lower, middle, upper)
    return torch.where(cut >= 0, middle, torch.inf)
