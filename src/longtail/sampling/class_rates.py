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
from longtail._core.random import check_probs, uniform_draws

__all__ = ["draw_classes", "score_function_gradient", "ClassRates"]


LEAST_RATE = 1e-3
"""Rates stay this far from 0 and 1, so that a class can come back."""


def draw_classes(class_probs: Tensor, size: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw classes independently, with given probabilities.

    Args:
        class_probs: [C] at least 0 and not all 0; they need not sum to 1. 0 is never drawn.
        size: how many to draw.
        generator: the source of randomness.

    Returns:
        [size] classes, in O(C + size log C).

    >>> draw_classes(torch.tensor([0.0, 1.0, 0.0]), 3).tolist()
    [1, 1, 1]
    """
    # float64: draws of 24 bits would miss classes that are a millionth as likely as others.
    ends = check_probs(class_probs).cumsum(0)
    return torch.searchsorted(ends / ends[-1], uniform_draws([size], generator), right=True)


def score_function_gradient(classes: Tensor, hyper_gradients: Tensor, num_classes: int) -> Tensor:
    """[C] the gradient of the expected meta loss at the log weights w by which a batch was drawn, p = softmax(w).

    Formula:
        u[k] = sum_i (h[i] - b[i]) (1[k = c[i]] - p[k]), b[i] = mean of h[j] over j != i
             = N / (N - 1) * sum_{i: c[i] = k} (h[i] - mean of h)

    Args:
        classes: c, [N], drawn independently with probabilities p.
        hyper_gradients: h, [N]: d meta loss / d weight of each sample in the step on this batch.
        num_classes: C.

    Let M be the meta loss after a step on the batch, and M[-i] the one after the same step without sample i. The
    gradient of E[M] is the sum over i of E[M * d log p[c[i]] / d w], and d log p[c] / d w[k] = 1[k = c] - p[k], whose
    mean is 0. M[-i] does not depend on c[i], so it can be subtracted: M - M[-i] is h[i], to first order in the step.
    Neither does b[i], to that order: subtracting it leaves the expectation as it is, and takes away what all draws
    have in common. As the h[i] - b[i] sum to 0, p drops out. A batch of one has nothing to compare with: 0.

    >>> score_function_gradient(torch.tensor([0, 0, 1]), torch.tensor([-1.0, -1.0, -1.0]), 2).tolist()
    [0.0, 0.0]
    >>> score_function_gradient(torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, -2.0]), 2).tolist()
    [3.0, -3.0]

    Deviates:
        Eqs. (79) to (81) differentiate straight through a Gumbel-softmax: a drawn sample counts as weight 1 going
        forward and as its share of the softmax going backward. That is biased. With one noise per sample, as there,
        it costs batch size times the samples of the data set. With one noise per class, rates move even where no
        draw is better than another, and can move away from the better class. This gradient is exact in expectation,
        to first order in the step, and costs C.

    Reference:
        Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning";
        Kool et al. (2019), "Buy 4 REINFORCE samples, get a baseline for free", for the mean of the others.
    """
    slopes = hyper_gradients.double()
    advantages = (slopes - slopes.mean()) * (len(slopes) / max(1, len(slopes) - 1))
    return torch.zeros(num_classes, dtype=torch.float64).index_add_(0, classes, advantages)


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
