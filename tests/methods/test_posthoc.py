"""What methods do to the head of a trained model."""

import pytest
import torch
from torch import nn

from longtail import ClassPrior, get_method

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


def trained_head(bias=True):
    generator = torch.Generator().manual_seed(3)
    head = nn.Linear(3, 4, bias=bias).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) + 1)
    return head, torch.randn(5, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_weight_normalized_logits_have_no_bias(tau):
    """Eq. (3) of the logit-adjustment paper with nu = ||w||: no bias."""
    head, x = trained_head()
    expected = (x @ head.weight.T / head.weight.norm(dim=1) ** tau).detach()
    get_method("weight_normalized").plan(PRIOR, tau=tau).adjust_head(head)
    torch.testing.assert_close(head(x).detach(), expected)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_prior_normalized_divides_the_whole_logit(tau):
    """Eq. (3) with nu = pi: f[y] / pi[y]^tau, where the bias belongs to f."""
    head, x = trained_head()
    expected = (head(x) / PRIOR.probs**tau).detach()
    get_method("prior_normalized").plan(PRIOR, tau=tau).adjust_head(head)
    torch.testing.assert_close(head(x).detach(), expected)


@pytest.mark.parametrize("name", ["weight_normalized", "prior_normalized"])
def test_a_head_without_bias(name):
    head, x = trained_head(bias=False)
    get_method(name).plan(PRIOR).adjust_head(head)
    assert torch.isfinite(head(x)).all()
