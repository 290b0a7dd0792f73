"""Samplers that repeat or leave out samples: how often they draw what."""

import math
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch

from longtail.sampling import (
    RepeatFactorSampler,
    UndersamplingSampler,
)

COUNTS = [60, 25, 0, 10, 5]
LABELS = torch.repeat_interleave(torch.tensor(COUNTS))[
    torch.randperm(100, generator=torch.Generator().manual_seed(3))
]


def indices_of_epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


def test_undersampling_takes_each_sample_of_a_class_equally_often():
    sampler = UndersamplingSampler(LABELS, per_class=7)
    assert len(sampler) == 7 + 7 + 7 + 5
    seen = Counter()
    for epoch in range(150):
        indices = indices_of_epoch(sampler, epoch)
        assert len(set(indices)) == len(indices)
        assert torch.bincount(LABELS[indices], minlength=5).tolist() == [7, 7, 0, 7, 5]
        seen.update(indices)
    for label in (0, 1, 3):
        members = torch.nonzero(label == LABELS).flatten().tolist()
        assert scipy.stats.chisquare([seen[member] for member in members]).pvalue > 1e-3


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray, scipy.sparse.csr_array])
def test_undersampling_counts_a_sample_for_its_rarest_label(kind):
    # 6 samples with label 0, 5 with label 1, 2 with label 2, of which one has all three; 3 samples without labels.
    indicator = np.array([[1, 0, 0]] * 2 + [[1, 1, 0]] * 3 + [[0, 1, 0], [1, 1, 1], [0, 0, 1]] + [[0, 0, 0]] * 3)
    sampler = UndersamplingSampler(kind(indicator), per_class=2)
    for epoch in range(3):
        indices = indices_of_epoch(sampler, epoch)
        assert len(indices) == len(set(indices)) == 8
        assert {6, 7} <= set(indices)
        assert len(set(indices) & {2, 3, 4, 5}) == len(set(indices) & {8, 9, 10}) == 2


@pytest.mark.parametrize("threshold", [0.0, 0.07, 0.3, 1.0])
def test_repeat_factors_are_those_of_the_formula(threshold):
    sampler = RepeatFactorSampler(LABELS, threshold)
    factors = [max(1.0, math.sqrt(threshold / (COUNTS[label] / 100))) for label in LABELS.tolist()]
    num_epochs = 100
    seen = Counter()
    for epoch in range(num_epochs):
        copies = Counter(indices_of_epoch(sampler, epoch))
        assert sum(copies.values()) == len(sampler)
        assert all(copies[i] in (math.floor(f), math.ceil(f), math.floor(f) + 1) for i, f in enumerate(factors))
        seen.update(copies)
    assert 0 <= len(sampler) - sum(factors) < 1
    scale = len(sampler) / sum(factors)
    for index, factor in enumerate(factors):
        # A rounded factor has a variance of at most 1/4: five standard errors of the mean.
        assert abs(seen[index] / num_epochs - factor * scale) < 5 * 0.5 / math.sqrt(num_epochs)


def test_repeat_factors_of_several_labels_are_the_largest_one():
    indicator = np.zeros((100, 3), dtype=np.int64)
    indicator[:90, 0] = 1
    indicator[88:92, 1] = 1  # rate 0.04, factor 2 at threshold 0.16
    indicator[90, 2] = 1  # rate 0.01, factor 4; samples 92 on have no label
    expected = [4 if i == 90 else 2 if 88 <= i < 92 else 1 for i in range(100)]
    for holder in (
        indicator,
        torch.from_numpy(indicator),
        torch.from_numpy(indicator).to_sparse_coo(),
        scipy.sparse.csr_matrix(indicator),
    ):
        copies = Counter(RepeatFactorSampler(holder, threshold=0.16))
        assert [copies[index] for index in range(100)] == expected
