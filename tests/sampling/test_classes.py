"""Samplers that draw a class first: how often they draw what."""

from collections import Counter

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch

from longtail.sampling import (
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    SquareRootSampler,
    TargetSampler,
)

COUNTS = [60, 25, 0, 10, 5]
LABELS = torch.repeat_interleave(torch.tensor(COUNTS))[
    torch.randperm(100, generator=torch.Generator().manual_seed(3))
]
PROBS = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4])


def indices_of_epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


def assert_drawn_as(indices, expected_shares):
    """The classes of the indices have these shares, by a chi-square test; a class of share 0 does not occur."""
    observed = torch.bincount(LABELS[list(indices)], minlength=len(COUNTS)).numpy()
    shares = np.asarray(expected_shares, dtype=float)
    expected = len(indices) * shares / shares.sum()
    assert not observed[expected == 0].any()
    present = expected > 0
    assert scipy.stats.chisquare(observed[present], expected[present]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        (ClassBalancedSampler(LABELS, 20_000, seed=1), [1, 1, 0, 1, 1]),
        (SquareRootSampler(LABELS, 20_000, seed=1), np.sqrt(COUNTS)),
        (TargetSampler(LABELS, PROBS, 20_000, seed=1), PROBS),
        (TargetSampler(LABELS, torch.tensor([0, 0, 0, 6, 2]), 20_000, seed=1), [0, 0, 0, 3, 1]),
    ],
    ids=["class-balanced", "square-root", "target", "unnormalized"],
)
def test_classes_come_with_their_probabilities(sampler, shares):
    assert_drawn_as(list(sampler), shares)


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 9])
def test_progressive_sampling_moves_from_instances_to_classes(epoch):
    sampler = ProgressiveSampler(LABELS, epochs=3, num_samples=20_000, seed=1)
    progress = min(1, epoch / 3)
    shares = [(1 - progress) * count / 100 + progress * (count > 0) / 4 for count in COUNTS]
    assert_drawn_as(indices_of_epoch(sampler, epoch), shares)


def test_samples_of_a_class_come_equally_often():
    drawn = Counter(ClassBalancedSampler(LABELS, 50_000, seed=2))
    for label in (0, 1, 3, 4):
        members = torch.nonzero(label == LABELS).flatten().tolist()
        assert scipy.stats.chisquare([drawn[member] for member in members]).pvalue > 1e-3


def test_instance_sampling_shows_everything_once():
    first, second = InstanceSampler(LABELS), InstanceSampler(LABELS, seed=1)
    assert sorted(first) == sorted(second) == list(range(100))
