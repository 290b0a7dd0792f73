"""Phases: the stretches of training that a method is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.data import Sampler

from longtail.sampling.classes import ClassBalancedSampler, InstanceSampler
from longtail.sampling.meta_sampler import MetaSampler

__all__ = ["Phase"]


SamplerFactory = Callable[[Tensor, int, int], Sampler[int]]
"""labels [N], seed, epochs of the phase -> a sampler of indices."""


LearningSamplerFactory = Callable[[Tensor, int], MetaSampler]
"""labels [N], seed -> a sampler that learns while the phase goes on."""


def instance_sampler(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
    """Every sample once an epoch, in a new order."""
    return InstanceSampler(labels, seed=seed)


def class_balanced_sampler(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
    """Every class as often as every other."""
    return ClassBalancedSampler(labels, seed=seed)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one loss, one sampler, and either the whole model or a new head to train."""

    loss: nn.Module
    sampler: SamplerFactory = instance_sampler
    share: float = 1.0
    """Its length as a share of the epochs that training is planned for."""
    new_head: Callable[[nn.Module], nn.Module] | None = None
    """Old head -> the head to train from here on, on a frozen encoder, with a learning-rate schedule of its own.
    None: the whole model goes on."""
    learning_sampler: LearningSamplerFactory | None = None
    """Draws the batches in place of ``sampler``, and learns from each step of the new head."""
    regularizer: nn.Module | None = None
    """Embeddings [N, D], labels [N] -> a scalar, added to the loss times ``strength``."""
    strength: float = 0.0
    """How much the regularizer counts."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"Phase: strength must be a finite number of at least 0. Got {self.strength}.")
        if self.learning_sampler is not None and self.new_head is None:
            raise ValueError("Phase: a learning_sampler must have a new_head to learn from. Got none.")
        if not (math.isfinite(self.share) and self.share > 0):
            raise ValueError(f"Phase: share must be above 0. Got {self.share}.")
