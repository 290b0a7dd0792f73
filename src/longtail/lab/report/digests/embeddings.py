"""What a page needs of the embeddings that a run kept: a few vectors, and a sample of them to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail.diagnostics import class_variances, intraclass_distances, split_by_group, variance_bounds
from longtail.lab.data.dataset import Dataset, Split
from longtail.losses.elm import probability_margin, pull
from longtail.metrics.classes import balanced_accuracy
from longtail.posthoc.nearest import class_means, nearest_mean, nearest_neighbors
from longtail.prior import ClassPrior

__all__ = ["NEIGHBORS", "SCALES", "EmbeddingDigest", "digest_embeddings", "map_to_plane"]

FloatArray = npt.NDArray[np.float64]

SCALES = {
    "raw": "as the embeddings are",
    "by_norm": "/ largest norm of an embedding",
    "by_class_means": "/ mean distance of class means",
}
"""A scale of ``IntraclassDistances`` -> what distances are measured by."""
NEIGHBORS = 10
MOST_MAPPED_CLASSES = 4
"""Of each group."""
MOST_MAPPED_SAMPLES = 50
"""Of each class."""
FEWEST_MAPPED = 10
"""Fewer samples have no map worth drawing."""


@dataclass(frozen=True, eq=False)
class EmbeddingDigest:
    """The embeddings of one run, reduced to what the page shows."""

    distances: Mapping[str, Mapping[str, float]]
    """Scale -> group -> the largest distance to a sample of the same class, mean over test samples."""
    accuracy: Mapping[str, float]
    """Balanced accuracy on the test set: nearest_mean and nearest_neighbors, both from training samples."""
    variances: FloatArray
    """[C] of training samples."""
    bounds: FloatArray
    """[C] what Proposition 1 says the variances can be at most."""
    sample: npt.NDArray[np.float32]
    """[S, D] training samples of some classes of each group."""
    sample_labels: npt.NDArray[np.int64]
    """[S]."""


def digest_embeddings(data: Dataset, prior: ClassPrior, groups: Mapping[str, Tensor]) -> EmbeddingDigest:
    """Reduce embeddings.

    Args:
        data: embeddings of training and test samples, all of them or some.
        prior: the classes of the whole training data. Raises a ValueError if the embeddings have others.
        groups: class indices of each group.
    """
    if data.num_classes != prior.num_classes or len(data.input_shape) != 1:
        raise ValueError(
            f"embeddings must be [N, D] of {prior.num_classes} classes. "
            f"Got {data.num_classes} classes and a shape {data.input_shape}."
        )
    test, test_labels = _take_points(data.test), data.test.labels
    train, train_labels = _take_points(data.train), data.train.labels
    found = intraclass_distances(test, test_labels)
    margin = probability_margin(prior)
    means = class_means(train, train_labels, data.num_classes)
    predicted = {
        "nearest_mean": nearest_mean(test, means),
        "nearest_neighbors": nearest_neighbors(test, train, train_labels, min(NEIGHBORS, len(train))),
    }
    chosen = _choose_samples(train_labels, prior.counts, groups)
    return EmbeddingDigest(
        distances={
            scale: {
                name: float(values.mean())
                for name, values in split_by_group(getattr(found, scale), test_labels, groups).items()
            }
            for scale in SCALES
        },
        accuracy={
            name: float(balanced_accuracy(classes, test_labels, data.num_classes))
            for name, classes in predicted.items()
        },
        variances=class_variances(train, train_labels, data.num_classes).numpy(),
        bounds=variance_bounds(pull(train.double(), train_labels, margin), train_labels, margin).numpy(),
        sample=train[chosen].numpy(),
        sample_labels=train_labels[chosen].numpy(),
    )


def map_to_plane(points: npt.NDArray[np.float32]) -> npt.NDArray[Any] | None:
    """[S, 2] by t-SNE, the same for the same points; None where points are too few, or all the same."""
    from sklearn.manifold import TSNE

    if len(points) < FEWEST_MAPPED or np.ptp(points, axis=0).max() == 0:
        return None
    start = "pca" if points.shape[1] > 1 else "random"
    mapped: npt.NDArray[Any] = TSNE(
        perplexity=min(30.0, (len(points) - 1) / 3), init=start, random_state=0
    ).fit_transform(points)
    return mapped


def _take_points(split: Split) -> Tensor:
    points = split.batch(torch.arange(len(split)))
    assert isinstance(points, Tensor)
    return points


def _choose_samples(labels: Tensor, counts: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
    """Training samples of some classes of each group, from its most frequent to its rarest."""
    rows = []
    for classes in groups.values():
        ranked = classes[counts[classes].argsort(descending=True, stable=True)]
        places = torch.linspace(0, len(ranked) - 1, min(len(ranked), MOST_MAPPED_CLASSES)).round().long()
        rows += [torch.nonzero(labels == c)[:MOST_MAPPED_SAMPLES, 0] for c in ranked[places]]
    return torch.cat(rows)
