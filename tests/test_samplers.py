"""Samplers: how often they draw what, and that seeds, epochs, processes and resuming change nothing else."""

import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Sampler, TensorDataset

from longtail._core.random import AliasTable
from longtail.sampling import (
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    RepeatFactorSampler,
    SquareRootSampler,
    TargetSampler,
    UndersamplingSampler,
)
from longtail.sampling.base import CHUNK_SIZE

COUNTS = [60, 25, 0, 10, 5]
LABELS = torch.repeat_interleave(torch.tensor(COUNTS))[
    torch.randperm(100, generator=torch.Generator().manual_seed(3))
]
PROBS = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4])

BUILDERS = {
    "instance": lambda **options: InstanceSampler(LABELS, **options),
    "class-balanced": lambda **options: ClassBalancedSampler(LABELS, **options),
    "square-root": lambda **options: SquareRootSampler(LABELS, **options),
    "progressive": lambda **options: ProgressiveSampler(LABELS, num_epochs=3, **options),
    "target": lambda **options: TargetSampler(LABELS, PROBS, **options),
    "repeat-factor": lambda **options: RepeatFactorSampler(LABELS, threshold=0.3, **options),
    "undersampling": lambda **options: UndersamplingSampler(LABELS, per_class=7, **options),
}
each_sampler = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


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


# The alias table


def implied_probs(table):
    """What the buckets add up to for each category."""
    implied = [0.0] * len(table)
    for own, (threshold, alias) in enumerate(zip(table.threshold.tolist(), table.alias.tolist(), strict=True)):
        assert 0 <= threshold <= 1
        implied[own] += threshold / len(table)
        implied[alias] += (1 - threshold) / len(table)
    return np.array(implied)


positive = st.floats(1e-9, 1e9)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(st.just(0.0), positive, st.just(1.0)), min_size=1, max_size=60).filter(any))
def test_the_alias_table_implies_the_probabilities_it_was_given(weights):
    table = AliasTable(torch.tensor(weights, dtype=torch.float64))
    wanted = np.array(weights) / math.fsum(weights)
    np.testing.assert_allclose(implied_probs(table), wanted, rtol=0, atol=1e-12)
    assert (implied_probs(table)[wanted == 0] == 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 1000])
def test_equal_probabilities_stay_exactly_equal(size):
    table = AliasTable(torch.full((size,), 1 / size))
    np.testing.assert_allclose(implied_probs(table), np.full(size, 1 / size), rtol=1e-12)


def test_a_zipf_table_is_exact_to_rounding():
    probs = 1 / torch.arange(1, 5001, dtype=torch.float64)
    np.testing.assert_allclose(implied_probs(AliasTable(probs)), (probs / probs.sum()).numpy(), rtol=1e-9, atol=1e-15)


def test_draws_of_the_alias_table_have_its_frequencies():
    probs = torch.tensor([0.5, 0.01, 0.0, 0.29, 0.2], dtype=torch.float64)
    drawn = AliasTable(probs).draw([100, 1000], torch.Generator().manual_seed(0))
    assert drawn.shape == (100, 1000)
    assert drawn.dtype == torch.int64
    observed = torch.bincount(drawn.flatten(), minlength=5).numpy()
    assert observed[2] == 0
    present = [0, 1, 3, 4]
    assert scipy.stats.chisquare(observed[present], 1e5 * probs[present].numpy()).pvalue > 1e-3


def test_ten_million_categories():
    size = 10**7
    table = AliasTable(1 / torch.arange(1, size + 1, dtype=torch.float64))
    implied = table.threshold.clone().index_add_(0, table.alias, 1 - table.threshold) / size
    wanted = 1 / (torch.arange(1, size + 1, dtype=torch.float64) * (math.log(size) + np.euler_gamma))
    assert ((implied - wanted).abs() / wanted).max() < 1e-5  # the harmonic number is known to 1 / size
    assert int(table.draw([1000], torch.Generator().manual_seed(0)).max()) > 10**5


# Frequencies


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
    sampler = ProgressiveSampler(LABELS, num_epochs=3, num_samples=20_000, seed=1)
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


# Seeds, epochs, processes, resuming


