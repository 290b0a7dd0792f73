"""Margins: their algebra, each builder against its formula, and Fisher consistency."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, MarginCrossEntropy, Margins, is_consistent, margins, weights
from longtail.losses import decoupled_logistic, linear_margin_cross_entropy, margin_cross_entropy
from longtail.negatives import implied_margins, targeting, uniform
from longtail.posthoc import margin_prior

COUNTS = [1000, 300, 40, 7, 1]
PRIOR = ClassPrior.from_counts(COUNTS)
PI = [n / sum(COUNTS) for n in COUNTS]


# Delta[y, y'] as the papers print it, for each builder at settings other than its defaults.
def inverse_propensity(y):
    return 1 + (math.log(sum(COUNTS)) - 1) * (3.6 / (COUNTS[y] + 2.6)) ** 0.6


FORMULAS = {
    "none": (margins.none(PRIOR), lambda y, other: 0.0),
    "logit_adjusted": (
        margins.logit_adjusted(PRIOR, tau=1.3),
        lambda y, other: 1.3 * math.log(PI[other] / PI[y]),
    ),
    "adaptive": (margins.adaptive(PRIOR, scale=0.7), lambda y, other: 0.7 * PI[y] ** -0.25),
    "max_scaled_adaptive": (
        margins.max_scaled_adaptive(PRIOR, largest=0.4, logit_scale=20),
        lambda y, other: 20 * 0.4 * COUNTS[y] ** -0.25 / max(n**-0.25 for n in COUNTS),
    ),
    "equalized": (margins.equalized(PRIOR, tau=0.5), lambda y, other: math.log(PI[other] ** 0.5)),
    "threshold_equalized": (
        margins.threshold_equalized(PRIOR, threshold=0.01, keep=0.2),
        lambda y, other: math.log(0.2) if PI[other] < 0.01 else 0.0,
    ),
    "two_temperature": (
        margins.two_temperature(PRIOR, positive_tau=0.4, negative_tau=1.1),
        lambda y, other: -0.4 * math.log(PI[y]) + 1.1 * math.log(PI[other]),
    ),
    "propensity_adjusted": (
        margins.propensity_adjusted(PRIOR, tau=0.8, a=0.6, b=2.6),
        lambda y, other: 0.8 * math.log(inverse_propensity(y) / inverse_propensity(other)),
    ),
    "logit_adjusted_adaptive": (
        margins.logit_adjusted_adaptive(PRIOR),
        lambda y, other: math.log(PI[other] / PI[y]) + PI[y] ** -0.25,
    ),
    "vector_scaling": (margins.vector_scaling(PRIOR, tau=0.6), lambda y, other: 0.6 * math.log(PI[other] / PI[y])),
    "class_temperatures": (margins.class_temperatures(PRIOR), lambda y, other: 0.0),
}


@pytest.mark.parametrize(("built", "formula"), FORMULAS.values(), ids=FORMULAS.keys())
def test_every_builder_is_its_formula(built, formula):
    dense = built.dense()
    for y in range(len(COUNTS)):
        for other in range(len(COUNTS)):
            wanted = 0.0 if y == other else formula(y, other)
            assert float(dense[y, other]) == pytest.approx(wanted, abs=1e-10)


def test_every_builder_has_a_formula_here():
    builders = {name for name in margins.__all__ if name not in ("BUILDERS", "Margins", "is_consistent", "is_shift")}
    assert builders == set(FORMULAS) == set(margins.BUILDERS)


vectors = st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
any_margins = st.builds(Margins, vectors, vectors)


@given(any_margins, any_margins, st.floats(-3, 3))
@settings(deadline=None, max_examples=30)
def test_algebra_is_that_of_the_matrix(a, b, t):
    torch.testing.assert_close((a + b).dense(), a.dense() + b.dense())
    torch.testing.assert_close((a - b).dense(), a.dense() - b.dense())
    torch.testing.assert_close((-a).dense(), -a.dense())
    torch.testing.assert_close((t * a).dense(), (a * t).dense())
    torch.testing.assert_close((a * t).dense(), a.dense() * t)


def test_limits_in_which_one_method_becomes_another():
    same = [
        (margins.logit_adjusted(PRIOR, tau=0), margins.none(PRIOR)),
        (margins.propensity_adjusted(PRIOR, tau=0), margins.none(PRIOR)),
        (margins.adaptive(PRIOR, scale=0), margins.none(PRIOR)),
        (margins.equalized(PRIOR, tau=0), margins.none(PRIOR)),
        (margins.threshold_equalized(PRIOR, keep=1), margins.none(PRIOR)),
        (margins.threshold_equalized(PRIOR, threshold=0), margins.none(PRIOR)),
        (margins.two_temperature(PRIOR, 0.6, 0.6), margins.logit_adjusted(PRIOR, 0.6)),
        (margins.two_temperature(PRIOR, 0, 0.6), margins.equalized(PRIOR, 0.6)),
        (margins.max_scaled_adaptive(PRIOR, 0.5, 30), margins.adaptive(PRIOR, 15 * min(PI) ** 0.25)),
        (margins.logit_adjusted_adaptive(PRIOR, 1, 0), margins.logit_adjusted(PRIOR)),
    ]
    for one, other in same:
        torch.testing.assert_close(one.dense(), other.dense())


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=8, unique=True), st.floats(0.05, 3))
@settings(deadline=None, max_examples=30)
def test_consistency_says_what_theorem_1_says(counts, tau):
    prior = ClassPrior.from_counts(counts)
    assert is_consistent(None, weights.balanced(prior), prior)
    assert is_consistent(margins.logit_adjusted(prior), None, prior)
    assert is_consistent(margins.logit_adjusted(prior, tau), prior.probs ** (tau - 1), prior)
    assert is_consistent(margins.logit_adjusted(prior, tau), weights.power(prior, 1 - tau), prior)
    assert is_consistent(None, None, prior) is False
    assert is_consistent(margins.adaptive(prior), None, prior) is False
    assert is_consistent(margins.equalized(prior), None, prior) is False
    assert is_consistent(margins.logit_adjusted(prior), weights.balanced(prior), prior) is False


@given(vectors)
@settings(deadline=None, max_examples=20)
def test_every_delta_of_theorem_1_is_consistent(log_delta):
    prior = ClassPrior.from_counts([50, 30, 20])
    assert is_consistent(Margins(-log_delta, log_delta), 7 * log_delta.exp() / prior.probs, prior)


def best_difference(eta, alpha, positive_margin, negative_margin):
    """argmin over f = f[1] - f[0] of the conditional risk of a loss with two classes, by bisection of its slope."""
    low, high = -60.0, 60.0
    for _ in range(100):
        f = (low + high) / 2
        rise = (1 - eta) * alpha[0] / (1 + math.exp(-negative_margin - f))
        fall = eta * alpha[1] / (1 + math.exp(-positive_margin + f))
        low, high = (low, f) if rise > fall else (f, high)
    return f


@given(st.floats(0.02, 0.98), st.floats(-3, 3), st.floats(-3, 3), st.floats(-1, 1), st.booleans())
@settings(deadline=None, max_examples=40)
def test_two_classes_are_consistent_where_the_best_scorer_has_the_right_sign(rate, up, down, log_alpha, is_made_so):
    """Lemma 2: the largest logit must change at eta = pi[1], whatever the margins are."""
    prior = ClassPrior.from_counts([round(10_000 * (1 - rate)), round(10_000 * rate)])
    delta = Margins(torch.tensor([down, up]).double(), torch.zeros(2).double())
    alpha = torch.tensor([1.0, math.exp(log_alpha)]).double()
    if is_made_so:
        alpha = 1 / (prior.probs * torch.sigmoid(delta.positive))
    pi = float(prior.probs[1])
    at_prior = best_difference(pi, alpha.tolist(), up, down)
    assert is_consistent(delta, alpha, prior, tolerance=1e-4) is (abs(at_prior) < 1e-4) or 1e-6 < abs(at_prior) < 1e-2
    if is_made_so:
        assert is_consistent(delta, alpha, prior) is True
        for eta in (pi / 2, pi * 0.99, pi + (1 - pi) / 100, (1 + pi) / 2):
            assert (best_difference(eta, alpha.tolist(), up, down) > 0) == (eta > pi)


def test_more_classes_may_be_undecided():
    """Theorem 1 is sufficient and Lemma 2, for each pair of classes, necessary: between them nothing is known."""
    prior = ClassPrior.from_counts([50, 30, 20])
    equal = Margins(torch.ones(3).double(), torch.zeros(3).double())
    assert is_consistent(equal, weights.balanced(prior), prior) is None
    assert is_consistent(equal, None, prior) is False
    unseen = Margins(torch.zeros(3).double(), torch.tensor([0.0, 0.0, -math.inf]).double())
    assert is_consistent(unseen, None, prior) is False


def test_binary_margins_count_off_the_diagonal_only():
    prior = ClassPrior.from_counts([60, 40])
    shifted = Margins(torch.tensor([2.0, 0.0]).double(), torch.tensor([0.0, -2.0]).double())
    assert shifted.dense().abs().max() == 0
    assert is_consistent(shifted, weights.balanced(prior), prior)


def test_a_uniform_prior_makes_cross_entropy_consistent():
    prior = ClassPrior.from_counts([5, 5, 5])
    assert is_consistent(None, None, prior)


def test_classes_are_rare_for_the_equalization_loss_that_have_a_twentieth_of_the_samples_together():
    """Its own threshold, 0.00177, is for the 1,230 categories of LVIS v0.5; on CIFAR-10-LT no class is below it."""
    cifar = ClassPrior.from_counts([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50])
    is_rare = margins.threshold_equalized(cifar).negative < 0
    assert is_rare.tolist() == [False] * 6 + [True] * 4  # 504 of 12,406 samples; with the next class it is 7 %
    with pytest.warns(UserWarning, match=r"no class is rare, so this is cross-entropy.*share of 0\.00403"):
        assert not margins.threshold_equalized(cifar, 0.00177).negative.any()


def test_classes_of_one_count_are_all_rare_for_the_equalization_loss_or_none_is():
    few, many = ([1000, *[10] * number, 5] for number in (4, 6))
    assert (margins.threshold_equalized(ClassPrior.from_counts(few)).negative < 0).tolist() == [False, *[True] * 5]
    alone = margins.threshold_equalized(ClassPrior.from_counts(many)).negative < 0
    assert alone.tolist() == [*[False] * 7, True]
    with pytest.warns(UserWarning, match="no class is rare"):
        margins.threshold_equalized(ClassPrior.from_counts([6, 5, 5]))
    assert not margins.threshold_equalized(ClassPrior.from_counts([5, 5, 5])).negative.any()  # nothing to do


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Margins(torch.zeros(2), torch.zeros(3)), "one length"),
        (lambda: Margins(torch.zeros(2), torch.zeros(2)) + Margins(torch.zeros(3), torch.zeros(3)), "same classes"),
        (lambda: margins.logit_adjusted(PRIOR, tau=math.nan), "tau must be a finite number. Got nan"),
        (lambda: margins.adaptive(PRIOR, scale=math.inf), "Got inf"),
        (lambda: margins.threshold_equalized(PRIOR, keep=0), r"\(0, 1\]"),
        (lambda: margins.logit_adjusted(ClassPrior.from_counts([1, 0])), "class 1 has no samples"),
        (lambda: is_consistent(margins.none(PRIOR), torch.ones(2), PRIOR), "same classes"),
        (lambda: weights.effective_number(PRIOR, beta=1.0), r"\[0, 1\)"),
        (lambda: weights.power(PRIOR, math.nan), "finite"),
        (lambda: weights.effective_number(ClassPrior.from_counts([1, 0])), "class 1 has no samples"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_effective_number_is_its_formula():
    beta = 0.99
    raw = [(1 - beta) / (1 - beta**n) for n in COUNTS]
    wanted = torch.tensor([len(raw) * r / sum(raw) for r in raw], dtype=torch.float64)
    torch.testing.assert_close(weights.effective_number(PRIOR, beta), wanted, rtol=1e-10, atol=0)
    almost_one = weights.effective_number(PRIOR, 1 - 1e-12)
    torch.testing.assert_close(
        almost_one / almost_one.sum(), weights.balanced(PRIOR) / weights.balanced(PRIOR).sum(), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_power_weights_average_to_one_over_samples(exponent):
    assert float((weights.power(PRIOR, exponent) * PRIOR.probs).sum()) == pytest.approx(1)


def test_scaled_logits_as_loops_compute_them():
    counts = [900, 60, 5]
    prior = ClassPrior.from_counts(counts)
    scaled = margins.vector_scaling(prior, tau=0.7, gamma=0.3) + margins.adaptive(prior, 0.2)
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator).double() for shape in ((5, 4), (3, 4), (3,)))
    logits, target = F.linear(x, weight, bias), torch.tensor([0, 1, 2, 2, 0])
    expected = []
    for row, y in zip(logits.tolist(), target.tolist(), strict=True):
        factor = [(n / 900) ** 0.3 for n in counts]
        total = 1.0
        for j in range(3):
            if j != y:
                delta = 0.7 * math.log(counts[j] / counts[y]) + 0.2 * (counts[y] / 965) ** -0.25
                total += math.exp(delta + factor[j] * row[j] - factor[y] * row[y])
        expected.append(math.log(total))
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(margin_cross_entropy(logits, target, scaled), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(linear_margin_cross_entropy(x, weight, target, scaled, bias), wanted)
    torch.testing.assert_close(margin_cross_entropy(logits, F.one_hot(target, 3).double(), scaled), wanted)
    module = MarginCrossEntropy(scaled).double()
    torch.testing.assert_close(module(logits, target), wanted.mean(), rtol=1e-5, atol=1e-5)
    assert torch.equal(module.margins.scale, module.scale)
    assert torch.autograd.gradcheck(lambda f: margin_cross_entropy(f, target, scaled), logits.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda w: linear_margin_cross_entropy(x, w, target, scaled, bias), weight.requires_grad_()
    )


def test_scales_multiply_where_margins_add():
    one, two = margins.class_temperatures(PRIOR, 0.1), margins.class_temperatures(PRIOR, 0.2)
    torch.testing.assert_close((one + two).scale, margins.class_temperatures(PRIOR, 0.3).scale)
    torch.testing.assert_close((two * 0.5).scale, one.scale)
    torch.testing.assert_close((two - two).scale, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close((one + margins.adaptive(PRIOR)).scale, one.scale)
    assert margins.vector_scaling(PRIOR, 1.0, 0.0).to(torch.float32).scale.dtype == torch.float32
    with pytest.raises(ValueError, match=r"scale must be \[3\]"):
        Margins(torch.zeros(3), torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match="gamma must be"):
        margins.class_temperatures(PRIOR, -0.1)


def test_scaled_logits_are_consistent_only_where_all_are_scaled_alike():
    """The best logits are free up to c(x) before they are divided by the scale; which one leads depends on c(x)."""
    prior = ClassPrior.from_counts([70, 20, 10])
    adjusted = margins.logit_adjusted(prior)
    assert is_consistent(margins.vector_scaling(prior), None, prior) is False
    alike = Margins(adjusted.positive, adjusted.negative, torch.full((3,), 0.5, dtype=torch.float64))
    assert is_consistent(alike, None, prior) is True
    scaled = margins.vector_scaling(prior, gamma=0.5)
    posterior = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    best = [(posterior.log() - prior.log_probs + shift) / scaled.scale for shift in (-9.0, 9.0)]
    losses = [float(margin_cross_entropy(logits, posterior, scaled)) for logits in best]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    assert len({int(logits.argmax()) for logits in best}) == 2


def test_scaled_margins_are_refused_where_they_have_no_meaning():
    scaled = margins.class_temperatures(PRIOR)
    calls = (
        lambda: decoupled_logistic(torch.zeros(1, 5), torch.tensor([0]), scaled),
        lambda: implied_margins(uniform(5), targeting(scaled), num_negatives=2),
    )
    for call in calls:
        with pytest.raises(ValueError, match="margins must be additive"):
            call()
    with pytest.raises(ValueError, match="must be a shift of the logits"):
        margin_prior(PRIOR, scaled)


@pytest.mark.parametrize("made_of", [[3, 4], torch.tensor([0, 1]), None])
def test_what_a_prior_is_made_of_is_no_prior(made_of):
    for make in (margins.logit_adjusted, margins.adaptive, margins.equalized):
        with pytest.raises(TypeError, match=r"prior must be a ClassPrior. Got \w+; make one with"):
            make(made_of)
