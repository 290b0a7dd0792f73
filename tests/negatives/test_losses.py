"""Sampled losses: loops, gradients, extreme numbers, and the loss on all logits."""

import math

import pytest
import torch
from torch.nn import functional as F

from longtail import ClassPrior, losses, margins
from longtail import negatives as ng

COUNTS = [60, 20, 10, 6, 4]
PRIOR = ClassPrior.from_counts(COUNTS)
C = len(COUNTS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_logits(num_samples=1, num_classes=C, seed=3):
    return torch.randn(num_samples, num_classes, generator=seeded(seed), dtype=torch.float64)


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


def test_unit_weights_are_cross_entropy_over_the_true_label_and_its_negatives():
    positive, negative = torch.randn(5, 1, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    labels = torch.arange(1, 9) % (C - 1) + 1
    draw = ng.Draw(labels, torch.zeros(8, dtype=torch.float64), torch.zeros(5, dtype=torch.float64), 8)
    weights = ng.log_weights(ng.unit, draw, torch.zeros(5, dtype=torch.long))
    plain = F.cross_entropy(
        torch.cat([positive, negative], dim=1), torch.zeros(5, dtype=torch.long), reduction="none"
    )
    torch.testing.assert_close(ng.sampled_cross_entropy(positive[:, 0], negative, weights), plain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
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


@pytest.mark.parametrize("weighting", [ng.importance, ng.relative])
def test_a_target_that_q_never_draws_is_refused_everywhere(weighting):
    """With relative weights its loss would be 0, whatever the logits."""
    never = ng.LabelDistribution(torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))

    class OfUnknownKind:
        num_classes = C

        def draw(self, batch, num_negatives, generator=None):
            return never.draw(batch, num_negatives, generator)

    message = "not finite for label 2, which is drawn with probability 0"
    logits, target = make_logits(), torch.tensor([2])
    with pytest.raises(ValueError, match=message):
        ng.NegativeSamplingLoss(never, weighting, 3)
    with pytest.raises(ValueError, match=message):
        ng.SampledLinear(C, C, never, weighting, 3)
    with pytest.raises(ValueError, match=message):
        ng.NegativeSamplingLoss(OfUnknownKind(), weighting, 3)(logits, target)
    with pytest.raises(ValueError, match=message):
        ng.SampledLinear(C, C, OfUnknownKind(), weighting, 3).double()(logits, target)
