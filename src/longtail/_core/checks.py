"""Checks of what a caller hands over, with messages that say what was expected and what came."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "as_tensor",
    "one_hot",
    "check_tensor",
    "check_logits",
    "check_target_length",
    "check_class_range",
    "check_indicator",
    "check_value_range",
    "check_finite",
    "check_positive",
    "can_look_at",
    "at_least",
    "score_matrix",
]


def as_tensor(values: Any) -> Tensor:
    """Whatever NumPy can make an array of as a tensor without gradients, which shares memory where it may."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"expected numbers. Got an array of {array.dtype}; encode names as class indices first, for example with "
            "sklearn.preprocessing.LabelEncoder."
        )
    # A tensor may not share the memory of a read-only array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def one_hot(target: Tensor, like: Tensor, foreground: Tensor | None) -> Tensor:
    """[N, C] of 0 and 1 in the dtype of ``like`` [.., C]; all 0 for background samples."""
    safe = target if foreground is None else torch.where(foreground, target, 0)
    check_class_range(safe, like.shape[1])
    encoded = F.one_hot(safe.long(), like.shape[1]).to(like)
    return encoded if foreground is None else encoded * foreground[:, None]


def check_tensor(values: Any, name: str) -> None:
    """Raise unless it is a tensor, as what has gradients, and what metrics take, must be."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor. Got {type(values).__name__}; torch.as_tensor makes one.")


def check_logits(logits: Tensor) -> None:
    """Raise unless the logits are floating-point [N, C]."""
    check_tensor(logits, "logits")
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point [N, C]. Got {logits.dtype} {tuple(logits.shape)}.")


def check_target_length(num_rows: int, target: Tensor) -> None:
    """Raise unless there is one class index for each row."""
    if target.shape != (num_rows,):
        raise ValueError(f"target must be [{num_rows}] class indices. Got {tuple(target.shape)}.")


def check_class_range(
    target: Tensor, num_classes: int, ignore_index: int | None = None, name: str = "target"
) -> None:
    """Raise, where values can be looked at, unless all are classes; ``ignore_index`` is only named in the message."""
    if not can_look_at(target):
        return
    low, high = (int(value) for value in torch.aminmax(target))
    if low < 0 or high >= num_classes:
        ignored = "" if ignore_index is None else f" (or ignore_index, {ignore_index})"
        raise ValueError(f"{name} must be in 0..{num_classes - 1}{ignored}. Got {low if low < 0 else high}.")


def check_indicator(like: Tensor, target: Tensor) -> Tensor:
    """[N, C] bool from 0 and 1 or from indices, for logits, probabilities, or a vector [C] in place of them."""
    num_classes = like.shape[-1]
    if target.ndim == 1 and not target.is_floating_point() and target.dtype != torch.bool:
        if like.ndim == 2 and len(target) != len(like):
            raise ValueError(f"target must be [{len(like)}] indices or [{len(like)}, C]. Got {tuple(target.shape)}.")
        return one_hot(target, like.new_empty(0, num_classes), None).bool()
    if target.ndim != 2 or target.shape[1] != num_classes or (like.ndim == 2 and len(target) != len(like)):
        rows = len(like) if like.ndim == 2 else "N"
        raise ValueError(
            f"target must be [{rows}, {num_classes}] of 0 and 1, or [{rows}] class indices. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    is_positive = target.bool()
    if target.dtype != torch.bool and can_look_at(target):
        _check_equal(is_positive, target)
    return is_positive


def _check_equal(is_positive: Tensor, target: Tensor) -> None:
    """Raise unless the target is 0 where False and 1 where True."""
    difference = (is_positive.view(torch.uint8).to(target.dtype) - target).flatten()
    # The sum of squares is the fastest look; those of integers might wrap around.
    if torch.dot(difference, difference) != 0 if difference.is_floating_point() else difference.any():
        wrong = target[(target != 0) & (target != 1)][0]
        raise ValueError(f"target must be 0 or 1. Got {float(wrong):g}.")


def check_value_range(values: Tensor, name: str, wanted: str) -> None:
    """Raise unless all values are in [0, 1]."""
    if not can_look_at(values):
        return
    low, high = (float(value) for value in torch.aminmax(values.detach()))
    if not (low >= 0 and high <= 1):  # also if both are NaN, as aminmax has it when anything is
        raise ValueError(f"{name} must be {wanted}. Got {high if low >= 0 or low != low else low:g}.")


def check_finite(values: Tensor, name: str) -> None:
    """Raise if anything is NaN or infinite."""
    if not values.isfinite().all():
        raise ValueError(f"{name} must be finite. Got NaN or infinity; look for a diverged model.")


def check_positive(value: float, name: str) -> None:
    """Raise unless the number is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0. Got {value}.")


def can_look_at(values: Tensor) -> bool:
    """On CPUs only: elsewhere a look at the values would wait for the device. Under ``torch.func`` there is none."""
    if torch.compiler.is_compiling() or values.device.type != "cpu" or values.numel() == 0:
        return False
    return torch._C._functorch.maybe_get_level(values) < 0


def at_least(value: int, least: int, name: str) -> int:
    """The value as an int, if it is a whole number of at least ``least``."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise ValueError(f"{name} must be a whole number of at least {least}. Got {value!r}.")
    return whole


def score_matrix(scores: Any) -> Tensor:
    """[N, C] finite scores as a tensor."""
    tensor = torch.as_tensor(scores).detach()
    if tensor.ndim != 2 or not tensor.is_floating_point() or tensor.numel() == 0:
        raise ValueError(
            f"scores must be floating-point [N, C], with samples. Got {tensor.dtype} {tuple(tensor.shape)}."
        )
    check_finite(tensor, "scores")
    return tensor
