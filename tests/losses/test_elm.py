"""The pull of ELM: its margins, its memory, and Proposition 1."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior
from longtail.losses import (
    Pull,
    count_margin,
    probability_margin,
    pull,
)

C, D = 5, 4
MARGIN = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1], dtype=torch.float64)


def test_class_weights_multiply_the_pull(make_embeddings):
    x, y = make_embeddings()
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])
    torch.testing.assert_close(pull(x, y, MARGIN, class_weights=weights), pull(x, y, MARGIN) * weights[y])
    torch.testing.assert_close(Pull(MARGIN, class_weights=weights)(x, y), (pull(x, y, MARGIN) * weights[y]).mean())


def test_a_sample_alone_in_its_class_is_not_pulled(make_embeddings):
    x, y = make_embeddings()
    x.requires_grad_()
    values = pull(x, y, MARGIN)
    values.sum().backward()
    alone = int((y == 3).nonzero()[0])
    assert values[alone] == 0
    assert (x.grad[alone] == 0).all()
    assert (values[y != 3] > 0).all()


def test_equal_embeddings_cost_the_margin_only():
    x, y = torch.full((3, D), 1e4), torch.tensor([0, 0, 0])
    torch.testing.assert_close(pull(x, y, torch.tensor([2.0])), torch.full((3,), math.log(1 + 2 * math.exp(-2.0))))


def test_far_classes_do_not_cost_precision():
    """Distances of 0.1 around a point of norm 1e4 in float32: squared norms alone would be off by 8."""
    offsets = torch.tensor([[0.0], [0.125], [0.25]])
    near, y = pull(offsets, torch.zeros(3, dtype=torch.int64), torch.zeros(1)), torch.zeros(3, dtype=torch.int64)
    torch.testing.assert_close(pull(offsets + 8192.0, y, torch.zeros(1)), near, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(0.01, 3.0), st.floats(0.0, 5.0))
def test_proposition_one(seed, size, spread, margin):
    """Class-wise, the mean pull is at least the variances' sum, doubled and shifted."""
    x = spread * torch.randn(size, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = pull(x, torch.zeros(size, dtype=torch.int64), torch.tensor([margin], dtype=torch.float64))
    variance = x.var(dim=0, correction=0).sum()
    bound = 2 * size / (size - 1) * variance - margin + math.log(size - 1)
    assert values.mean() >= bound - 1e-9


def test_margins_follow_the_counts():
    prior = ClassPrior.from_counts([64, 16, 4])
    torch.testing.assert_close(count_margin(prior).tolist(), [8.0, 4.0, 2.0])
    torch.testing.assert_close(count_margin(prior, 2.0, -0.5).tolist(), [0.25, 0.5, 1.0])
    torch.testing.assert_close(probability_margin(prior, 84.0).tolist(), [64.0, 16.0, 4.0])
    assert probability_margin(ClassPrior.from_counts([3, 0]))[1] == 0


def test_a_class_that_appears_once_in_a_batch_finds_partners_in_the_memory():
    module = Pull(MARGIN.float(), memory_size=2)
    x, y = torch.randn(2, D, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 1])
    assert module(x, y) == 0
    leaf = (x + 1).requires_grad_()
    module(leaf, y).backward()
    assert (leaf.grad.abs().sum(dim=1) > 0).all()
    assert not module.memory.embeddings.requires_grad
