"""Losses over sigmoids against loops from the papers' formulas."""

import math
from functools import partial

import pytest
import torch

from longtail import ClassPrior, losses
from longtail.losses import (
    BalancedSigmoid,
    asymmetric_loss,
    binary_cross_entropy,
    binary_focal_loss,
    distribution_balanced_loss,
)

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes


@pytest.mark.parametrize("keep_constant", [True, False])
def test_balanced_sigmoid_is_its_formula(make_batch, assert_same, keep_constant):
    """Eq. (13), (14) and (23) of the supplement, with the background rule of its remark."""
    logits, target = make_batch()
    foreground = torch.tensor([True, True, False, True, True, False, True])
    counts, n = PRIOR.counts.tolist(), PRIOR.num_samples

    def shift(j):
        constant = (n / C) / (n - n / C) if keep_constant else 1.0
        return math.log(constant / counts[j] * (n - counts[j]))

    def reference(f):
        rows = []
        for row, y, is_foreground in zip(f, target.tolist(), foreground.tolist(), strict=True):
            total = 0.0
            for j in range(C):
                eta = row[j] - (shift(j) if is_foreground else 0.0)
                phi = torch.exp(eta) / (1 + torch.exp(eta))
                total = total - torch.log(phi if is_foreground and j == y else 1 - phi)
            rows.append(total)
        return torch.stack(rows)

    offsets = losses.sigmoid_offsets(PRIOR, keep_constant)
    assert_same(lambda f: losses.balanced_sigmoid(f, target, offsets, foreground), reference, logits)


def test_balanced_sigmoid_takes_several_labels_a_sample():
    indicator = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    offsets = losses.sigmoid_offsets(ClassPrior.from_indicator(indicator))
    assert float(offsets[1]) == pytest.approx(math.log(3 / 1) + math.log(2))
    assert losses.balanced_sigmoid(torch.zeros(4, 3), indicator, offsets).shape == (4,)


def loop_rows(logits, targets, element):
    return [sum(element(float(f), int(y), c) for c, (f, y) in enumerate(zip(*rows, strict=True)))
            for rows in zip(logits, targets, strict=True)]  # fmt: skip


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class TestLosses:
    @pytest.fixture
    def batch(self):
        generator = torch.Generator().manual_seed(5)
        logits = 2 * torch.randn(8, 4, generator=generator, dtype=torch.float64)
        targets = torch.rand(8, 4, generator=generator) < 0.4
        targets[0] = False
        return logits, targets

    def check(self, found, wanted):
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)

    def test_cross_entropy_with_weights_and_a_mask(self, batch):
        logits, targets = batch
        weights = torch.tensor([0.5, 1.0, 2.0, 4.0])
        mask = torch.arange(32).view(8, 4) % 3 != 0

        def element(f, y, c):
            p = sigmoid(f)
            return -weights[c].item() * math.log(p if y else 1 - p)

        masked = [
            sum(element(float(logits[i, c]), int(targets[i, c]), c) for c in range(4) if mask[i, c]) for i in range(8)
        ]
        self.check(binary_cross_entropy(logits, targets, weights), loop_rows(logits, targets, element))
        self.check(binary_cross_entropy(logits, targets, weights, mask), masked)

    def test_focal(self, batch):
        def element(f, y, c):
            p = sigmoid(f) if y else 1 - sigmoid(f)
            return -((1 - p) ** 1.5) * math.log(p)

        self.check(binary_focal_loss(*batch, gamma=1.5), loop_rows(*batch, element))

    def test_asymmetric(self, batch):
        def element(f, y, c):
            p = sigmoid(f)
            shifted = max(p - 0.1, 0)
            return -((1 - p) ** 1.0) * math.log(p) if y else -(shifted**3.0) * math.log(1 - shifted)

        found = asymmetric_loss(*batch, positive_gamma=1.0, negative_gamma=3.0, shift=0.1)
        self.check(found, loop_rows(*batch, element))

    def test_distribution_balanced(self, batch):
        logits, targets = batch
        rates = torch.tensor([0.5, 0.3, 0.1, 0.02], dtype=torch.float64)
        wanted = []
        for f, y in zip(logits.tolist(), targets.tolist(), strict=True):
            total, present = 0.0, sum(1 / float(rates[j]) for j in range(4) if y[j])
            for c in range(4):
                rate = float(rates[c])
                share = (1 / rate) / present if present else math.inf
                weight = 0.1 + (sigmoid(10 * (share - 0.2)) if present else 1.0)
                z = f[c] - 0.05 * math.log(1 / rate - 1)
                part = math.log(1 + math.exp(-z)) if y[c] else math.log(1 + math.exp(2 * z)) / 2
                total += weight * part
            wanted.append(total)
        self.check(distribution_balanced_loss(logits, targets, rates), wanted)

    def test_limits(self, batch):
        logits, targets = batch
        plain = binary_cross_entropy(logits, targets)
        rates = torch.tensor([0.5, 0.3, 0.1, 0.02])
        torch.testing.assert_close(binary_focal_loss(logits, targets, gamma=0.0), plain)
        torch.testing.assert_close(asymmetric_loss(logits, targets, 0.0, 0.0, 0.0), plain)
        torch.testing.assert_close(
            asymmetric_loss(logits, targets, 2.0, 2.0, 0.0), binary_focal_loss(logits, targets, gamma=2.0)
        )
        neutral = distribution_balanced_loss(logits, targets, rates, 0.5, 0.0, 0.0, 0.0, 1.0)
        torch.testing.assert_close(neutral, plain)

    def test_balanced_sigmoid_takes_a_mask(self, batch):
        logits, targets = batch
        loss = BalancedSigmoid(ClassPrior.from_counts([8, 4, 2, 1]))
        everything = torch.ones_like(targets)
        torch.testing.assert_close(loss(logits, targets, mask=everything), loss(logits, targets))
        assert loss(logits, targets, mask=~everything) == 0


