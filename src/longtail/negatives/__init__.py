"""Negative sampling: which labels to contrast with the true one, how to weight them, and the head that does it."""

from longtail.negatives._sampling import KnownDistribution, Sampling
from longtail.negatives.checkpoints import ShardedCheckpoints
from longtail.negatives.clusters import Clusters
from longtail.negatives.distributions import (
    Batch,
    Distribution,
    Draw,
    LabelDistribution,
    StreamingBatch,
    WithinBatch,
    log_uniform,
    prior_power,
    uniform,
)
from longtail.negatives.head import SampledLinear, TopK
from longtail.negatives.index import LabelIndex
from longtail.negatives.linear import sampled_linear_losses
from longtail.negatives.losses import (
    CONTRASTIVE,
    CROSS_ENTROPY,
    HINGE,
    LOGISTIC,
    NegativeSamplingLoss,
    SampledLoss,
    log_weights,
    sampled_contrastive,
    sampled_cross_entropy,
    sampled_hinge,
    sampled_logistic,
)
from longtail.negatives.model_based import ClusteredDistribution, SoftmaxDistribution
from longtail.negatives.module import SampledLinearLoss
from longtail.negatives.rowwise import RowwiseAdagrad, RowwiseAdam, RowwiseSGD
from longtail.negatives.variance import expected_squared_error, sampling_variance
from longtail.negatives.vectors import VectorFile, quantize_rows, save_vectors
from longtail.negatives.weightings import (
    Weighting,
    constant,
    implied_margins,
    importance,
    relative,
    tail,
    targeting,
    unit,
)

__all__ = [
    "Sampling",
    "Clusters",
    "Batch",
    "Draw",
    "Distribution",
    "KnownDistribution",
    "LabelDistribution",
    "uniform",
    "prior_power",
    "log_uniform",
    "WithinBatch",
    "StreamingBatch",
    "TopK",
    "SampledLinear",
    "SampledLinearLoss",
    "ShardedCheckpoints",
    "LabelIndex",
    "VectorFile",
    "save_vectors",
    "quantize_rows",
    "sampled_linear_losses",
    "SampledLoss",
    "CROSS_ENTROPY",
    "LOGISTIC",
    "HINGE",
    "CONTRASTIVE",
    "sampled_cross_entropy",
    "sampled_logistic",
    "sampled_hinge",
    "sampled_contrastive",
    "log_weights",
    "NegativeSamplingLoss",
    "SoftmaxDistribution",
    "ClusteredDistribution",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "RowwiseSGD",
    "sampling_variance",
    "expected_squared_error",
    "Weighting",
    "implied_margins",
    "constant",
    "unit",
    "importance",
    "relative",
    "targeting",
    "tail",
]
