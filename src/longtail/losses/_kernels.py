"""Margin cross-entropy without the cost of the margin, on ready logits and on embeddings.

A margin on a logit is a factor on its probability: exp(negative + f) = exp(negative) * exp(f). So one softmax of the
plain logits, scaled in place, gives the loss and, up to a factor for each row, its gradient: two tensors of size
[N, C] in all, where ``F.cross_entropy`` itself allocates three. From embeddings, the margin rides in the bias.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from longtail._core.numerics import loss_of_gap, row_chunks

__all__ = [
    "LINEAR_CHUNK_ELEMENTS",
    "LINEAR_WHOLE_ELEMENTS",
    "shift_target",
    "MeanLinearCrossEntropy",
    "ScaledSoftmaxCrossEntropy",
    "is_transformed",
    "margin_factors",
]


LINEAR_CHUNK_ELEMENTS = 25 * 2**20
"""Buffer size for logits made from embeddings: 100 MiB in float32, tall enough for efficient matrix products."""


LINEAR_WHOLE_ELEMENTS = 2**24
"""Up to this size, logits made from embeddings are made all at once: 64 MiB in float32."""


def shift_target(logits: Tensor, target: Tensor, shift: Tensor) -> Tensor:
    """Add ``shift`` [N] to the target's logit, in place; the gradient passes through unchanged."""
    return logits.scatter_add_(1, target.unsqueeze(1), shift.unsqueeze(1))


def _buffer(chunks: list[slice], num_classes: int, like: Tensor) -> Tensor:
    """Room for the largest chunk, which is the first."""
    num_rows = chunks[0].stop if chunks else 0
    return torch.empty(num_rows, num_classes, dtype=like.dtype, device=like.device)


class MeanLinearCrossEntropy(torch.autograd.Function):
    """sum_i scale[i] * CE(x[i] @ linear_weight.T + bias, with ``shift[i]`` added at the target): a scalar.

    Because the reduction is known, each chunk's gradients are taken while its logits are at hand, so nothing is
    computed twice and nothing of size [N, C] exists. Only plain ``backward`` works, once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        linear_weight: Tensor,
        bias: Tensor,
        target: Tensor,
        shift: Tensor,
        scale: Tensor,
        takes_gradients: bool,
    ) -> Tensor:
        needs = [takes_gradients and needed for needed in ctx.needs_input_grad]
        grad_x = torch.empty_like(x) if needs[0] else None
        grad_weight = torch.zeros_like(linear_weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if needs[2] else None
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        chunks = list(row_chunks(len(x), len(linear_weight), LINEAR_CHUNK_ELEMENTS))
        buffer = _buffer(chunks, len(linear_weight), x)
        for rows in chunks:
            logits = torch.addmm(bias, x[rows], linear_weight.T, out=buffer[: rows.stop - rows.start])
            shift_target(logits, target[rows], shift[rows])
            at_target = logits.gather(1, target[rows].unsqueeze(1)).squeeze(1)
            # All in place: with a second buffer chunks would have to be half as tall, and matrix products slower.
            largest = logits.amax(dim=1)
            unnormalized = logits.sub_(largest.unsqueeze(1)).exp_()
            norm = unnormalized.sum(dim=1)
            # An ignored row has scale 0, and its loss may be infinite: it points at class 0 whatever that scores.
            row_losses = torch.where(scale[rows] == 0, 0, norm.log() + largest - at_target)
            total += torch.dot(row_losses, scale[rows])
            if grad_x is None and grad_weight is None and grad_bias is None:
                continue
            grad = unnormalized.mul_((scale[rows] / norm).unsqueeze(1))
            shift_target(grad, target[rows], -scale[rows])
            if grad_x is not None:
                torch.mm(grad, linear_weight, out=grad_x[rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, x[rows])
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
        ctx.gradients = (grad_x, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "mean_linear_margin_cross_entropy: backward was called twice on one loss; "
                "use linear_margin_cross_entropy(...).mean() where a graph is kept."
            )
        gradients = [None if grad is None else grad.mul_(grad_total) for grad in ctx.gradients]
        ctx.gradients = None
        return (*gradients, None, None, None, None)


class ScaledSoftmaxCrossEntropy(torch.autograd.Function):
    """[N] cross-entropy of ``logits + log(factors)``, with ``target_shift[y]`` added at the target y; or its mean.

    Factors come from ``margin_factors``. Raises FloatingPointError where some target's probability is near underflow.
    Differentiable twice; not for what ``is_transformed`` finds.
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


def is_transformed(x: Tensor) -> bool:
    """Whether ``torch.func`` or forward-mode differentiation is at work, for which looks at values have no rule."""
    return torch._C._are_functorch_transforms_active() or forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


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
