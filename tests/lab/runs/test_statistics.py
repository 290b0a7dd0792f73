"""Means over seeds."""

import math

import numpy as np
import pytest
import scipy.stats

from longtail.lab.runs.statistics import estimate


def test_estimate_is_the_t_interval():
    values = [0.81, 0.84, 0.79, 0.9]
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    result = estimate(values)
    assert (result.mean, result.low, result.high) == pytest.approx((np.mean(values), low, high))
    assert (result.count, result.has_interval) == (4, True)


def test_estimate_without_spread():
    assert math.isnan(estimate([0.5]).half_width)
    assert not estimate([0.5]).has_interval
    assert math.isnan(estimate([]).mean)
    assert estimate([0.5, math.nan]).count == 1
