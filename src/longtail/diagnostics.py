"""What a trained model's logits and embeddings look like: how sure they are, and how compact its classes.

Functions take tensors and return tensors, on the device of their input and without gradients. None of them holds more
than a part of the distances between samples: time is of the order of same-class pairs, memory is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._core.checks import check_tensor
from longtail._core.numerics import CHUNK_ELEMENTS, row_chunks, squared_distances, widen
from longtail.posthoc.nearest import class_means

__all__ = [
    "IntraclassDistances",
    "class_mean_distance",
    "class_variances",
    "cumulative_share",
    "generalization_bound",
    "intraclass_distances",
    "logit_margins",
    "max_intraclass_distances",
    "split_by_group",
    "variance_bounds",
]


def logit_margins(logits: Tensor, target: Tensor) -> Tensor:
    """By how much the true class's logit exceeds the best other one; below 0 for a wrong prediction.

    Formula:
        gamma(x, y) = f[y] - max_{y' != y} f[y']

    Args:
        logits: [N, C], at least two classes.
        target: [N] class indices.

    Returns:
        [N], at least float32.

    >>> logit_margins(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2])).tolist()
    [2.0, -3.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Figures 3 and 6.
    """
    scores = _check_values("logits", logits, target)
    if scores.shape[1] < 2:
        raise ValueError(f"logits must have at least 2 classes. Got {tuple(scores.shape)}.")
    _check_range(target, scores.shape[1])
    margins = widen(scores[:, 0]).clone()
    for rows in row_chunks(len(scores), scores.shape[1], CHUNK_ELEMENTS):
        part, own = widen(scores[rows]), target[rows, None].long()
        margins[rows] = part.gather(1, own).squeeze(1) - part.scatter(1, own, -math.inf).amax(dim=1)
    return margins


def split_by_group(values: Tensor, target: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values of each group's samples, such as margins of head, torso and tail.

    Args:
        values: [N], one per sample.
        target: [N] class indices.
        groups: class indices of each group, as ``ClassPrior.groups`` has them.

    Returns:
        The values of every group, in order; none for a group without samples.

    >>> groups = {"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}
    >>> split_by_group(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 1]), groups)
    {'head': tensor([1.]), 'tail': tensor([2., 3.])}
    """
    if values.shape != target.shape or target.ndim != 1:
        raise ValueError(
            f"values and target must be [N], one per sample. Got {tuple(values.shape)} and {tuple(target.shape)}."
        )
    return {name: values[torch.isin(target, classes.to(target.device))] for name, classes in groups.items()}


def cumulative_share(values: Tensor, thresholds: Tensor) -> Tensor:
    """The empirical distribution function: the share of values that are at most each of some numbers.

    Args:
        values: [N] numbers, at least one.
        thresholds: [K] the numbers.

    Returns:
        [K] float64 from 0 to 1.

    >>> cumulative_share(torch.tensor([3.0, -1.0, 2.0, 2.0]), torch.tensor([0.0, 2.0])).tolist()
    [0.25, 0.75]
    """
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values must be [N] with at least one number. Got {tuple(values.shape)}.")
    dtype = torch.promote_types(values.dtype, thresholds.dtype)
    ordered = values.detach().to(dtype).sort().values
    ranks = torch.searchsorted(ordered, thresholds.to(values.device, dtype), right=True)
    return ranks.double() / len(values)


def max_intraclass_distances(embeddings: Tensor, target: Tensor) -> Tensor:
    """How far the farthest sample of its own class is from each sample.

    Formula:
        d_max(x) = max_{x+ of the same class} ||x - x+||

    Args:
        embeddings: [N, D], any floating dtype.
        target: [N] class indices.

    Returns:
        [N] float64; 0 for a sample that is alone in its class.

    >>> max_intraclass_distances(torch.tensor([[0.0], [1.0], [5.0], [9.0]]), torch.tensor([0, 0, 0, 1])).tolist()
    [5.0, 4.0, 5.0, 0.0]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Figure 4.
    """
    points = _check_values("embeddings", embeddings, target).double()
    distances = points.new_zeros(len(points))
    for rows in _class_rows(target):
        # Around their mean nothing cancels: no sample is farther from it than from its farthest neighbor.
        centered = points[rows] - points[rows].mean(dim=0)
        for part in row_chunks(len(rows), len(rows), CHUNK_ELEMENTS):
            distances[rows[part]] = squared_distances(centered[part], centered).amax(dim=1).sqrt()
    return distances


def class_mean_distance(embeddings: Tensor, target: Tensor) -> Tensor:
    """The distance between the means of two classes, averaged over all pairs of classes that have samples.

    Args:
        embeddings: [N, D].
        target: [N] class indices.

    Returns:
        A float64 scalar; NaN where fewer than two classes have samples.

    >>> class_mean_distance(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1])).item()
    4.0
    """
    points = _check_values("embeddings", embeddings, target).double()
    present, index = torch.unique(target, return_inverse=True)
    num_means = len(present)
    if num_means < 2:
        return points.new_tensor(math.nan)
    means = class_means(points, index, num_means)
    centered = means - means.mean(dim=0)
    parts = row_chunks(num_means, num_means, CHUNK_ELEMENTS)
    sums = torch.stack([squared_distances(centered[part], centered).sqrt().sum() for part in parts])
    return sums.sum() / (num_means * (num_means - 1))


@dataclass(frozen=True, eq=False)
class IntraclassDistances:
    """The largest distance of each sample to its own class, on three scales. Each is [N] float64."""

    raw: Tensor
    """As the embeddings are: a model whose embeddings shrink has less."""
    by_norm: Tensor
    """Divided by the largest norm of all embeddings, as Figure 4 of the paper has it."""
    by_class_means: Tensor
    """Divided by the mean distance between class means: what shrinks or shifts everything does not change it.
    Infinite where all means coincide, NaN where there is one class."""


def intraclass_distances(embeddings: Tensor, target: Tensor) -> IntraclassDistances:
    """How far apart samples of one class are: as they are, against the largest norm, and against other classes.

    Args:
        embeddings: [N, D].
        target: [N] class indices.

    Returns:
        Three [N], see ``IntraclassDistances``; groups of them with ``split_by_group``.

    Use when:
        A regularizer claims to make classes compact: one that only shrinks everything lowers the first, one that
        only moves everything away from the origin the second, and neither the third.

    >>> found = intraclass_distances(torch.tensor([[1.0], [2.0], [5.5]]), torch.tensor([0, 0, 1]))
    >>> found.raw.tolist(), found.by_class_means.tolist()
    ([1.0, 1.0, 0.0], [0.25, 0.25, 0.0])

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Figure 4, for the
        largest norm.
    """
    raw = max_intraclass_distances(embeddings, target)
    norms = embeddings.detach().double().norm(dim=1)
    largest = norms.amax() if len(norms) else norms.new_tensor(math.nan)
    # Where all norms are 0, so are all distances.
    by_norm = raw / torch.where(largest == 0, 1, largest)
    return IntraclassDistances(raw, by_norm, raw / class_mean_distance(embeddings, target))


def class_variances(embeddings: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """The variance of each class's embeddings, summed over dimensions.

    Formula:
        v[y] = mean_{x of class y} ||x - mu[y]||^2

    Args:
        embeddings: [N, D].
        target: [N] class indices.
        num_classes: C.

    Returns:
        [C] float64; NaN for a class without samples.

    >>> class_variances(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]), num_classes=2).tolist()
    [1.0, nan]

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Proposition 1.
    """
    points = _check_values("embeddings", embeddings, target).double()
    _check_range(target, num_classes)
    index = target.long()
    deviations = points - class_means(points, index, num_classes)[index]
    sums = points.new_zeros(num_classes).index_add_(0, index, deviations.square().sum(dim=1))
    return sums / torch.bincount(index, minlength=num_classes)


def variance_bounds(pulls: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    """What Proposition 1 of ELM says ``class_variances`` can be at most, given the pull on every sample.

    Formula:
        v[y] <= (n[y] - 1) / (2 n[y]) * (mean_{x of class y} pull(x) + alpha[y] - log(n[y] - 1))

    Args:
        pulls: [N] values of ``pull``, where every sample was pulled by all others of its class.
        target: [N] class indices.
        margin: [C] alpha, that of the pull.

    Returns:
        [C] float64; 0 for a class of one sample, NaN for a class without any.

    Use when:
        The question is how much of a class's spread the pull controls: bound and variance close together say all.

    >>> bound = variance_bounds(torch.tensor([2.0, 2.0]).log(), torch.tensor([0, 0]), margin=torch.tensor([4.0]))
    >>> bound.round(decimals=4).tolist()  # of the embeddings 0 and 2, whose variance is 1
    [1.1733]

    Deviates:
        The text below the proposition sums squared distances where the proposition and its proof take their mean.

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Proposition 1.
    """
    if pulls.shape != target.shape or pulls.ndim != 1 or margin.ndim != 1:
        got = ", ".join(str(tuple(part.shape)) for part in (pulls, target, margin))
        raise ValueError(f"pulls and target must be [N], and margin [C]. Got {got}.")
    _check_range(target, len(margin))
    index = target.long()
    counts = torch.bincount(index, minlength=len(margin)).double()
    sums = counts.new_zeros(len(margin)).index_add_(0, index, pulls.detach().double())
    slack = sums / counts + margin.to(counts) - (counts - 1).clamp_min(1).log()
    return (counts - 1) / (2 * counts) * slack


def generalization_bound(
    losses: Tensor,
    pulls: Tensor,
    target: Tensor,
    margin: Tensor,
    weight_norm: float,
    largest_loss: float,
    delta: float = 0.05,
) -> float:
    """What Proposition 2 of ELM says the expected loss of a binary linear classifier of embeddings can be at most.

    Formula:
        (7/3) B ln(2/delta) sum_y P(y) / (n[y] - 1) + sum_y P(y) mean_{x of class y} loss(x)
        + ||w|| sqrt(ln(2/delta) sum_y P(y) / n[y] * (mean_{x of class y} pull(x) + alpha[y]))

    Args:
        losses: [N] logistic losses with their margin, of training samples.
        pulls: [N] values of ``pull``, where every sample was pulled by all others of its class.
        target: [N] class indices, 0 or 1; P(y) is their share.
        margin: [2] alpha, that of the pull.
        weight_norm: ||w||, of the difference of the two class vectors.
        largest_loss: B, what no loss exceeds.
        delta: the bound holds with probability 1 - delta.

    Use when:
        It is to be seen whether a smaller pull buys a smaller bound, and what of it is the pull's.

    >>> zeros, target = torch.zeros(4), torch.tensor([0, 0, 1, 1])
    >>> round(generalization_bound(zeros, zeros, target, torch.tensor([1.0, 1.0]), 1.0, 0.0), 4)
    1.3581

    Reference:
        Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Proposition 2.
    """
    counts = torch.bincount(target, minlength=2).double()
    if len(counts) != 2 or counts.min() < 2:
        raise ValueError(f"target must have two classes with two samples or more. Got counts {counts.tolist()}.")
    share = counts / counts.sum()

    def average(values: Tensor) -> Tensor:
        return counts.new_zeros(2).index_add_(0, target, values.detach().double()) / counts

    surprise = math.log(2 / delta)
    spread = (share / counts * (average(pulls) + margin.to(counts))).sum()
    few = 7 / 3 * largest_loss * surprise * (share / (counts - 1)).sum()
    return float(few + (share * average(losses)).sum() + weight_norm * (surprise * spread).sqrt())


def _class_rows(target: Tensor) -> Iterator[Tensor]:
    """The rows of each class that has samples."""
    order = target.argsort(stable=True)
    start = 0
    for size in torch.bincount(target).tolist():
        if size:
            yield order[start : start + size]
        start += size


def _check_values(name: str, values: Tensor, target: Tensor) -> Tensor:
    check_tensor(values, name)
    check_tensor(target, "target")
    if values.ndim != 2 or not values.is_floating_point():
        raise ValueError(f"{name} must be floating-point [N, D]. Got {values.dtype} {tuple(values.shape)}.")
    if target.shape != values.shape[:1] or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(f"target must be [{len(values)}] class indices. Got {target.dtype} {tuple(target.shape)}.")
    if not torch.isfinite(values).all():
        raise ValueError(f"{name} must be finite. Got NaN or an infinity.")
    if len(target) and int(target.min()) < 0:
        raise ValueError(f"target must be at least 0. Got {int(target.min())}.")
    return values.detach()


def _check_range(target: Tensor, num_classes: int) -> None:
    if len(target) and int(target.max()) >= num_classes:
        raise ValueError(f"target must be in 0..{num_classes - 1}. Got {int(target.max())}.")
