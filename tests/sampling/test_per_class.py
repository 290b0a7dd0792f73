"""Batches with m samples of each of their classes: counts, rounds, processes, resuming."""

import itertools
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from longtail.sampling import EpochSampler, MPerClassSampler
from longtail.sampling.base import CHUNK_SIZE

LABELS = torch.repeat_interleave(torch.tensor([60, 25, 0, 10, 3, 1]))[
    torch.randperm(99, generator=torch.Generator().manual_seed(3))
]


def build(**options):
    return MPerClassSampler(LABELS, 4, 12, **options)


def split_batches(sampler):
    return torch.tensor(list(sampler)).reshape(-1, sampler.batch_size)


@settings(deadline=None, max_examples=100)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    num_per_class=st.integers(1, 6),
    classes=st.integers(1, 12),
    num_replicas=st.integers(1, 3),
    num_samples=st.one_of(st.none(), st.integers(1, 300)),
    seed=st.integers(0, 100),
)
def test_every_batch_has_m_of_each_of_its_classes(counts, num_per_class, classes, num_replicas, num_samples, seed):
    labels = torch.repeat_interleave(torch.tensor(counts))
    num_classes = min(classes, sum(count > 0 for count in counts))
    batch_size = num_per_class * num_classes
    for rank in range(num_replicas):
        sampler = MPerClassSampler(
            labels, num_per_class, batch_size, num_samples, seed=seed, num_replicas=num_replicas, rank=rank
        )
        batches = split_batches(sampler)
        wanted = len(labels) if num_samples is None else num_samples
        assert sampler.num_samples == -(-wanted // batch_size) * batch_size
        assert batches.numel() == len(sampler) == -(-sampler.num_samples // (batch_size * num_replicas)) * batch_size
        for batch in batches:
            found = labels[batch].bincount(minlength=len(counts))
            assert sorted(found.tolist()) == [0] * (len(counts) - num_classes) + [num_per_class] * num_classes
            for label in found.nonzero().flatten().tolist():
                copies = Counter(batch[labels[batch] == label].tolist())
                fewest, rest = divmod(num_per_class, counts[label])
                assert set(copies.values()) <= {fewest, fewest + bool(rest)}


def test_classes_come_in_rounds_and_so_do_their_samples():
    labels = torch.repeat_interleave(torch.tensor([40, 12, 8, 6]))
    sampler = MPerClassSampler(labels, 2, 4, num_samples=40)
    batches = split_batches(sampler)
    assert labels[batches.reshape(5, 8)].sort(1).values.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 5
    drawn = Counter(batches.flatten().tolist())
    for label, count in enumerate([40, 12, 8, 6]):
        copies = [drawn[index] for index in torch.nonzero(labels == label).flatten().tolist()]
        assert len(copies) == count
        assert sum(copies) == 10
        assert max(copies) - min(copies) <= 1


def test_classes_come_equally_often_where_batches_do_not_divide_a_round():
    labels = torch.arange(5).repeat(4)
    sampler = MPerClassSampler(labels, 2, 6, num_samples=60_000)
    shares = labels[list(sampler)].bincount() / sampler.num_samples
    assert (shares - 0.2).abs().max() < 0.01


def test_epochs_differ_and_are_a_function_of_the_seed():
    sampler = build(seed=1)
    first, second = list(sampler), list(sampler)
    assert first != second
    again = build(seed=1)
    assert isinstance(again, EpochSampler)
    assert [list(again), list(again)] == [first, second]
    assert list(build(seed=2)) != first
    assert list(pickle.loads(pickle.dumps(build(seed=1)))) == first


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_processes_get_whole_batches_in_turn(num_replicas):
    whole = split_batches(build())
    parts = [split_batches(build(num_replicas=num_replicas, rank=rank)) for rank in range(num_replicas)]
    together = torch.stack(parts, dim=1).reshape(-1, 12)
    assert torch.equal(together[: len(whole)], whole)
    assert torch.equal(together[len(whole) :], whole[: len(together) - len(whole)])
    assert len(together) - len(whole) < num_replicas


def test_batches_stay_whole_across_chunks():
    whole = split_batches(MPerClassSampler(LABELS, 4, 12, 2 * CHUNK_SIZE))
    parts = [
        split_batches(MPerClassSampler(LABELS, 4, 12, 2 * CHUNK_SIZE, num_replicas=2, rank=rank)) for rank in range(2)
    ]
    assert torch.equal(torch.stack(parts, dim=1).reshape(-1, 12)[: len(whole)], whole)
    assert (LABELS[whole].reshape(-1, 3, 4).diff(dim=2) == 0).all()


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(("stop", "resumed_at"), [(0, 0), (12, 12), (24, 24), (29, 24)])
def test_resuming_gives_the_batches_that_were_not_complete(num_replicas, stop, resumed_at):
    process = {"num_replicas": num_replicas, "rank": num_replicas - 1}
    sampler = build(**process)
    whole = list(sampler)
    interrupted = build(**process)
    assert list(itertools.islice(interrupted, stop)) == whole[:stop]
    resumed = build(seed=9, **process)
    resumed.load_state_dict(interrupted.state_dict())
    assert list(resumed) == whole[resumed_at:]
    assert list(resumed) == list(sampler)


def test_resuming_with_another_number_of_processes():
    whole = split_batches(build(num_samples=120))
    before = build(num_samples=120, num_replicas=4, rank=0)
    list(itertools.islice(before, 12))
    after = [build(num_samples=120, num_replicas=3, rank=rank) for rank in range(3)]
    for sampler in after:
        sampler.load_state_dict(before.state_dict())
    parts = [split_batches(sampler) for sampler in after]
    assert torch.equal(torch.stack(parts, dim=1).reshape(-1, 12), whole[4:])


def draw_with_defaults(rank):
    return list(build())


def test_a_process_group_is_found(two_processes):
    first, second = two_processes(draw_with_defaults)
    together = torch.stack([torch.tensor(part).reshape(-1, 12) for part in (first, second)], dim=1).reshape(-1, 12)
    whole = split_batches(build())
    assert torch.equal(together[: len(whole)], whole)


def test_a_data_loader_makes_its_batches():
    sampler = build()
    loader = DataLoader(TensorDataset(LABELS), batch_size=sampler.batch_size, sampler=sampler)
    found = [labels.bincount().unique().tolist() for (labels,) in loader]
    assert len(found) == len(loader) == 9
    assert all(sizes in ([0, 4], [4]) for sizes in found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MPerClassSampler([0, 1], 0, 4), "num_per_class must be a whole number of at least 1. Got 0"),
        (lambda: MPerClassSampler([0, 1], 3, 4), "batch_size must be a multiple of num_per_class = 3. Got 4"),
        (
            lambda: MPerClassSampler([0, 2], 2, 6),
            "batch_size must be at most 2 samples of each of the 2 classes with samples. Got 6",
        ),
        (lambda: MPerClassSampler([0, 1], 2, 4, num_samples=0), "num_samples must be a whole number of at least 1"),
        (lambda: MPerClassSampler([], 2, 4), "at least one labeled sample"),
        (
            lambda: build().load_state_dict({"seed": 0, "epoch": 0, "position": 7}),
            "the position must be a multiple of 12, so that no batch is cut. Got 7",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
