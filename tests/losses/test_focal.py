"""Softmax focal loss against its formula."""

import math

import pytest
import torch

import longtail
from longtail import ClassPrior, margins

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes
ASYMMETRIC = margins.logit_adjusted_adaptive(PRIOR, scale=0.3) + margins.equalized(PRIOR, tau=0.2)
ALPHA = torch.linspace(0.5, 2.0, C, dtype=torch.float64)


def test_focal_is_its_formula(make_batch, loop_losses, assert_same):
    logits, target = make_batch()
    for gamma in (0.0, 0.5, 2.0):

        def reference(f, gamma=gamma):
            p = torch.exp(-loop_losses(f, target, ASYMMETRIC.dense(), torch.ones(C).double()))
            return ALPHA[target] * (1 - p) ** gamma * -torch.log(p)

        assert_same(
            lambda f, gamma=gamma: longtail.focal_loss(f, target, gamma, ASYMMETRIC, ALPHA), reference, logits
        )


def test_focal_of_a_sure_sample_has_a_finite_gradient():
    logits = torch.tensor([[100.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(longtail.focal_loss(logits, torch.tensor([0]), gamma=0.5).sum(), logits)
    assert torch.isfinite(gradient).all()


def test_means_of_many_half_precision_losses_stay_finite():
    logits, target = torch.zeros(40_000, 10, dtype=torch.float16), torch.zeros(40_000, dtype=torch.long)
    assert longtail.FocalLoss(gamma=0.0)(logits, target).item() == pytest.approx(math.log(10), rel=1e-3)
