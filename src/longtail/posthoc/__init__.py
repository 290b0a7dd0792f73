"""After training: logits adjusted, tau chosen, priors estimated, thresholds per label."""

from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.nearest import class_means, nearest_mean, nearest_neighbors
from longtail.posthoc.normalize import normalize_weights, normalize_weights_by_prior
from longtail.posthoc.objectives import balanced_calibration_error, balanced_error, balanced_log_loss
from longtail.posthoc.shift import PriorEstimate, estimate_target_prior, temperature_scale
from longtail.posthoc.tau import TauSearch, cross_validated_tau, tune_tau
from longtail.posthoc.thresholds import Thresholds, apply_thresholds, f1_thresholds, precision_thresholds

__all__ = [
    "adjust_logits",
    "class_means",
    "nearest_mean",
    "nearest_neighbors",
    "normalize_weights",
    "normalize_weights_by_prior",
    "balanced_error",
    "balanced_log_loss",
    "balanced_calibration_error",
    "temperature_scale",
    "PriorEstimate",
    "estimate_target_prior",
    "TauSearch",
    "tune_tau",
    "cross_validated_tau",
    "Thresholds",
    "f1_thresholds",
    "precision_thresholds",
    "apply_thresholds",
]
