"""Heads on embeddings: nearest class means and nearest neighbors."""

import math

import numpy as np
import pytest
import torch

from longtail import posthoc
from longtail.posthoc import nearest as nearest_module


def embedded(num_samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (num_samples,), generator=generator)
    offsets = 2 * torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return offsets[labels] + torch.randn(num_samples, 3, dtype=torch.float64, generator=generator) + 100, labels


def loop_distances(x, known):
    return [sum((a - b) ** 2 for a, b in zip(x.tolist(), other.tolist(), strict=True)) for other in known]


def test_class_means_are_means():
    embeddings, labels = embedded(30)
    found = posthoc.class_means(embeddings, labels, 5)
    for c in range(4):
        members = embeddings[labels == c].tolist()
        expected = [sum(column) / len(members) for column in zip(*members, strict=True)]
        np.testing.assert_allclose(found[c], expected, atol=1e-10)
    assert found[4].isnan().all()


@pytest.mark.parametrize("as_array", [False, True])
def test_the_nearest_mean_is_predicted(as_array, monkeypatch):
    monkeypatch.setattr(nearest_module, "CHUNK_ELEMENTS", 7)
    (train, labels), (test, _) = embedded(30), embedded(20, seed=1)
    means = posthoc.class_means(train, torch.where(labels == 1, 5, labels), 6)  # class 1 and 4 have no samples
    expected = [min((0, 2, 3, 5), key=lambda c, x=x: loop_distances(x, means)[c]) for x in test]
    found = posthoc.nearest_mean(*((test.numpy(), means.numpy()) if as_array else (test, means)))
    assert found.tolist() == expected


@pytest.mark.parametrize("num_neighbors", [1, 2, 5, 30])
def test_the_nearest_samples_vote(num_neighbors, monkeypatch):
    monkeypatch.setattr(nearest_module, "CHUNK_ELEMENTS", 70)
    (train, labels), (test, _) = embedded(30), embedded(20, seed=1)
    found = posthoc.nearest_neighbors(test, train, labels, num_neighbors)
    for x, predicted in zip(test, found.tolist(), strict=True):
        distances = loop_distances(x, train)
        nearest = sorted(range(30), key=distances.__getitem__)[:num_neighbors]
        classes = [int(labels[i]) for i in nearest]
        most = max(classes.count(c) for c in classes)
        assert predicted == next(c for c in classes if classes.count(c) == most)


def test_heads_on_embeddings_agree_with_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

    (train, labels), (test, _) = embedded(200), embedded(100, seed=1)
    means = posthoc.class_means(train, labels, 4)
    expected = NearestCentroid().fit(train.numpy(), labels.numpy()).predict(test.numpy())
    assert np.array_equal(posthoc.nearest_mean(test, means), expected)
    neighbors = KNeighborsClassifier(1).fit(train.numpy(), labels.numpy()).predict(test.numpy())
    assert np.array_equal(posthoc.nearest_neighbors(test, train, labels, 1), neighbors)


def test_heads_on_embeddings_take_half_precision_and_nothing():
    embeddings, labels = embedded(30)
    half = embeddings.half()
    means = posthoc.class_means(half, labels, 4)
    assert means.dtype == torch.float32
    assert posthoc.nearest_mean(half, means).shape == (30,)
    assert torch.equal(posthoc.nearest_neighbors(half, half, labels, 1), labels)
    assert posthoc.nearest_neighbors(embeddings[:0], embeddings, labels).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posthoc.class_means(torch.zeros(3), torch.zeros(3).long(), 2), r"floating-point \[N, D\]"),
        (lambda: posthoc.class_means(torch.zeros(3, 2), torch.tensor([0, 1, 2]), 2), r"in 0\.\.1. Got 2"),
        (lambda: posthoc.class_means(torch.full((1, 2), math.inf), torch.zeros(1).long(), 2), "finite"),
        (lambda: posthoc.nearest_mean(torch.zeros(3, 2), torch.zeros(4, 3)), r"means must be \[C, 2\]"),
        (lambda: posthoc.nearest_mean(torch.zeros(3, 2), torch.full((4, 2), math.nan)), "not NaN"),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4).long(), 5),
            r"num_neighbors must be in 1\.\.4",
        ),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(4).long()),
            r"train_embeddings must be \[M, 2\]",
        ),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 2), torch.tensor([0, -1, 1, 1]), 1),
            "at least 0. Got -1",
        ),
    ],
)
def test_bad_embeddings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
