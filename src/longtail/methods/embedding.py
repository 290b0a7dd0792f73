"""Methods that regularize embeddings: ELM, and the losses it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from longtail import losses
from longtail import margins as margin_builders
from longtail import weights as weight_builders
from longtail._core.checks import at_least
from longtail._core.suggestions import look_up
from longtail.losses import MarginCrossEntropy, Pull, count_margin, probability_margin
from longtail.methods.plan import Phase, Plan
from longtail.prior import ClassPrior

__all__ = ["ELM_SETTINGS", "elm"]


def elm(
    prior: ClassPrior,
    strength: float = 0.01,
    scale: float = 1.0,
    exponent: float = 1.0,
    by_count: bool = False,
    memory_size: int = 0,
    balanced: bool = False,
    logit_margin: str = "logit_adjusted",
) -> Plan:
    """ELM: a margin on the logits, and one on the embeddings that pulls each class together, rare ones tighter.

    Formula:
        loss = log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])) + strength * Omega,
        Omega = log(1 + sum_{x+} exp(||x - x+||^2 - alpha[y])), x+ the other samples of class y in the batch

    Args:
        prior: the class counts; every class needs samples or smoothing.
        strength: lambda, how much the pull counts.
        scale: c in alpha[y] = c * pi[y]^a.
        exponent: a.
        by_count: whether alpha[y] = c * n[y]^a, from the number of samples instead of their share.
        memory_size: how many recent embeddings of each class pull beside those of the batch; 0 is the paper's method.
        balanced: whether every class counts the same in the pull, by weights 1 / (C * pi[y]); False is the paper's
            method, in which a rare class counts as little as it has samples.
        logit_margin: Delta, a name in ``longtail.margins.BUILDERS``. In Python, any ``MarginCrossEntropy`` with any
            ``losses.Pull`` in a ``Phase`` does the same.

    The paper's settings are in ``ELM_SETTINGS``: CIFAR-10-LT strength 0.01, alpha = pi; CIFAR-100-LT and iNaturalist
    0.01, alpha = sqrt(n); ImageNet-LT 0.001, alpha = 10 sqrt(pi). It calls alpha = n (``exponent=1``, ``by_count``)
    good on many data sets; on CIFAR-100-LT that was better here, since it leaves frequent classes alone.

    Use when:
        Embeddings serve for more than this classifier (search, nearest means), or rare classes are diffuse in them.
    Avoid when:
        There is no encoder to train: on fixed features the pull has nothing to move. Where batches hold one sample of
        most classes, the pull is 0 without ``memory_size``.
    Special cases:
        ``logit_adjusted`` at strength = 0.

    >>> (phase,) = elm(ClassPrior.from_counts([90, 10])).phases
    >>> phase.strength, phase.regularizer.margin
    (0.01, tensor([0.9000, 0.1000]))

    Deviates:
        The sum over the training set is one over the batch; memory and weights are additions. See
        ``longtail.losses.pull``.

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", eq. (4), appendix A.2.
    """
    at_least(memory_size, 0, "elm: memory_size")
    build_margins = look_up(margin_builders.BUILDERS, logit_margin, "elm: logit_margin")
    margin = (count_margin if by_count else probability_margin)(prior, scale, exponent)
    loss = MarginCrossEntropy(build_margins(prior))
    weights = weight_builders.balanced(prior) if balanced else None
    return Plan((Phase(loss, regularizer=Pull(margin, memory_size, weights), strength=strength),))


ELM_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cifar10_lt": {"strength": 0.01, "scale": 1.0, "exponent": 1.0},
        "cifar100_lt": {"strength": 0.01, "scale": 1.0, "exponent": 0.5, "by_count": True},
        "imagenet_lt": {"strength": 0.001, "scale": 10.0, "exponent": 0.5},
        "inaturalist2018": {"strength": 0.01, "scale": 1.0, "exponent": 0.5, "by_count": True},
    }
)
"""Options of ``elm`` that its paper uses, by data set (appendix A.2)."""


def dro_lt(prior: ClassPrior, strength: float = 0.01, scale: float = 1.0, momentum: float = 0.9) -> Plan:
    """DRO-LT beside cross-entropy."""
    margin = count_margin(prior, scale, exponent=-0.5)
    return _regularize(losses.DroLt(margin, momentum), strength)


def center_loss(prior: ClassPrior, strength: float = 0.003, momentum: float = 0.9) -> Plan:
    """Center loss beside cross-entropy."""
    return _regularize(losses.Center(prior.num_classes, momentum), strength)


def spread_out(prior: ClassPrior, strength: float = 1.0) -> Plan:
    """Spread-out regularization beside cross-entropy."""
    return _regularize(losses.SpreadOut(), strength)


def range_loss(prior: ClassPrior, strength: float = 0.01, margin: float = 10.0) -> Plan:
    """Range loss beside cross-entropy."""
    return _regularize(losses.RangeLoss(margin), strength)


def supervised_contrastive(prior: ClassPrior, strength: float = 0.1, temperature: float = 0.1) -> Plan:
    """Supervised contrastive loss beside cross-entropy."""
    return _regularize(losses.SupervisedContrastive(temperature), strength)


def triplet(prior: ClassPrior, strength: float = 0.01, margin: float = 1.0) -> Plan:
    """Triplet loss beside cross-entropy."""
    return _regularize(losses.Triplet(margin), strength)


def balanced_contrastive(
    prior: ClassPrior, strength: float = 0.35, temperature: float = 0.1, momentum: float = 0.9, views: int = 1
) -> Plan:
    """Balanced contrastive loss beside the logit-adjusted loss."""
    return _contrast(prior, losses.BalancedContrastive(prior.num_classes, temperature, momentum), strength, views)


def probabilistic_contrastive(
    prior: ClassPrior, strength: float = 1.0, temperature: float = 0.1, momentum: float = 0.9, views: int = 1
) -> Plan:
    """Contrast with classes as distributions beside the logit-adjusted loss."""
    regularizer = losses.ProbabilisticContrastive(prior.log_probs, temperature, momentum)
    return _contrast(prior, regularizer, strength, views)


def hybrid(prior: ClassPrior, strength: float = 0.1) -> Plan:
    """Hybrid contrastive learning: both parts see logits."""
    return Plan((Phase(losses.HybridLoss(strength)),))


def _contrast(prior: ClassPrior, regularizer: nn.Module, strength: float, views: int) -> Plan:
    margins = margin_builders.logit_adjusted(prior)
    phase = Phase(MarginCrossEntropy(margins), regularizer=regularizer, strength=strength, views=views)
    return Plan((phase,), margins=margins)


def _regularize(regularizer: nn.Module, strength: float) -> Plan:
    return Plan((Phase(MarginCrossEntropy(), regularizer=regularizer, strength=strength),))
