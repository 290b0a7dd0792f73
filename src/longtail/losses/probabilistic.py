"""Probabilistic contrastive learning: contrast with whole classes, each a distribution on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.checks import check_class_range, check_positive
from longtail._core.numerics import unit_vectors
from longtail.losses._embeddings import EmbeddingLoss, check_pairs, no_autocast
from longtail.losses._terms import register_constant
from longtail.losses.centroids import ClassCentroids

__all__ = ["ProbabilisticContrastive", "probabilistic_contrastive"]

LONGEST_MEAN = 0.99
"""Of unit vectors of a class: a longer mean, as of one sample, would say that the class is a point."""


def probabilistic_contrastive(
    embeddings: Tensor, target: Tensor, means: Tensor, log_probs: Tensor, temperature: float = 0.1
) -> Tensor:
    """ProCo: the supervised contrastive loss against infinitely many samples of every class, in closed form.

    Formula:
        Omega = -log softmax(g)[y], g[c] = log pi[c] + log E[exp(<z, v> / temperature)], z = x / |x|, where v is drawn
        from a von Mises-Fisher distribution with the mean of class c: the expectation is C(k) / C(|k mu + z / t|)

    Args:
        embeddings: [N, D], D at least 3.
        target: [N] class indices.
        means: [C, D], the mean of each class's unit vectors; 0 is a class of which nothing is known.
        log_probs: [C] log pi.
        temperature: t, of the cosines.

    Returns:
        [N] values.

    As the method ``probabilistic_contrastive`` it is added to the logit-adjusted loss, times ``strength``. Costs what
    a head costs: no pairs of samples.

    Use when:
        A contrastive branch is wanted and batches hold few samples of rare classes, or none.
    Avoid when:
        Classes have several modes: one direction does not describe them.
    Special cases:
        A cosine head of the class means, with margins log pi, where all classes are equally concentrated.

    >>> means, even = 0.9 * torch.eye(3), torch.full((3,), 1 / 3).log()
    >>> probabilistic_contrastive(torch.eye(3), torch.tensor([0, 1, 2]), means, even).max() < 0.05
    tensor(True)

    Deviates:
        The authors contrast the output of a projection; here it is the embedding itself. Bessel functions are taken
        by their uniform asymptotic expansion to the second order, off by less than 1e-3 from D = 16 on. Means are
        moving averages; the authors estimate them anew in each epoch.

    Reference:
        Du et al. (2024), "Probabilistic contrastive learning for long-tailed visual recognition", eq. (6), (14)-(16).
    """
    wide, target = check_pairs("probabilistic_contrastive", embeddings, target)
    check_class_range(target, len(log_probs))
    check_positive(temperature, "probabilistic_contrastive: temperature")
    size = wide.shape[1]
    if size < 3 or means.shape != (len(log_probs), size):
        raise ValueError(
            f"probabilistic_contrastive: means must be [{len(log_probs)}, {size}] with at least 3 columns. "
            f"Got {tuple(means.shape)}."
        )
    with no_autocast(wide):
        lengths = means.to(wide).norm(dim=1).clamp_max(LONGEST_MEAN)
        concentration = lengths * (size - lengths.square()) / (1 - lengths.square())
        cosines = unit_vectors(wide) @ unit_vectors(means.to(wide)).T
        squares = concentration.square() + 2 * concentration * cosines / temperature + temperature**-2
        moved = squares.clamp_min(1e-12).sqrt()
        logits = log_probs.to(wide) + _log_normalizer(concentration, size) - _log_normalizer(moved, size)
        return torch.logsumexp(logits, dim=1) - logits.gather(1, target[:, None])[:, 0]


class ProbabilisticContrastive(EmbeddingLoss):
    """The mean of ``probabilistic_contrastive``, around a moving average of each class's unit vectors.

    Args:
        log_probs: [C] log pi.
        temperature: t.
        momentum: of the moving average.

    >>> loss = ProbabilisticContrastive(torch.full((3,), 1 / 3).log())
    >>> loss(torch.eye(3), torch.tensor([0, 1, 2])) < 0.05
    tensor(True)
    """

    log_probs: Tensor

    def __init__(self, log_probs: Tensor, temperature: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__()
        self.temperature = temperature
        self.means = ClassCentroids(len(log_probs), momentum)
        register_constant(self, "log_probs", log_probs)

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``probabilistic_contrastive``."""
        means = self.means.update(unit_vectors(embeddings), target) if self.training else self.means.centroids
        return probabilistic_contrastive(embeddings, target, means, self.log_probs, self.temperature)


def _log_normalizer(concentration: Tensor, size: int) -> Tensor:
    """log C of von Mises-Fisher distributions in ``size`` dimensions, up to a constant; smooth at 0.

    log C(k) = v log k - log I_v(k), with v = size / 2 - 1 and I_v by Debye's expansion.
    """
    order = size / 2 - 1
    root = (1 + (concentration / order).square()).sqrt()
    t = 1 / root
    first = (3 * t - 5 * t**3) / 24
    second = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    correction = torch.log1p(first / order + second / order**2)
    return order * (torch.log1p(root) - root) + 0.5 * root.log() - correction
