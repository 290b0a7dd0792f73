"""Precision and ranges: half precision widened, losses from gaps, rows in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "CHUNK_ELEMENTS",
    "row_chunks",
    "SOFTPLUS_THRESHOLD",
    "loss_of_gap",
    "is_half",
    "leading_gap",
    "gap_of_loss",
    "focus",
    "widen",
    "loss_dtype",
    "unit_vectors",
    "squared_distances",
    "varies",
]


CHUNK_ELEMENTS = 2**20
"""Buffer size for passes over ready scores: 4 MiB in float32, small enough to stay in cache."""


def row_chunks(num_rows: int, num_classes: int, elements: int) -> Iterator[slice]:
    """Slices of as many rows as fit ``elements``, at least one row each."""
    step = max(1, elements // max(1, num_classes))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


SOFTPLUS_THRESHOLD = 50.0
"""Above it log(1 + exp(x)) is x in every dtype; PyTorch's own 20 is for float32."""


def loss_of_gap(gap: Tensor) -> Tensor:
    """log(1 + exp(gap)), where all others together are ahead of the target by ``gap``."""
    return F.softplus(gap, threshold=SOFTPLUS_THRESHOLD)


_HALF = (torch.float16, torch.bfloat16)


def is_half(x: Tensor) -> bool:
    """Whether products of x are half precision, by their type or by autocast."""
    return x.dtype in _HALF or torch.is_autocast_enabled(x.device.type)


def leading_gap(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 1] the class of the largest logit and [N, 1] its gap, for which its cross-entropy has too few digits."""
    top = logits.argmax(dim=1, keepdim=True)
    others = logits.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return top, others - logits.gather(1, top)


def gap_of_loss(cross_entropy: Tensor) -> Tensor:
    """log(exp(ce) - 1): how far all others together are ahead of a label that does not lead."""
    positive = cross_entropy.clamp_min(torch.finfo(cross_entropy.dtype).eps)
    return positive + torch.log(-torch.expm1(-positive))


def focus(cross_entropy: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma * -log p, from -log p."""
    # The clamp keeps the derivative of x^gamma finite at x = 0 for gamma < 1.
    miss = (-torch.expm1(-cross_entropy)).clamp_min(torch.finfo(cross_entropy.dtype).tiny)
    return miss**gamma * cross_entropy


def widen(values: Tensor) -> Tensor:
    """Half precision as float32; anything else as it is."""
    return values.float() if values.dtype in _HALF else values


def loss_dtype(logits: Tensor) -> torch.dtype:
    """The dtype of the logits; float32 for half precision under autocast."""
    is_mixed = logits.dtype in _HALF and torch.is_autocast_enabled(logits.device.type)
    return torch.float32 if is_mixed else logits.dtype


_SHORTEST = 1e-6
"""Vectors shorter than this are not scaled up to length 1, or their gradient would be arbitrarily large."""


def unit_vectors(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension, in float32 or wider."""
    return F.normalize(widen(vectors), dim=-1, eps=_SHORTEST)


def squared_distances(x: Tensor, others: Tensor) -> Tensor:
    """[..., N, M] squared distances by one matrix product; exact to the precision of the largest."""
    norms = x.square().sum(dim=-1)
    other_norms = norms if others is x else others.square().sum(dim=-1)
    return (norms[..., :, None] + other_norms[..., None, :]).sub(x @ others.mT, alpha=2).clamp_min(0)


def varies(values: Tensor | None) -> bool:
    """Whether a vector has two values that are apart by more than rounding.

    >>> varies(torch.tensor([1.0, 2.0])), varies(torch.ones(3)), varies(None)
    (True, False, False)
    """
    if values is None or values.ndim != 1 or not len(values):
        return False
    low, high = torch.aminmax(values)
    return bool(high - low > 1e-6 * (1 + torch.maximum(low.abs(), high.abs())))
