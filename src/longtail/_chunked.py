"""Cross-entropy from embeddings a few rows at a time: the same values in less memory. Private; see ``losses``.

Large [N, C] tensors cost more to allocate than to compute, at least on CPUs, so ``MeanLinearCrossEntropy`` keeps one
buffer of some rows and takes gradients while it is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 2**20
"""Buffer size for passes over ready scores: 4 MiB in float32, small enough to stay in cache."""

LINEAR_CHUNK_ELEMENTS = 25 * 2**20
"""Buffer size for logits made from embeddings: 100 MiB in float32, tall enough for efficient matrix products."""

LINEAR_WHOLE_ELEMENTS = 2**24
"""Up to this size, logits made from embeddings are made all at once: 64 MiB in float32."""


def row_chunks(num_rows: int, num_classes: int, elements: int) -> Iterator[slice]:
    """Slices of as many rows as fit ``elements``, at least one row each."""
    step = max(1, elements // max(1, num_classes))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def shift_target(logits: Tensor, target: Tensor, shift: Tensor) -> Tensor:
    """Add ``shift`` [N] to the target's logit, in place; the gradient passes through unchanged."""
    return logits.scatter_add_(1, target.unsqueeze(1), shift.unsqueeze(1))


def _buffer(chunks: list[slice], num_classes: int, like: Tensor) -> Tensor:
    """Room for the largest chunk, which is the first."""
    num_rows = chunks[0].stop if chunks else 0
    return torch.empty(num_rows, num_classes, dtype=like.dtype, device=like.device)


class MeanLinearCrossEntropy(torch.autograd.Function):
    """sum_i scale[i] * CE(x[i] @ weight.T + bias, with ``shift[i]`` added at the target): a scalar.

    Because the reduction is known, each chunk's gradients are taken while its logits are at hand, so nothing is
    computed twice and nothing of size [N, C] exists. Only plain ``backward`` works, once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        target: Tensor,
        shift: Tensor,
        scale: Tensor,
        takes_gradients: bool,
    ) -> Tensor:
        needs = [takes_gradients and needed for needed in ctx.needs_input_grad]
        grad_x = torch.empty_like(x) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if needs[2] else None
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        chunks = list(row_chunks(len(x), len(weight), LINEAR_CHUNK_ELEMENTS))
        buffer = _buffer(chunks, len(weight), x)
        for rows in chunks:
            logits = torch.addmm(bias, x[rows], weight.T, out=buffer[: rows.stop - rows.start])
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
                torch.mm(grad, weight, out=grad_x[rows])
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
