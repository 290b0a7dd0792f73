"""Rates per class to draw by, that follow a gradient."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.collectives import mean_over_processes

__all__ = ["draw_classes", "straight_through_gradient", "ClassRates"]


LEAST_RATE = 1e-3
"""Rates stay this far from 0 and 1, so that a class can come back."""


def draw_classes(
    log_weights: Tensor, size: int, temperature: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw classes by the Gumbel maximum, and say how near each of the others was.

    Formula:
        z = log_weights + g, g ~ Gumbel(0, 1); class = argmax z; shares = softmax(z / temperature)

    Args:
        log_weights: [C]; class c is drawn with probability proportional to exp(log_weights[c]). -inf is never drawn.
        size: how many to draw, independently.
        temperature: of the shares; the draws do not depend on it.
        generator: the source of randomness.

    Returns:
        [size] classes and [size, C] shares.

    >>> classes, shares = draw_classes(torch.tensor([0.0, -torch.inf]), 3)
    >>> classes.tolist(), shares[0].tolist()
    ([0, 0, 0], [1.0, 0.0])

    Deviates:
        Eq. (79) divides without exponentiating and has the noise inside the logarithm; this is what it means. It
        draws samples, with a noise for each of them. The largest noise of a class's n samples is one noise shifted by
        log n, so a noise for each class draws classes with the same probabilities. Shares differ: they are a class's,
        where those of eq. (79) are a sample's, of which the n of a class take nearly equal parts.

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement, eq. (79); Jang et al. (2017), "Categorical reparameterization
        with Gumbel-softmax".
    """
    # float64: noise of 24 bits would miss classes that are a millionth as likely as others.
    noise = torch.empty(size, len(log_weights), dtype=torch.float64).exponential_(generator=generator).log_()
    perturbed = noise.neg_().add_(log_weights)
    return perturbed.argmax(1), perturbed.div_(temperature).softmax(1)


def straight_through_gradient(
    classes: Tensor, shares: Tensor, hyper_gradients: Tensor, temperature: float = 1.0
) -> Tensor:
    """[C] the gradient of a meta loss at the log weights by which ``draw_classes`` drew.

    Formula:
        u[k] = sum_i h[i] * d shares[i, c[i]] / d log_weights[k] = sum_i h[i] s[i] (1[k = c[i]] - shares[i, k]) / t,
        with s[i] = shares[i, c[i]]

    Args:
        classes: c, [N].
        shares: [N, C].
        hyper_gradients: h, [N].
        temperature: t.

    A draw counts as weight 1 going forward and as its share going backward.

    >>> straight_through_gradient(torch.tensor([0]), torch.tensor([[0.5, 0.5]]), torch.tensor([-1.0])).tolist()
    [-0.25, 0.25]

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement, eqs. (79) to (81).
    """
    rows = torch.arange(len(classes))
    scaled = hyper_gradients.to(shares.dtype) * shares[rows, classes] / temperature
    drawn = torch.zeros_like(shares[0]).index_add_(0, classes, scaled)
    return drawn - scaled @ shares


class ClassRates:
    """One rate in (0, 1) for each class, learned by Adam from gradients: what the meta sampler and reweighter share.

    Args:
        num_classes: C.
        learning_rate: Adam's.
        betas: Adam's.

    Rates start at 0.5 and stay 0.001 away from 0 and 1. A rate is the sigmoid of what Adam moves.

    >>> rates = ClassRates(2, learning_rate=0.01)
    >>> rates.descend(torch.tensor([1.0, -1.0])), rates.values[0] < 0.5 < rates.values[1]
    (True, tensor(True))
    """

    def __init__(self, num_classes: int, learning_rate: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise ValueError(f"learning_rate must be a finite number above 0. Got {learning_rate}.")
        self.logits = torch.zeros(at_least(num_classes, 1, "num_classes"), dtype=torch.float64)
        self.optimizer = torch.optim.Adam([self.logits], lr=learning_rate, betas=betas)
        self.num_skipped = 0

    @property
    def values(self) -> Tensor:
        """[C] float64, the rates."""
        return self.logits.sigmoid()

    def descend(self, gradient: Tensor) -> bool:
        """One step of Adam against [C] d meta loss / d rates; the mean over all processes, so that these stay equal.

        Returns:
            False, with a warning, if the gradient is not finite: then the rates are left as they were.
        """
        if gradient.shape != self.logits.shape:
            raise ValueError(f"gradient must be {tuple(self.logits.shape)}. Got {tuple(gradient.shape)}.")
        rates = self.values
        mean = mean_over_processes(gradient.detach().cpu().double())
        if not mean.isfinite().all():
            self.num_skipped += 1
            warnings.warn("the meta loss is not finite; the rates are left as they were.", stacklevel=3)
            return False
        self.logits.grad = mean * rates * (1 - rates)
        self.optimizer.step()
        bound = math.log((1 - LEAST_RATE) / LEAST_RATE)
        self.logits.clamp_(-bound, bound)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where learning is; the same in all processes."""
        return {
            "logits": self.logits.clone(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        wanted = {"logits", "optimizer", "num_skipped"}
        if set(state) != wanted or state["logits"].shape != self.logits.shape:
            raise ValueError(f"the state must hold {sorted(wanted)} of {len(self.logits)} classes. Got another.")
        self.logits.copy_(state["logits"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_skipped = state["num_skipped"]
