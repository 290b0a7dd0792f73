"""Contrast with classes as distributions: against Bessel functions, loops and draws."""

import math

import pytest
import torch
from scipy import special

from longtail.losses import ProbabilisticContrastive, probabilistic_contrastive

LOGS = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()


def make_inputs(size):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, size, generator=generator, dtype=torch.float64)
    means = torch.randn(3, size, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([0.8, 0.3, 0.0], dtype=torch.float64)  # of the last class nothing is known
    return x, torch.tensor([0, 1, 2, 0, 1]), lengths[:, None] * means / means.norm(dim=1, keepdim=True)


def log_normalizer(k, size):
    order = size / 2 - 1
    if k == 0:
        return order * math.log(2) + math.lgamma(order + 1)
    return order * math.log(k) - (math.log(special.ive(order, k)) + k)


@pytest.mark.parametrize(("size", "tolerance"), [(3, 0.05), (16, 1e-3), (64, 1e-4)])
def test_it_is_the_closed_form_with_bessel_functions(size, tolerance):
    x, target, means = make_inputs(size)
    values = probabilistic_contrastive(x, target, means, LOGS, temperature=0.2)
    for value, row, y in zip(values, x, target.tolist(), strict=True):
        z = row / row.norm()
        logits = []
        for c in range(3):
            length = float(means[c].norm())
            k = length * (size - length**2) / (1 - length**2)
            mu = means[c] / length if length else means[c]
            moved = float((k * mu + z / 0.2).norm())
            logits.append(float(LOGS[c]) + log_normalizer(k, size) - log_normalizer(moved, size))
        wanted = math.log(sum(map(math.exp, logits))) - logits[y]
        assert float(value) == pytest.approx(wanted, abs=tolerance)


def test_the_expectation_is_that_of_draws():
    """On the sphere in three dimensions a cosine of the von Mises-Fisher distribution is drawn by its inverse."""
    generator = torch.Generator().manual_seed(1)
    k, t = 4.0, 0.5
    u = torch.rand(400_000, generator=generator, dtype=torch.float64)
    cosine = 1 + (u + (1 - u) * math.exp(-2 * k)).log() / k
    drawn = (cosine / t).exp().mean()  # of z = mu
    exact = log_normalizer(k, 3) - log_normalizer(k + 1 / t, 3)
    assert float(drawn.log()) == pytest.approx(exact, abs=0.01)


def test_gradients_and_the_module():
    x, target, means = make_inputs(8)
    assert torch.autograd.gradcheck(
        lambda points: probabilistic_contrastive(points, target, means, LOGS, 0.2), x.requires_grad_()
    )
    module = ProbabilisticContrastive(LOGS, temperature=0.2).double()
    first = module(x.detach(), target)
    unit = x.detach() / x.detach().norm(dim=1, keepdim=True)
    found = torch.stack([unit[target == c].mean(dim=0) for c in range(3)])
    wanted = probabilistic_contrastive(x.detach(), target, found, LOGS, 0.2).mean()
    torch.testing.assert_close(first, wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="at least 3 columns"):
        probabilistic_contrastive(torch.zeros(1, 2), torch.tensor([0]), torch.zeros(3, 2), LOGS)
