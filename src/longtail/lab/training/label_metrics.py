"""What a run measures on multi-label data."""

from __future__ import annotations

import math

from torch import Tensor

from longtail.metrics.multilabel import (
    average_precision,
    count_labels,
    exact_match,
    macro_scores_from_counts,
    micro_scores_from_counts,
)
from longtail.prior import ClassPrior

__all__ = ["multilabel_metrics", "rarest_sizes"]


def multilabel_metrics(logits: Tensor, labels: Tensor, prior: ClassPrior) -> dict[str, float]:
    """Precision, recall and F1 at a probability of 0.5, on average over classes and over the rarest ones; and more.

    Args:
        logits: [N, C] of sigmoids.
        labels: [N, C] bool.
        prior: says which classes are rare.

    Returns:
        "precision", "recall", "f1" (means over classes), "f1_rarest_K" and "recall_rarest_K" (means over the K rarest
        classes, see :func:`rarest_sizes`), "micro_f1", "exact_match", "mean_average_precision". Classes without
        positives among ``labels`` are left out of the means.
    """
    predicted = logits >= 0
    counts = count_labels(predicted, labels)
    everywhere = macro_scores_from_counts(counts)
    values = {name: float(getattr(everywhere, name)) for name in ("precision", "recall", "f1")}
    for size in rarest_sizes(prior.num_classes):
        rare = macro_scores_from_counts(counts.of(prior.rarest(size)))
        values |= {f"recall_rarest_{size}": float(rare.recall), f"f1_rarest_{size}": float(rare.f1)}
    values["micro_f1"] = float(micro_scores_from_counts(counts).f1)
    values["exact_match"] = float(exact_match(predicted, labels))
    values["mean_average_precision"] = float(average_precision(logits, labels).nanmean())
    return {name: value for name, value in values.items() if math.isfinite(value)}


def rarest_sizes(num_classes: int) -> tuple[int, ...]:
    """K, how many of the rarest classes are looked at: 3 and 5 of few classes, 10 and 20 of many, as in the paper.

    >>> rarest_sizes(10), rarest_sizes(80), rarest_sizes(2)
    ((3, 5), (10, 20), ())

    Reference:
        Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification", tables 1 and 2.
    """
    return tuple(size for size in ((3, 5) if num_classes < 40 else (10, 20)) if size < num_classes)
