"""What losses on embeddings share: checks, sums in float32, and the module around a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longtail._core.collectives import gather_samples, is_initialized
from longtail._core.numerics import widen

__all__ = [
    "EmbeddingLoss",
    "log_one_plus_sum",
    "is_partner",
    "no_autocast",
    "take_saved_width",
    "check_pairs",
    "check_embeddings",
    "check_width",
]


class EmbeddingLoss(nn.Module):
    """The mean over a batch of what ``values`` says of each sample; 0 of no samples.

    In training, the batch is that of all processes: a sample's partners may be in any of them. Averaged over
    processes, as data-parallel training does, the gradient is that of one process with the whole batch.
    """

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] one value per sample of embeddings [N, D] with classes target [N]."""
        raise NotImplementedError

    def observe(self, embeddings: Tensor, target: Tensor) -> None:
        """Keep what later batches need of the batch of all processes; most losses need nothing."""

    def forward(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with classes target [N]: a scalar."""
        if self.training and is_initialized():
            embeddings, target = gather_samples(embeddings), gather_samples(target)
        values = self.values(embeddings, target)
        if self.training:
            self.observe(embeddings.detach(), target)
        return values.sum() / max(len(values), 1)


def log_one_plus_sum(exponents: Tensor) -> Tensor:
    """log(1 + sum over the last dimension of exp(exponents)), which may be -inf."""
    if exponents.shape[-1] == 0:
        return exponents.sum(dim=-1)
    peak = exponents.detach().amax(dim=-1).clamp_min(0)
    total = torch.expm1(-peak) + (exponents - peak[..., None]).exp().sum(dim=-1)
    return peak + torch.log1p(total)


def is_partner(target: Tensor, num_anchors: int) -> Tensor:
    """[A, N] whether a sample, other than the anchor itself, is of the class of one of the first A samples."""
    itself = torch.eye(num_anchors, len(target), dtype=torch.bool, device=target.device)
    return (target[:num_anchors, None] == target) & ~itself


def no_autocast(like: Tensor) -> torch.autocast:
    """A context in which products of float32 are float32."""
    return torch.autocast(like.device.type, enabled=False)


def take_saved_width(buffer: str, module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before loading: give a buffer that has seen no embeddings yet the D of the saved one."""
    own, saved = getattr(module, buffer), state_dict.get(prefix + buffer)
    if saved is not None and own.shape[-1] != saved.shape[-1]:
        setattr(module, buffer, own.new_zeros(*own.shape[:-1], saved.shape[-1]))


def check_pairs(name: str, embeddings: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings in float32 or wider and int64 classes, which as bytes would select like a mask."""
    wide = check_embeddings(name, embeddings)
    if target.shape != embeddings.shape[:1] or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(
            f"{name}: target must be [{len(embeddings)}] class indices. Got {target.dtype} {tuple(target.shape)}."
        )
    return wide, target.long()


def check_embeddings(name: str, embeddings: Tensor) -> Tensor:
    """Embeddings in float32 or wider."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"{name}: embeddings must be floating-point [N, D]. Got {embeddings.dtype} {tuple(embeddings.shape)}."
        )
    return widen(embeddings)


def check_width(name: str, kept: Tensor, width: int) -> None:
    """Raise unless embeddings are as wide as those that are kept."""
    if kept.shape[-1] != width:
        raise ValueError(f"{name}: embeddings must be [N, {kept.shape[-1]}] as those before. Got width {width}.")
