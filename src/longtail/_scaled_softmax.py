"""Margin cross-entropy on ready logits without a pass over [N, C] for the margin. Private; see ``losses``.

A margin on a logit is a factor on its probability: exp(negative + f) = exp(negative) * exp(f). So one softmax of the
plain logits, scaled in place, gives the loss and, up to a factor for each row, its gradient: two tensors of size
[N, C] in all, where ``F.cross_entropy`` itself allocates three.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._chunked import shift_target

SOFTPLUS_THRESHOLD = 50.0
"""Above it log(1 + exp(x)) is x in every dtype; PyTorch's own 20 is for float32."""


class ScaledSoftmaxCrossEntropy(torch.autograd.Function):
    """[N] cross-entropy of ``logits + log(factors)``, with ``target_shift[y]`` added at the target y; or its mean.

    Factors come from ``margin_factors``. Raises FloatingPointError where some target's probability is near underflow,
    and RuntimeError in forward mode and under ``torch.func``. Differentiable twice.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, factors: Tensor, target_shift: Tensor | None, take_mean: bool
    ) -> Tensor:
        index = target.unsqueeze(1)
        scaled = torch.softmax(logits, dim=1).mul_(factors)
        at_target = scaled.gather(1, index)
        _raise_near_underflow(at_target)
        # Without the target the sum keeps its precision where the target has nearly all probability.
        others = scaled.scatter_(1, index, 0.0).sum(dim=1, keepdim=True)
        gap = torch.log(others / at_target)
        if target_shift is None:
            total = at_target.add_(others)
        else:
            shift = target_shift.index_select(0, target).unsqueeze(1)
            gap.sub_(shift)
            total = torch.addcmul(others, at_target, shift.exp_())
            _raise_near_underflow(total)
        losses = loss_of_gap(gap)
        num_shares = len(target) if take_mean else 1
        norm = total.mul_(num_shares) if take_mean else total
        gradient_times_norm = scaled.scatter_(1, index, others.neg_())
        ctx.save_for_backward(logits, gradient_times_norm, norm)
        ctx.constants = (target, factors, target_shift, num_shares)
        return losses.mean() if take_mean else losses.squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor | None, ...]:
        logits, gradient_times_norm, norm = ctx.saved_tensors
        grad_losses = grad_losses.unsqueeze(-1)
        if torch.is_grad_enabled():  # create_graph=True: the gradient must itself be differentiable
            target, factors, target_shift, num_shares = ctx.constants
            grad = _logit_gradient(logits, target, factors, target_shift) * (grad_losses / num_shares)
        else:
            grad = gradient_times_norm * (grad_losses / norm)
        return grad, None, None, None, None


def loss_of_gap(gap: Tensor) -> Tensor:
    """log(1 + exp(gap)), where all others together are ahead of the target by ``gap``."""
    return F.softplus(gap, threshold=SOFTPLUS_THRESHOLD)


def margin_factors(negative: Tensor) -> Tensor:
    """[C] exp(negative), as multiples of the largest: a factor common to all classes changes no loss."""
    return torch.exp(negative - negative.amax())


def _raise_near_underflow(values: Tensor) -> None:
    """Where this passes, whatever underflows beside the values is far below working precision."""
    if not values.min().item() >= torch.finfo(values.dtype).tiny ** 0.5:
        raise FloatingPointError("the probability of a target is near underflow")


def _logit_gradient(logits: Tensor, target: Tensor, factors: Tensor, target_shift: Tensor | None) -> Tensor:
    shifted = logits + factors.log()
    if target_shift is not None:
        shifted = shift_target(shifted, target, target_shift.index_select(0, target))
    return torch.softmax(shifted, dim=1) - F.one_hot(target, logits.shape[1]).to(logits.dtype)
