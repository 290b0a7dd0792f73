"""Diagnostics against plain loops from the paper's formulas, and Proposition 1 on random embeddings."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, diagnostics
from longtail.diagnostics import (
    class_mean_distance,
    class_variances,
    cumulative_share,
    intraclass_distances,
    logit_margins,
    max_intraclass_distances,
    split_by_group,
    variance_bounds,
)
from longtail.losses import pull

LABELS = torch.tensor([0, 2, 0, 1, 2, 0, 2, 2, 4, 0])
"""Class 1 and 4 have one sample, class 3 has none."""


def drawn(num_samples=10, width=3, seed=0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_samples, width, dtype=torch.float64, generator=generator) + offset


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(diagnostics, "CHUNK_ELEMENTS", 5)


def distance(one, other):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(one.tolist(), other.tolist(), strict=True)))


def loop_max_distances(embeddings, labels):
    return [
        max(distance(x, embeddings[j]) for j in range(len(labels)) if labels[j] == labels[i])
        for i, x in enumerate(embeddings)
    ]


def loop_pulls(embeddings, labels, margin):
    values = []
    for i, x in enumerate(embeddings):
        others = [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]
        terms = [math.exp(distance(x, embeddings[j]) ** 2 - float(margin[labels[i]])) for j in others]
        values.append(math.log(1 + sum(terms)))
    return torch.tensor(values, dtype=torch.float64)


def test_logit_margins_are_those_of_the_formula(small_chunks):
    logits = drawn(width=5)
    expected = [
        float(row[y]) - max(float(value) for k, value in enumerate(row) if k != y)
        for row, y in zip(logits, LABELS.tolist(), strict=True)
    ]
    np.testing.assert_allclose(logit_margins(logits, LABELS), expected, atol=1e-10)


def test_a_margin_is_negative_where_the_prediction_is_wrong():
    logits = drawn(200, 4)
    labels = torch.arange(200) % 4
    assert torch.equal(logit_margins(logits, labels) > 0, logits.argmax(1) == labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_margins_of_half_precision_are_wide(dtype):
    logits = (1000 * drawn(width=5)).to(dtype)
    margins = logit_margins(logits, LABELS)
    assert margins.dtype == torch.float32
    np.testing.assert_array_equal(margins, logit_margins(logits.float(), LABELS))


def test_values_of_groups_keep_their_order_and_count():
    prior = ClassPrior.from_counts([500, 50, 40, 1, 1])
    values = torch.arange(10.0)
    found = split_by_group(values, LABELS, prior.groups())
    assert {name: part.tolist() for name, part in found.items()} == {
        "head": [0, 2, 5, 9],
        "torso": [1, 3, 4, 6, 7],
        "tail": [8],
    }
    assert split_by_group(values, LABELS, {"none": torch.tensor([3])})["none"].tolist() == []


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=20), at=st.lists(st.integers(-6, 6), max_size=10))
def test_cumulative_share_counts(values, at):
    expected = [sum(value <= place for value in values) / len(values) for place in at]
    found = cumulative_share(torch.tensor(values, dtype=torch.float64), torch.tensor(at, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_cumulative_share_does_not_round_where_it_looks():
    assert cumulative_share(torch.tensor([0, 1, 1]), torch.tensor([-0.5, 0.5])).tolist() == [0, 1 / 3]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_are_those_of_the_formulas(small_chunks, offset):
    embeddings = drawn(offset=offset)
    tolerance = 1e-10 if offset == 0 else 1e-8  # the embeddings themselves are rounded
    expected = np.array(loop_max_distances(embeddings, LABELS))
    np.testing.assert_allclose(max_intraclass_distances(embeddings, LABELS), expected, atol=tolerance)

    means = [embeddings[c == LABELS].mean(0) for c in (0, 1, 2, 4)]
    pairs = [distance(means[i], means[j]) for i in range(4) for j in range(i)]
    spread = sum(pairs) / len(pairs)
    assert float(class_mean_distance(embeddings, LABELS)) == pytest.approx(spread, abs=tolerance)

    found = intraclass_distances(embeddings, LABELS)
    largest = max(distance(x, torch.zeros(3)) for x in embeddings)
    np.testing.assert_allclose(found.raw, expected, atol=tolerance)
    np.testing.assert_allclose(found.by_norm, expected / largest, atol=1e-10)
    np.testing.assert_allclose(found.by_class_means, expected / spread, atol=tolerance)


def test_the_three_scales_see_what_they_say():
    embeddings = drawn(offset=2.0)
    found, shrunk, moved = (
        intraclass_distances(points, LABELS) for points in (embeddings, embeddings / 10, embeddings + 100)
    )
    np.testing.assert_allclose(shrunk.raw, found.raw / 10)
    np.testing.assert_allclose(shrunk.by_norm, found.by_norm)
    np.testing.assert_allclose(shrunk.by_class_means, found.by_class_means)
    assert moved.by_norm.max() < found.by_norm.max() / 5
    np.testing.assert_allclose(moved.by_class_means, found.by_class_means, rtol=1e-6)


def test_distances_of_a_large_class_do_not_hold_all_pairs(monkeypatch):
    largest = []
    measure = diagnostics.squared_distances

    def watched(one, other):
        largest.append(len(one) * len(other))
        return measure(one, other)

    monkeypatch.setattr(diagnostics, "CHUNK_ELEMENTS", 1000)
    monkeypatch.setattr(diagnostics, "squared_distances", watched)
    max_intraclass_distances(drawn(300), torch.zeros(300, dtype=torch.int64))
    assert max(largest) <= 1000


def test_points_that_coincide_have_no_distance():
    same = torch.full((4, 3), 1e4)
    found = intraclass_distances(same, torch.tensor([0, 0, 1, 1]))
    assert found.raw.tolist() == found.by_norm.tolist() == [0.0] * 4
    assert intraclass_distances(torch.zeros(2, 3), torch.tensor([0, 0])).by_norm.tolist() == [0.0, 0.0]
    crossed = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]])
    assert intraclass_distances(crossed, torch.tensor([0, 0, 1, 1])).by_class_means.tolist() == [math.inf] * 4
    assert intraclass_distances(drawn(2), torch.tensor([0, 0])).by_class_means.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    embeddings = (1e4 * drawn()).to(dtype)
    found = max_intraclass_distances(embeddings, LABELS)
    np.testing.assert_allclose(found, loop_max_distances(embeddings.double(), LABELS), rtol=1e-10)
    assert class_variances(embeddings, LABELS, 5)[[0, 2]].isfinite().all()


def test_no_samples_are_no_values():
    empty, labels = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert logit_margins(empty, labels).shape == (0,)
    found = intraclass_distances(empty, labels)
    assert found.raw.shape == found.by_norm.shape == found.by_class_means.shape == (0,)
    assert class_variances(empty, labels, 2).isnan().all()


def test_variances_are_those_of_the_formula():
    embeddings = drawn(offset=7.0)
    expected = [math.nan] * 5
    for c in (0, 1, 2, 4):
        members = embeddings[c == LABELS]
        columns = zip(*members.tolist(), strict=True)
        means = [sum(column) / len(members) for column in columns]
        center = torch.tensor(means, dtype=torch.float64)
        expected[c] = sum(distance(x, center) ** 2 for x in members) / len(members)
    np.testing.assert_allclose(class_variances(embeddings, LABELS, 5), expected, atol=1e-10)


def test_bounds_are_those_of_the_formula():
    embeddings, margin = drawn(), torch.tensor([0.5, 1.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    pulls = loop_pulls(embeddings, LABELS, margin)
    expected = [math.nan] * 5
    for c in (0, 1, 2, 4):
        members = [float(value) for value, y in zip(pulls, LABELS, strict=True) if y == c]
        n = len(members)
        rest = sum(members) / n + float(margin[c]) - math.log(n - 1) if n > 1 else 0
        expected[c] = (n - 1) / (2 * n) * rest
    np.testing.assert_allclose(variance_bounds(pulls, LABELS, margin), expected, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    width=st.integers(1, 6),
    spread=st.floats(0, 3),
    margins=st.lists(st.floats(0, 20), min_size=3, max_size=3),
    sizes=st.lists(st.integers(1, 8), min_size=3, max_size=3),
)
def test_proposition_1_holds(seed, width, spread, margins, sizes):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    embeddings = spread * drawn(len(labels), width, seed)
    margin = torch.tensor(margins, dtype=torch.float64)
    variances = class_variances(embeddings, labels, 3)
    pulls = pull(embeddings, labels, margin)
    np.testing.assert_allclose(pulls, loop_pulls(embeddings, labels, margin), atol=1e-10)
    assert (variances <= variance_bounds(pulls, labels, margin) + 1e-9).all()


def test_results_carry_no_gradient():
    embeddings = drawn().requires_grad_()
    values = (
        logit_margins(embeddings, LABELS % 3),
        max_intraclass_distances(embeddings, LABELS),
        class_variances(embeddings, LABELS, 5),
        cumulative_share(embeddings[:, 0], torch.zeros(1)),
    )
    assert not any(value.requires_grad for value in values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: logit_margins(torch.zeros(2), torch.zeros(2).long()), r"floating-point \[N, D\]"),
        (lambda: logit_margins(torch.zeros(2, 1), torch.zeros(2).long()), "at least 2 classes"),
        (lambda: logit_margins(torch.zeros(2, 3), torch.tensor([0, 3])), r"in 0\.\.2. Got 3"),
        (lambda: logit_margins(torch.zeros(2, 3), torch.tensor([0, -1])), "at least 0. Got -1"),
        (lambda: logit_margins(torch.zeros(2, 3), torch.zeros(2)), "class indices"),
        (lambda: max_intraclass_distances(torch.zeros(2, 3).long(), torch.zeros(2).long()), "floating-point"),
        (lambda: max_intraclass_distances(torch.zeros(2, 3), torch.zeros(3).long()), r"must be \[2\]"),
        (lambda: max_intraclass_distances(torch.full((2, 3), math.nan), torch.zeros(2).long()), "finite"),
        (lambda: intraclass_distances(torch.zeros(2, 3), torch.ones(2).bool()), "class indices"),
        (lambda: class_variances(torch.zeros(2, 3), torch.tensor([0, 4]), 4), r"in 0\.\.3"),
        (lambda: variance_bounds(torch.zeros(2), torch.zeros(3).long(), torch.ones(1)), r"must be \[N\]"),
        (lambda: variance_bounds(torch.zeros(2), torch.tensor([0, 1]), torch.ones(1)), r"in 0\.\.0"),
        (lambda: cumulative_share(torch.zeros(0), torch.zeros(1)), "at least one number"),
        (lambda: split_by_group(torch.zeros(2), torch.zeros(3).long(), {}), "one per sample"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bound_of_proposition_2_is_the_sum_of_its_terms():
    generator = torch.Generator().manual_seed(0)
    losses, pulls = (torch.rand(7, generator=generator).double() for _ in range(2))
    target, alpha, norm, largest, delta = torch.tensor([0, 0, 0, 0, 1, 1, 1]), torch.tensor([0.5, 0.1]), 2.0, 3.0, 0.1
    few = average = spread = 0.0
    for y in (0, 1):
        own = [i for i in range(7) if target[i] == y]
        share, n = len(own) / 7, len(own)
        few += share / (n - 1)
        average += share / n * sum(float(losses[i]) for i in own)
        spread += share / n * (sum(float(pulls[i]) for i in own) / n + float(alpha[y]))
    wanted = 7 * largest * math.log(2 / delta) / 3 * few + average + norm * math.sqrt(math.log(2 / delta) * spread)
    found = diagnostics.generalization_bound(losses, pulls, target, alpha, norm, largest, delta)
    assert found == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(ValueError, match="two samples or more"):
        diagnostics.generalization_bound(losses, pulls, torch.zeros(7, dtype=torch.int64), alpha, norm, largest)
