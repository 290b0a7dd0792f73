"""The plan of a recipe, and every epoch of it in order, with the stage that shares one learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from longtail.lab.training.mixing import seen_prior
from longtail.lab.training.recipe import Recipe
from longtail.methods import Learner, Phase, Plan, get_method
from longtail.prior import ClassPrior
from longtail.sampling import EpochSampler

__all__ = ["PlannedEpoch", "build_plan", "draw_indices", "plan_epochs"]


@dataclass(frozen=True)
class PlannedEpoch:
    """One epoch of a plan: its phase, and where it is in its stage."""

    phase: Phase
    phase_number: int
    phase_epochs: int
    stage: int
    epoch_in_stage: int
    stage_epochs: int


def build_plan(recipe: Recipe, prior: ClassPrior) -> Plan:
    """What the recipe's method does for data of this prior, as its batches show them."""
    seen = seen_prior(prior, recipe.train.mixing, recipe.train.mixing_alpha)
    return get_method(recipe.method.name).plan(seen, **recipe.method.options)


def plan_epochs(phases: Sequence[Phase], epochs: int) -> list[PlannedEpoch]:
    """Every epoch of all phases in order. A phase with a new head begins a stage.

    >>> from torch import nn
    >>> phases = Phase(nn.Identity(), share=0.8), Phase(nn.Identity(), share=0.2)
    >>> [planned.phase_number for planned in plan_epochs(phases, 5)]
    [0, 0, 0, 0, 1]
    """
    stages: list[list[tuple[int, Phase]]] = []
    for number, phase in enumerate(phases):
        if phase.new_head is not None or not stages:
            stages.append([])
        stages[-1].append((number, phase))
    plan = []
    for stage_number, stage in enumerate(stages):
        ends = _phase_ends([phase.share for _, phase in stage], epochs)
        starts = [0, *ends[:-1]]
        for (number, phase), start, end in zip(stage, starts, ends, strict=True):
            plan += [
                PlannedEpoch(phase, number, end - start, stage_number, epoch, ends[-1]) for epoch in range(start, end)
            ]
    return plan


def draw_indices(
    planned: PlannedEpoch, labels: Tensor, seed: int, learner: Learner | None, batch_size: int
) -> tuple[Iterable[int], int]:
    """What this process trains on in an epoch, in order, and how many that is."""
    drawn = None if learner is None else learner.draw_epoch(batch_size)
    if drawn is not None:
        return drawn
    sampler = planned.phase.sampler(labels, seed, planned.phase_epochs)
    if isinstance(sampler, EpochSampler):
        sampler.set_epoch(planned.epoch_in_stage)
    return sampler, len(sampler)  # type: ignore[arg-type]


def _phase_ends(shares: Sequence[float], epochs: int) -> list[int]:
    """Where each phase ends; every phase has at least one epoch."""
    whole = max(len(shares), round(sum(shares) * epochs))
    ends: list[int] = []
    for number in range(len(shares)):
        earliest = (ends[-1] if ends else 0) + 1
        latest = whole - (len(shares) - number - 1)
        ends.append(min(latest, max(earliest, round(sum(shares[: number + 1]) * epochs))))
    return ends
