"""Experts: several heads on one trunk, each with a margin of its own, whose logits are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.losses.softmax import MarginCrossEntropy
from longtail.margins import Margins

__all__ = ["ExpertsCrossEntropy"]


class ExpertsCrossEntropy(nn.Module):
    """The mean of margin losses, one per expert, each on its own expert's logits.

    Formula:
        l = (1 / E) sum_e margin_cross_entropy(f_e, y, Delta_e)

    Args:
        margins: of each expert; None is no margin.

    >>> from longtail import ClassPrior, margins
    >>> prior = ClassPrior.from_counts([90, 10])
    >>> loss = ExpertsCrossEntropy([margins.logit_adjusted(prior, tau) for tau in (0.0, 1.0, 2.0)])
    >>> loss(torch.zeros(4, 3, 2), torch.tensor([0, 0, 1, 0])).shape
    torch.Size([])

    Reference:
        Aimar et al. (2023), "Balanced product of calibrated experts for long-tailed recognition", eq. (11).
    """

    def __init__(self, margins: Sequence[Margins | None]) -> None:
        super().__init__()
        if not margins:
            raise ValueError("ExpertsCrossEntropy: margins must be of at least one expert. Got none.")
        self.losses = nn.ModuleList(MarginCrossEntropy(each) for each in margins)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, E, C], or of [N, C] for every expert, and target [N] or [N, C]."""
        if logits.ndim == 3 and logits.shape[1] != len(self.losses):
            raise ValueError(f"logits must be of {len(self.losses)} experts. Got {tuple(logits.shape)}.")
        each = logits.unbind(dim=1) if logits.ndim == 3 else [logits] * len(self.losses)
        return torch.stack([loss(f, target) for loss, f in zip(self.losses, each, strict=True)]).mean()
