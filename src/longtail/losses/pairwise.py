"""Losses on pairs of embeddings, or of logits: spread-out, range, contrastive, triplet, hybrid."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import check_class_range, check_positive
from longtail._core.collectives import gather_samples, is_initialized
from longtail._core.numerics import squared_distances
from longtail.losses._embeddings import (
    EmbeddingLoss,
    check_embeddings,
    check_pairs,
    is_partner,
    log_one_plus_sum,
    no_autocast,
)
from longtail.losses.softmax import margin_cross_entropy

__all__ = [
    "spread_out",
    "range_loss",
    "supervised_contrastive",
    "triplet",
    "hybrid",
    "SpreadOut",
    "RangeLoss",
    "SupervisedContrastive",
    "Triplet",
    "HybridLoss",
]


def spread_out(embeddings: Tensor) -> Tensor:
    """Spread-out: cosines of different samples should have the first two moments of random directions.

    Formula:
        Omega = M1^2 + max(0, M2 - 1 / D), M1 and M2 the means of z.z' and (z.z')^2 over pairs x != x', z = x / ||x||

    Args:
        embeddings: [N, D].

    Returns:
        [N] times the batch's value; 0 for fewer than two samples.

    As the method ``spread_out`` it is added to cross-entropy, times ``strength``. Costs N x D x min(N, D).

    Use when:
        Embeddings crowd in one corner of the sphere, as in retrieval with few samples per class.
    Avoid when:
        Compact classes are the aim: pairs of the same class are pushed apart as well.
    Special cases:
        0, nearly, for directions drawn at random.

    >>> spread_out(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0., 0.])

    Deviates:
        Over all pairs, as Jitkrittum et al. write it; the reference takes pairs of different classes.

    Reference:
        Zhang et al. (2017), "Learning spread-out local feature descriptors"; Jitkrittum et al. (2022), eq. (7)-(9).
    """
    wide = check_embeddings("spread_out", embeddings)
    num_samples, size = wide.shape
    if num_samples < 2:
        return wide.sum(dim=1) * 0
    with no_autocast(wide):
        unit = F.normalize(wide, dim=1)
        # Sums over all pairs need the [N, N] products or the [D, D] ones, whichever are fewer; pairs x = x' go out.
        products = unit @ unit.T if num_samples <= size else unit.T @ unit
        own = unit.square().sum(dim=1)
        num_pairs = num_samples * (num_samples - 1)
        first = (unit.sum(dim=0).square().sum() - own.sum()) / num_pairs
        second = (products.square().sum() - own.square().sum()) / num_pairs
        return (first.square() + F.relu(second - 1 / max(size, 1))).expand(num_samples)


def range_loss(embeddings: Tensor, target: Tensor, margin: float = 1.0) -> Tensor:
    """Range loss between classes: the two nearest class means should be a margin apart.

    Formula:
        Omega = max_{y != y'} [gamma - ||mu[y] - mu[y']||^2]_+, mu the class means of the batch

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        margin: gamma, a squared distance, above 0.

    Returns:
        [N] times the batch's value; 0 for fewer than two classes.

    As the method ``range_loss`` it is added to cross-entropy, times ``strength``.

    Use when:
        Means of classes fall together.
    Avoid when:
        There are many classes: only the nearest pair has a gradient.
    Special cases:
        0 once all means of a batch are sqrt(gamma) apart.

    >>> range_loss(torch.tensor([[0.0], [0.5], [3.0]]), torch.tensor([0, 1, 2]))
    tensor([0.7500, 0.7500, 0.7500])

    Deviates:
        The reference has a second part, the largest distances inside a class; this is the part that Jitkrittum et al.
        compare with.

    Reference:
        Zhang et al. (2017), "Range loss for deep face recognition with long-tailed training data"; Jitkrittum et al.
        (2022), section 3.2.
    """
    wide, target = check_pairs("range_loss", embeddings, target)
    check_positive(margin, "range_loss: margin")
    present, place = target.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    counts = place.bincount()
    if len(present) < 2:
        return wide.sum(dim=1) * 0
    with no_autocast(wide):
        means = wide.new_zeros(len(present), wide.shape[1]).index_add(0, place, wide) / counts[:, None]
        centered = means.detach() - means.detach().mean(dim=0)  # products lose the digits that all means share
        distances = squared_distances(centered, centered).fill_diagonal_(math.inf)
        nearest = distances.argmin()
        gap = means[nearest // len(present)] - means[nearest % len(present)]
        return F.relu(margin - gap.square().sum()).expand(len(wide))


def supervised_contrastive(
    embeddings: Tensor, target: Tensor, temperature: float = 0.1, num_anchors: int | None = None
) -> Tensor:
    """Supervised contrastive loss: each other sample of the class against all samples of the batch.

    Formula:
        Omega = -mean_{x+} log(exp(z.z+ / t) / sum_{x' != x} exp(z.z' / t)), z = x / ||x||

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        temperature: t, above 0.
        num_anchors: A, the first samples, which get values; the others are only compared with. None is N.

    Returns:
        [A] values; 0 for a sample that is alone in its class.

    As the method ``supervised_contrastive`` it is added to cross-entropy, times ``strength``. Holds an [A, N] matrix.

    Use when:
        Batches are large and embeddings are compared by cosine.
    Avoid when:
        Labels are imbalanced: a rare class seldom has partners, and no margin makes up for it.
    Special cases:
        The cross-entropy of picking the one partner, where a class has two samples in the batch.

    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> supervised_contrastive(x, y, temperature=1.0).round(decimals=4)
    tensor([0.3133, 0.3133, 0.0000])

    Reference:
        Khosla et al. (2020), "Supervised contrastive learning", eq. (2).
    """
    wide, target = check_pairs("supervised_contrastive", embeddings, target)
    check_positive(temperature, "supervised_contrastive: temperature")
    num_anchors = _check_anchors("supervised_contrastive", num_anchors, len(wide))
    if len(wide) < 2:
        return wide[:num_anchors].sum(dim=1) * 0
    with no_autocast(wide):
        unit = F.normalize(wide, dim=1)
        itself = torch.eye(num_anchors, len(wide), dtype=torch.bool, device=wide.device)
        logs = torch.log_softmax((unit[:num_anchors] @ unit.T / temperature).masked_fill(itself, -math.inf), dim=1)
        partners = is_partner(target, num_anchors)
        return torch.where(partners, -logs, 0).sum(dim=1) / partners.sum(dim=1).clamp_min(1)


def triplet(embeddings: Tensor, target: Tensor, margin: float = 1.0, num_anchors: int | None = None) -> Tensor:
    """Triplet loss over all triplets: samples of the class should score higher than all others, by a margin.

    Formula:
        Omega = mean_{x+, x-} [gamma + x.x- - x.x+]_+

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        margin: gamma, above 0, the same for all classes.
        num_anchors: A, the first samples, which get values; the others are only compared with. None is N.

    Returns:
        [A] values; 0 for a sample without a partner in its class, or without a sample of another class.

    As the method ``triplet`` it is added to cross-entropy, times ``strength``. All A * N^2 triplets count, but
    sorting each sample's products makes it A * N log N.

    Use when:
        Embeddings are searched by inner product.
    Avoid when:
        Labels are imbalanced: the margin knows nothing of it.
    Special cases:
        gamma, where all embeddings are the same.

    >>> triplet(torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([0, 0, 1]), margin=4.0)
    tensor([1., 0., 0.])

    Reference:
        Weinberger and Saul (2009), "Distance metric learning for large margin nearest neighbor classification"; with
        inner products as in Jitkrittum et al. (2022), section 3.2.
    """
    wide, target = check_pairs("triplet", embeddings, target)
    check_positive(margin, "triplet: margin")
    num_anchors = _check_anchors("triplet", num_anchors, len(wide))
    with no_autocast(wide):
        products = wide[:num_anchors] @ wide.T
        partners, is_negative = is_partner(target, num_anchors), target[:num_anchors, None] != target
        descending = products.masked_fill(~is_negative, -math.inf).sort(dim=1, descending=True).values
        # For a threshold, the negatives above it are the first ones: their number and their sum are all it takes.
        thresholds = products - margin
        num_above = torch.searchsorted(-descending.detach(), -thresholds.detach())
        sums = F.pad(descending.masked_fill(descending == -math.inf, 0).cumsum(dim=1), (1, 0))
        hinges = sums.gather(1, num_above) - num_above * thresholds
        num_triplets = partners.sum(dim=1) * is_negative.sum(dim=1)
        return torch.where(partners, hinges, 0).sum(dim=1) / num_triplets.clamp_min(1)


def hybrid(logits: Tensor, target: Tensor) -> Tensor:
    """Hybrid contrastive learning: a class should score its own samples above those of other classes.

    Formula:
        Omega = log(1 + sum_{x-} exp(f[y](x-) - f[y](x))), x- the samples of other classes

    Args:
        logits: [N, C] f. It contrasts samples in logit space, so it takes these and not embeddings.
        target: [N] class indices.

    Returns:
        [N] values; 0 for a sample whose batch has no other class.

    As the method ``hybrid`` it is added to cross-entropy, times ``strength``. Holds an [N, N] matrix.

    Use when:
        The rival of ``elm`` is wanted for a comparison, or scores of one class are to rank samples.
    Avoid when:
        Balanced error is the aim: it changes what the logits converge to, whatever margins the other term has.
    Special cases:
        Cross-entropy over the samples of a batch in place of over the classes.

    >>> hybrid(torch.zeros(3, 2), torch.tensor([0, 1, 1])).exp().round()
    tensor([3., 2., 2.])

    Reference:
        Liu and Abbeel (2020), "Hybrid discriminative-generative training via contrastive learning"; as in Jitkrittum
        et al. (2022), section 3.2.
    """
    wide, target = check_pairs("hybrid", logits, target)
    check_class_range(target, logits.shape[1])
    scores = wide[:, target].T  # [i, j]: what sample j scores for the class of sample i
    leads = scores - scores.diagonal()[:, None]
    return log_one_plus_sum(leads.masked_fill(target[:, None] == target, -math.inf))


class SpreadOut(EmbeddingLoss):
    """The mean of ``spread_out``; the target does not count.

    >>> SpreadOut()(torch.eye(3), torch.tensor([0, 1, 2])).item()
    0.0
    """

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``spread_out``."""
        return spread_out(embeddings)


