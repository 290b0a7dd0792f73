"""LADE's regularizer against loops, and what it makes of logits."""

import math

import pytest
import torch

from longtail import ClassPrior
from longtail.losses import LadeLoss, lade, margin_cross_entropy
from longtail.margins import logit_adjusted

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 0, 0, 2, 1, 0])


def test_it_is_what_loops_compute():
    logits, target = make_inputs()
    values = lade(logits, target, PRIOR.log_probs, penalty=0.3)
    pi = PRIOR.probs.tolist()
    for c in range(4):
        own = [float(logits[i, c]) for i in range(7) if target[i] == c]
        mean = sum(math.exp(float(logits[i, c])) * 0.25 / pi[target[i]] for i in range(7)) / 7
        wanted = -sum(own) / len(own) + math.log(mean) + 0.3 * math.log(mean) ** 2 if own else 0.0
        assert abs(float(values[c]) - wanted) < 1e-10
    assert torch.autograd.gradcheck(lambda f: lade(f, target, PRIOR.log_probs, 0.3), logits.requires_grad_())


def test_the_loss_adds_its_mean_under_the_prior():
    logits, target = make_inputs()
    plain = margin_cross_entropy(logits, target, logit_adjusted(PRIOR)).mean()
    wanted = plain + 0.5 * (PRIOR.probs * lade(logits, target, PRIOR.log_probs)).sum()
    loss = LadeLoss(PRIOR, strength=0.5).double()
    torch.testing.assert_close(loss(logits, target), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(LadeLoss(PRIOR, strength=0.0).double()(logits, target), plain, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="strength must be at least 0"):
        LadeLoss(PRIOR, strength=-1.0)


def test_its_minimum_is_the_ratio_of_likelihoods():
    """Inputs of three kinds, drawn by class: the best logit is log p(x | c) less the log of its mean over classes."""
    prior = ClassPrior.from_counts([60, 30, 10])
    likelihood = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], dtype=torch.float64)  # [class, x]
    counts = (1000 * prior.probs[:, None] * likelihood).round().long()
    target = torch.repeat_interleave(torch.arange(3).repeat_interleave(3), counts.flatten())
    kind = torch.repeat_interleave(torch.arange(3).repeat(3), counts.flatten())
    table = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)  # [x, class]
    optimizer = torch.optim.LBFGS([table], max_iter=300, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure():
        optimizer.zero_grad()
        value = lade(table[kind], target, prior.log_probs, penalty=0.1).sum()
        value.backward()
        return value

    optimizer.step(closure)
    wanted = (likelihood / likelihood.mean(dim=0)).log().T
    torch.testing.assert_close(table.detach(), wanted, rtol=0, atol=1e-4)
