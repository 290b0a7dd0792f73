"""Methods that learn how to draw or weight samples, from a loss on a class-balanced set: BALMS and its relatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longtail._core.checks import check_positive
from longtail.heads import fresh_head
from longtail.losses.softmax import MarginCrossEntropy
from longtail.methods.plan import Learner, LearnerFactory, Phase, Plan
from longtail.methods.schedules import adjustment
from longtail.prior import ClassPrior
from longtail.sampling.meta_reweighter import MetaReweighter
from longtail.sampling.meta_sampler import MetaSampler

__all__ = ["RateLearner", "WeightLearner", "balanced_meta_softmax", "meta_reweighted"]


def balanced_meta_softmax(
    prior: ClassPrior,
    tau: float = 1.0,
    share: float = 0.5,
    rate_learning_rate: float = 0.01,
    meta_size: int = 512,
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
        sampler = MetaSampler(
            labels, prior.num_classes, meta_size=meta_size, learning_rate=rate_learning_rate, seed=seed
        )
        return RateLearner(sampler)

    return _retrain_head(MarginCrossEntropy(adjustment(prior, tau)), share, learner)


def meta_reweighted(
    prior: ClassPrior,
    tau: float = 1.0,
    share: float = 0.5,
    weight_learning_rate: float = 0.01,
    meta_size: int = 512,
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
        meta_size: samples of the class-balanced set that judges each step.

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
    loss = MarginCrossEntropy(adjustment(prior, tau), torch.ones(prior.num_classes))

    def learner(labels: Tensor, seed: int) -> Learner:
        meta_set = MetaSampler(labels, prior.num_classes, meta_size=meta_size, seed=seed)
        return WeightLearner(MetaReweighter(prior.num_classes, learning_rate=weight_learning_rate), meta_set, loss)

    return _retrain_head(loss, share, learner)


def _retrain_head(loss: nn.Module, share: float, learner: LearnerFactory) -> Plan:
    return Plan((Phase(MarginCrossEntropy()), Phase(loss, share=share, new_head=fresh_head, learner=learner)))


class RateLearner:
    """Draws batches by class rates that it learns."""

    def __init__(self, sampler: MetaSampler) -> None:
        self.sampler = sampler

    def draw_epoch(self, batch_size: int) -> tuple[Iterator[int], int]:
        """As many draws as there are samples; each batch is drawn when the step before it was learned from."""
        return self._draw_batches(batch_size), len(self.sampler)

    def draw_meta(self) -> Tensor:
        """Indices of a class-balanced set."""
        return self.sampler.draw_meta()

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
            yield from self.sampler.draw(min(batch_size, len(self.sampler) - start)).tolist()


class WeightLearner:
    """Learns the class weights of a loss; batches come as they would without it."""

    def __init__(self, reweighter: MetaReweighter, meta_set: MetaSampler, loss: MarginCrossEntropy) -> None:
        self.reweighter, self.meta_set, self.loss = reweighter, meta_set, loss
        self._write_weights()

    def draw_epoch(self, batch_size: int) -> None:
        """The phase's sampler draws."""
        return None

    def draw_meta(self) -> Tensor:
        """Indices of a class-balanced set."""
        indices = self.meta_set.draw_meta()
        self.meta_set.step += 1
        return indices

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
