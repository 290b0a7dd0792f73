"""Class rates: their bounds, draws by probability, and the gradient of what a draw brings."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from longtail.sampling import (
    ClassRates,
    draw_classes,
    linear_hyper_gradients,
    score_function_gradient,
)

PROBS = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


def batches_of(size):
    """Every batch of classes that can be drawn."""
    return [torch.tensor(classes) for classes in product(range(len(PROBS)), repeat=size)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_gradient_is_exact_in_expectation_where_hyper_gradients_are_of_classes(size):
    slopes = torch.tensor([0.7, -1.3, -0.2], dtype=torch.float64)
    leaf = PROBS.log().requires_grad_()
    (wanted,) = torch.autograd.grad(size * (leaf.softmax(0) * slopes).sum(), leaf)
    found = sum(PROBS[c].prod() * score_function_gradient(c, slopes[c], 3) for c in batches_of(size))
    torch.testing.assert_close(found, wanted)


def step_on(classes, samples, meta, learning_rate):
    """The meta loss after a step of a linear head on these samples, and its hyper-gradients."""
    torch.manual_seed(1)
    head = nn.Linear(4, 3, bias=False).double()
    x = samples[classes]
    logits = head(x)
    (residuals,) = torch.autograd.grad(F.cross_entropy(logits, classes), logits)
    weight = (head.weight - learning_rate * residuals.T @ x).detach().requires_grad_()
    meta_loss = F.cross_entropy(meta @ weight.T, torch.arange(3))
    (gradient,) = torch.autograd.grad(meta_loss, weight)
    return meta_loss.detach(), linear_hyper_gradients(x, residuals, gradient, step_size=learning_rate).detach()


def test_the_gradient_is_that_of_the_expected_meta_loss_to_first_order():
    generator = torch.Generator().manual_seed(2)
    samples, meta = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    errors = []
    for learning_rate in (0.1, 0.01, 0.001):
        steps = [(c, *step_on(c, samples, meta, learning_rate)) for c in batches_of(4)]
        leaf = PROBS.log().requires_grad_()
        (wanted,) = torch.autograd.grad(sum(leaf.softmax(0)[c].prod() * loss for c, loss, _ in steps), leaf)
        found = sum(PROBS[c].prod() * score_function_gradient(c, slopes, 3) for c, _, slopes in steps)
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[0] < 0.1
    assert errors[1] < errors[0] / 5
    assert errors[2] < errors[1] / 5


def test_draws_that_are_alike_and_a_draw_alone_say_nothing():
    assert not score_function_gradient(torch.tensor([0, 2, 2]), torch.full((3,), -4.0), 3).any()
    assert not score_function_gradient(torch.tensor([1]), torch.tensor([-4.0]), 3).any()


def test_a_class_a_millionth_as_likely_is_drawn_as_often_as_it_should():
    probs = torch.tensor([1.0, 1e-6], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = sum(int(draw_classes(probs, 1_000_000, generator).sum()) for _ in range(10))
    assert stats.binomtest(found, 10_000_000, 1e-6).pvalue > 1e-4


def test_draws_follow_their_probabilities_and_never_are_of_a_class_with_none():
    probs = np.array([0.0, 5.0, 0.0, 3.0, 2.0, 0.0])
    found = np.bincount(draw_classes(torch.from_numpy(probs), 50_000, torch.Generator().manual_seed(0)), minlength=6)
    assert not found[probs == 0].any()
    assert stats.chisquare(found[probs > 0], 5_000 * probs[probs > 0]).pvalue > 1e-4


def test_rates_are_bounded():
    rates = ClassRates(2, learning_rate=5.0)
    for _ in range(50):
        rates.descend(torch.tensor([1.0, -1.0]))
    assert rates.values[0] == pytest.approx(1e-3)
    assert rates.values[1] == pytest.approx(1 - 1e-3)
    for _ in range(50):
        rates.descend(torch.tensor([-1.0, 1.0]))
    assert rates.values[0] > 0.5 > rates.values[1]
