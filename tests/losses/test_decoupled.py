"""Decoupled losses against their formulas."""

import pytest
import torch

from longtail import ClassPrior, losses, margins

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes
ASYMMETRIC = margins.logit_adjusted_adaptive(PRIOR, scale=0.3) + margins.equalized(PRIOR, tau=0.2)
ALPHA = torch.linspace(0.5, 2.0, C, dtype=torch.float64)


PAIRS = {
    "decoupled_logistic": (lambda z: torch.log(1 + torch.exp(-z)), lambda z: torch.log(1 + torch.exp(z))),
    "decoupled_hinge": (lambda z: torch.clamp(1 - z, min=0), lambda z: torch.clamp(1 + z, min=0)),
    "cosine_contrastive": (lambda z: (1 - z) ** 2, lambda z: torch.clamp(z, min=0) ** 2),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("chosen", [None, ASYMMETRIC], ids=["no margin", "asymmetric"])
def test_decoupled_losses_are_their_formulas(make_batch, assert_same, name, chosen):
    positive, negative = PAIRS[name]
    logits, target = make_batch()
    delta = torch.zeros(C, C, dtype=torch.float64) if chosen is None else chosen.dense()

    def reference(f):
        rows = []
        for row, y in zip(f, target.tolist(), strict=True):
            pushed = sum(torch.exp(delta[y, other]) * negative(row[other]) for other in range(C) if other != y)
            rows.append(ALPHA[y] * (positive(row[y]) + pushed))
        return torch.stack(rows)

    assert_same(lambda f: getattr(losses, name)(f, target, chosen, ALPHA), reference, logits)
