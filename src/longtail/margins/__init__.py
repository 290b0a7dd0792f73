"""Pairwise label margins that are a sum of a part for the positive and a part for the negative label.

A margin Delta[y, y'] is the gap that the loss asks for between the logit of the true label y and that of
another label y'. Every margin of the papers is separable, ``Delta[y, y'] = positive[y] + negative[y']``, so two
vectors of length C carry it, margins add, and a named method is a few lines. A third vector, where there is one,
multiplies the logits of each class first: a multiplicative margin.
"""

from longtail.margins.algebra import Margins, is_shift
from longtail.margins.builders import (
    BUILDERS,
    adaptive,
    class_temperatures,
    equalized,
    logit_adjusted,
    logit_adjusted_adaptive,
    max_scaled_adaptive,
    none,
    propensity_adjusted,
    threshold_equalized,
    two_temperature,
    vector_scaling,
)
from longtail.margins.consistency import is_consistent

__all__ = [
    "BUILDERS",
    "Margins",
    "adaptive",
    "class_temperatures",
    "equalized",
    "is_consistent",
    "is_shift",
    "logit_adjusted",
    "logit_adjusted_adaptive",
    "max_scaled_adaptive",
    "none",
    "propensity_adjusted",
    "threshold_equalized",
    "two_temperature",
    "vector_scaling",
]
