"""Class rates: their bounds, and draws and gradients by the Gumbel maximum."""

import numpy as np
import pytest
import torch
from scipy import stats

from longtail.sampling import (
    ClassRates,
    draw_classes,
    straight_through_gradient,
)


def test_the_straight_through_gradient_is_that_of_the_shares():
    log_weights = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64)
    noise = (
        torch.empty(6, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(5)).log().neg()
    )
    classes, shares = draw_classes(log_weights, 6, 0.7, torch.Generator().manual_seed(5))
    assert torch.equal(classes, (log_weights + noise).argmax(1))
    leaf = log_weights.clone().requires_grad_()
    soft = ((leaf + noise) / 0.7).softmax(1)
    torch.testing.assert_close(soft.detach(), shares)
    slopes = torch.linspace(-1, 2, 6, dtype=torch.float64)
    drawn = sum(slopes[i] * soft[i, classes[i]] for i in range(6))
    (expected,) = torch.autograd.grad(drawn, leaf)
    torch.testing.assert_close(straight_through_gradient(classes, shares, slopes, 0.7), expected)


def test_a_class_a_millionth_as_likely_is_drawn_as_often_as_it_should():
    log_weights = torch.tensor([0.0, -np.log(1e6)], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = sum(int(draw_classes(log_weights, 1_000_000, 1.0, generator)[0].sum()) for _ in range(10))
    assert stats.binomtest(found, 10_000_000, 1e-6).pvalue > 1e-4


def test_rates_are_bounded():
    rates = ClassRates(2, learning_rate=5.0)
    for _ in range(50):
        rates.descend(torch.tensor([1.0, -1.0]))
    assert rates.values[0] == pytest.approx(1e-3)
    assert rates.values[1] == pytest.approx(1 - 1e-3)
    for _ in range(50):
        rates.descend(torch.tensor([-1.0, 1.0]))
    assert rates.values[0] > 0.5 > rates.values[1]
