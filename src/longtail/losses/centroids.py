"""Losses on embeddings that know a centroid of each class: DRO-LT, center and balanced contrastive loss."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longtail._core.checks import check_class_range, check_positive
from longtail._core.collectives import is_initialized
from longtail._core.numerics import squared_distances, unit_vectors
from longtail.losses._embeddings import EmbeddingLoss, check_pairs, check_width, no_autocast, take_saved_width
from longtail.losses._terms import register_constant

__all__ = [
    "BalancedContrastive",
    "Center",
    "ClassCentroids",
    "DroLt",
    "balanced_contrastive",
    "center",
    "dro_lt",
]


def dro_lt(embeddings: Tensor, target: Tensor, margin: Tensor, centroids: Tensor) -> Tensor:
    """DRO-LT in one stage: a sample should be nearer to its class's centroid than every other sample is.

    Formula:
        Omega = log sum_{x', y'} exp(||x - mu[y]||^2 - ||x' - mu[y]||^2 + epsilon[y] * [y' != y])

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        margin: [C] epsilon, larger for rare classes: ``count_margin(prior, scale, exponent=-0.5)``.
        centroids: [C, D] mu.

    Returns:
        [N] values, at least 0.

    As the method ``dro_lt`` it is added to cross-entropy, times ``strength``. Costs N x (classes in the batch).

    Use when:
        The rival of ``elm`` is wanted for a comparison.
    Avoid when:
        Compact classes are the aim: a sample is also pushed behind the others of its own class.
    Special cases:
        A softmax over the batch's samples for each centroid, at margin 0.

    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
    >>> dro_lt(x, y, margin=torch.zeros(2), centroids=torch.tensor([[0.0], [1.0]])).round(decimals=4)
    tensor([0.3133, 0.3133])

    Deviates:
        The reference trains in stages, with centroids from the first. In one stage, ``DroLt`` takes a moving average
        of each class's embeddings. The paper gives epsilon up to a factor; 1 / sqrt(n[y]) is the default, the radius
        by which an estimated mean is off.

    Reference:
        Samuel and Chechik (2021), "Distributional robustness loss for long-tail learning"; in one stage as in
        Jitkrittum et al. (2022), eq. (5).
    """
    wide, target = check_pairs("dro_lt", embeddings, target)
    check_class_range(target, len(margin))
    _check_centroids("dro_lt", centroids, len(margin), wide.shape[1])
    present, place = target.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    with no_autocast(wide):
        # Distances by products lose the digits that all points share, so their middle goes first.
        middle = wide.detach().mean(dim=0)
        distances = squared_distances(wide - middle, centroids.to(wide)[present] - middle)
        is_other = place[:, None] != torch.arange(len(present), device=target.device)
        exponents = torch.where(is_other, margin.to(wide)[present], 0) - distances
        own = distances.gather(1, place[:, None])[:, 0]
        return own + torch.logsumexp(exponents, dim=0)[place]


def center(embeddings: Tensor, target: Tensor, centroids: Tensor) -> Tensor:
    """Center loss: the squared distance of a sample to its class's centroid.

    Formula:
        Omega = ||x - mu[y]||^2

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        centroids: [C, D] mu.

    Returns:
        [N] values.

    As the method ``center_loss`` it is added to cross-entropy, times ``strength``.

    Use when:
        Compact classes are wanted at the least cost, and all of them have many samples.
    Avoid when:
        Labels are imbalanced: frequent classes have most of the say, and there is no margin to give rare ones more.
    Special cases:
        The sum of a class's coordinate variances, on average, for centroids that are its mean.

    >>> center(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), centroids=torch.zeros(2, 2))
    tensor([25.])

    Deviates:
        ``Center`` moves its centroids by a moving average of batch means instead of the reference's damped step, and
        starts them at the first mean seen. The factor 1/2 of the reference is left to ``strength``.

    Reference:
        Wen et al. (2016), "A discriminative feature learning approach for deep face recognition", eq. (2).
    """
    wide, target = check_pairs("center", embeddings, target)
    _check_centroids("center", centroids, len(centroids), wide.shape[1])
    check_class_range(target, len(centroids))
    return (wide - centroids.to(wide)[target]).square().sum(dim=1)


def balanced_contrastive(embeddings: Tensor, target: Tensor, centroids: Tensor, temperature: float = 0.1) -> Tensor:
    """Balanced contrastive loss: every class of a batch weighs alike as a negative, and every class is in it.

    Formula:
        Omega = -mean over partners p of log(exp(s[p]) / sum_c mean over samples k of class c of exp(s[k])), where
        s[k] = cos(x, x[k]) / temperature, and the centroid of a class counts as one of its samples

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        centroids: [C, D] one direction per class; a class whose centroid is 0 has none yet.
        temperature: of the cosines.

    Returns:
        [N] values; the sample itself is neither partner nor negative.

    As the method ``balanced_contrastive`` it is added to the logit-adjusted loss, times ``strength``. Holds an
    [N, N + C] matrix.

    Use when:
        Features of rare classes are crowded by frequent ones; with ``views`` of 2, as its authors do.
    Avoid when:
        A step may not cost more, or classes are so many that a row of them per sample is too much.
    Special cases:
        ``supervised_contrastive`` but for the weights of classes and the centroids.

    >>> x, y = torch.eye(2), torch.tensor([0, 1])
    >>> balanced_contrastive(x, y, torch.eye(2), temperature=1.0).exp().round(decimals=4)
    tensor([1.3679, 1.3679])

    Deviates:
        The authors learn class centers from the classifier's weights and contrast the output of a projection; here
        they are moving averages of the class's embeddings, and what is contrasted is the embedding itself.

    Reference:
        Zhu et al. (2022), "Balanced contrastive learning for long-tailed visual recognition", eq. (5) and (6).
    """
    wide, target = check_pairs("balanced_contrastive", embeddings, target)
    check_class_range(target, len(centroids))
    _check_centroids("balanced_contrastive", centroids, len(centroids), wide.shape[1])
    check_positive(temperature, "balanced_contrastive: temperature")
    with no_autocast(wide):
        known = torch.nonzero(centroids.norm(dim=1) > 0)[:, 0]
        points = torch.cat([unit_vectors(wide), unit_vectors(centroids.to(wide)[known])])
        labels = torch.cat([target, known])
        similarity = unit_vectors(wide) @ points.T / temperature
        is_other = ~torch.eye(len(target), len(labels), dtype=torch.bool, device=target.device)
        is_partner = (target[:, None] == labels) & is_other
        is_same = target[:, None] == labels
        # How many of its class a point shares its say with; the sample itself is not among them.
        sizes = labels.bincount(minlength=len(centroids))[labels] - is_same.long()
        weighted = torch.where(is_other, similarity - sizes.clamp_min(1).to(similarity).log(), -torch.inf)
        logs = similarity - torch.logsumexp(weighted, dim=1, keepdim=True)
        return -torch.where(is_partner, logs, 0.0).sum(dim=1) / is_partner.sum(dim=1).clamp_min(1)


class ClassCentroids(nn.Module):
    """A moving average of each class's embeddings: no gradient, in the state dict.

    Args:
        num_classes: C.
        momentum: how much of the old average stays when a class comes again, in [0, 1).

    A class starts at the mean of its first batch. D is that of the first embeddings. With several processes, all see
    the means of the whole batch.

    >>> centroids = ClassCentroids(num_classes=2, momentum=0.5)
    >>> centroids.update(torch.tensor([[2.0]]), torch.tensor([1])).tolist()
    [[0.0], [2.0]]
    >>> centroids.update(torch.tensor([[4.0]]), torch.tensor([1])).tolist()
    [[0.0], [3.0]]
    """

    centroids: Tensor
    is_known: Tensor

    def __init__(self, num_classes: int, momentum: float = 0.9) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"ClassCentroids: momentum must be in [0, 1). Got {momentum}.")
        self.momentum = momentum
        self.register_buffer("centroids", torch.zeros(num_classes, 0))
        self.register_buffer("is_known", torch.zeros(num_classes, dtype=torch.bool))
        self.register_load_state_dict_pre_hook(partial(take_saved_width, "centroids"))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """Move the averages of the classes in target [N] to their embeddings [N, D]; returns all, [C, D]."""
        wide, target = check_pairs("ClassCentroids", embeddings.detach(), target)
        num_classes = len(self.is_known)
        check_class_range(target, num_classes)
        if self.centroids.shape[-1] == 0:
            self.centroids = wide.new_zeros(num_classes, wide.shape[1])
        check_width("ClassCentroids", self.centroids, wide.shape[1])
        sums = torch.zeros_like(self.centroids).index_add_(0, target, wide.to(self.centroids))
        counts = target.bincount(minlength=num_classes).to(sums)
        if is_initialized():
            dist.all_reduce(sums)
            dist.all_reduce(counts)
        means = sums / counts.clamp_min(1)[:, None]
        kept = torch.where(self.is_known, self.momentum, 0.0).to(means)[:, None]
        self.centroids = torch.where(counts[:, None] > 0, kept * self.centroids + (1 - kept) * means, self.centroids)
        self.is_known = self.is_known | (counts > 0)
        return self.centroids


class _CentroidLoss(EmbeddingLoss):
    def __init__(self, num_classes: int, momentum: float) -> None:
        super().__init__()
        self.centroids = ClassCentroids(num_classes, momentum)

    def current_centroids(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[C, D] that know this batch in training mode, and the ones that are kept otherwise."""
        return self.centroids.update(embeddings, target) if self.training else self.centroids.centroids