def test_binary_cross_entropy_takes_probabilities_and_nothing_beyond():
    logits = torch.zeros(1, 2)
    assert binary_cross_entropy(logits, torch.tensor([[0.5, 0.25]])).exp().item() == pytest.approx(4)
    with pytest.raises(ValueError, match=r"in \[0, 1\]. Got 1.5"):
        binary_cross_entropy(logits, torch.tensor([[0.5, 1.5]]))


@pytest.mark.parametrize(
    "call",
    [
        partial(binary_focal_loss, gamma=-1.0),
        partial(asymmetric_loss, shift=1.0),
        partial(asymmetric_loss, negative_gamma=-1.0),
        partial(distribution_balanced_loss, rates=torch.tensor([0.5, 0.5]), negative_scale=0.0),
    ],
)
def test_settings_of_losses(call):
    with pytest.raises(ValueError, match="must be"):
        call(torch.zeros(1, 2), torch.tensor([[1, 0]]))


def test_shapes():
    with pytest.raises(TypeError, match="mask must be bool"):
        binary_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 3), mask=torch.ones(2, 3))
    with pytest.raises(ValueError, match="mask must be"):
        binary_cross_entropy(torch.zeros(2, 2), torch.zeros(2, 2), mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"class_weights must be \[2\]"):
        binary_cross_entropy(torch.zeros(2, 2), torch.zeros(2, 2), torch.ones(3))
    with pytest.raises(ValueError, match=r"\[2\] indices"):
        binary_cross_entropy(torch.zeros(2, 2), torch.tensor([0]))


@pytest.mark.parametrize(
    "loss",
    [
        lambda f, y: losses.binary_focal_loss(f, y, gamma=math.inf),
        lambda f, y: losses.focal_loss(f, y.argmax(1), gamma=math.inf),
        lambda f, y: losses.asymmetric_loss(f, y, negative_gamma=math.inf),
        lambda f, y: losses.asymmetric_loss(f, y, positive_gamma=math.inf),
    ],
)
def test_an_infinite_gamma_is_refused(loss):
    """Every loss would be 0 without a word."""
    with pytest.raises(ValueError, match=r"at least 0 and finite.* Got .*inf"):
        loss(torch.zeros(2, 2), torch.eye(2))
