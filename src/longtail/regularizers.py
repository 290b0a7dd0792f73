"""Regularizers of embeddings: they pull the samples of a class together or push classes apart.

Functions take embeddings [N, D] and labels [N] and return one value per sample; a value that belongs to the whole
batch is given to each of its samples, so that the mean is that value. A batch stands for the training set of the
papers' formulas. The module beside each function holds its state and takes the mean, for ``Phase.regularizer``.

All of them compute in float32 or wider, under autocast too, and return float32 for half precision: squared distances
are beyond float16 before embeddings are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._collectives import gather_rows, is_initialized
from longtail.losses import margin_cross_entropy
from longtail.prior import ClassPrior

__all__ = [
    "Center",
    "ClassCentroids",
    "ClassMemory",
    "DroLt",
    "HybridLoss",
    "Pull",
    "RangeLoss",
    "Remembered",
    "SpreadOut",
    "SupervisedContrastive",
    "Triplet",
    "center",
    "count_margin",
    "dro_lt",
    "hybrid",
    "probability_margin",
    "pull",
    "range_loss",
    "spread_out",
    "supervised_contrastive",
    "triplet",
]


def probability_margin(prior: ClassPrior, scale: float = 1.0, exponent: float = 1.0) -> Tensor:
    """A margin for each class from its share of the samples.

    Formula:
        alpha[y] = scale * pi[y]^exponent

    Args:
        prior: the class counts.
        scale: a number above 0.
        exponent: above 0 a rare class has the smaller margin, as ``pull`` wants it.

    Returns:
        [C] float64.

    >>> probability_margin(ClassPrior.from_counts([75, 25]), scale=4.0).tolist()
    [3.0, 1.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", section 3.1.
    """
    return _power_margin(prior.probs, scale, exponent)


def count_margin(prior: ClassPrior, scale: float = 1.0, exponent: float = 0.5) -> Tensor:
    """A margin for each class from the number of its samples.

    Formula:
        alpha[y] = scale * n[y]^exponent

    Args:
        prior: the class counts.
        scale: a number above 0.
        exponent: above 0 a rare class has the smaller margin (``pull``), below 0 the larger one (``dro_lt``).

    Returns:
        [C] float64.

    Equals:
        ``probability_margin`` with the scale times (number of samples)^exponent.

    >>> count_margin(ClassPrior.from_counts([100, 25])).tolist()
    [10.0, 5.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", appendix A.2.
    """
    return _power_margin(prior.counts.double(), scale, exponent)


class Remembered(NamedTuple):
    """Recent embeddings of each class, as ``ClassMemory`` keeps them."""

    embeddings: Tensor
    """[C, K, D]."""
    counts: Tensor
    """[C] how many of a class's K places are filled, from the first on."""


def pull(
    embeddings: Tensor,
    labels: Tensor,
    margin: Tensor,
    memory: Remembered | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """ELM's embedding margin: a sample pays for those of its class that are farther from it than the margin.

    Formula:
        Omega = w[y] * log(1 + sum_{x+} exp(||x - x+||^2 - alpha[y])), x+ the other samples of class y

    Args:
        embeddings: [N, D], any floating dtype.
        labels: [N] class indices.
        margin: [C] alpha, squared distances; see ``probability_margin`` and ``count_margin``.
        memory: more samples of each class, which pull but are not pulled: they get no gradient. None: there are none.
        weights: [C] w; None is 1, as in the paper. In the mean over a batch, a rare class counts as little as it has
            samples; with ``weights.balanced`` it counts as much as a frequent one.

    Returns:
        [N] values; 0, with no gradient, for a sample that is alone in its class.

    Time and memory are of the order of same-class pairs. Samples are sorted by class, and classes of similar size go
    through one batched matrix product, their mean taken off first so that large norms cancel nothing.

    Use when:
        Embeddings of rare classes are diffuse, and a margin loss on the logits separates the classes.
    Avoid when:
        It is the only term: embeddings in one point have the smallest value. Where most classes have one sample in a
        batch, give it a ``memory``.
    Equals:
        ``center`` around the batch's class means, doubled and shifted, is a lower bound (Proposition 1).

    >>> x, y = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1])
    >>> pull(x, y, margin=torch.tensor([4.0, 1.0])).exp()
    tensor([2., 2., 1.])

    Deviates:
        The sum is over the batch (and the memory), not over the training set. A memory may hold an older embedding
        of the sample itself. The paper has neither memory nor weights.

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", eq. (4).
    """
    wide, labels = _checked("pull", embeddings, labels)
    if margin.ndim != 1:
        raise ValueError(f"pull: margin must be [C], one number a class. Got {tuple(margin.shape)}.")
    _check_range("pull", labels, len(margin))
    if weights is not None and weights.shape != margin.shape:
        raise ValueError(f"pull: weights must be [{len(margin)}]. Got {tuple(weights.shape)}.")
    if memory is not None:
        _check_memory(memory, len(margin), wide.shape[1])
    values = wide.sum(dim=1) * 0  # in the graph also where nobody has a partner
    with _no_autocast(wide):
        for block in _class_blocks(labels, smallest=1 if memory is not None else 2):
            x = wide.index_select(0, block.rows.flatten()).view(*block.rows.shape, wide.shape[1])
            found = _pull_block(x, block, margin.to(wide), memory)
            values = values.index_add(0, block.rows.flatten(), torch.where(block.is_real, found, 0).flatten())
    return values if weights is None else values * weights.to(values)[labels]


def dro_lt(embeddings: Tensor, labels: Tensor, margin: Tensor, centroids: Tensor) -> Tensor:
    """DRO-LT in one stage: a sample should be nearer to its class's centroid than every other sample is.

    Formula:
        Omega = log sum_{x', y'} exp(||x - mu[y]||^2 - ||x' - mu[y]||^2 + epsilon[y] * [y' != y])

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        margin: [C] epsilon, larger for rare classes: ``count_margin(prior, scale, exponent=-0.5)``.
        centroids: [C, D] mu.

    Returns:
        [N] values, at least 0.

    As the method ``dro_lt`` it is added to cross-entropy, times ``strength``. Costs N x (classes in the batch).

    Use when:
        The rival of ``elm`` is wanted for a comparison.
    Avoid when:
        Compact classes are the aim: a sample is also pushed behind the others of its own class.
    Equals:
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
    wide, labels = _checked("dro_lt", embeddings, labels)
    _check_range("dro_lt", labels, len(margin))
    _check_centroids("dro_lt", centroids, len(margin), wide.shape[1])
    present, place = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    with _no_autocast(wide):
        # Distances by products lose the digits that all points share, so their middle goes first.
        middle = wide.detach().mean(dim=0)
        distances = _squared_distances(wide - middle, centroids.to(wide)[present] - middle)
        is_other = place[:, None] != torch.arange(len(present), device=labels.device)
        exponents = torch.where(is_other, margin.to(wide)[present], 0) - distances
        own = distances.gather(1, place[:, None])[:, 0]
        return own + torch.logsumexp(exponents, dim=0)[place]


def center(embeddings: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    """Center loss: the squared distance of a sample to its class's centroid.

    Formula:
        Omega = ||x - mu[y]||^2

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        centroids: [C, D] mu.

    Returns:
        [N] values.

    As the method ``center_loss`` it is added to cross-entropy, times ``strength``.

    Use when:
        Compact classes are wanted at the least cost, and all of them have many samples.
    Avoid when:
        Labels are skewed: frequent classes have most of the say, and there is no margin to give rare ones more.
    Equals:
        The sum of a class's coordinate variances, on average, for centroids that are its mean.

    >>> center(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), centroids=torch.zeros(2, 2))
    tensor([25.])

    Deviates:
        ``Center`` moves its centroids by a moving average of batch means instead of the reference's damped step, and
        starts them at the first mean seen. The factor 1/2 of the reference is left to ``strength``.

    Reference:
        Wen et al. (2016), "A discriminative feature learning approach for deep face recognition", eq. (2).
    """
    wide, labels = _checked("center", embeddings, labels)
    _check_centroids("center", centroids, len(centroids), wide.shape[1])
    _check_range("center", labels, len(centroids))
    return (wide - centroids.to(wide)[labels]).square().sum(dim=1)


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
        Embeddings crowd in one corner of the sphere, as in retrieval with few samples a class.
    Avoid when:
        Compact classes are the aim: pairs of the same class are pushed apart as well.
    Equals:
        0, nearly, for directions drawn at random.

    >>> spread_out(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0., 0.])

    Deviates:
        Over all pairs, as Jitkrittum et al. write it; the reference takes pairs of different classes.

    Reference:
        Zhang et al. (2017), "Learning spread-out local feature descriptors"; Jitkrittum et al. (2022), eq. (7)-(9).
    """
    wide = _checked_embeddings("spread_out", embeddings)
    num_samples, size = wide.shape
    if num_samples < 2:
        return wide.sum(dim=1) * 0
    with _no_autocast(wide):
        unit = F.normalize(wide, dim=1)
        # Sums over all pairs need the [N, N] products or the [D, D] ones, whichever are fewer; pairs x = x' go out.
        products = unit @ unit.T if num_samples <= size else unit.T @ unit
        own = unit.square().sum(dim=1)
        num_pairs = num_samples * (num_samples - 1)
        first = (unit.sum(dim=0).square().sum() - own.sum()) / num_pairs
        second = (products.square().sum() - own.square().sum()) / num_pairs
        return (first.square() + F.relu(second - 1 / max(size, 1))).expand(num_samples)


def range_loss(embeddings: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Range loss between classes: the two nearest class means should be a margin apart.

    Formula:
        Omega = max_{y != y'} [gamma - ||mu[y] - mu[y']||^2]_+, mu the class means of the batch

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        margin: gamma, a squared distance, above 0.

    Returns:
        [N] times the batch's value; 0 for fewer than two classes.

    As the method ``range_loss`` it is added to cross-entropy, times ``strength``.

    Use when:
        Means of classes fall together.
    Avoid when:
        There are many classes: only the nearest pair has a gradient.
    Equals:
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
    wide, labels = _checked("range_loss", embeddings, labels)
    _check_positive("range_loss", "margin", margin)
    present, place = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    counts = place.bincount()
    if len(present) < 2:
        return wide.sum(dim=1) * 0
    with _no_autocast(wide):
        means = wide.new_zeros(len(present), wide.shape[1]).index_add(0, place, wide) / counts[:, None]
        centered = means.detach() - means.detach().mean(dim=0)  # products lose the digits that all means share
        distances = _squared_distances(centered, centered).fill_diagonal_(math.inf)
        nearest = distances.argmin()
        gap = means[nearest // len(present)] - means[nearest % len(present)]
        return F.relu(margin - gap.square().sum()).expand(len(wide))


def supervised_contrastive(embeddings: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss: each other sample of the class against all samples of the batch.

    Formula:
        Omega = -mean_{x+} log(exp(z.z+ / t) / sum_{x' != x} exp(z.z' / t)), z = x / ||x||

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        temperature: t, above 0.

    Returns:
        [N] values; 0 for a sample that is alone in its class.

    As the method ``supervised_contrastive`` it is added to cross-entropy, times ``strength``. Holds an [N, N] matrix.

    Use when:
        Batches are large and embeddings are compared by cosine.
    Avoid when:
        Labels are skewed: a rare class seldom has partners, and no margin makes up for it.
    Equals:
        The cross-entropy of picking the one partner, where a class has two samples in the batch.

    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> supervised_contrastive(x, y, temperature=1.0).round(decimals=4)
    tensor([0.3133, 0.3133, 0.0000])

    Reference:
        Khosla et al. (2020), "Supervised contrastive learning", eq. (2).
    """
    wide, labels = _checked("supervised_contrastive", embeddings, labels)
    _check_positive("supervised_contrastive", "temperature", temperature)
    if len(wide) < 2:
        return wide.sum(dim=1) * 0
    with _no_autocast(wide):
        unit = F.normalize(wide, dim=1)
        itself = torch.eye(len(wide), dtype=torch.bool, device=wide.device)
        logs = torch.log_softmax((unit @ unit.T / temperature).masked_fill(itself, -math.inf), dim=1)
        is_partner = _is_partner(labels)
        return torch.where(is_partner, -logs, 0).sum(dim=1) / is_partner.sum(dim=1).clamp_min(1)


def triplet(embeddings: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Triplet loss over all triplets: samples of the class should score higher than all others, by a margin.

    Formula:
        Omega = mean_{x+, x-} [gamma + x.x- - x.x+]_+

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        margin: gamma, above 0, the same for all classes.

    Returns:
        [N] values; 0 for a sample without a partner in its class, or without a sample of another class.

    As the method ``triplet`` it is added to cross-entropy, times ``strength``. All N^3 triplets count, but sorting
    each sample's products makes it N^2 log N.

    Use when:
        Embeddings are searched by inner product.
    Avoid when:
        Labels are skewed: the margin knows nothing of it.
    Equals:
        gamma, where all embeddings are the same.

    >>> triplet(torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([0, 0, 1]), margin=4.0)
    tensor([1., 0., 0.])

    Reference:
        Weinberger and Saul (2009), "Distance metric learning for large margin nearest neighbor classification"; with
        inner products as in Jitkrittum et al. (2022), section 3.2.
    """
    wide, labels = _checked("triplet", embeddings, labels)
    _check_positive("triplet", "margin", margin)
    with _no_autocast(wide):
        products = wide @ wide.T
        is_partner, is_negative = _is_partner(labels), labels[:, None] != labels
        descending = products.masked_fill(~is_negative, -math.inf).sort(dim=1, descending=True).values
        # For a threshold, the negatives above it are the first ones: their number and their sum are all it takes.
        thresholds = products - margin
        num_above = torch.searchsorted(-descending.detach(), -thresholds.detach())
        sums = F.pad(descending.masked_fill(descending == -math.inf, 0).cumsum(dim=1), (1, 0))
        hinges = sums.gather(1, num_above) - num_above * thresholds
        num_triplets = is_partner.sum(dim=1) * is_negative.sum(dim=1)
        return torch.where(is_partner, hinges, 0).sum(dim=1) / num_triplets.clamp_min(1)


def hybrid(logits: Tensor, labels: Tensor) -> Tensor:
    """Hybrid contrastive learning: a class should score its own samples above those of other classes.

    Formula:
        Omega = log(1 + sum_{x-} exp(f[y](x-) - f[y](x))), x- the samples of other classes

    Args:
        logits: [N, C] f. It contrasts samples in logit space, so it takes these and not embeddings.
        labels: [N] class indices.

    Returns:
        [N] values; 0 for a sample whose batch has no other class.

    As the method ``hybrid`` it is added to cross-entropy, times ``strength``. Holds an [N, N] matrix.

    Use when:
        The rival of ``elm`` is wanted for a comparison, or scores of one class are to rank samples.
    Avoid when:
        Balanced error is the aim: it changes what the logits converge to, whatever margins the other term has.
    Equals:
        Cross-entropy over the samples of a batch in place of over the classes.

    >>> hybrid(torch.zeros(3, 2), torch.tensor([0, 1, 1])).exp().round()
    tensor([3., 2., 2.])

    Reference:
        Liu and Abbeel (2020), "Hybrid discriminative-generative training via contrastive learning"; as in Jitkrittum
        et al. (2022), section 3.2.
    """
    wide, labels = _checked("hybrid", logits, labels)
    _check_range("hybrid", labels, logits.shape[1])
    scores = wide[:, labels].T  # [i, j]: what sample j scores for the class of sample i
    leads = scores - scores.diagonal()[:, None]
    return _log_one_plus_sum(leads.masked_fill(labels[:, None] == labels, -math.inf))


class ClassMemory(nn.Module):
    """The most recent embeddings of each class, in a ring: no gradient, O(C * size * D), in the state dict.

    Args:
        num_classes: C.
        size: how many embeddings of a class to keep.

    D is that of the first embeddings. With several processes, each remembers what all of them saw, so their memories
    stay the same and one of them is enough for a checkpoint.

    >>> memory = ClassMemory(num_classes=3, size=2)
    >>> memory.remember(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 0, 0, 2]))
    >>> memory.recall().counts.tolist(), sorted(memory.recall().embeddings[0, :, 0].tolist())
    ([2, 0, 1], [2.0, 3.0])
    """

    embeddings: Tensor
    written: Tensor

    def __init__(self, num_classes: int, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"ClassMemory: size must be at least 1. Got {size}.")
        self.size = size
        self.register_buffer("embeddings", torch.zeros(num_classes, size, 0))
        self.register_buffer("written", torch.zeros(num_classes, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(partial(_take_saved_width, "embeddings"))  # type: ignore[no-untyped-call]

    def recall(self) -> Remembered | None:
        """What is kept; None before the first embeddings came."""
        if self.embeddings.shape[-1] == 0:
            return None
        return Remembered(self.embeddings, self.written.clamp_max(self.size))

    @torch.no_grad()
    def remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Keep embeddings [N, D] of classes labels [N]; the oldest of a full class are forgotten."""
        wide, labels = _checked("ClassMemory", embeddings, labels)
        _check_range("ClassMemory", labels, len(self.written))
        if is_initialized():
            wide, labels = gather_rows(wide.detach(), None), gather_rows(labels, None)
        if self.embeddings.shape[-1] == 0:
            self.embeddings = wide.new_zeros(*self.embeddings.shape[:2], wide.shape[1])
        _check_width("ClassMemory", self.embeddings, wide.shape[1])
        order = labels.argsort(stable=True)
        arriving = labels.bincount(minlength=len(self.written))
        ordered = labels[order]
        rank = torch.arange(len(order), device=order.device) - (arriving.cumsum(0) - arriving)[ordered]
        is_kept = rank >= arriving[ordered] - self.size  # a ring holds the last ones; earlier ones would collide
        kept, rank, ordered = order[is_kept], rank[is_kept], ordered[is_kept]
        self.embeddings[ordered, (self.written[ordered] + rank) % self.size] = wide[kept].to(self.embeddings)
        self.written += arriving


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
        self.register_load_state_dict_pre_hook(partial(_take_saved_width, "centroids"))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Move the averages of the classes in labels [N] to their embeddings [N, D]; returns all, [C, D]."""
        wide, labels = _checked("ClassCentroids", embeddings.detach(), labels)
        num_classes = len(self.is_known)
        _check_range("ClassCentroids", labels, num_classes)
        if self.centroids.shape[-1] == 0:
            self.centroids = wide.new_zeros(num_classes, wide.shape[1])
        _check_width("ClassCentroids", self.centroids, wide.shape[1])
        sums = torch.zeros_like(self.centroids).index_add_(0, labels, wide.to(self.centroids))
        counts = labels.bincount(minlength=num_classes).to(sums)
        if is_initialized():
            dist.all_reduce(sums)
            dist.all_reduce(counts)
        means = sums / counts.clamp_min(1)[:, None]
        kept = torch.where(self.is_known, self.momentum, 0.0).to(means)[:, None]
        self.centroids = torch.where(counts[:, None] > 0, kept * self.centroids + (1 - kept) * means, self.centroids)
        self.is_known = self.is_known | (counts > 0)
        return self.centroids


class Pull(nn.Module):
    """The mean of ``pull``, with a memory of recent embeddings if wanted.

    Args:
        margin: [C] alpha.
        memory_size: how many recent embeddings of each class pull as well; 0 is the batch alone. The memory is
            written in training mode, after the value is taken.
        weights: [C] w; None is 1.

    >>> Pull(torch.ones(2))(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    margin: Tensor
    weights: Tensor | None

    def __init__(self, margin: Tensor, memory_size: int = 0, weights: Tensor | None = None) -> None:
        super().__init__()
        dtype = torch.get_default_dtype()
        self.register_buffer("margin", margin.to(dtype, copy=True))
        self.register_buffer("weights", None if weights is None else weights.to(dtype, copy=True))
        self.memory = ClassMemory(len(margin), memory_size) if memory_size else None

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        memory = None if self.memory is None else self.memory.recall()
        values = pull(embeddings, labels, self.margin, memory, self.weights)
        if self.memory is not None and self.training:
            self.memory.remember(embeddings.detach(), labels)
        return _mean(values)


class DroLt(nn.Module):
    """The mean of ``dro_lt``, around a moving average of each class's embeddings.

    Args:
        margin: [C] epsilon.
        momentum: of the moving average.

    >>> DroLt(torch.zeros(2))(torch.zeros(2, 3), torch.tensor([0, 1])).exp()
    tensor(2.)
    """

    margin: Tensor

    def __init__(self, margin: Tensor, momentum: float = 0.9) -> None:
        super().__init__()
        self.register_buffer("margin", margin.to(torch.get_default_dtype(), copy=True))
        self.centroids = ClassCentroids(len(margin), momentum)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        return _mean(dro_lt(embeddings, labels, self.margin, _current(self, self.centroids, embeddings, labels)))


class Center(nn.Module):
    """The mean of ``center``, around a moving average of each class's embeddings.

    Args:
        num_classes: C.
        momentum: of the moving average.

    >>> Center(num_classes=2)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    def __init__(self, num_classes: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.centroids = ClassCentroids(num_classes, momentum)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        return _mean(center(embeddings, labels, _current(self, self.centroids, embeddings, labels)))


class SpreadOut(nn.Module):
    """The mean of ``spread_out``; labels do not count.

    >>> SpreadOut()(torch.eye(3), torch.tensor([0, 1, 2])).item()
    0.0
    """

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D]: a scalar."""
        return _mean(spread_out(embeddings))


class RangeLoss(nn.Module):
    """The mean of ``range_loss``.

    Args:
        margin: gamma.

    >>> RangeLoss(margin=2.0)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    2.0
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        return _mean(range_loss(embeddings, labels, self.margin))


class SupervisedContrastive(nn.Module):
    """The mean of ``supervised_contrastive``.

    Args:
        temperature: t.

    >>> SupervisedContrastive()(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    0.0
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        return _mean(supervised_contrastive(embeddings, labels, self.temperature))


class Triplet(nn.Module):
    """The mean of ``triplet``.

    Args:
        margin: gamma.

    >>> Triplet(margin=2.0)(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1])).item()
    2.0
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over embeddings [N, D] with labels [N]: a scalar."""
        return _mean(triplet(embeddings, labels, self.margin))


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
        return (losses + self.strength * hybrid(logits, target)).mean().to(losses.dtype)


class _Block(NamedTuple):
    """Classes of similar size, their samples padded to the largest."""

    classes: Tensor
    """[G]."""
    rows: Tensor
    """[G, W] indices of their samples; a padded place repeats the first one."""
    is_real: Tensor
    """[G, W] False where padded."""


def _class_blocks(labels: Tensor, smallest: int) -> Iterator[_Block]:
    """The classes with at least ``smallest`` samples; those of a block differ in size by less than a factor of 2.

    Classes of up to 15 samples share a block: what padding costs there is less than another round of calls.
    """
    order = labels.argsort(stable=True)
    classes, counts = torch.unique_consecutive(labels[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    sizes: dict[int, list[int]] = {}
    counted = counts.tolist()
    for position, count in enumerate(counted):
        if count >= smallest:
            sizes.setdefault(max(count.bit_length(), 4), []).append(position)
    for positions in sizes.values():
        group = torch.tensor(positions, device=labels.device)
        steps = torch.arange(max(counted[position] for position in positions), device=labels.device)
        is_real = steps < counts[group, None]
        yield _Block(classes[group], order[starts[group, None] + steps * is_real], is_real)


def _pull_block(x: Tensor, block: _Block, margin: Tensor, memory: Remembered | None) -> Tensor:
    """[G, W] values of embeddings x [G, W, D]; those of padded places mean nothing."""
    # Distances do not change when all embeddings of a class move by the same vector, so neither do gradients.
    middle = x.detach().mean(dim=1, keepdim=True)
    x = x - middle
    partners, is_partner = x, block.is_real
    if memory is not None:
        remembered = memory.embeddings[block.classes].to(x) - middle
        filled = torch.arange(remembered.shape[1], device=x.device)
        partners = torch.cat([x, remembered], dim=1)
        is_partner = torch.cat([is_partner, filled < memory.counts[block.classes, None]], dim=1)
    places = torch.arange(partners.shape[1], device=x.device)
    itself = places[: x.shape[1], None] == places
    exponents = _squared_distances(x, partners) - margin[block.classes, None, None]
    return _log_one_plus_sum(exponents.masked_fill(itself | ~is_partner[:, None, :], -math.inf))


def _squared_distances(x: Tensor, others: Tensor) -> Tensor:
    """[..., N, M] squared distances by one matrix product; exact to the precision of the largest."""
    norms = x.square().sum(dim=-1)
    other_norms = norms if others is x else others.square().sum(dim=-1)
    return (norms[..., :, None] + other_norms[..., None, :]).sub(x @ others.mT, alpha=2).clamp_min(0)


def _log_one_plus_sum(exponents: Tensor) -> Tensor:
    """log(1 + sum over the last dimension of exp(exponents)), which may be -inf."""
    if exponents.shape[-1] == 0:
        return exponents.sum(dim=-1)
    peak = exponents.detach().amax(dim=-1).clamp_min(0)
    total = torch.expm1(-peak) + (exponents - peak[..., None]).exp().sum(dim=-1)
    return peak + torch.log1p(total)


def _is_partner(labels: Tensor) -> Tensor:
    """[N, N] whether two different samples have the same label."""
    return (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def _current(module: nn.Module, centroids: ClassCentroids, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Centroids that know this batch in training mode, and the ones that are kept otherwise."""
    return centroids.update(embeddings, labels) if module.training else centroids.centroids


def _mean(values: Tensor) -> Tensor:
    """The mean; 0 of no samples."""
    return values.sum() / max(len(values), 1)


def _no_autocast(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, enabled=False)


def _take_saved_width(buffer: str, module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before loading: give a buffer that has seen no embeddings yet the D of the saved one."""
    own, saved = getattr(module, buffer), state_dict.get(prefix + buffer)
    if saved is not None and own.shape[-1] != saved.shape[-1]:
        setattr(module, buffer, own.new_zeros(*own.shape[:-1], saved.shape[-1]))


def _power_margin(sizes: Tensor, scale: float, exponent: float) -> Tensor:
    _check_positive("margin", "scale", scale)
    if not math.isfinite(exponent):
        raise ValueError(f"margin: exponent must be a finite number. Got {exponent}.")
    if exponent < 0 and not sizes.all():
        empty = int((sizes == 0).nonzero()[0])
        raise ValueError(f"margin: class {empty} has no samples, so its margin is infinite; drop it.")
    return scale * sizes**exponent


def _checked(name: str, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings in float32 or wider and int64 labels, which as bytes would select like a mask."""
    wide = _checked_embeddings(name, embeddings)
    if labels.shape != embeddings.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name}: labels must be [{len(embeddings)}] class indices. Got {labels.dtype} {tuple(labels.shape)}."
        )
    return wide, labels.long()


def _checked_embeddings(name: str, embeddings: Tensor) -> Tensor:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"{name}: embeddings must be floating-point [N, D]. Got {embeddings.dtype} {tuple(embeddings.shape)}."
        )
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def _check_range(name: str, labels: Tensor, num_classes: int) -> None:
    """On CPUs only: elsewhere a look at the values would wait for the device."""
    if labels.device.type != "cpu" or labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(f"{name}: labels must be in 0..{num_classes - 1}. Got {low if low < 0 else high}.")


def _check_centroids(name: str, centroids: Tensor, num_classes: int, width: int) -> None:
    if centroids.shape != (num_classes, width):
        raise ValueError(f"{name}: centroids must be [{num_classes}, {width}]. Got {tuple(centroids.shape)}.")


def _check_memory(memory: Remembered, num_classes: int, width: int) -> None:
    kept = memory.embeddings
    if kept.ndim != 3 or (kept.shape[0], kept.shape[2]) != (num_classes, width):
        raise ValueError(f"pull: memory must hold [{num_classes}, K, {width}]. Got {tuple(kept.shape)}.")


def _check_width(name: str, kept: Tensor, width: int) -> None:
    if kept.shape[-1] != width:
        raise ValueError(f"{name}: embeddings must be [N, {kept.shape[-1]}] as those before. Got width {width}.")


def _check_positive(name: str, argument: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: {argument} must be above 0. Got {value}.")
