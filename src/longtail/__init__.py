"""Learning when labels are skewed: margins, losses, post-hoc adjustment and evaluation.

The way through the library: labels -> ``ClassPrior`` -> ``margins`` and ``weights`` -> a loss, or ``adjust_logits`` on
a model that is trained already.
"""

from longtail import margins, weights
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
from longtail.prior import ClassPrior

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
]