@each_sampler
def test_draws_are_a_function_of_seed_and_epoch(build):
    assert indices_of_epoch(build(seed=5), 2) == indices_of_epoch(build(seed=5), 2)
    assert indices_of_epoch(build(seed=5), 2) != indices_of_epoch(build(seed=5), 1)
    assert indices_of_epoch(build(seed=5), 2) != indices_of_epoch(build(seed=6), 2)
    # Seed and epoch are not added up: runs with neighboring seeds have nothing in common.
    assert indices_of_epoch(build(seed=5), 2) != indices_of_epoch(build(seed=6), 1)


@each_sampler
def test_the_next_epoch_follows_by_itself(build):
    sampler = build()
    following = [list(sampler) for _ in range(3)]
    assert following == [indices_of_epoch(build(), epoch) for epoch in range(3)]
    assert sampler.state_dict() == {"seed": 0, "epoch": 3, "position": 0}


@each_sampler
def test_the_global_random_state_is_left_alone(build):
    before = torch.get_rng_state()
    list(build())
    assert torch.equal(torch.get_rng_state(), before)


def in_turn(shards):
    return list(itertools.chain.from_iterable(zip(*shards, strict=True)))


@each_sampler
@pytest.mark.parametrize("num_replicas", [2, 3, 7])
def test_processes_share_out_what_one_would_draw(build, num_replicas):
    alone = build()
    shards = [build(num_replicas=num_replicas, rank=rank) for rank in range(num_replicas)]
    for epoch in range(2):
        whole = indices_of_epoch(alone, epoch)
        parts = [indices_of_epoch(shard, epoch) for shard in shards]
        assert {len(part) for part in parts} == {len(shard) for shard in shards}
        together = in_turn(parts)
        assert together[: len(whole)] == whole
        assert together[len(whole) :] == whole[: len(together) - len(whole)]
        assert len(together) - len(whole) < num_replicas


def test_sharing_works_across_chunks():
    num_samples = 2 * CHUNK_SIZE + 10
    whole = list(ClassBalancedSampler(LABELS, num_samples))
    assert len(whole) == num_samples
    parts = [list(ClassBalancedSampler(LABELS, num_samples, num_replicas=3, rank=rank)) for rank in range(3)]
    assert in_turn(parts)[:num_samples] == whole


def test_more_processes_than_samples():
    parts = [list(InstanceSampler([0, 1], num_replicas=7, rank=rank)) for rank in range(7)]
    assert [len(part) for part in parts] == [1] * 7
    assert {index for part in parts for index in part} == {0, 1}


@each_sampler
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_resuming_gives_the_remaining_draws(build, num_replicas):
    process = {"num_replicas": num_replicas, "rank": num_replicas - 1}
    whole = indices_of_epoch(build(**process), 1)
    for stop in (0, 1, 5, len(whole)):
        interrupted = build(**process)
        interrupted.set_epoch(1)
        assert list(itertools.islice(interrupted, stop)) == whole[:stop]
        state = pickle.loads(pickle.dumps(interrupted.state_dict()))
        resumed = build(seed=9, **process)  # the state brings its own seed
        resumed.load_state_dict(state)
        resumed.set_epoch(1)  # as training loops do; it is this epoch already
        assert list(resumed) == whole[stop:]
        assert list(resumed) == indices_of_epoch(build(**process), 2)


def test_resuming_works_across_chunks():
    sampler = ClassBalancedSampler(LABELS, 2 * CHUNK_SIZE + 10)
    whole = list(sampler)
    sampler.load_state_dict({"seed": 0, "epoch": 0, "position": CHUNK_SIZE + 3})
    assert list(sampler) == whole[CHUNK_SIZE + 3 :]


def test_resuming_with_another_number_of_processes():
    whole = indices_of_epoch(ClassBalancedSampler(LABELS, 120), 0)
    before = [ClassBalancedSampler(LABELS, 120, num_replicas=4, rank=rank) for rank in range(4)]
    for sampler in before:
        list(itertools.islice(sampler, 6))
    after = [ClassBalancedSampler(LABELS, 120, num_replicas=3, rank=rank) for rank in range(3)]
    for sampler in after:
        sampler.load_state_dict(before[0].state_dict())
    assert in_turn([list(sampler) for sampler in after]) == whole[24:]


