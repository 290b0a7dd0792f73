"""METHODS: the one table of named methods. The command line, the docs and the contract tests follow from its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from longtail import losses, margins, masking, negatives, posthoc, sampling, weights
from longtail._core.suggestions import suggest
from longtail.margins import Margins
from longtail.methods import embedding, ensembles, independent, meta, sampled, schedules
from longtail.methods import posthoc as after_training
from longtail.methods.custom import is_reference, load_method
from longtail.methods.method import Method
from longtail.methods.plan import Plan, margin_plan
from longtail.prior import ClassPrior

__all__ = ["METHODS", "get_method"]


def get_method(name: str) -> Method:
    """The row of METHODS with this name; a typing error gets a suggestion.

    A name with a colon, ``module:function`` or ``file.py:function``, is a method of your own: see ``make_method``.

    >>> get_method("logit_adjusted").family
    'margin'
    """
    if is_reference(name):
        return load_method(name)
    key = name.replace("-", "_")
    if key not in METHODS:
        other = OTHER_NAMES.get(key.lower())
        raise ValueError(
            f"there is no method {name!r}; "
            + (suggest(key, METHODS) if other is None else f"here it is called {other!r}.")
        )
    return METHODS[key]


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "asl": "asymmetric",
        "asymmetric_loss": "asymmetric",
        "balanced_softmax": "logit_adjusted",
        "balms": "balanced_meta_softmax",
        "bce": "binary_cross_entropy",
        "bsce": "logit_adjusted",
        "cb": "class_balanced",
        "cb_focal": "class_balanced_focal",
        "cb_loss": "class_balanced",
        "cdt": "class_temperatures",
        "ce": "cross_entropy",
        "class_weights": "balanced_loss",
        "crt": "classifier_retraining",
        "db_loss": "distribution_balanced",
        "drs": "deferred_resampling",
        "drw": "adaptive_deferred",
        "eql": "threshold_equalized",
        "equalization_loss": "threshold_equalized",
        "erm": "cross_entropy",
        "focal_loss": "focal",
        "la": "logit_adjusted",
        "ldam": "max_scaled_adaptive",
        "logit_adjustment": "logit_adjusted",
        "lws": "learned_weight_scaling",
        "oversampling": "class_balanced_sampling",
        "plm": "partial_label_masking",
        "post_hoc": "posthoc_adjusted",
        "sade": "skill_diverse_experts",
        "seesaw_loss": "seesaw",
        "softmax": "cross_entropy",
        "supcon": "supervised_contrastive",
        "tau_norm": "weight_normalized",
        "tau_normalized": "weight_normalized",
        "vs": "vector_scaling",
        "vs_loss": "vector_scaling",
    }
)
"""What papers and other libraries call methods of this one."""


def _margin(name: str, builder: Callable[..., Margins]) -> Method:
    def build(prior: ClassPrior, **options: Any) -> Plan:
        return margin_plan(builder(prior, **options))

    return Method(name, "margin", builder, _with_signature(build, builder))


def _weight(name: str, builder: Callable[..., Tensor]) -> Method:
    def build(prior: ClassPrior, **options: Any) -> Plan:
        return margin_plan(class_weights=builder(prior, **options))

    return Method(name, "weight", builder, _with_signature(build, builder))


def _with_signature(build: Callable[..., Plan], like: Callable[..., Any]) -> Callable[..., Plan]:
    build.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    return build


def _sampled(name: str, card: Callable[..., Any], build: Callable[..., Plan]) -> Method:
    return Method(name, "sampled", card, build, accepts_label_lists=True)


def _multilabel(
    name: str, card: Callable[..., Any], build: Callable[..., Plan], variant: str = "", family: str = "multi-label"
) -> Method:
    return Method(name, family, card, build, variant, accepts_multilabel=True)


def _schedule(name: str, build: Callable[..., Plan]) -> Method:
    return Method(name, "schedule", build, build)


_PLM = masking.PartialLabelMasking

_ROWS = (
    *(_margin("cross_entropy" if name == "none" else name, builder) for name, builder in margins.BUILDERS.items()),
    _weight("balanced_loss", weights.balanced),
    _weight("power_weighted", weights.power),
    _weight("class_balanced", weights.effective_number),
    Method("focal", "loss", losses.focal_loss, independent.focal),
    Method(
        "class_balanced_focal",
        "loss",
        losses.focal_loss,
        independent.class_balanced_focal,
        "with class-balanced weights",
    ),
    Method("decoupled_logistic", "loss", losses.decoupled_logistic, independent.decoupled_logistic),
    Method("decoupled_hinge", "loss", losses.decoupled_hinge, independent.decoupled_hinge),
    Method("cosine_contrastive", "loss", losses.cosine_contrastive, independent.cosine_contrastive),
    _multilabel("balanced_sigmoid", losses.balanced_sigmoid, independent.balanced_sigmoid, family="loss"),
    _sampled("sampled_softmax", sampled.sampled_softmax, sampled.sampled_softmax),
    _sampled("sampled_logistic", negatives.sampled_logistic, sampled.sampled_logistic),
    _sampled("sampled_hinge", negatives.sampled_hinge, sampled.sampled_hinge),
    _sampled("sampled_contrastive", negatives.sampled_contrastive, sampled.sampled_contrastive),
    _multilabel("binary_cross_entropy", losses.binary_cross_entropy, independent.binary_cross_entropy),
    _multilabel("binary_focal", losses.binary_focal_loss, independent.binary_focal),
    _multilabel(
        "class_balanced_binary",
        losses.binary_cross_entropy,
        independent.class_balanced_binary,
        "with class-balanced weights",
    ),
    _multilabel("asymmetric", losses.asymmetric_loss, independent.asymmetric),
    _multilabel("distribution_balanced", losses.distribution_balanced_loss, independent.distribution_balanced),
    _multilabel("partial_label_masking", _PLM, independent.masked(independent.binary_cross_entropy)),
    _multilabel(
        "partial_label_masking_focal", _PLM, independent.masked(independent.binary_focal), "around focal loss"
    ),
    _multilabel(
        "partial_label_masking_class_balanced",
        _PLM,
        independent.masked(independent.class_balanced_binary),
        "around class-balanced cross-entropy",
    ),
    _multilabel(
        "undersampled_binary",
        sampling.UndersamplingSampler,
        independent.undersampled_binary,
        "with binary cross-entropy",
    ),
    _multilabel(
        "partial_label_masking_undersampled",
        _PLM,
        independent.masked(independent.undersampled_binary),
        "on undersampled epochs",
    ),
    _schedule("adaptive_deferred", schedules.deferred_reweighting),
    _schedule("ldam_drw", schedules.ldam_drw),
    _schedule("class_balanced_sampling", schedules.class_balanced_sampling),
    _schedule("square_root_sampling", schedules.square_root_sampling),
    _schedule("progressive_sampling", schedules.progressive_sampling),
    _schedule("deferred_resampling", schedules.deferred_resampling),
    _schedule("classifier_retraining", schedules.classifier_retraining),
    _schedule("learned_weight_scaling", schedules.learned_weight_scaling),
    _schedule("retrained_balanced_softmax", schedules.retrained_balanced_softmax),
    _schedule("decoupled", schedules.decoupled),
    _schedule("balanced_meta_softmax", meta.balanced_meta_softmax),
    _schedule("meta_reweighted", meta.meta_reweighted),
    Method("elm", "embedding", embedding.elm, embedding.elm),
    Method("dro_lt", "embedding", losses.dro_lt, embedding.dro_lt),
    Method("center_loss", "embedding", losses.center, embedding.center_loss),
    Method("spread_out", "embedding", losses.spread_out, embedding.spread_out),
    Method("range_loss", "embedding", losses.range_loss, embedding.range_loss),
    Method("supervised_contrastive", "embedding", losses.supervised_contrastive, embedding.supervised_contrastive),
    Method("triplet", "embedding", losses.triplet, embedding.triplet),
    Method("balanced_contrastive", "embedding", losses.balanced_contrastive, embedding.balanced_contrastive),
    Method(
        "probabilistic_contrastive",
        "embedding",
        losses.probabilistic_contrastive,
        embedding.probabilistic_contrastive,
    ),
    Method("lade", "loss", losses.lade, independent.lade),
    Method("gaussian_clouded", "loss", losses.clouded_cross_entropy, independent.gaussian_clouded),
    Method("seesaw", "loss", losses.seesaw, independent.seesaw),
    Method("equalization_v2", "loss", losses.equalization_v2, independent.equalization_v2),
    Method("view_consistency", "loss", losses.view_consistency, independent.view_consistency),
    Method("hybrid", "embedding", losses.hybrid, embedding.hybrid),
    Method("experts", "experts", ensembles.experts, ensembles.experts),
    Method("skill_diverse_experts", "experts", ensembles.skill_diverse_experts, ensembles.skill_diverse_experts),
    Method("posthoc_adjusted", "post-hoc", posthoc.adjust_logits, after_training.posthoc_adjusted),
    Method("weight_normalized", "post-hoc", posthoc.normalize_weights, after_training.weight_normalized),
    Method("prior_normalized", "post-hoc", posthoc.normalize_weights_by_prior, after_training.prior_normalized),
)

METHODS: Mapping[str, Method] = MappingProxyType({row.name: row for row in _ROWS})
"""Every named method by its name."""
