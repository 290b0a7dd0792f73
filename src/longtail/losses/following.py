"""Losses whose margins or weights follow training: Seesaw and the equalization loss v2.

Each keeps counts of what it has seen. ``end_step()``, which a training loop calls after each step of the optimizer,
in all processes, makes them count from then on.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import check_class_range, check_positive
from longtail._core.collectives import is_initialized
from longtail._core.numerics import loss_dtype, widen
from longtail.losses._terms import check_shapes, class_indices, make_terms

__all__ = ["EqualizationV2", "SeesawLoss", "equalization_v2", "seesaw"]

SLOPE, MIDDLE = 12.0, 0.8
"""Of the equalization loss v2: how steeply weights follow the ratio of gradients, and where they are a half."""


def seesaw(
    logits: Tensor, target: Tensor, counts: Tensor, mitigation: float = 0.8, compensation: float = 2.0
) -> Tensor:
    """Seesaw loss: rare classes are pushed down less as negatives, and more where they win wrongly.

    Formula:
        l = log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])), with
        Delta[y, y'] = mitigation * min(0, log(n[y'] / n[y])) + compensation * max(0, f[y'] - f[y])

    Args:
        logits: [N, C] f.
        target: [N] class indices.
        counts: [C] n, the samples of each class that training has seen; 0 counts as 1.
        mitigation: p; how much less a rarer class is pushed down.
        compensation: q; how much more a class is that scores above the true one.

    Returns:
        [N] losses.

    As the method ``seesaw`` it counts by itself, step by step.

    Use when:
        Class counts are not known before training, as in streams or detection.
    Avoid when:
        They are known and balanced accuracy is wanted: ``logit_adjusted`` is consistent, this is not.
    Special cases:
        Cross-entropy where both strengths are 0.

    >>> seesaw(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([9, 1]), mitigation=1.0).exp().round(decimals=4)
    tensor([1.1111])

    Deviates:
        The authors take no gradient of the compensation; here the loss is differentiated as it is written.

    Reference:
        Wang et al. (2021), "Seesaw loss for long-tailed instance segmentation", eq. (3)-(6).
    """
    wide, target = _check("seesaw", logits, target)
    logs = counts.to(wide).clamp_min(1).log()
    gaps = wide - wide.gather(1, target[:, None])
    margins = mitigation * (logs - logs[target][:, None]).clamp_max(0) + compensation * gaps.clamp_min(0)
    # The true label's own exponent is 0: it is the 1 of the formula.
    return torch.logsumexp(gaps + margins, dim=1).to(loss_dtype(logits))


def equalization_v2(logits: Tensor, target: Tensor, ratio: Tensor, alpha: float = 4.0) -> Tensor:
    """Equalization loss v2: a sigmoid per class, whose weights follow what pulls a class up and pushes it down.

    Formula:
        l = sum_c w[c] * BCE(f[c], [c = y]), w[y] = 1 + alpha (1 - g[y]), w[c] = g[c], g = sigmoid(12 (ratio - 0.8))

    Args:
        logits: [N, C] f.
        target: [N] class indices.
        ratio: [C] of the summed gradients of a class as the true one to those as another, as training has seen.
        alpha: how much more a class that is pushed down counts as the true one.

    Returns:
        [N] losses.

    As the method ``equalization_v2`` it keeps the ratio by itself, step by step.

    Use when:
        Very many classes and a sigmoid head, as in detection; class counts are not needed.
    Avoid when:
        There is one label per sample and balanced accuracy is wanted: take ``logit_adjusted``.
    Special cases:
        ``decoupled_logistic`` where every ratio is large.

    >>> equalization_v2(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([100.0, 100.0])).round(decimals=4)
    tensor([1.3863])

    Reference:
        Tan et al. (2021), "Equalization loss v2: a new gradient balance approach for long-tailed object detection",
        eq. (5)-(8).
    """
    wide, target = _check("equalization_v2", logits, target)
    is_true = target[:, None] == torch.arange(wide.shape[1], device=target.device)
    weights = _weights(ratio.to(wide), is_true, alpha)
    signed = torch.where(is_true, wide, -wide)
    return -(weights * F.logsigmoid(signed)).sum(dim=1).to(loss_dtype(logits))


class SeesawLoss(nn.Module):
    """The mean of ``seesaw`` with the counts of what training has seen.

    Args:
        num_classes: C.
        mitigation: p.
        compensation: q.

    >>> loss = SeesawLoss(2)
    >>> _ = loss(torch.zeros(3, 2), torch.tensor([0, 0, 1]))
    >>> loss.end_step()
    >>> loss.counts.tolist()
    [2.0, 1.0]
    """

    counts: Tensor
    pending: Tensor

    def __init__(self, num_classes: int, mitigation: float = 0.8, compensation: float = 2.0) -> None:
        super().__init__()
        for name, value in (("mitigation", mitigation), ("compensation", compensation)):
            if not value >= 0:
                raise ValueError(f"SeesawLoss: {name} must be at least 0. Got {value}.")
        self.mitigation, self.compensation = mitigation, compensation
        self.register_buffer("counts", torch.zeros(num_classes))
        self.register_buffer("pending", torch.zeros(num_classes))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = seesaw(logits, target, self.counts, self.mitigation, self.compensation)
        if self.training:
            ones = torch.ones_like(target, dtype=self.pending.dtype)
            self.pending.index_add_(0, class_indices(target), ones)
        return losses.mean()

    def end_step(self) -> None:
        """Count what all processes have seen since the last step."""
        self.counts += _sum_over_processes(self.pending)
        self.pending.zero_()


class EqualizationV2(nn.Module):
    """The mean of ``equalization_v2`` with the ratio of the gradients that training has seen.

    Args:
        num_classes: C.
        alpha: how much more a class that is pushed down counts as the true one.

    >>> loss = EqualizationV2(2)
    >>> _ = loss(torch.zeros(3, 2), torch.tensor([0, 0, 1]))
    >>> loss.end_step()
    >>> loss.ratio.round(decimals=2).tolist()
    [2.0, 0.5]
    """

    sums: Tensor
    pending: Tensor

    def __init__(self, num_classes: int, alpha: float = 4.0) -> None:
        super().__init__()
        check_positive(alpha, "EqualizationV2: alpha")
        self.alpha = alpha
        self.register_buffer("sums", torch.zeros(2, num_classes))
        self.register_buffer("pending", torch.zeros(2, num_classes))

    @property
    def ratio(self) -> Tensor:
        """[C] of summed gradients; 100, which weights nothing, for a class that has none yet."""
        return torch.where(self.sums[1] > 0, self.sums[0] / self.sums[1].clamp_min(1e-10), 100.0)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        ratio = self.ratio
        losses = equalization_v2(logits, target, ratio, self.alpha)
        if self.training:
            with torch.no_grad():
                is_true = class_indices(target)[:, None] == torch.arange(logits.shape[1], device=target.device)
                distance = (widen(logits.detach()).sigmoid() - is_true.to(ratio)).abs()
                gradients = distance * _weights(ratio.to(distance), is_true, self.alpha)
                up, down = (torch.where(mask, gradients, 0.0).sum(dim=0) for mask in (is_true, ~is_true))
                self.pending += torch.stack([up, down]).to(self.pending)
        return losses.mean()

    def end_step(self) -> None:
        """Add up what all processes have seen since the last step."""
        self.sums += _sum_over_processes(self.pending)
        self.pending.zero_()


def _weights(ratio: Tensor, is_true: Tensor, alpha: float) -> Tensor:
    """[N, C] weights of a class as the true one and as another."""
    other = torch.sigmoid(SLOPE * (ratio - MIDDLE))
    return torch.where(is_true, 1 + alpha * (1 - other), other)


def _sum_over_processes(values: Tensor) -> Tensor:
    total = values.clone()
    if is_initialized():
        dist.all_reduce(total)
    return total


def _check(name: str, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    check_shapes(logits, target, make_terms(None, None, ignore_index=-100, label_smoothing=0.0))
    if target.is_floating_point():
        raise TypeError(f"{name}: target must be class indices. Got probabilities.")
    check_class_range(target, logits.shape[1])
    return widen(logits), class_indices(target)
