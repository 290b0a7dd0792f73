"""Learning from imbalanced labels: margins, losses, post-hoc adjustment, sampling and evaluation.

The way through the library: labels -> ``ClassPrior`` -> ``margins`` and ``weights`` -> a loss, or ``adjust_logits``
on a model that is trained already. Every subpackage is there after ``import longtail``; it is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail import (
        boosting,
        correction,
        datasets,
        diagnostics,
        errors,
        estimators,
        heads,
        integrations,
        losses,
        margins,
        masking,
        methods,
        metrics,
        negatives,
        posthoc,
        prior,
        sampling,
        serving,
        weights,
    )
    from longtail.datasets import make_long_tailed
    from longtail.estimators import (
        ConformalClassifier,
        ExtremeClassifier,
        LogitAdjustedClassifier,
        MarginBoostedClassifier,
        PriorCorrectedClassifier,
        ThresholdedClassifier,
    )
    from longtail.heads import CosineLinear
    from longtail.losses import (
        FocalLoss,
        LinearMarginCrossEntropy,
        MarginCrossEntropy,
        Pull,
        focal_loss,
        linear_margin_cross_entropy,
        margin_cross_entropy,
        pull,
    )
    from longtail.margins import Margins, is_consistent
    from longtail.masking import PartialLabelMasking
    from longtail.methods import METHODS, Method, Phase, get_method
    from longtail.metrics import BalancedAccuracy, GroupAccuracy
    from longtail.negatives import SampledLinear, implied_margins
    from longtail.posthoc import adjust_logits, estimate_target_prior, fold_adjustment, tune_tau
    from longtail.prior import ClassPrior
    from longtail.sampling import ClassBalancedSampler, MetaSampler

__version__ = "0.1.0"

__all__ = [
    "ClassPrior",
    "Margins",
    "is_consistent",
    "margin_cross_entropy",
    "linear_margin_cross_entropy",
    "focal_loss",
    "pull",
    "MarginCrossEntropy",
    "LinearMarginCrossEntropy",
    "FocalLoss",
    "Pull",
    "CosineLinear",
    "SampledLinear",
    "implied_margins",
    "PartialLabelMasking",
    "ClassBalancedSampler",
    "MetaSampler",
    "adjust_logits",
    "fold_adjustment",
    "tune_tau",
    "estimate_target_prior",
    "BalancedAccuracy",
    "GroupAccuracy",
    "LogitAdjustedClassifier",
    "PriorCorrectedClassifier",
    "MarginBoostedClassifier",
    "ConformalClassifier",
    "ThresholdedClassifier",
    "ExtremeClassifier",
    "METHODS",
    "Method",
    "Phase",
    "get_method",
    "make_long_tailed",
    "boosting",
    "correction",
    "datasets",
    "diagnostics",
    "errors",
    "estimators",
    "heads",
    "integrations",
    "losses",
    "margins",
    "masking",
    "methods",
    "metrics",
    "negatives",
    "posthoc",
    "prior",
    "sampling",
    "serving",
    "weights",
]

_HOMES = {
    "datasets": ("make_long_tailed",),
    "estimators": (
        "ConformalClassifier",
        "ExtremeClassifier",
        "LogitAdjustedClassifier",
        "MarginBoostedClassifier",
        "PriorCorrectedClassifier",
        "ThresholdedClassifier",
    ),
    "heads": ("CosineLinear",),
    "losses": (
        "FocalLoss",
        "LinearMarginCrossEntropy",
        "MarginCrossEntropy",
        "Pull",
        "focal_loss",
        "linear_margin_cross_entropy",
        "margin_cross_entropy",
        "pull",
    ),
    "margins": ("Margins", "is_consistent"),
    "masking": ("PartialLabelMasking",),
    "methods": ("METHODS", "Method", "Phase", "get_method"),
    "metrics": ("BalancedAccuracy", "GroupAccuracy"),
    "negatives": ("SampledLinear", "implied_margins"),
    "posthoc": ("adjust_logits", "estimate_target_prior", "fold_adjustment", "tune_tau"),
    "prior": ("ClassPrior",),
    "sampling": ("ClassBalancedSampler", "MetaSampler"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"longtail.{_HOME_OF[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"longtail.{name}")
    raise AttributeError(f"module 'longtail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
