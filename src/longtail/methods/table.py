"""METHODS: the one table of named methods. The command line, the docs and the contract tests follow from its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from longtail import losses, margins, masking, posthoc, sampling, weights
from longtail._core.suggestions import suggest
from longtail.losses.decoupled import DecoupledFunction
from longtail.margins import Margins, is_consistent
from longtail.methods import embedding, schedules
from longtail.methods.plan import Phase, SamplerFactory
from longtail.prior import ClassPrior

__all__ = ["Method", "get_method", "METHODS"]


@dataclass(frozen=True)
class Method:
    """A named composition: what to minimize on the training data, and what to do to the outputs afterwards.

    A method has margins, or weights, or both (then its loss is ``MarginCrossEntropy``), or a loss of its own, or
    phases that change loss, sampler or head on the way; or it leaves training alone and acts on a trained model.
    """

    name: str
    family: str
    card: Callable[..., Any]
    """The function whose docstring is the method card."""
    variant: str = ""
    """What sets it apart from another method with the same card."""
    margins: Callable[..., Margins] | None = None
    """prior, **options -> margins."""
    weights: Callable[..., Tensor] | None = None
    """prior, **options -> [C] class weights."""
    own_loss: Callable[..., nn.Module] | None = None
    """prior, **options -> a loss module, for methods that are no margin loss."""
    own_phases: Callable[..., tuple[Phase, ...]] | None = None
    """prior, **options -> phases, for methods that are more than one loss from start to end."""
    adjust_logits: Callable[..., Tensor] | None = None
    """logits, prior, **options -> logits of the trained model to predict with."""
    adjust_head: Callable[..., Tensor] | None = None
    """weight [C, D], prior, **options -> class vectors of the trained model to predict with."""
    consistent: bool | None = None
    """Whether it is Fisher consistent for the balanced error, where Theorem 1 does not say; None: not known."""
    takes_indicators: bool = False
    """Whether its loss takes several labels a sample, [N, C] of 0 and 1, as well as class indices. A module that has
    ``end_epoch`` wants it called after each epoch."""

    @property
    def summary(self) -> str:
        """The card's first sentence, and the variant."""
        sentence = (inspect.getdoc(self.card) or "").partition("\n")[0]
        return f"{sentence.removesuffix('.')}; here {self.variant}." if self.variant else sentence

    @property
    def options(self) -> dict[str, Any]:
        """The names and defaults of what can be set."""
        builders = (
            self.margins,
            self.weights,
            self.own_loss,
            self.own_phases,
            self.adjust_logits,
            self.adjust_head,
        )
        builder = next((b for b in builders if b is not None), None)
        parameters = inspect.signature(builder).parameters.values() if builder else ()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def loss(self, prior: ClassPrior, **options: Any) -> nn.Module:
        """The loss to begin training with; plain cross-entropy for a method that acts on a trained model."""
        if self.is_posthoc:
            return losses.MarginCrossEntropy()
        if self.own_phases is not None:
            return self.own_phases(prior, **options)[0].loss
        if self.own_loss is not None:
            return self.own_loss(prior, **options)
        return losses.MarginCrossEntropy(
            None if self.margins is None else self.margins(prior, **options),
            None if self.weights is None else self.weights(prior, **options),
        )

    def phases(self, prior: ClassPrior, **options: Any) -> tuple[Phase, ...]:
        """What to train with, phase by phase; most methods have one."""
        if self.own_phases is not None:
            return self.own_phases(prior, **options)
        return (Phase(self.loss(prior, **options)),)

    @property
    def is_posthoc(self) -> bool:
        """Whether it leaves training alone and acts on the trained model; its options then belong to that."""
        return self.adjust_logits is not None or self.adjust_head is not None

    def is_consistent(self, prior: ClassPrior, **options: Any) -> bool | None:
        """Whether the method is Fisher consistent for the balanced error; None: not known."""
        if self.consistent is not None or (self.margins is None and self.weights is None):
            return self.consistent
        return is_consistent(
            None if self.margins is None else self.margins(prior, **options),
            None if self.weights is None else self.weights(prior, **options),
            prior,
        )


def get_method(name: str) -> Method:
    """The row of METHODS with this name; a typing error gets a suggestion.

    >>> get_method("logit_adjusted").family
    'margin'
    """
    key = name.replace("-", "_")
    if key not in METHODS:
        raise ValueError(f"there is no method {name!r}; {suggest(key, METHODS)}")
    return METHODS[key]


def _focal(prior: ClassPrior, gamma: float = 2.0) -> nn.Module:
    return losses.FocalLoss(gamma)


def _class_balanced_focal(prior: ClassPrior, gamma: float = 2.0, beta: float = 0.9999) -> nn.Module:
    return losses.FocalLoss(gamma, weights=weights.effective_number(prior, beta))


