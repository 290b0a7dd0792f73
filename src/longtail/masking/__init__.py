"""Partial label masking: leave out labels at random until each class has the ratio of positives it needs.

A sigmoid for each class sees its own imbalance: positives against negatives, r[c] = n_pos[c] / n_neg[c]. Head classes
lose positives, tail classes lose negatives, and the ratios follow training. Equations are those of Duarte et al.
(2021), "PLM: partial label masking for imbalanced multi-label classification".
"""

from longtail.masking.module import MaskedLoss, PartialLabelMasking
from longtail.masking.ratios import (
    adapt_ratio,
    count_bins,
    divergence,
    mask_probabilities,
    positive_ratio,
    standardize,
)

__all__ = [
    "positive_ratio",
    "mask_probabilities",
    "count_bins",
    "divergence",
    "standardize",
    "adapt_ratio",
    "PartialLabelMasking",
    "MaskedLoss",
]
