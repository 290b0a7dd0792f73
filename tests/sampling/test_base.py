"""What all samplers share: seeds, epochs, processes and resuming change nothing but the order."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from longtail.sampling import (
    ClassBalancedSampler,
    ClassIndex,
    EpochSampler,
    InstanceSampler,
    ProgressiveSampler,
    RepeatFactorSampler,
    SquareRootSampler,
    SubsetSampler,
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
    "progressive": lambda **options: ProgressiveSampler(LABELS, epochs=3, **options),
    "target": lambda **options: TargetSampler(LABELS, PROBS, **options),
    "repeat-factor": lambda **options: RepeatFactorSampler(LABELS, threshold=0.3, **options),
    "subset": lambda **options: SubsetSampler(range(3, 90, 2), **options),
    "undersampling": lambda **options: UndersamplingSampler(LABELS, per_class=7, **options),
}
CLASSES = {
    "instance": InstanceSampler,
    "class-balanced": ClassBalancedSampler,
    "square-root": SquareRootSampler,
    "progressive": ProgressiveSampler,
    "target": TargetSampler,
    "repeat-factor": RepeatFactorSampler,
    "subset": SubsetSampler,
    "undersampling": UndersamplingSampler,
}
RECORDED = {
    "instance": ([2, 30, 62, 66, 5, 32, 73, 63, 27, 77, 51, 45], 251439),
    "class-balanced": ([86, 22, 20, 39, 68, 9, 74, 20, 90, 47, 3, 43], 248104),
    "square-root": ([86, 22, 14, 39, 68, 9, 74, 0, 90, 40, 3, 75], 257951),
    "progressive": ([86, 22, 20, 39, 68, 9, 74, 0, 90, 40, 3, 75], 256324),
    "target": ([86, 68, 20, 39, 68, 39, 90, 20, 90, 40, 39, 75], 251612),
    "repeat-factor": ([71, 55, 74, 58, 27, 92, 52, 20, 44, 59, 47, 49], 320304),
    "subset": ([15, 61, 43, 39, 77, 33, 37, 29, 65, 31, 11, 79], 46248),
    "undersampling": ([27, 21, 3, 20, 86, 55, 68, 90, 44, 74, 72, 5], 12914),
}
"""The first indices of epoch 2 with seed 5, and the sum of all of them times their places."""
each_sampler = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


def indices_of_epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("name", BUILDERS)
def test_draws_are_those_that_earlier_runs_were_made_with(name):
    indices = indices_of_epoch(BUILDERS[name](seed=5), 2)
    first, checksum = RECORDED[name]
    assert indices[: len(first)] == first
    assert sum(place * index for place, index in enumerate(indices)) == checksum


@pytest.mark.parametrize("name", BUILDERS)
def test_samplers_are_classes(name):
    sampler = BUILDERS[name](seed=5)
    assert type(sampler) is CLASSES[name]
    assert isinstance(sampler, EpochSampler)
    assert isinstance(sampler, Sampler)
    again = pickle.loads(pickle.dumps(sampler))
    assert type(again) is CLASSES[name]
    assert list(again) == list(sampler)


def test_a_sampler_says_what_it_is():
    sampler = ProgressiveSampler([0, 1], epochs=3, seed=4, num_replicas=2, rank=1)
    sampler.set_epoch(2)
    assert repr(sampler) == "ProgressiveSampler(epochs=3, num_samples=2, seed=4, epoch=2, num_replicas=2, rank=1)"
    assert repr(UndersamplingSampler([0, 0, 1], 1)).startswith("UndersamplingSampler(per_class=1, num_samples=2,")
    assert repr(RepeatFactorSampler([0, 1], 0.5)).startswith("RepeatFactorSampler(threshold=0.5, num_samples=2,")


def test_samples_are_sorted_by_class_across_chunks():
    labels = torch.randint(7, (2 * CHUNK_SIZE + 10,), generator=torch.Generator().manual_seed(0))
    index = ClassIndex.of(labels)
    assert torch.equal(index.order.long(), labels.argsort(stable=True))
    assert index.order.dtype == torch.int32
    shuffled = index.shuffle(torch.Generator().manual_seed(0))
    assert torch.equal(labels[shuffled], labels[index.order])
    assert torch.equal(shuffled.sort().values.long(), torch.arange(len(labels)))
    assert labels[index.shuffle(torch.Generator().manual_seed(0), 5)].tolist() == [
        c for c in range(7) for _ in range(5)
    ]


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
        (lambda: ProgressiveSampler([0, 1], epochs=0), "epochs must be a whole number of at least 1"),
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