class RangeLoss(EmbeddingLoss):
    """The mean of ``range_loss``.

    Args:
        margin: gamma.

    >>> RangeLoss(margin=2.0)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    2.0
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``range_loss``."""
        return range_loss(embeddings, target, self.margin)


class SupervisedContrastive(EmbeddingLoss):
    """The mean of ``supervised_contrastive``.

    Args:
        temperature: t.

    >>> SupervisedContrastive()(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``supervised_contrastive``."""
        return supervised_contrastive(embeddings, target, self.temperature)


class Triplet(EmbeddingLoss):
    """The mean of ``triplet``.

    Args:
        margin: gamma.

    >>> Triplet(margin=2.0)(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1])).item()
    2.0
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``triplet``."""
        return triplet(embeddings, target, self.margin)


class HybridLoss(nn.Module):
    """The mean of cross-entropy + strength * ``hybrid``: both are of logits, so this is a loss.

    Args:
        strength: how much the contrast of samples counts.

    >>> HybridLoss(strength=1.0)(torch.zeros(2, 2), torch.tensor([0, 1])).exp().round()
    tensor(4.)
    """

    def __init__(self, strength: float = 0.01) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = margin_cross_entropy(logits, target)
        if self.training and is_initialized():  # a sample's partners may be in any process
            logits, target = gather_samples(logits), gather_samples(target)
        return (losses.mean() + self.strength * hybrid(logits, target).mean()).to(losses.dtype)


def _check_anchors(name: str, num_anchors: int | None, num_samples: int) -> int:
    if num_anchors is None:
        return num_samples
    if not 0 <= num_anchors <= num_samples:
        raise ValueError(f"{name}: num_anchors must be in 0..{num_samples}, the samples. Got {num_anchors}.")
    return num_anchors
