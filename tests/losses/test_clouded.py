"""Clouded logits against loops from the formula, and their noise."""

import math

import pytest
import torch
import torch.nn.functional as F

from longtail import ClassPrior
from longtail.losses import CloudedCrossEntropy, clouded_cross_entropy, margin_cross_entropy
from longtail.losses.clouded import MEAN_NOISE, draw_noise
from longtail.margins import logit_adjusted

COUNTS = [400, 90, 12, 2]
PRIOR = ClassPrior.from_counts(COUNTS)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return logits, torch.tensor([0, 1, 3, 2, 0, 1]), torch.rand(6, 4, generator=generator, dtype=torch.float64)


def test_it_is_what_loops_compute():
    logits, target, noise = make_inputs()
    loss = CloudedCrossEntropy(PRIOR, size=0.4, logit_scale=20.0).double()
    losses = clouded_cross_entropy(logits, target, loss.clouds, noise)
    spread = math.log(COUNTS[0]) - math.log(COUNTS[-1])
    for i in range(len(target)):
        pulled = [
            float(logits[i, c]) - 20 * 0.4 * (math.log(COUNTS[0]) - math.log(COUNTS[c])) / spread * float(noise[i, c])
            for c in range(4)
        ]
        wanted = math.log(sum(map(math.exp, pulled))) - pulled[target[i]]
        assert abs(float(losses[i]) - wanted) < 1e-6  # clouds are made in single precision
    exact = loss.clouds
    assert torch.autograd.gradcheck(
        lambda f: clouded_cross_entropy(f, target, exact, noise), logits.clone().requires_grad_()
    )


def test_without_noise_it_is_the_margin_loss_of_the_mean():
    logits, target, _ = make_inputs()
    loss = CloudedCrossEntropy(PRIOR, size=0.5, logit_scale=2.0).double().eval()
    tau = MEAN_NOISE * 2.0 * 0.5 / math.log(COUNTS[0] / COUNTS[-1])
    wanted = margin_cross_entropy(logits, target, logit_adjusted(PRIOR, tau)).mean()
    torch.testing.assert_close(loss(logits, target), wanted, rtol=1e-5, atol=1e-6)


def test_noise_is_a_normal_cut_off_at_one():
    torch.manual_seed(0)
    noise = draw_noise(torch.empty(1000, 1000, dtype=torch.float64))
    assert noise.dtype == torch.float32
    assert float(noise.min()) >= 0
    assert float(noise.max()) == 1
    assert float(noise.mean()) == pytest.approx(MEAN_NOISE, abs=1e-3)
    assert float((noise == 1).float().mean()) == pytest.approx(math.erfc(3 / math.sqrt(2)), abs=3e-4)


def test_only_training_draws():
    logits, target, _ = make_inputs()
    loss = CloudedCrossEntropy(PRIOR)
    assert loss(logits, target) != loss(logits, target)
    loss.eval()
    assert loss(logits, target) == loss(logits, target)


def test_size_zero_and_a_uniform_prior_are_cross_entropy():
    logits, target, _ = make_inputs()
    for loss in (CloudedCrossEntropy(PRIOR, size=0.0), CloudedCrossEntropy(ClassPrior.from_counts([5] * 4))):
        torch.testing.assert_close(loss(logits, target), F.cross_entropy(logits, target))


def test_targets_that_are_probabilities_or_ignored():
    logits, target, _ = make_inputs()
    loss = CloudedCrossEntropy(PRIOR).eval()
    torch.testing.assert_close(loss(logits, F.one_hot(target, 4).double()), loss(logits, target))
    ignored = target.clone()
    ignored[0] = -100
    torch.testing.assert_close(loss(logits, ignored), loss(logits[1:], target[1:]))


@pytest.mark.parametrize(
    ("options", "message"), [({"size": -1.0}, "size must"), ({"logit_scale": math.nan}, "logit_scale")]
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CloudedCrossEntropy(PRIOR, **options)
