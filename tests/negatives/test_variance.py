"""Draws agree with what is implied: means, variances and errors, by enumeration and by draws."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from longtail import ClassPrior, losses
from longtail import negatives as ng

COUNTS = [60, 20, 10, 6, 4]
PRIOR = ClassPrior.from_counts(COUNTS)
C, M = len(COUNTS), 8
TAIL = ng.tail(PRIOR)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_logits(num_samples=1, num_classes=C, seed=3):
    return torch.randn(num_samples, num_classes, generator=seeded(seed), dtype=torch.float64)


def batch_of(target):
    return ng.Batch(target, target)


def enumerated(values, num_negatives):
    """Every outcome of ``num_negatives`` draws."""
    return torch.tensor(list(itertools.product(range(values), repeat=num_negatives)))


@pytest.mark.parametrize("excludes", [False, True])
@pytest.mark.parametrize("weighting", [ng.constant, ng.unit, ng.importance, ng.relative, TAIL])
def test_mean_and_variance_of_a_decoupled_loss_by_enumeration(weighting, excludes):
    """Eq. (9) and (10), over all outcomes of two draws, each with its probability."""
    distribution, num_negatives = ng.prior_power(PRIOR, 0.75, excludes_positive=excludes), 2
    logits, y = make_logits(), 1
    target = torch.tensor([y])
    log_q = distribution.log_probs
    outcomes = enumerated(C, num_negatives)
    mass = log_q.exp()
    if excludes:
        mass = mass.clone()
        mass[y] = 0
        mass = mass / mass.sum()
    probability = mass[outcomes].prod(dim=1)
    rows = target.expand(len(outcomes))
    others = torch.log1p(-log_q[rows].exp()) if excludes else None
    draw = ng.Draw(outcomes, log_q[outcomes], log_q[rows], num_negatives, others)
    weights = ng.log_weights(weighting, draw, rows)
    sampled = ng.sampled_logistic(logits[0, rows], logits[0][outcomes], weights)
    mean = (probability * sampled).sum()
    variance = (probability * (sampled - mean) ** 2).sum()

    implied = ng.implied_margins(distribution, weighting, num_negatives)
    assert float(mean) == pytest.approx(float(losses.decoupled_logistic(logits, target, implied)), rel=1e-12)
    formula = ng.sampling_variance(F.softplus(logits), target, distribution, weighting, num_negatives)
    assert float(variance) == pytest.approx(float(formula), rel=1e-10)
    # The bound of Lemma 2 for cross-entropy.
    sampled = ng.sampled_cross_entropy(logits[0, rows], logits[0][outcomes], weights)
    assert (probability * sampled).sum() <= losses.margin_cross_entropy(logits, target, implied)[0] + 1e-12


def test_gradients_of_the_inner_sum_are_unbiased_for_importance_weights():
    """Over all labels, q times the gradient of one drawn term is the gradient of the sum over all other labels."""
    for distribution in (ng.uniform(C), ng.prior_power(PRIOR), ng.log_uniform(C)):
        logits = make_logits()[0].requires_grad_()
        log_q, target = distribution.log_probs, torch.tensor([2])
        expected = torch.zeros(C, dtype=torch.float64)
        for label in range(C):
            drawn = torch.tensor([label])
            weights = ng.log_weights(ng.importance, ng.Draw(drawn, log_q[drawn], log_q[target], 1), target)
            (gradient,) = torch.autograd.grad((weights[0].exp() * logits[drawn].exp()).sum(), logits)
            expected += log_q[label].exp() * gradient
        (exact,) = torch.autograd.grad((logits.exp().sum() - logits[2].exp()), logits)
        torch.testing.assert_close(expected, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighting", [ng.constant, ng.importance, TAIL])
def test_squared_errors_of_drawn_losses_fall_as_one_over_m(weighting):
    """Theorem 3, by draws."""
    prior = ClassPrior.from_counts([500 // (1 + c) for c in range(20)])
    weighting = ng.tail(prior) if weighting is TAIL else weighting
    distribution = ng.prior_power(prior, 0.75, excludes_positive=True)
    logits = 0.7 * make_logits(num_classes=20)
    repeats, target = 4000, torch.tensor([4])
    rows = target.expand(repeats)
    errors = {}
    for num_negatives in (50, 200):
        draw = distribution.draw(batch_of(rows), num_negatives, seeded(1))
        weights = ng.log_weights(weighting, draw, rows)
        sampled = ng.sampled_cross_entropy(logits[0, rows], logits[0][draw.labels], weights)
        implied = ng.implied_margins(distribution, weighting, num_negatives)
        exact = losses.margin_cross_entropy(logits, target, implied)
        errors[num_negatives] = float((sampled - exact).square().mean())
        expected = ng.expected_squared_error(logits, target, distribution, weighting, num_negatives)
        assert errors[num_negatives] == pytest.approx(float(expected), rel=0.12)
    assert errors[50] / errors[200] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("weighting", [ng.constant, ng.unit])
def test_errors_where_q_has_zeros_are_those_without_the_labels(weighting):
    """A label that is never drawn is no negative; as the true label it is like any other."""
    q = ng.LabelDistribution(torch.tensor([1.0, 2.0, 0.0, 3.0, 0.0]))
    logits, target = make_logits(3), torch.tensor([0, 2, 4])
    found = ng.expected_squared_error(logits, target, q, weighting, M)
    for row, y in enumerate(target.tolist()):
        drawn = q.log_probs.exp()
        terms = [float(logits[row, n] - logits[row, y]) for n in range(C)]
        weight = {ng.constant: 1 / M, ng.unit: 1.0}[weighting]
        values = [M * weight * math.exp(terms[n]) * (n != y) for n in range(C)]
        mean = sum(float(drawn[n]) * values[n] for n in range(C))
        variance = sum(float(drawn[n]) * values[n] ** 2 for n in range(C)) - mean**2
        assert float(found[row]) == pytest.approx(variance / (M * (1 + mean) ** 2), rel=1e-10)


@pytest.mark.parametrize("gap", [360.0, 1e4])
def test_errors_of_far_apart_logits_are_finite(gap):
    """One negative far ahead: the error is that of its share of the draws, (1 - q) / (m q), whatever the gap."""
    logits = torch.tensor([[0.0, gap, 0.0, 0.0, 0.0], [gap, 0.0, 0.0, 0.0, 0.0]]).double()
    found = ng.expected_squared_error(logits, torch.tensor([0, 0]), ng.uniform(C), ng.importance, M)
    assert found.tolist() == pytest.approx([(1 - 1 / C) / (M / C), 0.0], abs=1e-9)
