"""Named methods: what to train with, phase by phase, and what to do with the trained model.

``METHODS`` is the one table. A method of your own is a function from a prior and options to a ``Plan`` or a loss:
``make_method`` wraps it, and a recipe names it as ``my_file.py:my_function``.
"""

from longtail.methods.custom import load_method, make_method
from longtail.methods.embedding import ELM_SETTINGS, elm
from longtail.methods.ensembles import experts, experts_with, skill_diverse_experts
from longtail.methods.meta import RateLearner, WeightLearner, balanced_meta_softmax, meta_reweighted
from longtail.methods.method import Method
from longtail.methods.plan import Learner, Phase, Plan, margin_plan, takes_embeddings, takes_label_lists
from longtail.methods.sampled import DISTRIBUTIONS, WEIGHTINGS, sampled_softmax
from longtail.methods.schedules import (
    class_balanced_sampling,
    classifier_retraining,
    decoupled,
    defer,
    deferred_resampling,
    deferred_reweighting,
    ldam_drw,
    learned_weight_scaling,
    progressive_sampling,
    retrained_balanced_softmax,
    square_root_sampling,
)
from longtail.methods.table import METHODS, get_method

__all__ = [
    "METHODS",
    "Method",
    "get_method",
    "make_method",
    "load_method",
    "Plan",
    "Phase",
    "Learner",
    "margin_plan",
    "takes_embeddings",
    "takes_label_lists",
    "DISTRIBUTIONS",
    "WEIGHTINGS",
    "sampled_softmax",
    "class_balanced_sampling",
    "classifier_retraining",
    "decoupled",
    "defer",
    "deferred_resampling",
    "deferred_reweighting",
    "ldam_drw",
    "learned_weight_scaling",
    "progressive_sampling",
    "retrained_balanced_softmax",
    "square_root_sampling",
    "balanced_meta_softmax",
    "meta_reweighted",
    "RateLearner",
    "WeightLearner",
    "elm",
    "ELM_SETTINGS",
    "experts",
    "experts_with",
    "skill_diverse_experts",
]
