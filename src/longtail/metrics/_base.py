"""What the metrics share: checks, states and synchronization."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = [
    "counted_samples",
    "synced",
    "classes_without_samples",
    "check_groups",
    "is_integer",
    "check_indices",
    "check_top_k",
    "check_positive",
]


def counted_samples(
    predictions: Tensor, target: Tensor, num_classes: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The samples that are not ignored, once all of them are known to be well formed."""
    is_logits = predictions.ndim == 2 and predictions.is_floating_point()
    if not (is_logits or (predictions.ndim == 1 and is_integer(predictions))):
        raise ValueError(
            "predictions must be floating-point logits [N, C] or integer class indices [N]. "
            f"Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if is_logits and predictions.shape[1] != num_classes:
        raise ValueError(f"logits must be [N, {num_classes}]. Got shape {tuple(predictions.shape)}.")
    if target.shape != predictions.shape[:1] or not is_integer(target):
        raise ValueError(
            f"target must be [{len(predictions)}] integer class indices. Got {target.dtype} {tuple(target.shape)}."
        )
    target = target.long()
    is_counted = target != ignore_index
    if not is_counted.all():
        predictions, target = predictions[is_counted], target[is_counted]
    check_indices("target", target, num_classes)
    # The maximum of a row is NaN if anything in it is: no [N, C] mask is needed.
    if is_logits and predictions.amax(dim=1).isnan().any():
        raise ValueError("logits must not be NaN. Got NaN; look for a diverged model.")
    return predictions.detach(), target


def synced(metric: Metric) -> AbstractContextManager[None]:
    """Within it, the states are those of all processes, as they are in ``compute``."""
    return metric.sync_context(dist_sync_fn=metric.dist_sync_fn, should_sync=metric.sync_on_compute)


def classes_without_samples(counts: Tensor) -> Tensor:
    return torch.nonzero(counts == 0).flatten()


def check_groups(groups: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    if not groups:
        raise ValueError("groups must name at least one group of classes. Got none.")
    for name, classes in groups.items():
        if classes.ndim != 1 or not is_integer(classes):
            raise ValueError(
                f"group {name!r} must be a vector of class indices. Got {classes.dtype} {tuple(classes.shape)}."
            )
        check_indices(f"group {name!r}", classes, num_classes)
        if len(set(classes.tolist())) != len(classes):
            raise ValueError(f"group {name!r} must name every class once. Got one twice.")
    return {name: classes.long() for name, classes in groups.items()}


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_indices(name: str, indices: Tensor, num_classes: int) -> None:
    if indices.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(indices))
    if low < 0 or high >= num_classes:
        hint = " (or ignore_index)" if name == "target" else ""
        raise ValueError(f"{name} must be in 0..{num_classes - 1}{hint}. Got {low if low < 0 else high}.")


def check_top_k(top_k: int, num_classes: int) -> None:
    if not 1 <= top_k <= num_classes:
        raise ValueError(f"top_k must be in 1..{num_classes}. Got {top_k}.")


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1. Got {value}.")
