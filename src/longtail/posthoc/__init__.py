"""After training: logits adjusted, tau chosen, priors estimated, thresholds per label."""

from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.calibration import (
    BiasCorrectedTemperature,
    bias_corrected_temperature,
    calibrate_groups,
    group_temperatures,
)
from longtail.posthoc.conformal import (
    adaptive_set_scores,
    class_coverage,
    class_thresholds,
    clustered_thresholds,
    group_coverage,
    marginal_thresholds,
    prevalence_scores,
    probability_scores,
)
from longtail.posthoc.fold import fold_adjustment
from longtail.posthoc.label_shift import (
    PriorInterval,
    ShiftTest,
    bbse_prior,
    bootstrap_prior,
    calibrated_em_prior,
    detect_prior_shift,
    rlls_prior,
)
from longtail.posthoc.nearest import class_means, nearest_mean, nearest_neighbors
from longtail.posthoc.normalize import normalize_weights, normalize_weights_by_prior
from longtail.posthoc.objectives import (
    balanced_calibration_error_shares,
    balanced_error_shares,
    balanced_log_loss_shares,
)
from longtail.posthoc.seen import correct_probabilities, drawn_prior, margin_prior, weighted_prior
from longtail.posthoc.shift import PriorEstimate, estimate_target_prior, temperature_scale
from longtail.posthoc.tau import TauSearch, cross_validate_tau, tune_tau
from longtail.posthoc.thresholds import Thresholds, apply_thresholds, f1_thresholds, precision_thresholds

__all__ = [
    "adjust_logits",
    "correct_probabilities",
    "drawn_prior",
    "margin_prior",
    "weighted_prior",
    "fold_adjustment",
    "class_means",
    "nearest_mean",
    "nearest_neighbors",
    "normalize_weights",
    "normalize_weights_by_prior",
    "balanced_error_shares",
    "balanced_log_loss_shares",
    "balanced_calibration_error_shares",
    "temperature_scale",
    "BiasCorrectedTemperature",
    "bias_corrected_temperature",
    "group_temperatures",
    "calibrate_groups",
    "PriorEstimate",
    "estimate_target_prior",
    "calibrated_em_prior",
    "bbse_prior",
    "rlls_prior",
    "PriorInterval",
    "bootstrap_prior",
    "ShiftTest",
    "detect_prior_shift",
    "TauSearch",
    "tune_tau",
    "cross_validate_tau",
    "probability_scores",
    "adaptive_set_scores",
    "prevalence_scores",
    "marginal_thresholds",
    "class_thresholds",
    "clustered_thresholds",
    "class_coverage",
    "group_coverage",
    "Thresholds",
    "f1_thresholds",
    "precision_thresholds",
    "apply_thresholds",
]
