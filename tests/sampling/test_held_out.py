"""Samples held out of training: how many of each class, which, and a sampler of the others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail.sampling import SubsetSampler, hold_out_counts, hold_out_samples


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any), st.floats(0.01, 0.99), st.integers(0, 9))
def test_every_class_has_its_share_held_out_and_some_left(counts, share, seed):
    counts = torch.tensor(counts)
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    kept, held_out = hold_out_samples(labels, share, len(counts), seed=seed)
    assert torch.equal(torch.cat([kept, held_out]).sort().values, torch.arange(len(labels)))
    found = labels[held_out].bincount(minlength=len(counts))
    assert torch.equal(found, hold_out_counts(counts, share))
    several = counts > 1
    assert ((found >= 1) & (found < counts))[several].all()
    assert not found[~several].any()
    assert ((found - share * counts).abs() <= 0.5 + 1e-9)[several & (found > 1) & (found < counts - 1)].all()


def test_another_seed_holds_out_others_and_the_same_the_same():
    labels = [0] * 50 + [1] * 20
    first, again, other = (hold_out_samples(labels, 0.3, seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_share_of_nothing_holds_out_nothing():
    kept, held_out = hold_out_samples([0, 1, 1], 0.0)
    assert kept.tolist() == [0, 1, 2]
    assert len(held_out) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_can_not_be_is_named(share):
    with pytest.raises(ValueError, match=r"must be at least 0 and below 1\. Got"):
        hold_out_counts([3, 2], share)


def test_a_subset_is_drawn_once_per_epoch_in_another_order():
    sampler = SubsetSampler(torch.arange(100, 160), seed=3)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(100, 160))
    assert first != second


def test_a_subset_of_nothing_is_refused():
    with pytest.raises(ValueError, match="must be a vector of at least one"):
        SubsetSampler([])
