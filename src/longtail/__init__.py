"""Learning when labels are skewed: margins, losses, post-hoc adjustment and evaluation.

The way through the library: labels -> ``ClassPrior`` -> ``margins`` and ``weights`` -> a loss, or ``adjust_logits``
on a model that is trained already.
"""

import importlib
from typing import TYPE_CHECKING, Any

from longtail import (
    margins,
    multilabel,
    negatives,
    posthoc,
    regularizers,
    rowwise,
    samplers,
    schedules,
    thresholds,
    weights,
)
from longtail.heads import CosineLinear, SampledLinear
from longtail.losses import (
    BalancedSigmoid,
    DecoupledLoss,
    FocalLoss,
    LinearMarginCrossEntropy,
    MarginCrossEntropy,
    balanced_sigmoid,
    cosine_contrastive,
    decoupled_hinge,
    decoupled_logistic,
    focal_loss,
    linear_margin_cross_entropy,
    margin_cross_entropy,
    mean_linear_margin_cross_entropy,
    sigmoid_offsets,
)
from longtail.margins import Margins, is_consistent
from longtail.methods import METHODS, Method, get_method
from longtail.multilabel import MaskedLoss, MultilabelLoss, PartialLabelMasking
from longtail.negatives import implied_margins
from longtail.posthoc import (
    adjust_logits,
    estimate_target_prior,
    normalize_weights,
    normalize_weights_by_prior,
    temperature_scale,
    tune_tau,
)
from longtail.prior import ClassPrior
from longtail.regularizers import Pull, pull

if TYPE_CHECKING:
    from longtail import metrics, multilabel_metrics, retrieval_metrics
    from longtail.estimators import LogitAdjustedClassifier, ThresholdedClassifier
    from longtail.extreme import ExtremeClassifier

__version__ = "0.1.0"

__all__ = [
    "ClassPrior",
    "Margins",
    "margins",
    "weights",
    "is_consistent",
    "margin_cross_entropy",
    "linear_margin_cross_entropy",
    "mean_linear_margin_cross_entropy",
    "focal_loss",
    "decoupled_logistic",
    "decoupled_hinge",
    "cosine_contrastive",
    "balanced_sigmoid",
    "sigmoid_offsets",
    "MarginCrossEntropy",
    "LinearMarginCrossEntropy",
    "FocalLoss",
    "DecoupledLoss",
    "BalancedSigmoid",
    "MultilabelLoss",
    "PartialLabelMasking",
    "MaskedLoss",
    "CosineLinear",
    "SampledLinear",
    "implied_margins",
    "negatives",
    "rowwise",
    "adjust_logits",
    "tune_tau",
    "temperature_scale",
    "estimate_target_prior",
    "normalize_weights",
    "normalize_weights_by_prior",
    "METHODS",
    "Method",
    "get_method",
    "multilabel",
    "pull",
    "Pull",
    "posthoc",
    "regularizers",
    "samplers",
    "schedules",
    "thresholds",
    "metrics",
    "multilabel_metrics",
    "retrieval_metrics",
    "LogitAdjustedClassifier",
    "ExtremeClassifier",
    "ThresholdedClassifier",
]

# These import scikit-learn and torchmetrics, which take longer than all the rest: on first use, not before.
_LAZY = {
    "LogitAdjustedClassifier": "longtail.estimators",
    "ExtremeClassifier": "longtail.extreme",
    "ThresholdedClassifier": "longtail.estimators",
    "metrics": "longtail",
    "multilabel_metrics": "longtail",
    "retrieval_metrics": "longtail",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'longtail' has no attribute {name!r}")
    if _LAZY[name] == "longtail":
        return importlib.import_module(f"longtail.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