def _decoupled(function: DecoupledFunction) -> Callable[..., nn.Module]:
    def build(prior: ClassPrior) -> nn.Module:
        return losses.DecoupledLoss(function)

    return build


def _multilabel(name: str, card: Callable[..., Any], own_loss: Callable[..., nn.Module], variant: str = "") -> Method:
    return Method(name, "multi-label", card, variant, own_loss=own_loss, takes_indicators=True)


def _binary_cross_entropy(prior: ClassPrior) -> nn.Module:
    return losses.MultilabelLoss()


def _binary_focal(prior: ClassPrior, gamma: float = 2.0) -> nn.Module:
    return losses.MultilabelLoss(partial(losses.binary_focal_loss, gamma=gamma))


def _class_balanced_binary(prior: ClassPrior, beta: float = 0.9999) -> nn.Module:
    return losses.MultilabelLoss(weights=weights.effective_number(prior, beta))


def _asymmetric(
    prior: ClassPrior, positive_gamma: float = 0.0, negative_gamma: float = 4.0, shift: float = 0.05
) -> nn.Module:
    function = partial(
        losses.asymmetric_loss, positive_gamma=positive_gamma, negative_gamma=negative_gamma, shift=shift
    )
    return losses.MultilabelLoss(function)


def _masked(inner: Callable[[ClassPrior], nn.Module]) -> Callable[..., nn.Module]:
    def build(
        prior: ClassPrior,
        rate: float = 0.01,
        bins: int = 10,
        initial: str = "data",
        clip: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> nn.Module:
        label_masking = masking.PartialLabelMasking(prior, rate, bins, initial, clip)
        return masking.MaskedLoss(inner(prior), label_masking, seed)

    return build


def _undersampling(per_class: int) -> SamplerFactory:
    return lambda labels, seed, epochs: sampling.UndersamplingSampler(labels, per_class, seed=seed)


def _undersampled_binary(prior: ClassPrior, per_class: int = 500) -> tuple[Phase, ...]:
    return (Phase(_binary_cross_entropy(prior), _undersampling(per_class)),)


def _undersampled_masking(
    prior: ClassPrior,
    per_class: int = 500,
    rate: float = 0.01,
    bins: int = 10,
    initial: str = "data",
    clip: tuple[float, float] | None = None,
    seed: int = 0,
) -> tuple[Phase, ...]:
    loss = _masked(_binary_cross_entropy)(prior, rate, bins, initial, clip, seed)
    return (Phase(loss, _undersampling(per_class)),)


def _regularized(regularizer: nn.Module, strength: float) -> tuple[Phase, ...]:
    return (Phase(losses.MarginCrossEntropy(), regularizer=regularizer, strength=strength),)


def _dro_lt(
    prior: ClassPrior, strength: float = 0.01, scale: float = 1.0, momentum: float = 0.9
) -> tuple[Phase, ...]:
    margin = losses.count_margin(prior, scale, exponent=-0.5)
    return _regularized(losses.DroLt(margin, momentum), strength)


def _center(prior: ClassPrior, strength: float = 0.003, momentum: float = 0.9) -> tuple[Phase, ...]:
    return _regularized(losses.Center(prior.num_classes, momentum), strength)


def _spread_out(prior: ClassPrior, strength: float = 1.0) -> tuple[Phase, ...]:
    return _regularized(losses.SpreadOut(), strength)


def _range_loss(prior: ClassPrior, strength: float = 0.01, margin: float = 10.0) -> tuple[Phase, ...]:
    return _regularized(losses.RangeLoss(margin), strength)


def _supervised_contrastive(prior: ClassPrior, strength: float = 0.1, temperature: float = 0.1) -> tuple[Phase, ...]:
    return _regularized(losses.SupervisedContrastive(temperature), strength)


def _triplet(prior: ClassPrior, strength: float = 0.01, margin: float = 1.0) -> tuple[Phase, ...]:
    return _regularized(losses.Triplet(margin), strength)


def _hybrid(prior: ClassPrior, strength: float = 0.1) -> nn.Module:
    return losses.HybridLoss(strength)


def _embedding(name: str, card: Callable[..., Tensor], builder: Callable[..., tuple[Phase, ...]]) -> Method:
    return Method(name, "embedding", card, own_phases=builder)


def _phased(name: str, builder: Callable[..., tuple[Phase, ...]]) -> Method:
    return Method(name, "schedule", builder, own_phases=builder)


_ROWS = (
    Method("cross_entropy", "margin", margins.none, margins=margins.none),
    Method("logit_adjusted", "margin", margins.logit_adjusted, margins=margins.logit_adjusted),
    Method("adaptive", "margin", margins.adaptive, margins=margins.adaptive),
    Method("max_scaled_adaptive", "margin", margins.max_scaled_adaptive, margins=margins.max_scaled_adaptive),
    Method("equalized", "margin", margins.equalized, margins=margins.equalized),
    Method("threshold_equalized", "margin", margins.threshold_equalized, margins=margins.threshold_equalized),
    Method("two_temperature", "margin", margins.two_temperature, margins=margins.two_temperature),
    Method(
        "logit_adjusted_adaptive",
        "margin",
        margins.logit_adjusted_adaptive,
        margins=margins.logit_adjusted_adaptive,
    ),
    Method("balanced_loss", "weight", weights.balanced, weights=weights.balanced),
    Method("power_weighted", "weight", weights.power, weights=weights.power),
    Method("class_balanced", "weight", weights.effective_number, weights=weights.effective_number),
    Method("focal", "loss", losses.focal_loss, own_loss=_focal),
    Method(
        "class_balanced_focal",
        "loss",
        losses.focal_loss,
        "with class-balanced weights",
        own_loss=_class_balanced_focal,
    ),
    Method("decoupled_logistic", "loss", losses.decoupled_logistic, own_loss=_decoupled(losses.decoupled_logistic)),
    Method("decoupled_hinge", "loss", losses.decoupled_hinge, own_loss=_decoupled(losses.decoupled_hinge)),
    Method("cosine_contrastive", "loss", losses.cosine_contrastive, own_loss=_decoupled(losses.cosine_contrastive)),
    Method(
        "balanced_sigmoid",
        "loss",
        losses.balanced_sigmoid,
        own_loss=losses.BalancedSigmoid,
        takes_indicators=True,
    ),
    _multilabel("binary_cross_entropy", losses.binary_cross_entropy, _binary_cross_entropy),
    _multilabel("binary_focal", losses.binary_focal_loss, _binary_focal),
    _multilabel(
        "class_balanced_binary",
        losses.binary_cross_entropy,
        _class_balanced_binary,
        "with class-balanced weights",
    ),
    _multilabel("asymmetric", losses.asymmetric_loss, _asymmetric),
    _multilabel("distribution_balanced", losses.distribution_balanced_loss, losses.DistributionBalancedLoss),
    _multilabel("partial_label_masking", masking.PartialLabelMasking, _masked(_binary_cross_entropy)),
    _multilabel(
        "partial_label_masking_focal",
        masking.PartialLabelMasking,
        _masked(_binary_focal),
        "around focal loss",
    ),
    _multilabel(
        "partial_label_masking_class_balanced",
        masking.PartialLabelMasking,
        _masked(_class_balanced_binary),
        "around class-balanced cross-entropy",
    ),
    Method(
        "undersampled_binary",
        "multi-label",
        sampling.UndersamplingSampler,
        "with binary cross-entropy",
        own_phases=_undersampled_binary,
        takes_indicators=True,
    ),
    Method(
        "partial_label_masking_undersampled",
        "multi-label",
        masking.PartialLabelMasking,
        "on undersampled epochs",
        own_phases=_undersampled_masking,
        takes_indicators=True,
    ),
    _phased("adaptive_deferred", schedules.deferred_reweighting),
    _phased("class_balanced_sampling", schedules.class_balanced_sampling),
    _phased("square_root_sampling", schedules.square_root_sampling),
    _phased("progressive_sampling", schedules.progressive_sampling),
    _phased("deferred_resampling", schedules.deferred_resampling),
    _phased("classifier_retraining", schedules.classifier_retraining),
    _phased("learned_weight_scaling", schedules.learned_weight_scaling),
    _phased("retrained_balanced_softmax", schedules.retrained_balanced_softmax),
    _phased("decoupled", schedules.decoupled),
    _phased("balanced_meta_softmax", schedules.balanced_meta_softmax),
    Method("elm", "embedding", embedding.elm, own_phases=embedding.elm),
    _embedding("dro_lt", losses.dro_lt, _dro_lt),
    _embedding("center_loss", losses.center, _center),
    _embedding("spread_out", losses.spread_out, _spread_out),
    _embedding("range_loss", losses.range_loss, _range_loss),
    _embedding("supervised_contrastive", losses.supervised_contrastive, _supervised_contrastive),
    _embedding("triplet", losses.triplet, _triplet),
    Method("hybrid", "embedding", losses.hybrid, own_loss=_hybrid),
    Method(
        "posthoc_adjusted", "post-hoc", posthoc.adjust_logits, adjust_logits=posthoc.adjust_logits, consistent=True
    ),
    Method(
        "weight_normalized",
        "post-hoc",
        posthoc.normalize_weights,
        adjust_head=posthoc.normalize_weights,
        consistent=False,
    ),
    Method(
        "prior_normalized",
        "post-hoc",
        posthoc.normalize_weights_by_prior,
        adjust_head=posthoc.normalize_weights_by_prior,
        consistent=False,
    ),
)


METHODS: Mapping[str, Method] = MappingProxyType({row.name: row for row in _ROWS})
"""Every named method by its name."""
