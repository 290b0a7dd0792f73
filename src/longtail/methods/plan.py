"""Plan: what a method does, as data. Phases of training, the head they need, and what is done to the trained model.

Any training loop can follow a plan; ``longtail.lab.training`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.data import Sampler

from longtail._core.numerics import varies
from longtail.losses.following import EqualizationV2, SeesawLoss
from longtail.losses.softmax import MarginCrossEntropy
from longtail.margins import Margins
from longtail.sampling.classes import ClassBalancedSampler, InstanceSampler

__all__ = [
    "Learner",
    "Phase",
    "Plan",
    "class_balanced_sampler",
    "instance_sampler",
    "margin_plan",
    "takes_embeddings",
    "takes_label_lists",
]

SamplerFactory = Callable[[Tensor, int, int], Sampler[int]]
"""labels [N], seed, epochs of the phase -> a sampler of indices."""

HeadBuilder = Callable[[int, int], nn.Module]
"""Length of an embedding, number of classes -> a head."""


CORRECT_NOTHING = ("positive", "target_shift")
"""Terms of a loss that depend on the true class alone: they separate classes, and leave their frequencies."""


class Learner(Protocol):
    """What a phase learns beside the model: how to draw batches, or how to weight their losses.

    After each step of the head it is told how a loss on a class-balanced set, ``draw_meta``, depends on the weight of
    each sample of the batch. All indices are of the whole training set: a learner that is judged by samples held out
    of training, and the samplers of all phases of its plan, leave these out of batches by themselves.
    """

    augment_meta: bool
    """Whether samples of ``draw_meta`` are augmented as those of batches are."""

    def draw_epoch(self, batch_size: int) -> tuple[Iterator[int], int] | None:
        """Indices for an epoch, drawn batch by batch, and how many they are; None: the phase's sampler draws."""

    def draw_meta(self) -> Tensor:
        """Indices of a class-balanced set."""

    def learn(self, hyper_gradients: Tensor, target: Tensor) -> None:
        """Take in [N] d meta loss / d weight of each sample of the last batch."""

    def summary(self) -> dict[str, Any]:
        """What to write down after an epoch, as JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Where learning is."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""


LearnerFactory = Callable[[Tensor, int], Learner]
"""labels [N], seed -> a learner for one phase."""


def instance_sampler(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
    """Every sample once per epoch, in a new order."""
    return InstanceSampler(labels, seed=seed)


def class_balanced_sampler(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
    """Every class as often as every other."""
    return ClassBalancedSampler(labels, seed=seed)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one loss, one sampler, and either the whole model or a new head to train.

    A loss takes logits [N, C] and target; one with ``takes_embeddings = True`` takes embeddings [N, D], the head's
    weight [C, D], target, and the head's bias [C] or None. A loss or regularizer that has ``end_epoch()`` is called
    after each epoch, and may return what to write down of it, as JSON values; ``end_step()`` is called after each
    step of the optimizer.
    """

    loss: nn.Module
    sampler: SamplerFactory = instance_sampler
    share: float = 1.0
    """Its length as a share of the epochs that training is planned for."""
    new_head: Callable[[nn.Module], nn.Module] | None = None
    """Old head -> the head to train from here on, on a frozen encoder, with a learning-rate schedule of its own.
    None: the whole model is trained on."""
    learner: LearnerFactory | None = None
    """Learns from each step of the new head."""
    regularizer: nn.Module | None = None
    """Embeddings [N, D], target [N] -> a scalar, added to the loss times ``strength``."""
    strength: float = 0.0
    """How much the regularizer counts."""
    views: int = 1
    """How often each sample comes in a batch, one after the other, augmented anew; the first is augmented weakly."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"Phase: strength must be a finite number of at least 0. Got {self.strength}.")
        if self.learner is not None and self.new_head is None:
            raise ValueError("Phase: a learner must have a new_head to learn from. Got none.")
        if self.views < 1:
            raise ValueError(f"Phase: views must be at least 1. Got {self.views}.")
        if not (math.isfinite(self.share) and self.share > 0):
            raise ValueError(f"Phase: share must be above 0. Got {self.share}.")


@dataclass(frozen=True)
class Plan:
    """All that a method does for one prior and one choice of options.

    >>> plan = Plan((Phase(MarginCrossEntropy()),))
    >>> plan.loss(torch.zeros(2, 3), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    phases: tuple[Phase, ...]
    """What to train with, one after the other."""
    head: HeadBuilder | None = None
    """The head that the losses are meant for; None: any."""
    adjust_logits: Callable[[Tensor], Tensor] | None = None
    """Logits [N, C] of the trained model -> those to predict with."""
    adjust_head: Callable[[nn.Module], None] | None = None
    """Changes the head of the trained model in place."""
    margins: Margins | None = None
    """Margins of the loss that the method minimizes, or stands for; None: no margin loss, or no margins."""
    class_weights: Tensor | None = None
    """[C] weights of that loss; None is 1."""
    is_margin_loss: bool = False
    """Whether margins and class weights say all about it, so that ``is_consistent`` can be asked."""
    is_consistent: bool | None = None
    """Whether it is Fisher consistent for the balanced error, where margins do not say; None: not known."""

    @property
    def loss(self) -> nn.Module:
        """The loss of a plan with one phase."""
        if len(self.phases) != 1:
            raise ValueError(
                f"Plan: there is one loss only where there is one phase. Got {len(self.phases)}; each of plan.phases "
                "has its own loss, sampler and share of the epochs."
            )
        return self.phases[0].loss

    @property
    def is_posthoc(self) -> bool:
        """Whether it does something to the trained model."""
        return self.adjust_logits is not None or self.adjust_head is not None

    @property
    def corrects_prior(self) -> bool:
        """Whether it takes class frequencies out, so that adjusting the logits as well would correct twice.

        A margin of the true class alone, such as the adaptive one, separates classes and corrects nothing.
        """
        stages = [number for number, phase in enumerate(self.phases) if phase.new_head is not None]
        deciding = self.phases[stages[-1] if stages else 0 :]  # those that train the head that predicts
        of_loss = (None if self.margins is None else self.margins.negative, self.class_weights)
        return self.is_posthoc or any(map(varies, of_loss)) or any(map(_corrects, deciding))


def _corrects(phase: Phase) -> bool:
    """Whether a phase draws other class frequencies than the data's, or has a loss that tells negatives apart."""
    terms = (value for name, value in phase.loss.named_buffers() if name.rpartition(".")[2] not in CORRECT_NOTHING)
    counts = any(isinstance(part, SeesawLoss | EqualizationV2) for part in phase.loss.modules())  # while it trains
    return phase.sampler is not instance_sampler or phase.learner is not None or counts or any(map(varies, terms))


def margin_plan(margins: Margins | None = None, class_weights: Tensor | None = None) -> Plan:
    """The plan that is one margin loss from start to end."""
    phase = Phase(MarginCrossEntropy(margins, class_weights))
    return Plan((phase,), margins=margins, class_weights=class_weights, is_margin_loss=True)


def takes_embeddings(loss: nn.Module) -> bool:
    """Whether a loss takes embeddings and the head's weight in place of logits.

    >>> takes_embeddings(MarginCrossEntropy())
    False
    """
    return bool(getattr(loss, "takes_embeddings", False))


def takes_label_lists(loss: nn.Module) -> bool:
    """Whether a loss takes the labels of multi-label samples as lists [N, L], filled up with -100.

    >>> takes_label_lists(MarginCrossEntropy())
    False
    """
    return bool(getattr(loss, "takes_label_lists", False))
