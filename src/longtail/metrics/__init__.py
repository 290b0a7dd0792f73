"""Metrics for imbalanced data: functions, and modules that add up over batches and processes.

Every function is called ``f(predictions, target, ...)``; ``f_from_counts`` makes the same value of what was counted
before. Predictions that are NaN are refused. Names are loaded on first use: functions need no torchmetrics.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.metrics._ranking import Ranking, rank_labels
    from longtail.metrics.calibration import (
        Reliability,
        balance_bins,
        balanced_calibration_error,
        balanced_calibration_error_from_counts,
        bin_confidences,
        calibration_error,
        calibration_error_from_counts,
        reliability,
        reliability_from_counts,
    )
    from longtail.metrics.classes import (
        balanced_accuracy,
        balanced_accuracy_from_counts,
        balanced_error,
        balanced_error_from_counts,
        count_hits,
        group_accuracy,
        group_accuracy_from_counts,
        per_class_accuracy,
        per_class_accuracy_from_counts,
    )
    from longtail.metrics.label_hits import (
        count_label_hits,
        group_recall,
        group_recall_from_counts,
        macro_precision,
        macro_precision_from_counts,
        macro_recall,
        macro_recall_from_counts,
    )
    from longtail.metrics.modules.calibration import BalancedCalibrationError, CalibrationError
    from longtail.metrics.modules.classes import BalancedAccuracy, BalancedError, GroupAccuracy, PerClassAccuracy
    from longtail.metrics.modules.multilabel import AveragePrecision, BinnedAveragePrecision, MultilabelScores
    from longtail.metrics.modules.retrieval import LabelHitsAtK, RetrievalMetric
    from longtail.metrics.multilabel import (
        LabelCounts,
        LabelScores,
        average_precision,
        binned_average_precision,
        binned_average_precision_from_counts,
        count_exact_matches,
        count_labels,
        exact_match,
        macro_scores,
        macro_scores_from_counts,
        micro_scores,
        micro_scores_from_counts,
        per_class_scores,
        per_class_scores_from_counts,
    )
    from longtail.metrics.propensity import (
        PROPENSITY_CONSTANTS,
        inverse_propensities,
        propensity_scored_ndcg,
        propensity_scored_ndcg_at_k,
        propensity_scored_precision,
        propensity_scored_precision_at_k,
    )
    from longtail.metrics.report import ClassificationReport, ReportRow, classification_report
    from longtail.metrics.retrieval import NDCG, PRECISION, RECALL, ndcg_at_k, precision_at_k, recall_at_k

__all__ = [
    "classification_report",
    "ClassificationReport",
    "ReportRow",
    "count_hits",
    "per_class_accuracy",
    "balanced_accuracy",
    "balanced_error",
    "group_accuracy",
    "BalancedAccuracy",
    "BalancedError",
    "PerClassAccuracy",
    "GroupAccuracy",
    "Reliability",
    "bin_confidences",
    "balance_bins",
    "reliability",
    "calibration_error",
    "balanced_calibration_error",
    "CalibrationError",
    "BalancedCalibrationError",
    "LabelCounts",
    "LabelScores",
    "count_labels",
    "count_exact_matches",
    "exact_match",
    "per_class_scores",
    "macro_scores",
    "micro_scores",
    "average_precision",
    "binned_average_precision",
    "MultilabelScores",
    "AveragePrecision",
    "BinnedAveragePrecision",
    "Ranking",
    "rank_labels",
    "precision_at_k",
    "recall_at_k",
    "ndcg_at_k",
    "PRECISION",
    "RECALL",
    "NDCG",
    "RetrievalMetric",
    "count_label_hits",
    "group_recall",
    "macro_recall",
    "macro_precision",
    "LabelHitsAtK",
    "PROPENSITY_CONSTANTS",
    "inverse_propensities",
    "propensity_scored_precision_at_k",
    "propensity_scored_ndcg_at_k",
    "propensity_scored_precision",
    "propensity_scored_ndcg",
    "per_class_accuracy_from_counts",
    "balanced_accuracy_from_counts",
    "balanced_error_from_counts",
    "group_accuracy_from_counts",
    "reliability_from_counts",
    "calibration_error_from_counts",
    "balanced_calibration_error_from_counts",
    "per_class_scores_from_counts",
    "macro_scores_from_counts",
    "micro_scores_from_counts",
    "binned_average_precision_from_counts",
    "group_recall_from_counts",
    "macro_recall_from_counts",
    "macro_precision_from_counts",
]

_HOMES = (
    "classes",
    "calibration",
    "multilabel",
    "report",
    "_ranking",
    "label_hits",
    "retrieval",
    "propensity",
    "modules.classes",
    "modules.calibration",
    "modules.multilabel",
    "modules.retrieval",
)
"""From light to heavy: the first one that has a name is where it comes from."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"longtail.metrics.{home}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'longtail.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
