"""What predictions say about single samples: whether they are right, and how sure they are. Checked, not averaged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.numerics import widen

__all__ = [
    "take_counted",
    "find_hits",
    "rate_confidence",
    "find_bins",
    "find_missing",
    "check_not_nan",
    "check_groups",
    "is_integer",
    "check_indices",
    "check_k",
    "check_positive",
]


def take_counted(
    predictions: Tensor, target: Tensor, num_classes: int | None, ignore_index: int
) -> tuple[Tensor, Tensor, int]:
    """Predictions and targets that are not ignored, well formed, and C."""
    predictions, target = as_tensor(predictions), as_tensor(target)
    is_logits = predictions.ndim == 2 and predictions.is_floating_point()
    if not (is_logits or (predictions.ndim == 1 and is_integer(predictions))):
        raise ValueError(
            "predictions must be floating-point logits [N, C] or integer class indices [N]. "
            f"Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if num_classes is None:
        if not is_logits:
            raise ValueError("num_classes must be given where predictions are class indices. Got None.")
        num_classes = predictions.shape[1]
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
    if is_logits:
        check_not_nan(predictions)
    else:
        check_indices("predictions", predictions, num_classes)
    return predictions, target, num_classes


def find_hits(predictions: Tensor, target: Tensor, k: int = 1) -> Tensor:
    """[N] whether the target is predicted: by index [N], or by one of the k largest logits [N, C].

    Equal logits rank by class index, smaller first. ``topk`` would leave their order open.
    """
    if predictions.ndim == 1:
        if k > 1:
            raise ValueError(f"k={k} needs logits [N, C]. Got predicted indices {tuple(predictions.shape)}.")
        return predictions == target
    if k == 1:
        return predictions.max(dim=1).indices == target
    at_target = predictions.gather(1, target[:, None])
    comes_first = torch.arange(predictions.shape[1], device=predictions.device) < target[:, None]
    is_ahead = (predictions > at_target) | ((predictions == at_target) & comes_first)
    return is_ahead.sum(dim=1) < k


def rate_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the largest softmax probability, at least float32, and [N] its class."""
    wide = widen(logits)
    top, predicted = wide.max(dim=1)
    confidence = (top - wide.logsumexp(dim=1)).exp()
    if confidence.isnan().any():
        raise ValueError(
            "the largest logit of a sample must be finite, or it has no confidence. Got infinity or NaN."
        )
    return confidence, predicted


def find_bins(confidence: Tensor, num_bins: int) -> Tensor:
    """[N] the bin of each confidence; bin b holds (b / B, (b + 1) / B], and the first one 0 as well."""
    check_positive("num_bins", num_bins)
    return ((confidence * num_bins).ceil().long() - 1).clamp(0, num_bins - 1)


def find_missing(counts: Tensor) -> Tensor:
    """Indices of the classes without samples."""
    return torch.nonzero(counts == 0).flatten()


def check_groups(groups: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    """The groups with int64 indices, once each names classes, and every one of them once."""
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
    """Whether the dtype holds whole numbers; bool does not."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_indices(name: str, indices: Tensor, num_classes: int) -> None:
    """Raise unless all indices are in 0..C - 1."""
    if indices.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(indices))
    if low < 0 or high >= num_classes:
        hint = " (or ignore_index)" if name == "target" else ""
        raise ValueError(f"{name} must be in 0..{num_classes - 1}{hint}. Got {low if low < 0 else high}.")


def check_k(k: int, num_classes: int) -> None:
    """Raise unless k of C classes can be taken."""
    if not 1 <= k <= num_classes:
        raise ValueError(f"k must be in 1..{num_classes}. Got {k}.")


def check_positive(name: str, value: int) -> None:
    """Raise unless the value is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1. Got {value}.")


def check_not_nan(logits: Tensor) -> None:
    """Raise if a logit is NaN: it would be scored as if it were a prediction."""
    # The maximum of a row is NaN if anything in it is: no [N, C] mask is needed.
    if logits.numel() and logits.amax(dim=1).isnan().any():
        raise ValueError("logits must not be NaN. Got NaN; look for a diverged model.")
