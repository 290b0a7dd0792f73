"""Derivatives for boosted trees against autograd, and starting scores against the loss that they stand for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail import ClassPrior, margin_cross_entropy
from longtail.boosting import MarginObjective, margin_derivatives, starting_scores
from longtail.margins import Margins, adaptive, is_shift, logit_adjusted, logit_adjusted_adaptive, none

NAMES = {"none": none, "adjusted": logit_adjusted, "adaptive": adaptive, "both": logit_adjusted_adaptive}


def autograd(scores, target, margins, class_weights, sample_weight):
    """Gradient and the diagonal of the Hessian of each sample's loss, by torch."""

    def total(rows):
        losses = margin_cross_entropy(rows, torch.from_numpy(target), margins, class_weights)
        return (losses * torch.from_numpy(sample_weight)).sum()

    points = torch.from_numpy(scores)
    gradient = torch.func.grad(total)(points)
    full = torch.func.hessian(total)(points)
    rows = torch.arange(len(points))
    return gradient.numpy(), full[rows, :, rows, :].numpy()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_classes", [2, 5])
def test_derivatives_are_those_of_autograd(name, num_classes):
    generator = np.random.default_rng(0)
    prior = ClassPrior.from_counts(generator.integers(1, 1000, num_classes))
    margins = NAMES[name](prior)
    scores, target = 5 * generator.normal(size=(7, num_classes)), generator.integers(0, num_classes, 7)
    class_weights, weight = generator.uniform(0.1, 3, num_classes), generator.uniform(0, 2, 7)
    gradient, matrices = autograd(scores, target, margins, torch.from_numpy(class_weights), weight)
    found = margin_derivatives(scores, target, margins, class_weights, weight)
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-10)
    np.testing.assert_allclose(found.hessian, np.diagonal(matrices, axis1=1, axis2=2), atol=1e-10)
    objective = MarginObjective(margins, class_weights)
    for row in range(7):
        first, second = objective.calc_ders_multi(scores[row], target[row], weight[row])
        np.testing.assert_allclose(first, -gradient[row], atol=1e-10)
        np.testing.assert_allclose(second, -matrices[row], atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_one_score_for_two_classes(name):
    generator = np.random.default_rng(1)
    margins = NAMES[name](ClassPrior.from_counts([90, 7]))
    scores, target, weight = 20 * generator.normal(size=9), generator.integers(0, 2, 9), generator.uniform(0, 2, 9)
    points = torch.from_numpy(scores).requires_grad_()
    losses = margin_cross_entropy(
        torch.stack([torch.zeros_like(points), points], 1), torch.from_numpy(target), margins
    )
    (gradient,) = torch.autograd.grad((losses * torch.from_numpy(weight)).sum(), points, create_graph=True)
    (hessian,) = torch.autograd.grad(gradient.sum(), points)
    first, second = MarginObjective(margins)(target, scores, weight)
    np.testing.assert_allclose(first, gradient.detach(), atol=1e-10)
    np.testing.assert_allclose(second, hessian, atol=1e-10)
    pairs = MarginObjective(margins).calc_ders_range(scores.tolist(), target.astype(float), weight)
    np.testing.assert_allclose(np.array(pairs), np.stack([-first, -second], axis=1))


@given(size=st.floats(-1e4, 1e4), counts=st.lists(st.integers(1, 10**6), min_size=3, max_size=3))
def test_derivatives_are_finite_and_bounded(size, counts):
    margins = logit_adjusted_adaptive(ClassPrior.from_counts(counts))
    found = margin_derivatives(np.array([[size, 0.0, -size]]), np.array([1]), margins)
    assert np.isfinite(found.gradient).all()
    assert abs(found.gradient.sum()) < 1e-9
    assert ((found.hessian >= 0) & (found.hessian <= 0.25)).all()


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_starting_scores_make_plain_cross_entropy_the_margin_loss(tau, num_classes):
    generator = np.random.default_rng(2)
    margins = logit_adjusted(ClassPrior.from_counts(generator.integers(1, 1000, num_classes)), tau)
    target = generator.integers(0, num_classes, 6)
    start = starting_scores(margins, 6)
    scores = generator.normal(size=start.shape)
    plain = margin_derivatives(scores + start, target, margins * 0.0)
    found = margin_derivatives(scores, target, margins)
    np.testing.assert_allclose(found.gradient, plain.gradient, atol=1e-12)
    np.testing.assert_allclose(found.hessian, plain.hessian, atol=1e-12)


def test_margins_that_do_more_than_shift_have_no_starting_scores():
    prior = ClassPrior.from_counts([9, 1])
    with pytest.raises(ValueError, match=r"must only shift logits.*use MarginObjective"):
        starting_scores(adaptive(prior), 3)
    one = torch.ones(2)
    assert not is_shift(Margins(one, 0 * one))  # a margin that all classes share is one, too
    assert is_shift(none(prior))


@pytest.mark.parametrize(
    ("scores", "target", "options", "message"),
    [
        (np.zeros((2, 3)), [0, 3], {}, r"target must be \[2\] class indices in 0..2"),
        (np.zeros((2, 3)), [0, 0.5], {}, "class indices"),
        (np.zeros((2, 3)), [0], {}, "class indices"),
        (np.zeros((2, 2)), [0, 1], {}, r"scores must be \[N, 3\]"),
        (np.zeros(2), [0, 1], {}, r"scores must be \[N, 3\] for 3 classes"),
        (np.zeros((2, 3)), [0, 1], {"class_weights": [1.0, 2.0]}, "one for each of 3 classes"),
        (np.zeros((2, 3)), [0, 1], {"sample_weight": [1.0]}, r"sample_weight must be \[2\]"),
    ],
)
def test_bad_input(scores, target, options, message):
    margins = none(ClassPrior.from_counts([1, 2, 3]))
    with pytest.raises(ValueError, match=message):
        margin_derivatives(scores, np.array(target), margins, **options)
