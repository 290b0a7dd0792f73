"""OPTIMIZERS and SCHEDULES: the tables by whose names a recipe chooses how weights and learning rate move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from longtail.lab.training.models import Classifier
from longtail.lab.training.recipe import TrainRecipe

__all__ = ["OPTIMIZERS", "SCHEDULES", "climb", "learning_rate", "limit_norms", "make_optimizer"]

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


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


def make_optimizer(model: Classifier, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters that are to be trained, each part with its own weight decay.

    The learning rate of a group is that of the schedule times its ``rate_factor``, if it has one.
    """
    head = {id(parameter) for parameter in model.head.parameters()}
    parts: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_head = id(parameter) in head
            decay = recipe.head_weight_decay if is_head and recipe.head_weight_decay >= 0 else recipe.weight_decay
            if parameter.ndim < 2 and not recipe.decay_biases:
                decay = 0.0
            parts.setdefault((decay, recipe.head_rate if is_head else 1.0), []).append(parameter)
    plain = (recipe.weight_decay, 1.0)
    if len(parts) == 1 and plain in parts:
        return OPTIMIZERS[recipe.optimizer](parts[plain], recipe)
    groups = [
        {"params": parameters, "weight_decay": decay, "rate_factor": factor}
        for (decay, factor), parameters in parts.items()
    ]
    return OPTIMIZERS[recipe.optimizer](groups, recipe)


@contextmanager
def climb(model: nn.Module, radius: float) -> Iterator[None]:
    """Weights that are, in this block, ``radius`` farther up their gradient: where sharp minima show.

    Formula:
        w + radius * g / ||g||, over all weights together

    Args:
        model: with gradients; they are left as they are, and so are running statistics of batch normalization.
        radius: rho of sharpness-aware minimization. The gradient taken in the block is what the optimizer then uses.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> before = model.weight.item()
    >>> model(torch.ones(1, 1)).sum().backward()
    >>> with climb(model, 0.5):
    ...     moved = model.weight.item()
    >>> round(moved - before, 6), model.weight.item() == before
    (0.5, True)

    Reference:
        Foret et al. (2021), "Sharpness-aware minimization for efficiently improving generalization", eq. (2) and
        Algorithm 1.
    """
    moved = [(p, p.grad, p.detach().clone()) for p in model.parameters() if p.grad is not None]
    norms = [
        (m, m.momentum) for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    ]
    length = math.sqrt(sum(float(gradient.double().square().sum()) for _, gradient, _ in moved))
    with torch.no_grad():
        for parameter, gradient, _ in moved:
            parameter.add_(gradient, alpha=radius / max(length, 1e-12))
    for module, _ in norms:
        module.momentum = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, _, before in moved:
                parameter.copy_(before)
        for module, momentum in norms:
            module.momentum = momentum


@torch.no_grad()
def limit_norms(head: nn.Module, largest: float) -> None:
    """Shorten class vectors that are longer than ``largest``: MaxNorm.

    Args:
        head: a linear or cosine head, or several of them.
        largest: radius of the ball that class vectors stay in.

    >>> head = nn.Linear(2, 1)
    >>> head.weight.data.copy_(torch.tensor([[3.0, 4.0]])).tolist()
    [[3.0, 4.0]]
    >>> limit_norms(head, 1.0)
    >>> round(head.weight.norm().item(), 6)
    1.0

    Reference:
        Alshammari et al. (2022), "Long-tailed recognition via weight balancing", eq. (4).
    """
    for weight in head.parameters():
        if weight.ndim == 2:
            weight.copy_(weight.renorm(2, 0, largest))


def learning_rate(epoch: float, num_epochs: float, recipe: TrainRecipe) -> float:
    """The learning rate ``epoch`` epochs (a fraction counts) into ``num_epochs``, warm-up included.

    >>> learning_rate(0.5, 10, TrainRecipe(schedule="constant", warmup_epochs=1))
    0.05
    """
    factor = SCHEDULES[recipe.schedule](min(1.0, epoch / num_epochs), recipe)
    if epoch < recipe.warmup_epochs:
        factor *= epoch / recipe.warmup_epochs
    return recipe.learning_rate * factor
