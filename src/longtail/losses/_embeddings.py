"""What losses on embeddings share: checks, distances, and sums in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "squared_distances",
    "log_one_plus_sum",
    "is_partner",
    "mean_or_zero",
    "no_autocast",
    "take_saved_width",
    "check_pairs",
    "check_embeddings",
    "check_label_range",
    "check_width",
    "check_positive",
]


def squared_distances(x: Tensor, others: Tensor) -> Tensor:
    """[..., N, M] squared distances by one matrix product; exact to the precision of the largest."""
    norms = x.square().sum(dim=-1)
    other_norms = norms if others is x else others.square().sum(dim=-1)
    return (norms[..., :, None] + other_norms[..., None, :]).sub(x @ others.mT, alpha=2).clamp_min(0)


def log_one_plus_sum(exponents: Tensor) -> Tensor:
    """log(1 + sum over the last dimension of exp(exponents)), which may be -inf."""
    if exponents.shape[-1] == 0:
        return exponents.sum(dim=-1)
    peak = exponents.detach().amax(dim=-1).clamp_min(0)
    total = torch.expm1(-peak) + (exponents - peak[..., None]).exp().sum(dim=-1)
    return peak + torch.log1p(total)


def is_partner(labels: Tensor) -> Tensor:
    """[N, N] whether two different samples have the same label."""
    return (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def mean_or_zero(values: Tensor) -> Tensor:
    """The mean; 0 of no samples."""
    return values.sum() / max(len(values), 1)


def no_autocast(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, enabled=False)


def take_saved_width(buffer: str, module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before loading: give a buffer that has seen no embeddings yet the D of the saved one."""
    own, saved = getattr(module, buffer), state_dict.get(prefix + buffer)
    if saved is not None and own.shape[-1] != saved.shape[-1]:
        setattr(module, buffer, own.new_zeros(*own.shape[:-1], saved.shape[-1]))


def check_pairs(name: str, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings in float32 or wider and int64 labels, which as bytes would select like a mask."""
    wide = check_embeddings(name, embeddings)
    if labels.shape != embeddings.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name}: labels must be [{len(embeddings)}] class indices. Got {labels.dtype} {tuple(labels.shape)}."
        )
    return wide, labels.long()


def check_embeddings(name: str, embeddings: Tensor) -> Tensor:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"{name}: embeddings must be floating-point [N, D]. Got {embeddings.dtype} {tuple(embeddings.shape)}."
        )
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def check_label_range(name: str, labels: Tensor, num_classes: int) -> None:
    """On CPUs only: elsewhere a look at the values would wait for the device."""
    if labels.device.type != "cpu" or labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(f"{name}: labels must be in 0..{num_classes - 1}. Got {low if low < 0 else high}.")


def check_width(name: str, kept: Tensor, width: int) -> None:
    if kept.shape[-1] != width:
        raise ValueError(f"{name}: embeddings must be [N, {kept.shape[-1]}] as those before. Got width {width}.")


def check_positive(name: str, argument: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: {argument} must be above 0. Got {value}.")
