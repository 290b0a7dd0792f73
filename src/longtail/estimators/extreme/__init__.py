"""The estimator for extreme classification: very many labels, one or several per sample."""

from longtail.estimators.extreme.classifier import ExtremeClassifier

__all__ = ["ExtremeClassifier"]
