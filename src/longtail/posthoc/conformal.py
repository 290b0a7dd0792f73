"""Sets of classes that hold the true one as often as promised: over all samples, in every class, or by clusters.

A score says how badly a class fits a sample, a threshold how badly it may fit and still be in the set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from longtail._core.checks import as_tensor, at_least
from longtail._core.predictions import check_groups
from longtail.posthoc._inputs import Labels, PriorLike, Scores, as_class_indices, prior_probabilities

__all__ = [
    "ConformalScore",
    "Thresholding",
    "adaptive_set_scores",
    "class_coverage",
    "class_thresholds",
    "clustered_thresholds",
    "group_coverage",
    "marginal_thresholds",
    "prevalence_scores",
    "probability_scores",
]

ConformalScore = Callable[[Tensor, Tensor], Tensor]
"""A function of probabilities [N, C] and the training prior [C]; returns [N, C], larger where a class fits worse."""

Thresholding = Callable[[Tensor, Tensor, float], Tensor]
"""A function of scores [N, C], target [N] and alpha that returns [C] thresholds."""

QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""By these quantiles of its scores a class is compared with others."""


def probability_scores(probabilities: Scores, prior: PriorLike | None = None) -> Tensor:
    """One minus the probability: the smallest sets on average. The prior is not used.

    >>> probability_scores(torch.tensor([[0.75, 0.25]]))
    tensor([[0.2500, 0.7500]])

    Reference:
        Sadinle et al. (2019), "Least ambiguous set-valued classifiers with bounded error levels".
    """
    return 1 - _check_probabilities(probabilities)


def adaptive_set_scores(probabilities: Scores, prior: PriorLike | None = None) -> Tensor:
    """The probability of all classes down to this one: larger sets for samples that are hard. The prior is not used.

    >>> adaptive_set_scores(torch.tensor([[0.25, 0.75]]))
    tensor([[1.0000, 0.7500]])

    Deviates:
        Without the paper's random term, so a set may hold one class more than needed.

    Reference:
        Romano et al. (2020), "Classification with valid and adaptive coverage", eq. (5).
    """
    values = _check_probabilities(probabilities)
    ordered, order = values.sort(dim=1, descending=True)
    return torch.empty_like(values).scatter_(1, order, ordered.cumsum(dim=1))


def prevalence_scores(probabilities: Scores, prior: PriorLike) -> Tensor:
    """Minus the probability over the training prior: with one threshold for all, rare classes get into sets too.

    Formula:
        s(x, y) = -p(y | x) / pi[y]

    >>> prevalence_scores(torch.tensor([[0.75, 0.25]]), torch.tensor([0.75, 0.25]))
    tensor([[-1., -1.]])

    Reference:
        Ding et al. (2025), "Conformal prediction for long-tailed classification", the prevalence-adjusted softmax.
    """
    values = _check_probabilities(probabilities)
    probs = prior_probabilities(prior, values.shape[1], "prior").to(values)
    if not bool((probs > 0).all()):
        raise ValueError(f"prior must be above 0 for every class. Got 0 for class {int(probs.argmin())}.")
    return -values / probs


def marginal_thresholds(scores: Scores, target: Labels, alpha: float = 0.1) -> Tensor:
    """One threshold for all classes: sets hold the true class in 1 - alpha of all samples, whatever its class.

    Formula:
        the ceil((N + 1)(1 - alpha))-th smallest score of the true classes

    Args:
        scores: [N, C] of samples that the model was not trained on.
        target: [N] class indices.
        alpha: how often sets may miss the true class, between 0 and 1.

    Returns:
        [C] equal thresholds; infinite, so that sets hold everything, where N is too small for alpha.

    Use when:
        Errors count the same whatever the class; or with ``prevalence_scores``.
    Avoid when:
        Rare classes matter: their share of the misses is far above alpha.

    >>> marginal_thresholds(torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.9, 0.3]]), torch.tensor([0, 0, 1]), alpha=0.25)
    tensor([0.3000, 0.3000])

    Reference:
        Vovk et al. (2005), "Algorithmic learning in a random world".
    """
    values, index = _check_scores(scores, target, alpha)
    own = values.gather(1, index[:, None])[:, 0]
    return torch.full((values.shape[1],), _conformal_quantile(own, alpha), dtype=values.dtype)


def class_thresholds(scores: Scores, target: Labels, alpha: float = 0.1) -> Tensor:
    """A threshold for each class: sets hold the true class in 1 - alpha of the samples *of every class*.

    Formula:
        for class y the ceil((n[y] + 1)(1 - alpha))-th smallest score of its n[y] samples

    Args:
        scores: [N, C] of samples that the model was not trained on.
        target: [N] class indices.
        alpha: how often sets may miss the true class.

    Returns:
        [C]; infinite for a class with fewer than 1 / alpha - 1 samples, which is then in every set.

    Use when:
        Every class is to be covered, and has some dozens of samples to calibrate with.
    Avoid when:
        Classes have fewer: use ``clustered_thresholds``.
    Special cases:
        ``marginal_thresholds`` for one class.

    >>> scores = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.9, 0.3], [0.8, 0.4]])
    >>> class_thresholds(scores, torch.tensor([0, 0, 1, 1]), alpha=0.5)
    tensor([0.2000, 0.4000])

    Reference:
        Vovk (2012), "Conditional validity of inductive conformal predictors".
    """
    values, index = _check_scores(scores, target, alpha)
    own = values.gather(1, index[:, None])[:, 0]
    found = [_conformal_quantile(own[index == label], alpha) for label in range(values.shape[1])]
    return torch.tensor(found, dtype=values.dtype)


