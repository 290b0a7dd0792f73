"""Memories of embeddings: what they keep, and losses over batch and memory."""

import math
from functools import partial

import pytest
import torch

from longtail.losses import (
    ClassMemory,
    CrossBatchMemory,
    Triplet,
    pull,
    range_loss,
    supervised_contrastive,
    triplet,
)

C = 5
MARGIN = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1], dtype=torch.float64)


def test_the_memory_is_a_ring_of_the_last_ones(make_embeddings):
    memory, seen = ClassMemory(num_classes=C, memory_size=3), {c: [] for c in range(C)}
    assert memory.recall() is None
    for seed in range(4):
        x, y = make_embeddings(dtype=torch.float32, seed=seed)
        memory.remember(x, y)
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            seen[label].append(row)
    kept = memory.recall()
    for c in range(C):
        assert kept.counts[c] == min(3, len(seen[c]))
        assert sorted(kept.embeddings[c, : kept.counts[c]].tolist()) == sorted(seen[c][-3:])


def test_a_class_memory_keeps_only_what_is_finite(make_embeddings):
    memory, (x, target) = ClassMemory(C, memory_size=8), make_embeddings(dtype=torch.float32)
    x[0, 1], x[2, 3] = math.nan, math.inf
    memory.remember(x, target)
    kept = memory.recall()
    assert kept.embeddings.isfinite().all()
    assert kept.counts.tolist() == [5, 3, 3, 1, 0]


PAIR_LOSSES = {
    "pull": partial(pull, margin=MARGIN),
    "supervised_contrastive": partial(supervised_contrastive, temperature=0.5),
    "triplet": partial(triplet, margin=1.5),
    "range_loss": partial(range_loss, margin=4.0),
    "of a user": lambda embeddings, target: (torch.cdist(embeddings, embeddings) * (target[:, None] == target)).sum(
        1
    ),
}
every_pair_loss = pytest.mark.parametrize("name", PAIR_LOSSES)


@every_pair_loss
@pytest.mark.parametrize("memory_size", [5, 64])
def test_the_memory_is_more_of_the_batch(name, memory_size, make_embeddings, value_and_gradient):
    """Smaller than a batch of 14 and larger than three of them."""
    loss, function = CrossBatchMemory(PAIR_LOSSES[name], memory_size).double(), PAIR_LOSSES[name]
    seen, seen_target = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for seed in range(4):
        x, target = make_embeddings(seed=seed)
        everyone = torch.cat([target, seen_target])

        def reference(z, seen=seen, everyone=everyone):
            return function(torch.cat([z, seen]), everyone)[: len(z)].mean()

        wanted, wanted_gradient = value_and_gradient(reference, x)
        got, gradient = value_and_gradient(lambda z, target=target: loss(z, target), x)
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-10, atol=1e-10)
        seen, seen_target = torch.cat([seen, x])[-memory_size:], torch.cat([seen_target, target])[-memory_size:]
    assert not loss.embeddings.requires_grad
    assert sorted(loss.target.tolist())[-len(seen) :] == sorted(seen_target.tolist())


@pytest.mark.parametrize("function", [supervised_contrastive, triplet])
@pytest.mark.parametrize("num_anchors", [0, 1, 6, 14])
def test_anchors_are_the_first_samples(function, num_anchors, make_embeddings):
    x, target = make_embeddings()
    wanted = function(x, target)[:num_anchors]
    torch.testing.assert_close(function(x, target, num_anchors=num_anchors), wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"num_anchors must be in 0..14, the samples. Got 15"):
        function(x, target, num_anchors=15)


@every_pair_loss
def test_a_resumed_memory_goes_on_where_it_was(name, make_embeddings):
    first, second = (CrossBatchMemory(PAIR_LOSSES[name], memory_size=20) for _ in range(2))
    for seed in range(3):
        first(*make_embeddings(dtype=torch.float32, seed=seed))
    second.load_state_dict(first.state_dict())
    for seed in range(3, 6):
        batch = make_embeddings(dtype=torch.float32, seed=seed)
        assert torch.equal(first(*batch), second(*batch))
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])


def test_places_that_are_not_filled_have_no_label(make_embeddings):
    loss = CrossBatchMemory(triplet, memory_size=20)
    loss(*make_embeddings(dtype=torch.float32))
    assert (loss.target == -100).sum() == 6
    assert repr(loss) == "CrossBatchMemory(memory_size=20)"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_never_enters_the_memory(bad, make_embeddings):
    loss, (x, target) = CrossBatchMemory(triplet, memory_size=20), make_embeddings(dtype=torch.float32)
    loss(x, target)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    x[3, 2] = bad
    with pytest.raises(ValueError, match=r"embeddings must be finite. Got NaN or infinity"):
        loss(x, target)
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())


def test_bad_calls_of_a_cross_batch_memory_are_named(make_embeddings):
    x, target = make_embeddings(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"memory_size must be a whole number of at least 1. Got 0"):
        CrossBatchMemory(triplet, 0)
    with pytest.raises(ValueError, match=r"one value per sample, \[14\]; give it a function .* Got \(\)"):
        CrossBatchMemory(Triplet(), 8)(x, target)
    loss = CrossBatchMemory(triplet, 8)
    loss(x, target)
    with pytest.raises(ValueError, match=r"\[N, 4\] as those before. Got width 3"):
        loss(x[:, :3], target)
    with pytest.raises(ValueError, match=r"target must be \[14\] class indices"):
        loss(x, target[:2])
