"""Estimators for scikit-learn."""

from longtail.estimators.adjusted import LogitAdjustedClassifier
from longtail.estimators.boosted import MarginBoostedClassifier
from longtail.estimators.conformal import ConformalClassifier
from longtail.estimators.corrected import PriorCorrectedClassifier
from longtail.estimators.extreme import ExtremeClassifier
from longtail.estimators.thresholded import ThresholdedClassifier

__all__ = [
    "LogitAdjustedClassifier",
    "PriorCorrectedClassifier",
    "MarginBoostedClassifier",
    "ConformalClassifier",
    "ExtremeClassifier",
    "ThresholdedClassifier",
]
