"""Negative sampling: Tables 2 and 3 of the paper, expectations by enumeration and draws, and every distribution."""

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


def batch_of(target):
    return ng.Batch(target, target)


# What is implied


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


def test_unit_weights_are_cross_entropy_over_the_true_label_and_its_negatives():
    positive, negative = torch.randn(5, 1, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    labels = torch.arange(1, 9) % (C - 1) + 1
    draw = ng.Draw(labels, torch.zeros(8, dtype=torch.float64), torch.zeros(5, dtype=torch.float64), 8)
    weights = ng.log_weights(ng.unit, draw, torch.zeros(5, dtype=torch.long))
    plain = F.cross_entropy(
        torch.cat([positive, negative], dim=1), torch.zeros(5, dtype=torch.long), reduction="none"
    )
    torch.testing.assert_close(ng.sampled_cross_entropy(positive[:, 0], negative, weights), plain)


# Draws agree with what is implied


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


def test_model_based_negatives_leave_no_variance():
    """Proposition 5, and the equality in Lemma 2 for q proportional to exp(f): any draw gives the full loss."""
    logits, target = 3 * make_logits(6), torch.tensor([0, 1, 2, 3, 4, 0])
    batch = ng.Batch(target, target, logits, lambda: torch.eye(C, dtype=torch.float64))

    def sampled(distribution, weighting, loss):
        draw = distribution.draw(batch, 3, seeded())
        assert not (draw.labels == target[:, None]).any()
        weights = ng.log_weights(weighting, draw, target)
        return loss(logits.gather(1, target[:, None])[:, 0], logits.gather(1, draw.labels), weights)

    softmax = sampled(ng.SoftmaxDistribution(C), ng.importance, ng.sampled_cross_entropy)
    torch.testing.assert_close(softmax, F.cross_entropy(logits, target, reduction="none"), rtol=1e-10, atol=1e-12)
    wanted = margins.logit_adjusted(PRIOR) + margins.adaptive(PRIOR)
    adjusted = sampled(ng.SoftmaxDistribution(C, wanted), ng.targeting(wanted), ng.sampled_cross_entropy)
    exact = losses.margin_cross_entropy(logits, target, wanted)
    torch.testing.assert_close(adjusted, exact, rtol=1e-10, atol=1e-12)
    best = ng.SoftmaxDistribution(C, wanted, log_loss=lambda z: F.softplus(z).log())
    decoupled = sampled(best, ng.targeting(wanted), ng.sampled_logistic)
    torch.testing.assert_close(decoupled, losses.decoupled_logistic(logits, target, wanted), rtol=1e-10, atol=1e-12)


# Losses


def make_sampled(dtype=torch.float64):
    generator = seeded(5)
    positive = torch.randn(4, generator=generator, dtype=torch.float64)
    negative = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weights[1, 2] = -math.inf
    weights[3] = -math.inf
    return positive.to(dtype), negative.to(dtype), weights


PAIRS = {
    ng.sampled_logistic: (lambda z: math.log1p(math.exp(-z)), lambda z: math.log1p(math.exp(z))),
    ng.sampled_hinge: (lambda z: max(0, 1 - z), lambda z: max(0, 1 + z)),
    ng.sampled_contrastive: (lambda z: (1 - z) ** 2, lambda z: max(0, z) ** 2),
}


def test_losses_as_loops_compute_them():
    positive, negative, weights = make_sampled()
    for i in range(4):
        f, g, w = float(positive[i]), negative[i].tolist(), weights[i].exp().tolist()
        entropy = math.log(1 + sum(wk * math.exp(gk - f) for gk, wk in zip(g, w, strict=True)))
        assert float(ng.sampled_cross_entropy(positive, negative, weights)[i]) == pytest.approx(entropy, abs=1e-12)
        for loss, (phi, varphi) in PAIRS.items():
            expected = phi(f) + sum(wk * varphi(gk) for gk, wk in zip(g, w, strict=True))
            assert float(loss(positive, negative, weights)[i]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", [ng.sampled_cross_entropy, *PAIRS])
def test_gradients_and_what_does_not_count(loss):
    positive, negative, weights = make_sampled()
    positive.requires_grad_()
    negative.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, n: loss(p, n, weights), (positive, negative))
    loss(positive, negative, weights).sum().backward()
    assert (negative.grad[weights == -math.inf] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_logits_in_any_precision(dtype):
    positive = torch.tensor([-1e4, 1e4, 0.0]).to(dtype).requires_grad_()
    negative = torch.tensor([[1e4, 1e4], [-1e4, 1e4], [0.0, 0.0]]).to(dtype).requires_grad_()
    weights = torch.tensor([[40.0, -40.0], [0.0, -math.inf], [-math.inf, -math.inf]])
    values = ng.sampled_cross_entropy(positive, negative, weights)
    values.sum().backward()
    assert values.dtype == dtype
    assert values[0].item() == pytest.approx(2e4, rel=0.01)
    assert values[1:].tolist() == [0, 0]
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


def test_half_precision_is_close_and_autocast_gives_float32():
    positive, negative, weights = make_sampled(torch.bfloat16)
    exact = ng.sampled_cross_entropy(positive.double(), negative.double(), weights)
    torch.testing.assert_close(
        ng.sampled_cross_entropy(positive, negative, weights).double(), exact, rtol=0.01, atol=0
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wide = ng.sampled_cross_entropy(positive, negative, weights)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", [ng.CROSS_ENTROPY, ng.LOGISTIC, ng.HINGE, ng.CONTRASTIVE])
def test_totals_of_parts_merge_to_the_total(loss):
    positive, negative, weights = make_sampled()
    parts = torch.stack([loss.total(negative[:, :1], weights[:, :1]), loss.total(negative[:, 1:], weights[:, 1:])])
    torch.testing.assert_close(loss.finish(positive, loss.merge(parts)), loss(positive, negative, weights))


def test_the_loss_on_all_logits():
    logits, target = make_logits(64), torch.randint(C, (64,), generator=seeded())
    wanted = margins.logit_adjusted(PRIOR)
    module = ng.NegativeSamplingLoss(ng.uniform(C), ng.targeting(wanted), num_negatives=20_000)
    exact = losses.margin_cross_entropy(logits, target, wanted).mean()
    assert float(module(logits, target, seeded())) == pytest.approx(float(exact), rel=0.02)
    exact_draws = ng.NegativeSamplingLoss(ng.SoftmaxDistribution(C), ng.importance, num_negatives=1)
    assert float(exact_draws(logits, target)) == pytest.approx(float(F.cross_entropy(logits, target)))


# Distributions


def assert_frequencies(labels, probs):
    """Each label comes within 5 standard deviations of how often it should."""
    expected = probs * labels.numel()
    spread = (expected * (1 - probs)).sqrt().clamp_min(1e-9)
    counts = labels.flatten().bincount(minlength=len(probs)).double()
    assert ((counts - expected).abs() <= 5 * spread).all()


@pytest.mark.parametrize(
    ("distribution", "formula"),
    [
        (ng.uniform(C), lambda k: 1.0),
        (ng.prior_power(PRIOR), lambda k: COUNTS[k]),
        (ng.prior_power(PRIOR, 0.75), lambda k: COUNTS[k] ** 0.75),
        (ng.log_uniform(C), lambda k: math.log((k + 2) / (k + 1))),
    ],
)
def test_probabilities_and_draws(distribution, formula):
    weights = torch.tensor([formula(k) for k in range(C)], dtype=torch.float64)
    probs = weights / weights.sum()
    torch.testing.assert_close(distribution.log_probs.exp(), probs)
    draw = distribution.draw(batch_of(torch.tensor([0, 3])), 50_000, seeded())
    assert_frequencies(draw.labels, probs)
    torch.testing.assert_close(draw.log_probs, probs.log()[draw.labels])
    torch.testing.assert_close(draw.positive_log_probs, probs.log()[[0, 3]])
    assert torch.equal(draw.labels, distribution.draw(batch_of(torch.tensor([0])), 50_000, seeded()).labels)


def test_a_positive_excluded_by_domain_is_never_drawn_and_the_others_share_its_probability():
    distribution = ng.prior_power(PRIOR, excludes_positive=True)
    target = torch.tensor([0, 4])
    draw = distribution.draw(batch_of(target), 30_000, seeded())
    for row, y in enumerate(target.tolist()):
        rest = PI.clone()
        rest[y] = 0
        assert_frequencies(draw.labels[row], rest / rest.sum())
    torch.testing.assert_close(draw.log_others.exp(), 1 - PI[target])


def test_accidental_hits_have_no_weight_and_duplicates_count_twice():
    target = torch.tensor([2, 0])
    log_q = ng.uniform(C).log_probs
    drawn = torch.tensor([2, 1, 1, 0])
    draw = ng.Draw(drawn, log_q[drawn], log_q[target], 4)
    weights = ng.log_weights(ng.importance, draw, target)
    assert (weights == -math.inf).tolist() == [[True, False, False, False], [False, False, False, True]]
    logits = make_logits(2)
    sampled = ng.sampled_cross_entropy(logits.gather(1, target[:, None])[:, 0], logits[:, drawn], weights)
    w, f = C / 4, logits[0].exp()
    assert float(sampled[0]) == pytest.approx(float(torch.log(1 + w * (2 * f[1] + f[0]) / f[2])))


def test_all_negatives_equal_to_the_positive_give_no_loss():
    target = torch.tensor([1, 1])
    draw = ng.WithinBatch(PRIOR).draw(batch_of(target), 2)
    negative = torch.zeros(2, 2, requires_grad=True)
    values = ng.sampled_cross_entropy(torch.zeros(2), negative, ng.log_weights(ng.constant, draw, target))
    values.sum().backward()
    assert values.tolist() == [0, 0]
    assert negative.grad.tolist() == [[0, 0], [0, 0]]


def test_ten_million_labels():
    counts = torch.ones(10_000_000, dtype=torch.int64)
    counts[-1] = 10_000_000
    distribution = ng.prior_power(ClassPrior.from_counts(counts))
    labels = distribution.draw(batch_of(torch.tensor([0])), 40_000, seeded()).labels
    share = (labels == 9_999_999).double().mean()
    assert float(share) == pytest.approx(0.5, abs=0.015)
    rest = labels[labels != 9_999_999]
    assert len(rest.unique()) > 0.99 * len(rest)
    assert float(rest.double().mean()) == pytest.approx(5e6, rel=0.02)


def test_within_batch_takes_the_other_samples_labels():
    labels = torch.tensor([0, 1, 2, 0])
    draw = ng.WithinBatch(PRIOR).draw(batch_of(labels), num_negatives=100)
    assert draw.labels.tolist() == [0, 1, 2, 0]
    assert draw.num_negatives == 3
    part = [ng.WithinBatch(PRIOR).draw(batch_of(labels), 2, seeded(seed)) for seed in range(2000)]
    assert {p.num_negatives for p in part} == {2 * 3 / 4}
    # Sample 1 meets others' labels as often as that says: its own label occurs once in the batch.
    others = sum(int((p.labels != 1).sum()) for p in part) / len(part)
    assert others == pytest.approx(1.5, abs=0.05)


def test_within_batch_is_the_prior_in_expectation():
    target = torch.multinomial(PI, 150 * 64, replacement=True, generator=seeded()).view(150, 64)
    logits, implied = make_logits()[0], ng.implied_margins(ng.WithinBatch(PRIOR), ng.constant, 63)
    found = []
    for row in target:
        draw = ng.WithinBatch(PRIOR).draw(batch_of(row), 64)
        weights = ng.log_weights(ng.constant, draw, row)
        found.append(ng.sampled_logistic(logits[row], logits[draw.labels].expand(64, 64), weights)[row == 1])
    exact = losses.decoupled_logistic(logits[None], torch.tensor([1]), implied)
    assert float(torch.cat(found).mean()) == pytest.approx(float(exact), rel=0.01)


def test_streaming_counts_approach_the_prior_and_are_saved():
    stream = ng.StreamingBatch(C)
    for seed in range(40):
        labels = torch.multinomial(PI, 256, replacement=True, generator=seeded(seed))
        draw = stream.draw(batch_of(labels), 256)
        assert draw.log_probs.isfinite().all()
    torch.testing.assert_close(stream.log_probs.exp(), PI, rtol=0.1, atol=0)
    other = ng.StreamingBatch(C)
    other.load_state_dict(stream.state_dict())
    assert torch.equal(other.bfloat16().log_probs, stream.log_probs)
    total = int(stream.eval().total)
    stream.draw(batch_of(labels), 256)
    assert int(stream.total) == total == 40 * 256
    with pytest.raises(ValueError, match="must have been seen in training"):
        ng.StreamingBatch(C).eval().draw(batch_of(torch.tensor([0, 1])), 2)


def make_clustered(num_classes=32, dim=6, num_samples=5):
    generator = seeded(7)
    centers = 2 * torch.randn(4, dim, generator=generator, dtype=torch.float64)
    vectors = centers.repeat_interleave(num_classes // 4, 0)
    vectors = vectors + 0.2 * torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    x = torch.randn(num_samples, dim, generator=generator, dtype=torch.float64)
    return x, vectors


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("with_margins", [False, True])
def test_clustered_probabilities_are_exact(per_sample, with_margins):
    x, vectors = make_clustered()
    prior = ClassPrior.from_counts(torch.arange(1, 33))
    wanted = margins.logit_adjusted(prior) if with_margins else None
    distribution = ng.ClusteredDistribution(32, 8, margins=wanted, per_sample=per_sample)
    distribution.refresh(vectors, seeded())
    # Asked for every label as the positive, it tells the whole of q.
    everything = torch.arange(32)
    batch = ng.Batch(everything, everything, x[:1].expand(32, -1), lambda: vectors)
    draw = distribution.draw(batch, 4000, seeded(1))
    q = draw.positive_log_probs.exp()
    assert float(q.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(draw.log_probs, q.log()[draw.labels])
    assert_frequencies(draw.labels, q)


@pytest.mark.parametrize("dim", [6, 100])
def test_clusters_are_of_equal_size_and_hold_similar_vectors(dim):
    _, vectors = make_clustered(dim=dim)
    distribution = ng.ClusteredDistribution(32, 4)
    distribution.refresh(vectors, seeded())
    found = distribution._clusters.cluster_of.view(4, 8)
    assert found.flatten().bincount().tolist() == [8, 8, 8, 8]
    assert (found == found[:, :1]).all()
    odd = ng.ClusteredDistribution(7, 4)
    odd.refresh(vectors[:7], seeded())
    assert sorted(odd._clusters.cluster_of.bincount().tolist()) == [1, 2, 2, 2]


def test_clustered_negatives_have_less_variance_than_uniform_ones():
    x, vectors = make_clustered()
    logits = x @ vectors.T
    target = torch.tensor([0, 9, 17, 25, 3])
    exact = F.cross_entropy(logits, target, reduction="none")

    def mean_squared_error(distribution):
        total = 0.0
        for seed in range(60):
            draw = distribution.draw(ng.Batch(target, target, x, lambda: vectors), 8, seeded(seed))
            weights = ng.log_weights(ng.importance, draw, target)
            negative = logits.gather(1, draw.labels.expand(weights.shape))
            sampled = ng.sampled_cross_entropy(logits.gather(1, target[:, None])[:, 0], negative, weights)
            total += float((sampled - exact).square().mean())
        return total / 60

    uniform = mean_squared_error(ng.uniform(32))
    shared = mean_squared_error(ng.ClusteredDistribution(32, 8, even_share=0.05))
    own = mean_squared_error(ng.ClusteredDistribution(32, 8, even_share=0.05, per_sample=True))
    assert own < 0.5 * shared
    assert shared < 0.8 * uniform


def test_clusters_are_refreshed_on_schedule():
    x, vectors = make_clustered()
    calls = []

    def class_vectors():
        calls.append(1)
        return vectors

    distribution = ng.ClusteredDistribution(32, 4, refresh_every=3)
    target = torch.arange(5)
    for _ in range(7):
        distribution.draw(ng.Batch(target, target, x, class_vectors), 2, seeded())
    assert len(calls) == 3


# Bad input


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
        (lambda: ng.uniform(1), "num_classes must be a whole number of at least 2. Got 1"),
        (lambda: ng.log_uniform(0), "Got 0"),
        (lambda: ng.StreamingBatch(1), "Got 1"),
        (lambda: ng.prior_power(PRIOR, math.nan), "exponent must be a finite number. Got nan"),
        (lambda: ng.prior_power(ClassPrior.from_counts([3, 0])), "class 1 has no samples"),
        (lambda: ng.LabelDistribution(torch.tensor([1.0, -1.0])), "Got -1.0 for 1"),
        (lambda: ng.LabelDistribution(torch.tensor([0.0, 2.0]), excludes_positive=True), "no negative is left"),
        (lambda: ng.implied_margins(ng.uniform(C), ng.constant, 0), "num_negatives must be .* at least 1. Got 0"),
        (lambda: ng.implied_margins(ng.uniform(9), TAIL, 4), "margins are for 5 labels. Got a label 8"),
        (lambda: ng.SoftmaxDistribution(4, margins.none(PRIOR)), "must be for 4 labels. Got 5"),
        (lambda: ng.SoftmaxDistribution(C).draw(batch_of(torch.tensor([1])), 4), "use it in SampledLinear"),
        (lambda: ng.ClusteredDistribution(10, 3), "power of 2, up to 10. Got 3"),
        (lambda: ng.ClusteredDistribution(10, 16), "Got 16"),
        (lambda: ng.ClusteredDistribution(10, even_share=0.0), r"in \(0, 1\]. Got 0.0"),
        (lambda: ng.ClusteredDistribution(10).refresh(torch.zeros(4, 2)), "vectors of 10 labels. Got 4"),
        (lambda: ng.sampled_cross_entropy(torch.zeros(2), torch.zeros(3, 2), torch.zeros(3, 2)), r"Got \(2,\)"),
        (
            lambda: ng.NegativeSamplingLoss(ng.uniform(3), ng.constant, 2)(torch.zeros(2, 4), torch.zeros(2).long()),
            r"expected logits \[N, 3\]",
        ),
        (
            lambda: ng.NegativeSamplingLoss(ng.uniform(3), ng.constant, 2)(torch.zeros(1, 3), torch.tensor([3])),
            "in 0..2",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", [ng.ClusteredDistribution, ng.SoftmaxDistribution])
def test_samples_whose_negatives_cost_nothing_draw_evenly(make):
    distribution = make(6, log_loss=lambda scores: torch.relu(1 + scores).log())
    target = torch.tensor([0, 1])
    batch = ng.Batch(target, target, torch.full((2, 3), -5.0), lambda: torch.ones(6, 3))
    draw = distribution.draw(batch, 3, torch.Generator().manual_seed(0))
    assert torch.isfinite(draw.log_probs).all()
