"""Methods that are one loss with a score per class: focal and decoupled losses, and sigmoids, multi-label or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from longtail import losses, weights
from longtail.heads import CosineLinear
from longtail.losses.decoupled import DecoupledFunction
from longtail.margins import logit_adjusted
from longtail.masking import MaskedLoss, PartialLabelMasking
from longtail.methods.plan import Phase, Plan, SamplerFactory
from longtail.prior import ClassPrior
from longtail.sampling import UndersamplingSampler

__all__ = [
    "asymmetric",
    "balanced_sigmoid",
    "binary_cross_entropy",
    "binary_focal",
    "class_balanced_binary",
    "class_balanced_focal",
    "cosine_contrastive",
    "decoupled_hinge",
    "decoupled_logistic",
    "distribution_balanced",
    "focal",
    "equalization_v2",
    "gaussian_clouded",
    "lade",
    "masked",
    "seesaw",
    "undersampled_binary",
    "view_consistency",
]


def focal(prior: ClassPrior, gamma: float = 2.0) -> Plan:
    """Softmax focal loss."""
    return _one_loss(losses.FocalLoss(gamma))


def class_balanced_focal(prior: ClassPrior, gamma: float = 2.0, beta: float = 0.9999) -> Plan:
    """Softmax focal loss with effective-number weights."""
    return _one_loss(losses.FocalLoss(gamma, class_weights=weights.effective_number(prior, beta)))


def decoupled_logistic(prior: ClassPrior, tau: float = 0.0) -> Plan:
    """One-against-the-rest logistic loss; ``tau``: of a logit-adjusted margin, as a weight on the negatives."""
    return Plan((_decoupled(losses.decoupled_logistic, prior, tau),))


def decoupled_hinge(prior: ClassPrior, tau: float = 0.0) -> Plan:
    """One-against-the-rest hinge loss; ``tau``: of a logit-adjusted margin, as a weight on the negatives."""
    return Plan((_decoupled(losses.decoupled_hinge, prior, tau),))


def seesaw(prior: ClassPrior, mitigation: float = 0.8, compensation: float = 2.0) -> Plan:
    """Seesaw loss, which counts classes by itself."""
    return _one_loss(losses.SeesawLoss(prior.num_classes, mitigation, compensation))


def lade(prior: ClassPrior, strength: float = 0.1, penalty: float = 0.01) -> Plan:
    """LADE: the logit-adjusted loss, with logits that estimate a ratio of likelihoods."""
    return Plan((Phase(losses.LadeLoss(prior, strength, penalty)),), margins=logit_adjusted(prior))


def gaussian_clouded(prior: ClassPrior, size: float = 0.5, logit_scale: float = 30.0) -> Plan:
    """Cross-entropy on cosines that noise pulls down, those of rare classes most."""
    loss = losses.CloudedCrossEntropy(prior, size, logit_scale)
    return Plan((Phase(loss),), head=partial(CosineLinear, scale=logit_scale))


def equalization_v2(prior: ClassPrior, alpha: float = 4.0) -> Plan:
    """Equalization loss v2, which keeps the ratio of gradients by itself."""
    return _one_loss(losses.EqualizationV2(prior.num_classes, alpha))


def view_consistency(prior: ClassPrior, strength: float = 1.0, tau: float = 1.0) -> Plan:
    """The logit-adjusted loss on two views of each sample, which are to agree."""
    margins = logit_adjusted(prior, tau)
    loss = losses.ConsistentViews(losses.MarginCrossEntropy(margins), strength)
    return Plan((Phase(loss, views=2),), margins=margins)


def cosine_contrastive(prior: ClassPrior, tau: float = 0.0) -> Plan:
    """Contrastive loss on the cosines that it is meant for; ``tau``: of a margin, as a weight on the negatives."""
    return Plan((_decoupled(losses.cosine_contrastive, prior, tau),), head=partial(CosineLinear, scale=1.0))


def balanced_sigmoid(prior: ClassPrior, keep_constant: bool = True) -> Plan:
    """Balanced softmax's counterpart for sigmoids."""
    return _one_loss(losses.BalancedSigmoid(prior, keep_constant))


def binary_cross_entropy(prior: ClassPrior) -> Plan:
    """Binary cross-entropy, one sigmoid per class."""
    return _one_loss(losses.MultilabelLoss())


def binary_focal(prior: ClassPrior, gamma: float = 2.0) -> Plan:
    """Focal loss, one sigmoid per class."""
    return _one_loss(losses.MultilabelLoss(partial(losses.binary_focal_loss, gamma=gamma)))


def class_balanced_binary(prior: ClassPrior, beta: float = 0.9999) -> Plan:
    """Binary cross-entropy with effective-number weights."""
    return _one_loss(losses.MultilabelLoss(class_weights=weights.effective_number(prior, beta)))


def asymmetric(
    prior: ClassPrior, positive_gamma: float = 0.0, negative_gamma: float = 4.0, shift: float = 0.05
) -> Plan:
    """Asymmetric loss, one sigmoid per class."""
    function = partial(
        losses.asymmetric_loss, positive_gamma=positive_gamma, negative_gamma=negative_gamma, shift=shift
    )
    return _one_loss(losses.MultilabelLoss(function))


def undersampled_binary(prior: ClassPrior, per_class: int = 500) -> Plan:
    """Binary cross-entropy on undersampled epochs."""
    return Plan((Phase(losses.MultilabelLoss(), _undersample(per_class)),))


def distribution_balanced(
    prior: ClassPrior,
    floor: float = 0.1,
    slope: float = 10.0,
    center: float = 0.2,
    bias_scale: float = 0.05,
    negative_scale: float = 2.0,
    gamma: float = 0.0,
) -> Plan:
    """Distribution-balanced loss."""
    return _one_loss(losses.DistributionBalancedLoss(prior, floor, slope, center, bias_scale, negative_scale, gamma))


def masked(inner: Callable[..., Plan]) -> Callable[..., Plan]:
    """Partial label masking around the loss of another method, whose options stay options.

    >>> build = masked(binary_focal)
    >>> build(ClassPrior.from_indicator([[1, 0], [1, 1], [0, 0]]), rate=0.1, gamma=1.0).loss.masking.rate
    0.1
    """

    def build(
        prior: ClassPrior,
        rate: float = 0.01,
        num_bins: int = 10,
        initial: str = "data",
        clip: tuple[float, float] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Plan:
        plan = inner(prior, **options)
        masking = PartialLabelMasking(prior, rate, num_bins, initial, clip)
        (phase,) = plan.phases
        return replace(plan, phases=(replace(phase, loss=MaskedLoss(phase.loss, masking, seed)),))

    own = [p for p in inspect.signature(build).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    inner_options = list(inspect.signature(inner).parameters.values())[1:]
    build.__signature__ = inspect.Signature([*own, *inner_options])  # type: ignore[attr-defined]
    return build


def _one_loss(loss: nn.Module) -> Plan:
    return Plan((Phase(loss),))


def _decoupled(function: DecoupledFunction, prior: ClassPrior, tau: float) -> Phase:
    return Phase(losses.DecoupledLoss(function, logit_adjusted(prior, tau) if tau else None))


def _undersample(per_class: int) -> SamplerFactory:
    return lambda labels, seed, epochs: UndersamplingSampler(labels, per_class, seed=seed)
