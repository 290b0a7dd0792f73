"""Moving averages of the embeddings of each class."""

import torch

from longtail.losses import (
    ClassCentroids,
)

C = 5


def test_centroids_are_a_moving_average_of_batch_means(make_embeddings):
    centroids = ClassCentroids(C, momentum=0.8)
    (x, y), (later, _) = make_embeddings(), make_embeddings(seed=1)
    centroids.update(x, y)
    found = centroids.update(later, y)
    for c in (0, 1, 2, 3):
        wanted = 0.8 * x[y == c].mean(dim=0) + 0.2 * later[y == c].mean(dim=0)
        torch.testing.assert_close(found[c], wanted)
    assert (found[4] == 0).all()
