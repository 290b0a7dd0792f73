"""OPTIMIZERS and SCHEDULES: the tables by whose names a recipe chooses how weights and learning rate move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from longtail.lab.training.models import BagOfFeatures, Classifier
from longtail.lab.training.recipe import TrainRecipe
from longtail.negatives import RowwiseAdam, SampledLinearLoss

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "JoinedOptimizers",
    "climb",
    "learning_rate",
    "limit_norms",
    "make_optimizer",
    "make_row_sparse",
]

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


def rowwise_adam(parameters: Parameters, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Adam that moves the rows that a batch touches, of features and labels: for very many of them."""
    return adamw(parameters, recipe)  # all that ``make_row_sparse`` does not name


OPTIMIZERS: Mapping[str, Callable[[Parameters, TrainRecipe], torch.optim.Optimizer]] = MappingProxyType(
    {"sgd": sgd, "adamw": adamw, "rowwise_adam": rowwise_adam}
)
"""Name -> optimizer of these parameters."""


class JoinedOptimizers(torch.optim.Optimizer):
    """Optimizers of different parameters as one, with the groups of all of them.

    >>> one, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    >>> joined = JoinedOptimizers([torch.optim.SGD([one], lr=0.5), torch.optim.SGD([other], lr=1.0)])
    >>> (one + other).sum().backward()
    >>> joined.step()
    >>> one.item(), other.item()
    (0.5, 0.0)
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """A step of each."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of all."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def make_row_sparse(model: Classifier, loss: nn.Module) -> list[nn.Parameter]:
    """Make gradients row-sparse where the model and the loss can: then a step costs what a batch touches.

    Args:
        model: with vectors of features, those of ``bag_of_features``.
        loss: one that draws negatives, and so touches few rows of a linear head of its own.

    Returns:
        The parameters that have such gradients from now on.
    """
    found: list[nn.Parameter] = []
    if isinstance(model.encoder, BagOfFeatures):
        model.encoder.is_row_sparse = True
        found.append(model.encoder.vectors)
    is_shared = any(parameter is model.head.weight for parameter in model.encoder.parameters())
    if isinstance(loss, SampledLinearLoss) and isinstance(model.head, nn.Linear) and not is_shared:
        loss.sparse = True
        found += model.head.parameters()
    return found


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


def make_optimizer(
    model: Classifier, recipe: TrainRecipe, row_sparse: Sequence[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters that are to be trained, each part with its own weight decay.

    Parameters with row-sparse gradients get ``RowwiseAdam``.

    The learning rate of a group is that of the schedule times its ``rate_factor``, if it has one.
    """
    groups = _group_parameters(model, recipe)
    if not row_sparse:
        return _make_for(groups, recipe)
    rows = {id(parameter) for parameter in row_sparse}
    dense = [{**group, "params": [p for p in group["params"] if id(p) not in rows]} for group in groups]
    sparse = [{**group, "params": [p for p in group["params"] if id(p) in rows]} for group in groups]
    by_rows = RowwiseAdam(
        [group for group in sparse if group["params"]], lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    dense = [group for group in dense if group["params"]]
    return JoinedOptimizers([by_rows, *([_make_for(dense, recipe)] if dense else [])])


def _group_parameters(model: Classifier, recipe: TrainRecipe) -> list[dict[str, Any]]:
    """The parameters that are to be trained, by weight decay and factor on the learning rate."""
    head = {id(parameter) for parameter in model.head.parameters()}
    parts: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_head = id(parameter) in head
            decay = recipe.head_weight_decay if is_head and recipe.head_weight_decay >= 0 else recipe.weight_decay
            if parameter.ndim < 2 and not recipe.decay_biases:
                decay = 0.0
            parts.setdefault((decay, recipe.head_rate if is_head else 1.0), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "rate_factor": factor}
        for (decay, factor), parameters in parts.items()
    ]


def _make_for(groups: Sequence[dict[str, Any]], recipe: TrainRecipe) -> torch.optim.Optimizer:
    plain = {"weight_decay": recipe.weight_decay, "rate_factor": 1.0}
    is_plain = len(groups) == 1 and plain.items() <= groups[0].items()
    return OPTIMIZERS[recipe.optimizer](groups[0]["params"] if is_plain else groups, recipe)


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
