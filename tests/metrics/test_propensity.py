"""Propensities against their formula."""

import math

import torch

from longtail import ClassPrior
from longtail.metrics import PROPENSITY_CONSTANTS, inverse_propensities


def test_constants_of_propensities():
    prior = ClassPrior.from_counts([60, 31, 17, 8, 3, 1, 0])
    for a, b in PROPENSITY_CONSTANTS.values():
        counts, size = prior.counts.double(), prior.num_samples
        expected = 1 + (math.log(size) - 1) * (b + 1) ** a * (counts + b) ** -a
        torch.testing.assert_close(inverse_propensities(prior, a, b), expected, rtol=1e-12, atol=0)
