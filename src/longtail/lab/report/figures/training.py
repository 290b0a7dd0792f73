"""Loss, learning rate, and accuracy or F1 by epoch."""

from __future__ import annotations

from typing import Any

from longtail.lab.report.digests.base import Comparison
from longtail.lab.report.figures._history import draw_history
from longtail.lab.report.figures.drawing import Figure
from longtail.lab.report.text import percent

__all__ = ["draw_accuracy", "draw_f1_by_epoch", "draw_learning_rate", "draw_loss"]


def draw_loss(comparison: Comparison[Any]) -> Figure | None:
    """Training loss by epoch; None if it was not recorded."""
    return draw_history(comparison, "train_loss", "training loss", "Training loss", ".4g", lambda loss: f"{loss:.4g}")


def draw_learning_rate(comparison: Comparison[Any]) -> Figure | None:
    """Learning rate by epoch; None if it was not recorded."""
    return draw_history(
        comparison, "learning_rate", "learning rate", "Learning rate", ".3g", lambda rate: f"{rate:.3g}"
    )


def draw_accuracy(comparison: Comparison[Any]) -> Figure | None:
    """Balanced accuracy on the test set by epoch; None if it was measured at the end only."""
    subject = "Balanced accuracy on the test set"
    return draw_history(comparison, "balanced_accuracy", "balanced accuracy", subject, ".1%", percent)


def draw_f1_by_epoch(comparison: Comparison[Any]) -> Figure | None:
    """The mean F1 by epoch; None if it was measured at the end only."""
    return draw_history(comparison, "f1", "mean F1", "Mean F1 over classes", ".1%", percent)
