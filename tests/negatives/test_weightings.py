"""What is implied: Tables 2 and 3 of the paper, and targets."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from longtail import ClassPrior, losses, margins
from longtail import negatives as ng
from longtail.margins import Margins

COUNTS = [60, 20, 10, 6, 4]
PRIOR = ClassPrior.from_counts(COUNTS)
PI = PRIOR.probs
C, M = len(COUNTS), 8
TAIL = ng.tail(PRIOR)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_logits(num_samples=1, num_classes=C, seed=3):
    return torch.randn(num_samples, num_classes, generator=seeded(seed), dtype=torch.float64)


def off_diagonal(matrix):
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


TABLE_2 = [
    ("uniform", ng.constant, lambda y, n: 1 / C),
    ("uniform", ng.importance, lambda y, n: 1.0),
    ("uniform", ng.relative, lambda y, n: M / C),
    ("uniform", TAIL, lambda y, n: PI[n] / PI[y]),
    ("within-batch", ng.constant, lambda y, n: PI[n]),
    ("within-batch", ng.importance, lambda y, n: 1.0),
    ("within-batch", ng.relative, lambda y, n: M * PI[y]),
    ("within-batch", TAIL, lambda y, n: PI[n] / PI[y]),
]
DISTRIBUTIONS = {"uniform": ng.uniform(C), "within-batch": ng.WithinBatch(PRIOR)}


@pytest.mark.parametrize(("sampling", "weighting", "rho"), TABLE_2)
def test_every_row_of_table_2(sampling, weighting, rho):
    implied = ng.implied_margins(DISTRIBUTIONS[sampling], weighting, M).dense().exp()
    for y, n in itertools.permutations(range(C), 2):
        assert float(implied[y, n]) == pytest.approx(float(rho(y, n)), rel=1e-12)


# Sampling, weighting, the weight that Table 3 prints, and the factor of phi in the expected loss.
TABLE_3 = [
    (ng.uniform(C, excludes_positive=True), ng.constant, lambda y, n: 1 / M, lambda y, n: 1 / (C - 1)),
    (ng.uniform(C), ng.importance, lambda y, n: C / M, lambda y, n: 1.0),
    (ng.uniform(C), ng.relative, lambda y, n: 1.0, lambda y, n: M / C),
    (ng.uniform(C), TAIL, lambda y, n: C / M * PI[n] / PI[y], lambda y, n: PI[n] / PI[y]),
    (ng.WithinBatch(PRIOR), ng.constant, lambda y, n: 1 / M, lambda y, n: PI[n]),
    (ng.WithinBatch(PRIOR), ng.importance, lambda y, n: 1 / (M * PI[n]), lambda y, n: 1.0),
    (ng.WithinBatch(PRIOR), ng.relative, lambda y, n: PI[y] / PI[n], lambda y, n: M * PI[y]),
    (ng.WithinBatch(PRIOR), TAIL, lambda y, n: 1 / (M * PI[y]), lambda y, n: PI[n] / PI[y]),
]


@pytest.mark.parametrize(("distribution", "weighting", "weight", "factor"), TABLE_3)
def test_every_row_of_table_3(distribution, weighting, weight, factor):
    """The weights are those printed, and m sum_y' q[y'] w[y, y'] phi[y'] is the loss printed."""
    phi = F.softplus(make_logits()[0])
    everything = torch.arange(C)
    for y in range(C):
        target = torch.tensor([y])
        log_q = distribution.log_probs
        others = torch.log1p(-log_q[target].exp()) if distribution.excludes_positive else None
        draw = ng.Draw(everything, log_q, log_q[target], M, others)
        w = ng.log_weights(weighting, draw, target)[0].exp()
        q = log_q.exp() / (1 - log_q[y].exp() if distribution.excludes_positive else 1)
        assert w[y] == 0
        for n in set(range(C)) - {y}:
            assert float(w[n]) == pytest.approx(float(weight(y, n)), rel=1e-12)
        expected = M * (q * w * phi).sum()
        printed = sum(float(factor(y, n)) * float(phi[n]) for n in range(C) if n != y)
        assert float(expected) == pytest.approx(printed, rel=1e-12)
        implied = ng.implied_margins(distribution, weighting, M)
        exact = losses.decoupled_logistic(make_logits(), target, implied) - F.softplus(-make_logits()[0, y])
        assert float(exact) == pytest.approx(printed, rel=1e-12)


def test_the_two_ways_to_exclude_the_positive_differ_as_they_should():
    """By zero weight a uniform negative counts 1 / C, by domain 1 / (C - 1)."""
    by_weight = ng.implied_margins(ng.uniform(C), ng.constant, M).dense().exp()
    by_domain = ng.implied_margins(ng.uniform(C, excludes_positive=True), ng.constant, M).dense().exp()
    assert off_diagonal(by_weight).tolist() == pytest.approx([1 / C] * (C * C - C))
    assert off_diagonal(by_domain).tolist() == pytest.approx([1 / (C - 1)] * (C * C - C))
    for y, n in itertools.permutations(range(C), 2):
        skewed = ng.implied_margins(ng.prior_power(PRIOR, 1.0, excludes_positive=True), ng.constant, M).dense().exp()
        assert float(skewed[y, n]) == pytest.approx(float(PI[n] / (1 - PI[y])))


vectors = st.lists(st.floats(-5, 5), min_size=C, max_size=C).map(lambda v: torch.tensor(v, dtype=torch.float64))


@settings(deadline=None, max_examples=25)
@given(vectors, vectors, vectors, st.integers(1, 5000), st.booleans())
def test_targeting_is_the_inverse_of_implying(positive, negative, log_q, num_negatives, excludes):
    wanted = Margins(positive, negative)
    distribution = ng.LabelDistribution(log_q.exp(), excludes_positive=excludes)
    found = ng.implied_margins(distribution, ng.targeting(wanted), num_negatives)
    torch.testing.assert_close(found.dense(), wanted.dense(), rtol=0, atol=1e-10)


def test_the_named_weightings_are_targets_too():
    q = ng.prior_power(PRIOR, 0.75)
    log_q, zeros = q.log_probs, torch.zeros(C, dtype=torch.float64)
    targets = {
        ng.importance: margins.none(PRIOR),
        ng.constant: Margins(zeros, log_q),
        ng.unit: Margins(zeros, log_q + math.log(M)),
        ng.relative: Margins(log_q + math.log(M), zeros),
        TAIL: margins.logit_adjusted(PRIOR),
    }
    for weighting, target in targets.items():
        same = ng.implied_margins(q, ng.targeting(target), M).dense()
        torch.testing.assert_close(ng.implied_margins(q, weighting, M).dense(), same, rtol=0, atol=1e-12)


def test_a_distribution_that_depends_on_the_sample_has_no_one_implied_loss():
    with pytest.raises(TypeError, match=r"where q is the same for all samples. Got SoftmaxDistribution"):
        ng.implied_margins(ng.SoftmaxDistribution(C), ng.constant, M)


@pytest.mark.parametrize("weighting", [ng.importance, ng.relative, ng.targeting(margins.none(PRIOR))])
def test_a_weight_that_divides_by_zero_is_refused(weighting):
    never = ng.LabelDistribution(torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="not finite for label 2, which is drawn with probability 0"):
        ng.implied_margins(never, weighting, M)
    assert ng.implied_margins(never, ng.constant, M).negative[2] == -math.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ng.implied_margins(ng.uniform(C), ng.constant, 0), "num_negatives must be .* at least 1. Got 0"),
        (lambda: ng.implied_margins(ng.uniform(9), TAIL, 4), "margins are for 5 labels. Got a label 8"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weighting", [ng.constant, ng.unit])
def test_a_label_that_q_never_draws_is_no_negative_of_the_implied_loss_and_a_true_label_like_others(weighting, dtype):
    """Eq. (11) term by term: its margin as a negative is minus infinity, which leaves it out and harms nothing."""
    q = torch.tensor([1.0, 2.0, 0.0, 3.0, 0.0]).double() / 6
    implied = ng.implied_margins(ng.LabelDistribution(q), weighting, M)
    logits, target = make_logits(C, seed=1).to(dtype).requires_grad_(), torch.arange(C)
    weight = {ng.constant: 1 / M, ng.unit: 1.0}[weighting]
    expected = []
    for f, y in zip(logits.detach().double(), range(C), strict=True):
        others = [M * q[n] * weight * math.exp(f[n] - f[y]) for n in range(C) if n != y]
        expected.append(math.log1p(float(sum(others))))
    found = losses.margin_cross_entropy(logits, target, implied)
    assert found.tolist() == pytest.approx(expected, rel=1e-10 if dtype == torch.float64 else 1e-5)
    eye = torch.eye(C, dtype=dtype)
    linear = losses.linear_margin_cross_entropy(logits, eye, target, implied)
    torch.testing.assert_close(linear, found)
    assert losses.MarginCrossEntropy(implied)(logits, target).item() == pytest.approx(sum(expected) / C, rel=1e-5)
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(lambda f: losses.margin_cross_entropy(f, target, implied), logits)
        assert torch.autograd.gradcheck(lambda f: losses.linear_margin_cross_entropy(f, eye, target, implied), logits)


def test_far_from_all_others_a_label_that_q_never_draws_still_does_not_count():
    implied = ng.implied_margins(ng.LabelDistribution(torch.tensor([1.0, 1.0, 0.0])), ng.constant, M)
    logits = torch.tensor([[0.0, 0.0, 1e4], [0.0, 0.0, -1e4]])
    found = losses.margin_cross_entropy(logits, torch.tensor([0, 2]), implied)
    assert found.tolist() == pytest.approx([math.log(1.5), 1e4])
