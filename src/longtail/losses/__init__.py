"""Losses: functions that return one value per sample, and modules that hold their buffers and take the mean.

What a loss module is: ``forward(logits, target)`` gives a scalar, the mean over the samples that count; that of a
regularizer, ``forward(embeddings, target)``, does the same for embeddings. What it needs of the class counts it holds
in buffers, so that it moves with ``.to``, is saved in ``state_dict``, and takes any floating dtype on any device. It
may define ``end_epoch()``, which a training loop calls after each epoch, in all processes: ``longtail.MaskedLoss``
adapts its ratios there; and ``end_step()``, called after each step of the optimizer: ``SeesawLoss`` counts there. Any
module with these habits, yours as well, works wherever a loss is asked for.
"""

from longtail.losses.centroids import (
    BalancedContrastive,
    Center,
    ClassCentroids,
    DroLt,
    balanced_contrastive,
    center,
    dro_lt,
)
from longtail.losses.clouded import CloudedCrossEntropy, clouded_cross_entropy
from longtail.losses.consistency import ConsistentViews, view_consistency
from longtail.losses.decoupled import DecoupledLoss, cosine_contrastive, decoupled_hinge, decoupled_logistic
from longtail.losses.disentangled import LadeLoss, lade
from longtail.losses.elm import Pull, count_margin, probability_margin, pull
from longtail.losses.experts import ExpertsCrossEntropy
from longtail.losses.focal import FocalLoss, focal_loss
from longtail.losses.following import EqualizationV2, SeesawLoss, equalization_v2, seesaw
from longtail.losses.linear import (
    LinearMarginCrossEntropy,
    linear_margin_cross_entropy,
    mean_linear_margin_cross_entropy,
)
from longtail.losses.memory import ClassMemory, CrossBatchMemory, Remembered
from longtail.losses.pairwise import (
    HybridLoss,
    RangeLoss,
    SpreadOut,
    SupervisedContrastive,
    Triplet,
    hybrid,
    range_loss,
    spread_out,
    supervised_contrastive,
    triplet,
)
from longtail.losses.pick_all import multilabel_margin_cross_entropy
from longtail.losses.probabilistic import ProbabilisticContrastive, probabilistic_contrastive
from longtail.losses.sigmoid import (
    BalancedSigmoid,
    DistributionBalancedLoss,
    MultilabelFunction,
    MultilabelLoss,
    asymmetric_loss,
    balanced_sigmoid,
    binary_cross_entropy,
    binary_focal_loss,
    distribution_balanced_loss,
    sigmoid_offsets,
)
from longtail.losses.softmax import MarginCrossEntropy, margin_cross_entropy

__all__ = [
    "dro_lt",
    "center",
    "ClassCentroids",
    "DroLt",
    "Center",
    "decoupled_logistic",
    "decoupled_hinge",
    "cosine_contrastive",
    "DecoupledLoss",
    "probability_margin",
    "count_margin",
    "pull",
    "Pull",
    "focal_loss",
    "FocalLoss",
    "linear_margin_cross_entropy",
    "mean_linear_margin_cross_entropy",
    "LinearMarginCrossEntropy",
    "Remembered",
    "ClassMemory",
    "CrossBatchMemory",
    "multilabel_margin_cross_entropy",
    "spread_out",
    "range_loss",
    "supervised_contrastive",
    "triplet",
    "hybrid",
    "SpreadOut",
    "RangeLoss",
    "SupervisedContrastive",
    "Triplet",
    "HybridLoss",
    "sigmoid_offsets",
    "balanced_sigmoid",
    "BalancedSigmoid",
    "binary_cross_entropy",
    "binary_focal_loss",
    "asymmetric_loss",
    "distribution_balanced_loss",
    "MultilabelFunction",
    "MultilabelLoss",
    "DistributionBalancedLoss",
    "margin_cross_entropy",
    "MarginCrossEntropy",
    "balanced_contrastive",
    "BalancedContrastive",
    "probabilistic_contrastive",
    "ProbabilisticContrastive",
    "view_consistency",
    "ConsistentViews",
    "ExpertsCrossEntropy",
    "clouded_cross_entropy",
    "CloudedCrossEntropy",
    "lade",
    "LadeLoss",
    "seesaw",
    "SeesawLoss",
    "equalization_v2",
    "EqualizationV2",
]
