"""LADE: logits that estimate how much likelier an input makes a class, whatever the prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longtail._core.checks import check_class_range
from longtail._core.collectives import gather_samples, is_initialized
from longtail._core.numerics import loss_dtype
from longtail.losses._embeddings import check_pairs, no_autocast
from longtail.losses._terms import register_constant
from longtail.losses.softmax import MarginCrossEntropy
from longtail.margins import logit_adjusted
from longtail.prior import ClassPrior

__all__ = ["LadeLoss", "lade"]


def lade(logits: Tensor, target: Tensor, log_probs: Tensor, penalty: float = 0.01) -> Tensor:
    """LADE's regularizer: each class's logit as the log-ratio of its likelihood to that of all classes alike.

    Formula:
        Omega[c] = -mean over samples of c of f[c] + r[c] + penalty * r[c]^2, where
        r[c] = log mean over samples i of exp(f[c](x[i])) / (C pi[y[i]])

    Args:
        logits: [N, C] f. It looks at a whole batch, so it takes logits and not one sample.
        target: [N] class indices.
        log_probs: [C] log pi.
        penalty: lambda; keeps r near 0, of which the ratio is free otherwise.

    Returns:
        [C] values; 0 for a class that is not in the batch.

    As the method ``lade``, their mean under pi is added to the logit-adjusted loss, times ``strength``.

    Use when:
        The prior of the test data is not known when training, or changes: logits then hold no prior at all.
    Avoid when:
        Batches are small against the number of classes: most classes then have no value.
    Special cases:
        The logit-adjusted loss at strength 0.

    >>> lade(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([0.5, 0.5]).log()).tolist()
    [0.0, 0.0]

    Reference:
        Hong et al. (2021), "Disentangling label distribution for long-tailed visual recognition", section 3.3.
    """
    wide, target = check_pairs("lade", logits, target)
    check_class_range(target, logits.shape[1])
    with no_autocast(wide):
        logs = log_probs.to(wide)
        rarity = -(logs[target] + math.log(wide.shape[1] * max(len(target), 1)))
        ratio = torch.logsumexp(wide + rarity[:, None], dim=0)
        is_own = target[:, None] == torch.arange(wide.shape[1], device=target.device)
        counts = is_own.sum(dim=0)
        own = torch.where(is_own, wide, 0.0).sum(dim=0) / counts.clamp_min(1)
        return torch.where(counts > 0, -own + ratio + penalty * ratio.square(), 0.0)


class LadeLoss(nn.Module):
    """The logit-adjusted loss plus the mean of ``lade`` under the prior.

    Args:
        prior: the class counts.
        strength: how much the regularizer counts.
        penalty: lambda.

    >>> loss = LadeLoss(ClassPrior.from_counts([1, 1]))
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1])).exp().round(decimals=4)
    tensor(2.)
    """

    log_probs: Tensor

    def __init__(self, prior: ClassPrior, strength: float = 0.1, penalty: float = 0.01) -> None:
        super().__init__()
        for name, value in {"strength": strength, "penalty": penalty}.items():
            if not value >= 0:
                raise ValueError(f"LadeLoss: {name} must be at least 0. Got {value}.")
        self.strength, self.penalty = strength, penalty
        self.cross_entropy = MarginCrossEntropy(logit_adjusted(prior))
        register_constant(self, "log_probs", prior.log_probs)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits [N, C] and target [N]: a scalar."""
        loss: Tensor = self.cross_entropy(logits, target)
        if self.training and is_initialized():  # the batch is that of all processes
            logits, target = gather_samples(logits), gather_samples(target)
        values = lade(logits, target, self.log_probs, self.penalty)
        return loss + self.strength * (values * self.log_probs.to(values).exp()).sum().to(loss_dtype(logits))