class DroLt(_CentroidLoss):
    """The mean of ``dro_lt``, around a moving average of each class's embeddings.

    Args:
        margin: [C] epsilon.
        momentum: of the moving average.

    >>> DroLt(torch.zeros(2))(torch.zeros(2, 3), torch.tensor([0, 1])).exp()
    tensor(2.)
    """

    margin: Tensor

    def __init__(self, margin: Tensor, momentum: float = 0.9) -> None:
        super().__init__(len(margin), momentum)
        register_constant(self, "margin", margin)

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``dro_lt``."""
        return dro_lt(embeddings, target, self.margin, self.current_centroids(embeddings, target))


class Center(_CentroidLoss):
    """The mean of ``center``, around a moving average of each class's embeddings.

    Args:
        num_classes: C.
        momentum: of the moving average.

    >>> Center(num_classes=2)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    def __init__(self, num_classes: int, momentum: float = 0.9) -> None:
        super().__init__(num_classes, momentum)

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``center``."""
        return center(embeddings, target, self.current_centroids(embeddings, target))


class BalancedContrastive(_CentroidLoss):
    """The mean of ``balanced_contrastive``, around a moving average of each class's embeddings.

    Args:
        num_classes: C.
        temperature: of the cosines.
        momentum: of the moving average.

    >>> BalancedContrastive(num_classes=2)(torch.eye(2), torch.tensor([0, 1])).item() < 1e-3
    True
    """

    def __init__(self, num_classes: int, temperature: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(num_classes, momentum)
        self.temperature = temperature

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of ``balanced_contrastive``."""
        return balanced_contrastive(embeddings, target, self.current_centroids(embeddings, target), self.temperature)


def _check_centroids(name: str, centroids: Tensor, num_classes: int, width: int) -> None:
    if centroids.shape != (num_classes, width):
        raise ValueError(f"{name}: centroids must be [{num_classes}, {width}]. Got {tuple(centroids.shape)}.")
