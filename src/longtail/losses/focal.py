"""Softmax focal loss, with margins and class weights."""

from __future__ import annotations

import math

from torch import Tensor

from longtail._core.numerics import focus, loss_dtype, widen
from longtail.losses._terms import MarginLoss, mean_of_counted, replace_ignored
from longtail.losses.softmax import margin_cross_entropy
from longtail.margins import Margins

__all__ = ["focal_loss", "FocalLoss"]


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    margins: Margins | None = None,
    class_weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
) -> Tensor:
    """Softmax focal loss: samples that are already right count less.

    Formula:
        l = alpha[y] * (1 - p)^gamma * -log p, where -log p is the margin cross-entropy

    Args:
        logits: [N, C].
        target: [N] class indices.
        gamma: focusing strength, >= 0.
        margins: Delta inside p; None is 0.
        class_weights: [C] alpha; None is 1. With ``effective_number`` it is the class-balanced focal loss.
        ignore_index: a target with this index has loss 0.

    Returns:
        [N] losses.

    Use when:
        Easy samples dominate the gradient.
    Avoid when:
        Calibrated probabilities or balanced error are the aim: by itself it does not correct the prior.
    Special cases:
        ``margin_cross_entropy`` at gamma = 0.

    >>> focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0).item() / 0.5
    0.6931471824645996

    Deviates:
        Lin et al. define it on independent sigmoids; for one label per sample the softmax form is usual.

    Reference:
        Lin et al. (2017), "Focal loss for dense object detection", eq. (4).
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(f"focal_loss: gamma must be at least 0 and finite. Got {gamma}.")
    cross_entropy = margin_cross_entropy(widen(logits), target, margins, ignore_index=ignore_index)
    losses = focus(cross_entropy, gamma)
    losses = (
        losses if class_weights is None else losses * class_weights.to(losses)[replace_ignored(target, ignore_index)]
    )
    return losses.to(loss_dtype(logits))


class FocalLoss(MarginLoss):
    """``focal_loss``, averaged over the samples that are not ignored.

    Args:
        gamma: focusing strength, >= 0.
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.
        ignore_index: a target with this index does not count.

    >>> FocalLoss()(torch.zeros(2, 3), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    def __init__(
        self,
        gamma: float = 2.0,
        margins: Margins | None = None,
        class_weights: Tensor | None = None,
        *,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(margins, class_weights)
        self.gamma = gamma
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = focal_loss(
            logits, target, self.gamma, self.margins, self.class_weights, ignore_index=self.ignore_index
        )
        return mean_of_counted(losses, target, self.ignore_index)
