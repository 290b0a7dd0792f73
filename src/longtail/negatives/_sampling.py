"""log(m q): how often labels are expected among the negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail.margins import Margins

__all__ = ["KnownDistribution", "Sampling", "sampling_of_all", "check_finite_weights", "log_others"]


@dataclass(frozen=True, eq=False, slots=True)
class Sampling:
    """How often some labels are expected among the negatives: m, and q of each of them.

    A weighting is a function from this to ``log w``. It gets all C labels to say which loss is implied, and in a
    training step only the labels at hand.
    """

    labels: Tensor
    """[K] the labels it is about."""
    log_probs: Tensor
    """[K] log q of these labels."""
    num_negatives: float
    """m, the number of negatives; where it is random, its expectation."""
    log_others: Tensor | None = None
    """[K] log(1 - q), where the true label is excluded by domain: its sample draws from q over the others."""

    @property
    def log_counts(self) -> Margins:
        """log(m q[y']), or log(m q[y'] / (1 - q[y])) where y is excluded by domain."""
        negative = self.log_probs + math.log(self.num_negatives)
        return Margins(torch.zeros_like(negative) if self.log_others is None else -self.log_others, negative)


class KnownDistribution(Protocol):
    """A distribution that is the same for all samples, so that the implied loss can be said."""

    @property
    def log_probs(self) -> Tensor:
        """[C] float64 log q."""

    @property
    def excludes_positive(self) -> bool:
        """Whether each sample draws from the labels other than its own; if not, its own gets weight 0."""


def sampling_of_all(distribution: KnownDistribution, num_negatives: int) -> Sampling:
    if not hasattr(distribution, "log_probs"):
        raise TypeError(
            "the implied loss can be said only where q is the same for all samples. "
            f"Got {type(distribution).__name__}; under targeting(margins) it has these margins whatever q is."
        )
    log_probs = distribution.log_probs
    return Sampling(
        torch.arange(len(log_probs), device=log_probs.device),
        log_probs,
        at_least(num_negatives, 1, "num_negatives"),
        log_others(log_probs) if distribution.excludes_positive else None,
    )


def check_finite_weights(weights: Margins, sampling: Sampling) -> Margins:
    """``weights``, where no label's weight divides by 0."""
    for part in (weights.positive, weights.negative):
        bad = torch.nonzero(~part.isfinite()).flatten()
        if len(bad):
            label, prob = int(sampling.labels[bad[0]]), float(sampling.log_probs[bad[0]].exp())
            raise ValueError(
                f"the weighting is not finite for label {label}, which is drawn with probability {prob:g}; "
                "use a distribution that can draw every label (a smoothed prior), or constant weighting."
            )
    return weights


def log_others(log_probs: Tensor) -> Tensor:
    """[C] log(1 - q) of every label, also of one that has nearly all of q."""
    others = torch.log1p(-log_probs.exp())
    top = log_probs.argmax()
    others[top] = torch.cat([log_probs[:top], log_probs[top + 1 :]]).logsumexp(dim=0)
    return others
