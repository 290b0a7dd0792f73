"""Classification by nearest class mean or nearest neighbors in embedding space."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.numerics import CHUNK_ELEMENTS, row_chunks
from longtail.posthoc._inputs import Labels, Scores, as_class_indices, as_embeddings

__all__ = ["class_means", "nearest_mean", "nearest_neighbors"]


def class_means(embeddings: Scores, labels: Labels, num_classes: int) -> Tensor:
    """The mean embedding of each class.

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        num_classes: C.

    Returns:
        [C, D], at least float32; NaN for a class without samples.

    >>> class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), num_classes=2).tolist()
    [[1.0], [5.0]]
    """
    points = as_embeddings(embeddings, "embeddings")
    index = as_class_indices(labels, points, num_classes)
    counts = torch.bincount(index, minlength=num_classes)
    sums = torch.zeros(num_classes, points.shape[1], dtype=torch.float64, device=points.device)
    means = sums.index_add_(0, index, points.double()) / counts[:, None]
    return means.to(points.dtype)


def nearest_mean(embeddings: Scores, means: Scores) -> Tensor:
    """Predict the class whose mean embedding is nearest.

    Formula:
        argmin_y ||x - mu[y]||

    Args:
        embeddings: [N, D] of the samples to predict.
        means: [C, D], as ``class_means`` makes them of training samples; a class without any is never predicted.

    Returns:
        [N] class indices.

    Use when:
        The question is how good embeddings are, whatever head was trained on them: every class weighs the same here.
    Avoid when:
        A class has several clusters: its mean lies between them.
    Special cases:
        A linear head with class vectors mu[y] and biases -||mu[y]||^2 / 2.

    >>> nearest_mean(torch.tensor([[1.5], [4.0]]), means=torch.tensor([[1.0], [5.0]])).tolist()
    [0, 1]

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 4.
    """
    centers = as_tensor(means)
    points = as_embeddings(embeddings, "embeddings")
    known = torch.isfinite(centers).all(dim=1) if centers.ndim == 2 else torch.ones(0, dtype=torch.bool)
    if centers.ndim != 2 or centers.shape[1] != points.shape[1] or not known.any():
        got = tuple(centers.shape)
        raise ValueError(f"means must be [C, {points.shape[1]}], one class at least not NaN. Got {got}.")
    classes = torch.nonzero(known)[:, 0]
    return classes[_nearest(points, centers[known].to(points), k=1)[:, 0]]


def nearest_neighbors(
    embeddings: Scores, train_embeddings: Scores, train_labels: Labels, num_neighbors: int = 10
) -> Tensor:
    """Predict the class that most of the nearest training samples have.

    Formula:
        argmax_y #{x+ among the k nearest training samples : its class is y}

    Args:
        embeddings: [N, D] of the samples to predict.
        train_embeddings: [M, D].
        train_labels: [M] class indices.
        num_neighbors: k, at most M.

    Returns:
        [N] class indices. Of classes with equally many votes, the one with the nearest sample.

    Use when:
        Classes have several clusters, and the question is whether like lies near like.
    Avoid when:
        The training samples are long-tailed and every class counts: a class with fewer than k / 2 samples hardly
        ever has the most votes. ``nearest_mean`` weighs classes equally.
    Special cases:
        The class of the nearest sample for k = 1 or 2.

    >>> train, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> nearest_neighbors(torch.tensor([[4.0]]), train, labels, num_neighbors=1).tolist()
    [1]
    >>> nearest_neighbors(torch.tensor([[4.0]]), train, labels, num_neighbors=3).tolist()
    [0]
    """
    points, known = as_embeddings(embeddings, "embeddings"), as_embeddings(train_embeddings, "train_embeddings")
    if known.shape[1] != points.shape[1]:
        raise ValueError(f"train_embeddings must be [M, {points.shape[1]}]. Got {tuple(known.shape)}.")
    if not 1 <= num_neighbors <= len(known):
        raise ValueError(f"num_neighbors must be in 1..{len(known)}, the training samples. Got {num_neighbors}.")
    index = as_class_indices(train_labels, known, name="train_labels")
    classes = index.to(points.device)[_nearest(points, known.to(points), num_neighbors)]
    votes = torch.zeros_like(classes)
    for neighbor in range(num_neighbors):
        votes += classes == classes[:, neighbor : neighbor + 1]
    # One vote outweighs any place in the order of distance.
    ranks = torch.arange(num_neighbors, device=classes.device)
    chosen = (votes * num_neighbors - ranks).argmax(dim=1, keepdim=True)
    return classes.gather(1, chosen)[:, 0]


def _nearest(points: Tensor, known: Tensor, k: int) -> Tensor:
    """[N, k] which of ``known`` [M, D] are nearest to each point, nearest first; some rows at a time."""
    center = known.mean(dim=0)  # large common offsets would cancel
    points, known = points - center, known - center
    norms = known.square().sum(dim=1)
    found = torch.empty(len(points), k, dtype=torch.int64, device=points.device)
    for rows in row_chunks(len(points), len(known), CHUNK_ELEMENTS):
        found[rows] = torch.addmm(norms, points[rows], known.T, alpha=-2).topk(k, dim=1, largest=False).indices
    return found
