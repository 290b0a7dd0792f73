"""Named methods: what to train with, phase by phase, and what to do with the trained model."""

from longtail.methods.embedding import ELM_SETTINGS, LOGIT_MARGINS, elm
from longtail.methods.plan import Phase
from longtail.methods.schedules import (
    balanced_meta_softmax,
    class_balanced_sampling,
    classifier_retraining,
    decoupled,
    defer,
    deferred_resampling,
    deferred_reweighting,
    learned_weight_scaling,
    progressive_sampling,
    retrained_balanced_softmax,
    square_root_sampling,
)
from longtail.methods.table import METHODS, Method, get_method

__all__ = [
    "LOGIT_MARGINS",
    "elm",
    "ELM_SETTINGS",
    "Phase",
    "deferred_reweighting",
    "defer",
    "deferred_resampling",
    "class_balanced_sampling",
    "square_root_sampling",
    "progressive_sampling",
    "classifier_retraining",
    "learned_weight_scaling",
    "retrained_balanced_softmax",
    "decoupled",
    "balanced_meta_softmax",
    "Method",
    "get_method",
    "METHODS",
]
