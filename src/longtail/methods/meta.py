"""Methods that learn how to draw or weight samples, from a loss on a class-balanced set: BALMS and its relatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from longtail._core.checks import check_positive
from longtail.heads import fresh_head
from longtail.losses.softmax import MarginCrossEntropy
from longtail.methods.plan import Learner, LearnerFactory, Phase, Plan, instance_sampler
from longtail.methods.schedules import adjustment
from longtail.prior import ClassPrior
from longtail.sampling.held_out import SubsetSampler, hold_out_counts, hold_out_samples
from longtail.sampling.meta_reweighter import MetaReweighter
from longtail.sampling.meta_sampler import MetaSampler

__all__ = ["RateLearner", "WeightLearner", "balanced_meta_softmax", "meta_reweighted"]


def balanced_meta_softmax(
    prior: ClassPrior,
    tau: float = 1.0,
    share: float = 0.5,
    rate_learning_rate: float = 0.01,
    meta_size: int = 512,
    augment_meta: bool = True,
    meta_share: float = 0.0,
) -> Plan:
    """BALMS: features by plain training, then a head by balanced softmax, on batches whose class rates are learned.

    Formula:
        stage two: Delta[y, y'] = tau * log(pi[y'] / pi[y]), class y drawn in proportion to n[y] * rate[y]; the rates
        follow the gradient of a class-balanced loss through each step of the head

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength of the adjustment in stage two; 0 is the meta sampler with plain softmax.
        share: length of stage two, as a share of stage one. The papers' 0.1 is of long schedules; a new head on a
            short one needs more.
        rate_learning_rate: Adam's, for the rates.
        meta_size: samples of the class-balanced set that judges each step.
        augment_meta: whether these are augmented as those of batches are, if the recipe augments any.
        meta_share: share of the training samples of each class, one at least, that both stages leave out and that
            judge each step instead of the training samples; the margins are those of the samples that are left.
            0: the training samples judge.

    Use when:
        ``retrained_balanced_softmax`` sees too few rare samples, and class-balanced sampling on top of it too many.
    Avoid when:
        Stage two is a few steps: the rates need some hundred to move. It needs SGD, which takes linear steps.
    Special cases:
        ``retrained_balanced_softmax``, but drawing with replacement, as rate_learning_rate tends to 0.

    >>> [phase.learner is None for phase in balanced_meta_softmax(ClassPrior.from_counts([9, 1])).phases]
    [True, False]

    Deviates:
        See ``longtail.sampling.MetaSampler``.

    Reference:
        Ren et al. (2020), "Balanced Meta-Softmax for long-tailed visual recognition", supplement, sections B.1, C.3.
    """
    check_positive(rate_learning_rate, "balanced_meta_softmax: rate_learning_rate")

    def learner(labels: Tensor, seed: int) -> Learner:
        parts = _divide(labels, prior.num_classes, meta_share, seed)
        sampler = MetaSampler(
            labels[parts.trained],
            prior.num_classes,
            meta_labels=labels[parts.judges],
            meta_size=meta_size,
            learning_rate=rate_learning_rate,
            seed=seed,
        )
        return RateLearner(sampler, parts, augment_meta)

    loss = MarginCrossEntropy(adjustment(_count_trained(prior, meta_share), tau))
    return _retrain_head(loss, share, learner, prior.num_classes, meta_share)


def meta_reweighted(
    prior: ClassPrior,
    tau: float = 1.0,
    share: float = 0.5,
    weight_learning_rate: float = 0.01,
    meta_size: int = 512,
    augment_meta: bool = True,
    meta_share: float = 0.0,
) -> Plan:
    """Features by plain training, then a head by balanced softmax, with class weights that are learned.

    Formula:
        stage two: the mean of weight[y] * log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])),
        Delta[y, y'] = tau * log(pi[y'] / pi[y]); weights follow the gradient of a class-balanced loss through a step

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength of the adjustment in stage two; 0 is the meta reweighter with plain softmax.
        share: length of stage two, as a share of stage one.
        weight_learning_rate: Adam's, for the weights.
        meta_size: see ``balanced_meta_softmax``, also for the next two.
        augment_meta: whether what judges is augmented.
        meta_share: what is held out to judge.

    Use when:
        Samples can't be drawn by class, as in a stream, so that ``balanced_meta_softmax`` can't be used.
    Avoid when:
        They can: drawing rare samples more often has less variance than large weights on few of them.
    Special cases:
        ``retrained_balanced_softmax`` as weight_learning_rate tends to 0.

    >>> [phase.learner is None for phase in meta_reweighted(ClassPrior.from_counts([9, 1])).phases]
    [True, False]

    Deviates:
        The reference uses it for detection with sigmoids; here it weights the loss of one label per sample.

    Reference:
        Ren et al. (2020), "Balanced Meta-Softmax for long-tailed visual recognition", supplement, sections B.2, C.3.
    """
    check_positive(weight_learning_rate, "meta_reweighted: weight_learning_rate")
    margins = adjustment(_count_trained(prior, meta_share), tau)
    loss = MarginCrossEntropy(margins, torch.ones(prior.num_classes))

    def learner(labels: Tensor, seed: int) -> Learner:
        parts = _divide(labels, prior.num_classes, meta_share, seed)
        meta_set = MetaSampler(labels[parts.judges], prior.num_classes, meta_size=meta_size, seed=seed)
        reweighter = MetaReweighter(prior.num_classes, learning_rate=weight_learning_rate)
        return WeightLearner(reweighter, meta_set, loss, parts, augment_meta)

    return _retrain_head(loss, share, learner, prior.num_classes, meta_share)


class TrainingParts(NamedTuple):
    """Indices of the samples that are trained on, and of those that judge steps; all of them are both by default."""

    trained: Tensor
    judges: Tensor


def _divide(labels: Tensor, num_classes: int, meta_share: float, seed: int) -> TrainingParts:
    """The same for the same seed, whichever phase asks."""
    if meta_share == 0:
        every = torch.arange(len(labels))
        return TrainingParts(every, every)
    return TrainingParts(*hold_out_samples(labels, meta_share, num_classes, seed=seed))


def _count_trained(prior: ClassPrior, meta_share: float) -> ClassPrior:
    """The prior of the samples that are trained on."""
    counts = prior.counts - hold_out_counts(prior.counts, meta_share)
    return ClassPrior.from_counts(counts).smoothed(prior.pseudocount)


def _retrain_head(
    loss: nn.Module, share: float, learner: LearnerFactory, num_classes: int, meta_share: float
) -> Plan:
    def sample_trained(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
        return SubsetSampler(_divide(labels, num_classes, meta_share, seed).trained, seed=seed)

    sampler = instance_sampler if meta_share == 0 else sample_trained
    first = Phase(MarginCrossEntropy(), sampler)
    return Plan((first, Phase(loss, sampler, share=share, new_head=fresh_head, learner=learner)))


class RateLearner:
    """Draws batches by class rates that it learns.

    Args:
        sampler: of the samples that are trained on.
        parts: which these are, and which judge.
        augment_meta: see ``Learner``.
    """

    def __init__(self, sampler: MetaSampler, parts: TrainingParts, augment_meta: bool = True) -> None:
        self.sampler, self.parts, self.augment_meta = sampler, parts, augment_meta

    def draw_epoch(self, batch_size: int) -> tuple[Iterator[int], int]:
        """As many draws as samples are trained on; each batch is drawn when the step before it was learned from."""
        return self._draw_batches(batch_size), len(self.sampler)

    def draw_meta(self) -> Tensor:
        """Indices of a class-balanced set."""
        return self.parts.judges[self.sampler.draw_meta()]

    def learn(self, hyper_gradients: Tensor, target: Tensor) -> None:
        """Learn from the step on the last draw."""
        self.sampler.update(hyper_gradients)

    def summary(self) -> dict[str, Any]:
        """Rates, their variance, and the updates that were left out."""
        rates = self.sampler.rates
        return {
            "sample_rates": [round(value, 4) for value in rates.tolist()],
            "sample_rate_variance": float(rates.var(correction=0)),
            "skipped_updates": self.sampler.num_skipped,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where learning is."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self.sampler.load_state_dict(state)

    def _draw_batches(self, batch_size: int) -> Iterator[int]:
        for start in range(0, len(self.sampler), batch_size):
            drawn = self.sampler.draw(min(batch_size, len(self.sampler) - start))
            yield from self.parts.trained[drawn].tolist()


class WeightLearner:
    """Learns the class weights of a loss; batches come as they would without it.

    Args:
        reweighter: what learns.
        meta_set: draws from the samples that judge.
        loss: has the class weights.
        parts: which samples judge.
        augment_meta: see ``Learner``.
    """

    def __init__(
        self,
        reweighter: MetaReweighter,
        meta_set: MetaSampler,
        loss: MarginCrossEntropy,
        parts: TrainingParts,
        augment_meta: bool = True,
    ) -> None:
        self.reweighter, self.meta_set, self.loss = reweighter, meta_set, loss
        self.parts, self.augment_meta = parts, augment_meta
        self._write_weights()

    def draw_epoch(self, batch_size: int) -> None:
        """The phase's sampler draws."""
        return None

    def draw_meta(self) -> Tensor:
        """Indices of a class-balanced set."""
        chosen = self.meta_set.draw_meta()
        self.meta_set.step += 1
        return self.parts.judges[chosen]

    def learn(self, hyper_gradients: Tensor, target: Tensor) -> None:
        """Learn from the step on a batch with these classes."""
        # What comes is for losses as they were weighted; the weights are to be learned from losses before that.
        weights = self.reweighter.weights.to(hyper_gradients)[target]
        self.reweighter.update(hyper_gradients / weights, target)
        self._write_weights()

    def summary(self) -> dict[str, Any]:
        """Weights, and the updates that were left out."""
        weights = [round(value, 4) for value in self.reweighter.weights.tolist()]
        return {"class_weights": weights, "skipped_updates": self.reweighter.num_skipped}

    def state_dict(self) -> dict[str, Any]:
        """Where learning is."""
        return {"reweighter": self.reweighter.state_dict(), "meta_set": self.meta_set.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self.reweighter.load_state_dict(state["reweighter"])
        self.meta_set.load_state_dict(state["meta_set"])
        self._write_weights()

    def _write_weights(self) -> None:
        buffer = self.loss.class_weights
        assert buffer is not None
        buffer.copy_(self.reweighter.weights)