def test_a_peek_does_not_move_the_start():
    whole = indices_of_epoch(ClassBalancedSampler(LABELS), 0)
    sampler = ClassBalancedSampler(LABELS)
    next(iter(sampler))
    assert list(sampler) == whole
    sampler.load_state_dict({"seed": 0, "epoch": 0, "position": 30})
    next(iter(sampler))
    assert list(sampler) == whole[30:]


def draw_with_defaults(rank):
    sampler = ClassBalancedSampler(LABELS)
    return sampler.rank, list(sampler)


def test_a_process_group_is_found(two_processes):
    (first_rank, first), (second_rank, second) = two_processes(draw_with_defaults)
    assert (first_rank, second_rank) == (0, 1)
    assert in_turn([first, second]) == list(ClassBalancedSampler(LABELS))


@each_sampler
def test_every_sampler_works_in_a_data_loader(build):
    sampler = build()
    assert isinstance(sampler, Sampler)
    loader = DataLoader(TensorDataset(torch.arange(100), LABELS), batch_size=8, sampler=sampler)
    batches = [indices for indices, _ in loader]
    assert len(batches) == len(loader)
    assert torch.cat(batches).tolist() == indices_of_epoch(build(), 0)
    assert pickle.loads(pickle.dumps(sampler)).state_dict() == sampler.state_dict()


def test_labels_may_be_what_a_prior_takes():
    expected = list(ClassBalancedSampler(LABELS))
    for holder in (LABELS.tolist(), LABELS.numpy().astype(np.uint8), TensorDataset(torch.zeros(100), LABELS)):
        assert list(ClassBalancedSampler(holder)) == expected
    pairs = ((None, label) for label in LABELS.tolist())  # can be read once only
    assert sorted(set(RepeatFactorSampler(pairs))) == list(range(100))


# Bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ClassBalancedSampler([]), "at least one labeled sample"),
        (lambda: ClassBalancedSampler([0, -1]), "labels must be at least 0. Got -1"),
        (lambda: ClassBalancedSampler([[0, 1, 2]]), "labels must|expected"),
        (
            lambda: ClassBalancedSampler([0, 1], num_samples=0),
            "num_samples must be a whole number of at least 1. Got 0",
        ),
        (lambda: ClassBalancedSampler([0, 1], num_samples=2.5), "num_samples must be a whole number .* Got 2.5"),
        (lambda: ClassBalancedSampler([0, 1], seed=-1), "seed must be a whole number of at least 0. Got -1"),
        (lambda: ClassBalancedSampler([0, 1]).set_epoch(-1), "epoch must be a whole number of at least 0"),
        (
            lambda: ClassBalancedSampler([0, 1], num_replicas=2, rank=2),
            "rank must be in .* Got rank=2, num_replicas=2",
        ),
        (lambda: ClassBalancedSampler([0, 1], num_replicas=2), "both be given or neither"),
        (lambda: ClassBalancedSampler([0, 1]).load_state_dict({"epoch": 0}), r"state must hold .* Got \['epoch'\]"),
        (
            lambda: TargetSampler([0, 2], torch.tensor([0.5, 0.2, 0.3])),
            "must have probability 0. Got 0.2 for class 1",
        ),
        (lambda: TargetSampler([0, 2], torch.tensor([0.5, 0.5])), r"labels must be in 0\.\.1. Got 2"),
        (lambda: TargetSampler([0, 1], torch.tensor([0.5, -0.5])), "at least 0. Got -0.5 for 1"),
        (lambda: TargetSampler([0, 1], torch.tensor([0.5, math.nan])), "finite .* Got nan for 1"),
        (lambda: TargetSampler([0, 1], torch.tensor([0.0, 0.0])), "must not all be 0"),
        (lambda: AliasTable(torch.ones(2, 2)), r"must be a vector .* Got shape \(2, 2\)"),
        (lambda: AliasTable(torch.ones(0)), r"must be a vector .* Got shape \(0,\)"),
        (lambda: ProgressiveSampler([0, 1], num_epochs=0), "num_epochs must be a whole number of at least 1"),
        (lambda: RepeatFactorSampler([0, 1], threshold=-1), "threshold must be a finite number >= 0. Got -1"),
        (lambda: UndersamplingSampler([0, 1], per_class=0), "per_class must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_labels_must_be_integers():
    with pytest.raises(TypeError, match="labels must be integers"):
        ClassBalancedSampler([0.5, 1.0])