def clustered_thresholds(
    scores: Scores, target: Labels, alpha: float = 0.1, num_clusters: int | None = None, seed: int = 0
) -> Tensor:
    """A threshold for each cluster of classes with similar scores: nearly ``class_thresholds``, from fewer samples.

    Half of each class's samples say which classes are alike, by quantiles of their scores; the other half calibrates.
    Classes with too few samples to have quantiles get the threshold of all samples.

    Args:
        scores: [N, C] of samples that the model was not trained on.
        target: [N] class indices.
        alpha: how often sets may miss the true class.
        num_clusters: how many; default: one for every 150 samples that calibrate, at least 2.
        seed: of the clustering and of the halves.

    Returns:
        [C].

    Use when:
        There are many classes, with 10 to 40 samples each to calibrate with.
    Avoid when:
        Every class has more: ``class_thresholds`` promises more.
    Special cases:
        ``marginal_thresholds`` on the second halves for one cluster.

    >>> scores = torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
    >>> clustered_thresholds(scores, torch.arange(400) % 2, num_clusters=1).shape
    torch.Size([2])

    Deviates:
        The paper splits all samples with a share that depends on their number; here it is half of each class.

    Reference:
        Ding et al. (2023), "Class-conditional conformal prediction with many classes", section 2.2.
    """
    from sklearn.cluster import KMeans  # slow to load, and nothing else here needs it

    values, index = _check_scores(scores, target, alpha)
    num_classes = values.shape[1]
    own = values.gather(1, index[:, None])[:, 0]
    is_first = _halve(index, num_classes, seed)
    sizes = torch.bincount(index[is_first], minlength=num_classes)
    embedded = torch.nonzero(sizes >= max(2, math.ceil(1 / alpha) - 1)).flatten()
    if num_clusters is None:
        num_clusters = max(2, int((~is_first).sum()) // 150)
    at_least(num_clusters, 1, "num_clusters")
    rest_own, rest_index = own[~is_first], index[~is_first]
    thresholds = torch.full((num_classes,), _conformal_quantile(rest_own, alpha), dtype=values.dtype)
    if len(embedded) <= num_clusters:
        return thresholds
    levels = torch.tensor(QUANTILES, dtype=values.dtype)
    points = torch.stack([own[is_first & (index == label)].quantile(levels) for label in embedded.tolist()])
    clustering = KMeans(num_clusters, n_init=3, random_state=seed)
    clusters = clustering.fit(points.numpy(), sample_weight=sizes[embedded].sqrt().numpy()).labels_
    cluster_of = torch.full((num_classes,), -1)
    cluster_of[embedded] = torch.from_numpy(clusters).long()
    for cluster in range(num_clusters):
        members = cluster_of == cluster
        thresholds[members] = _conformal_quantile(rest_own[members[rest_index]], alpha)
    return thresholds


def class_coverage(sets: Tensor, target: Labels) -> Tensor:
    """[C] float64, how often sets [N, C] hold the true class, for each true class; NaN without samples.

    >>> class_coverage(torch.tensor([[True, False], [True, True]]), torch.tensor([0, 0])).tolist()
    [1.0, nan]
    """
    members = as_tensor(sets)
    if members.ndim != 2 or members.dtype != torch.bool:
        raise ValueError(f"sets must be [N, C] of bool. Got {members.dtype} {tuple(members.shape)}.")
    index = as_class_indices(target, members, members.shape[1], "target")
    is_covered = members.gather(1, index[:, None])[:, 0].double()
    counts = torch.bincount(index, minlength=members.shape[1])
    return torch.zeros(members.shape[1], dtype=torch.float64).index_add_(0, index, is_covered) / counts


def group_coverage(sets: Tensor, target: Labels, groups: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of ``class_coverage`` over the classes of each group, such as those of ``ClassPrior.groups``.

    >>> sets = torch.tensor([[True, False], [True, False]])
    >>> group_coverage(sets, torch.tensor([0, 1]), {"tail": torch.tensor([1])})
    {'tail': 0.0}
    """
    coverage = class_coverage(sets, target)
    members = check_groups(groups, len(coverage))
    return {name: float(coverage[classes].nanmean()) for name, classes in members.items()}


def _conformal_quantile(scores: Tensor, alpha: float) -> float:
    rank = math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9)
    return math.inf if rank > len(scores) else float(scores.sort().values[max(rank, 1) - 1])


def _halve(index: Tensor, num_classes: int, seed: int) -> Tensor:
    """[N] whether a sample is in the first half of its class, in random order."""
    keys = torch.rand(len(index), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = torch.argsort(index + keys)  # by class, at random within it
    counts = torch.bincount(index, minlength=num_classes)
    ranks = torch.arange(len(index)) - (counts.cumsum(0) - counts)[index[order]]
    is_first = torch.zeros(len(index), dtype=torch.bool)
    is_first[order] = ranks < counts[index[order]] // 2
    return is_first


def _check_probabilities(probabilities: Scores) -> Tensor:
    values = as_tensor(probabilities)
    is_valid = values.ndim == 2 and values.is_floating_point() and bool((values >= 0).all())
    if not is_valid or not bool(((values.sum(dim=1) - 1).abs() <= 1e-2).all()):
        raise ValueError(
            "probabilities must be [N, C] of at least 0 with rows that sum to 1. "
            f"Got {values.dtype} {tuple(values.shape)}."
        )
    return values


def _check_scores(scores: Scores, target: Labels, alpha: float) -> tuple[Tensor, Tensor]:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1. Got {alpha}.")
    values = as_tensor(scores).cpu()
    if values.ndim != 2 or not values.is_floating_point() or bool(values.isnan().any()):
        raise ValueError(
            f"scores must be floating-point [N, C] without NaN. Got {values.dtype} {tuple(values.shape)}."
        )
    return values, as_class_indices(target, values, values.shape[1], "target")
