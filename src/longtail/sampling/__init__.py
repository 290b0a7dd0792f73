"""Samplers: which samples an epoch has, and how often."""

from longtail.sampling.base import ClassIndex, Draws, EpochSampler
from longtail.sampling.class_rates import ClassRates, draw_classes, score_function_gradient
from longtail.sampling.classes import (
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    SquareRootSampler,
    TargetSampler,
)
from longtail.sampling.files import FileBatches, SparseBatch
from longtail.sampling.held_out import SubsetSampler, hold_out_counts, hold_out_samples
from longtail.sampling.hyper_gradients import (
    HeadRecord,
    linear_hyper_gradients,
    network_hyper_gradients,
    recording,
    sgd_step_size,
)
from longtail.sampling.meta_reweighter import MetaReweighter
from longtail.sampling.meta_sampler import MetaSampler
from longtail.sampling.per_class import MPerClassSampler
from longtail.sampling.samples import RepeatFactorSampler, UndersamplingSampler

__all__ = [
    "Draws",
    "EpochSampler",
    "ClassIndex",
    "draw_classes",
    "score_function_gradient",
    "ClassRates",
    "InstanceSampler",
    "ClassBalancedSampler",
    "SquareRootSampler",
    "ProgressiveSampler",
    "TargetSampler",
    "sgd_step_size",
    "linear_hyper_gradients",
    "network_hyper_gradients",
    "HeadRecord",
    "recording",
    "MetaReweighter",
    "MetaSampler",
    "MPerClassSampler",
    "RepeatFactorSampler",
    "SubsetSampler",
    "hold_out_counts",
    "hold_out_samples",
    "UndersamplingSampler",
    "FileBatches",
    "SparseBatch",
]
