"""Consistency of two views of a sample: what they predict is to agree."""

from __future__ import annotations

from torch import Tensor, nn

from longtail._core.numerics import loss_dtype, widen

__all__ = ["ConsistentViews", "view_consistency"]


def view_consistency(logits: Tensor, other_logits: Tensor) -> Tensor:
    """How far the prediction for one view of each sample is from that for another, which teaches it.

    Formula:
        Omega = sum_c p[c] (log p[c] - log q[c]), p the softmax of ``logits``, without a gradient, q of the other ones

    Args:
        logits: [N, C] of the view that teaches and gets no gradient, such as one that is only cropped and mirrored.
        other_logits: [N, C] of another view of the same samples, such as one changed by a policy.

    Returns:
        [N] values, at least 0.

    As the method ``view_consistency`` it is added, times ``strength``, to the logit-adjusted loss of both views: the
    first of them augmented weakly, the second as the recipe says.

    Use when:
        Augmentation is strong and samples of rare classes are few: each weak view teaches the strong one.
    Avoid when:
        A step may not cost twice as much.
    Special cases:
        0 where both views are the same; the logit-adjusted loss of both views at strength 0.

    >>> view_consistency(torch.zeros(1, 2), torch.zeros(1, 2)).item()
    0.0

    Deviates:
        All samples teach; the references leave out those whose weak view is wrong, or not confident.

    Reference:
        Zhao et al. (2023), "MDCS: more diverse experts with consistency self-distillation for long-tailed
        recognition", eq. (6); Sohn et al. (2020), "FixMatch", on weak and strong views.
    """
    # A teacher with a gradient becomes flat instead of teaching: its own loss decides by the prior, which these
    # logits lack.
    log_p, log_q = widen(logits.detach()).log_softmax(dim=1), widen(other_logits).log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


class ConsistentViews(nn.Module):
    """A loss of logits on two views of each sample, plus the mean of ``view_consistency``.

    Args:
        loss: takes logits and target.
        strength: how much the second view must agree with the first.

    Views of a sample follow each other: logits [2 N, C] of sample 0, 0, 1, 1, ... In evaluation, or of an odd number
    of samples, it is the loss alone.

    >>> from longtail.losses import MarginCrossEntropy
    >>> ConsistentViews(MarginCrossEntropy())(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])).exp()
    tensor(2.)
    """

    def __init__(self, loss: nn.Module, strength: float = 1.0) -> None:
        super().__init__()
        self.loss, self.strength = loss, strength

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """A scalar of logits [2 N, C] and target [2 N]."""
        loss: Tensor = self.loss(logits, target)
        if not self.training or len(logits) % 2:
            return loss
        apart = view_consistency(logits[::2], logits[1::2]).mean()
        return loss + self.strength * apart.to(loss_dtype(logits))
