"""Scores, labels and priors of any kind as tensors."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.numerics import widen
from longtail.prior import ClassPrior

__all__ = [
    "share_out",
    "sample_counts",
    "logit_shift",
    "log_prior",
    "target_probabilities",
    "prior_probabilities",
    "check_strength",
    "as_scores",
    "as_target",
    "as_embeddings",
    "as_class_indices",
    "check_logits",
    "warn_of_probabilities",
]


FloatArray = npt.NDArray[np.floating[Any]]


Scores = Tensor | FloatArray


Labels = Tensor | npt.NDArray[np.integer[Any]]


PriorLike = ClassPrior | Tensor | FloatArray
"""Class counts, or [C] probabilities."""


LOOKED_AT = 64
"""Rows of logits that are enough to see whether they are probabilities."""


def share_out(probs: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """[N] float64 that sum to 1: each class that occurs has its probability, divided among its samples."""
    probs = probs.to(index.device)
    sizes = torch.zeros_like(probs).index_add_(0, index, count)
    present = sizes > 0
    if not present.any():
        raise ValueError("there must be at least one labeled sample with a weight. Got none.")
    share = torch.where(present, probs, 0.0)
    return (share / share.sum() / sizes)[index] * count


def sample_counts(sample_weight: Tensor | FloatArray | None, index: Tensor) -> Tensor:
    """[N] float64, how much each sample counts; 1 where nothing is said."""
    if sample_weight is None:
        return torch.ones(len(index), dtype=torch.float64, device=index.device)
    count = as_tensor(sample_weight).to(index.device, torch.float64)
    if count.shape != index.shape or not bool((torch.isfinite(count) & (count >= 0)).all()):
        raise ValueError(f"sample_weight must be [{len(index)}] finite numbers of at least 0. Got {sample_weight!r}.")
    return count


def logit_shift(
    prior: PriorLike,
    tau: float,
    target_prior: PriorLike | None,
    num_classes: int,
    largest: float = sys.float_info.max,
) -> Tensor:
    """[C] float64, what to add to logits of up to ``largest``; -inf for a class of target probability 0."""
    log_probs = log_prior(prior, num_classes)
    wanted = target_probabilities(target_prior, num_classes)
    if check_strength(tau) == 0:
        return torch.zeros_like(log_probs)  # even for a target of 0, where 0 * -inf would be NaN
    shift = tau * (wanted.log() - log_probs)
    most = float(shift[wanted > 0].abs().max())
    if not most <= largest:
        raise ValueError(f"tau={tau:g} shifts logits by {most:g}, and their dtype ends at {largest:g}; choose less.")
    return shift


def log_prior(prior: PriorLike, num_classes: int) -> Tensor:
    """[C] float64 log pi; a class without samples is an error."""
    probs = prior_probabilities(prior, num_classes, "prior")
    if isinstance(prior, ClassPrior):
        prior.log_probs  # noqa: B018  (raises where a class has no samples)
    if not (probs > 0).all():
        raise ValueError(f"prior must be above 0 for every class. Got 0 for class {int(probs.argmin())}; drop it.")
    return probs.log()


def target_probabilities(target_prior: PriorLike | None, num_classes: int) -> Tensor:
    """[C] float64, uniform where no target is given."""
    if target_prior is None:
        return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    return prior_probabilities(target_prior, num_classes, "target_prior")


def prior_probabilities(prior: PriorLike, num_classes: int, name: str) -> Tensor:
    """[C] float64 on the CPU, checked."""
    if isinstance(prior, ClassPrior):
        probs = prior.probs
    else:
        probs = as_tensor(prior).to("cpu", torch.float64)
        if probs.ndim != 1 or not bool((probs >= 0).all()) or not math.isclose(float(probs.sum()), 1, abs_tol=1e-4):
            raise ValueError(f"{name} must be a ClassPrior or [C] probabilities that sum to 1. Got {prior!r}.")
        probs = probs / probs.sum()
    if len(probs) != num_classes:
        raise ValueError(f"{name} is for {len(probs)} classes, but logits have {num_classes}.")
    return probs


def check_strength(tau: float) -> float:
    """Tau, if it is a finite number of at least 0."""
    if not (math.isfinite(tau) and tau >= 0):
        raise ValueError(f"tau must be a finite number of at least 0. Got {tau}.")
    return float(tau)


def as_scores(logits: Scores) -> Tensor:
    """[N, C] of at least float32, checked."""
    scores = as_tensor(logits)
    if scores.ndim != 2:
        raise ValueError(f"logits must be floating-point [N, C]. Got {scores.dtype} {tuple(scores.shape)}.")
    check_logits(scores)
    return widen(scores)


def as_target(target: Labels, scores: Tensor) -> Tensor:
    """[N] int64, checked."""
    return as_class_indices(target, scores, scores.shape[1], "target")


def as_embeddings(values: Scores, name: str) -> Tensor:
    """[N, D] of at least float32, checked."""
    points = as_tensor(values)
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"{name} must be floating-point [N, D]. Got {points.dtype} {tuple(points.shape)}.")
    if not torch.isfinite(points).all():
        raise ValueError(f"{name} must be finite. Got NaN or an infinity.")
    return widen(points)


def as_class_indices(labels: Labels, points: Tensor, num_classes: int | None = None, name: str = "labels") -> Tensor:
    """[N] int64, one class index for each point, checked."""
    index = as_tensor(labels).to(points.device)
    if index.shape != points.shape[:1] or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(f"{name} must be [{len(points)}] class indices. Got {index.dtype} {tuple(index.shape)}.")
    index = index.long()
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, 0)
    if low < 0 or (num_classes is not None and high >= num_classes):
        wanted = "at least 0" if num_classes is None else f"in 0..{num_classes - 1}"
        raise ValueError(f"{name} must be {wanted}. Got {low if low < 0 else high}.")
    return index


def check_logits(logits: Tensor | FloatArray) -> None:
    """Raise unless logits are floating-point and, where a look at them does not wait for a device, finite."""
    if isinstance(logits, Tensor):
        is_floating = logits.is_floating_point()
        # Elsewhere a look at the values would wait for the device.
        can_look = logits.device.type == "cpu" and not torch.compiler.is_compiling()
        is_finite = not can_look or bool(torch.isfinite(logits).all())
    else:
        is_floating = logits.dtype.kind == "f"
        is_finite = is_floating and bool(np.isfinite(logits).all())
    if logits.ndim == 0 or not is_floating:
        advice = (
            "" if isinstance(logits, Tensor) or logits.dtype.kind != "O" else "; of a model's output pass its logits"
        )
        raise ValueError(f"logits must be floating-point [..., C]. Got {logits.dtype} {tuple(logits.shape)}{advice}.")
    if not is_finite:
        raise ValueError("logits must be finite. Got NaN or an infinity; clip probabilities before their logarithm.")


def warn_of_probabilities(logits: Tensor | FloatArray) -> None:
    """Warn where some rows, the first ones, are all distributions, which rows of logits hardly ever are."""
    if isinstance(logits, Tensor) and (logits.device.type != "cpu" or torch.compiler.is_compiling()):
        return  # a look at the values would wait for the device
    rows = as_tensor(logits.reshape(-1, logits.shape[-1])[:LOOKED_AT]).double()
    if len(rows) > 1 and bool((rows >= 0).all()) and bool(((rows.sum(dim=1) - 1).abs() < 1e-3).all()):
        warnings.warn(
            "logits look like probabilities: none is negative and every row sums to 1; pass their logarithm, with "
            "zeros clipped first.",
            UserWarning,
            stacklevel=3,
        )
