"""OPTIMIZERS and SCHEDULES: the tables by whose names a recipe chooses how weights and learning rate move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import nn

from longtail.lab.training.recipe import TrainRecipe

__all__ = ["OPTIMIZERS", "SCHEDULES", "learning_rate", "make_optimizer"]

Parameters = Iterable[nn.Parameter]


def sgd(parameters: Parameters, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(
        parameters,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )


def adamw(parameters: Parameters, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)


OPTIMIZERS: Mapping[str, Callable[[Parameters, TrainRecipe], torch.optim.Optimizer]] = MappingProxyType(
    {"sgd": sgd, "adamw": adamw}
)
"""Name -> optimizer of these parameters."""


def constant(progress: float, recipe: TrainRecipe) -> float:
    """The learning rate stays.

    >>> constant(0.7, TrainRecipe())
    1.0
    """
    return 1.0


def cosine(progress: float, recipe: TrainRecipe) -> float:
    """Half a cosine, from 1 to 0.

    >>> cosine(0.5, TrainRecipe())
    0.5
    """
    return round(0.5 * (1 + math.cos(math.pi * progress)), 12)


def multi_step(progress: float, recipe: TrainRecipe) -> float:
    """Drops by ``decay`` at each milestone.

    >>> [multi_step(p, TrainRecipe(milestones=(0.5, 0.75))) for p in (0.0, 0.5, 0.8)]
    [1.0, 0.1, 0.010000000000000002]
    """
    return recipe.decay ** sum(progress >= milestone for milestone in recipe.milestones)


def one_cycle(progress: float, recipe: TrainRecipe) -> float:
    """Rises linearly from 0.04 to 1 over the first quarter, then half a cosine to 0.

    >>> [one_cycle(p, TrainRecipe()) for p in (0.0, 0.25, 1.0)]
    [0.04, 1.0, 0.0]
    """
    if progress < 0.25:
        return 0.04 + 0.96 * progress / 0.25
    return cosine((progress - 0.25) / 0.75, recipe)


SCHEDULES: Mapping[str, Callable[[float, TrainRecipe], float]] = MappingProxyType(
    {"constant": constant, "cosine": cosine, "multi_step": multi_step, "one_cycle": one_cycle}
)
"""Name -> factor on the learning rate at a share of training in [0, 1]."""


def make_optimizer(parameters: Parameters, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters that are to be trained."""
    return OPTIMIZERS[recipe.optimizer]([p for p in parameters if p.requires_grad], recipe)


def learning_rate(epoch: float, num_epochs: float, recipe: TrainRecipe) -> float:
    """The learning rate ``epoch`` epochs (a fraction counts) into ``num_epochs``, warm-up included.

    >>> learning_rate(0.5, 10, TrainRecipe(schedule="constant", warmup_epochs=1))
    0.05
    """
    factor = SCHEDULES[recipe.schedule](min(1.0, epoch / num_epochs), recipe)
    if epoch < recipe.warmup_epochs:
        factor *= epoch / recipe.warmup_epochs
    return recipe.learning_rate * factor
