"""The alias table against the probabilities it was given, and seeds."""

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail._core.random import BUILD_SIZE, AliasTable, epoch_seed, mix_seed


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


def test_a_table_made_in_parts_is_that_of_one_part(monkeypatch):
    probs = torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4
    assert len(probs) < BUILD_SIZE
    whole = AliasTable(probs)
    monkeypatch.setattr("longtail._core.random.BUILD_SIZE", 7)
    parts = AliasTable(probs)
    assert torch.equal(parts.threshold, whole.threshold)
    assert torch.equal(parts.alias, whole.alias)
    assert whole.alias.dtype == torch.int32


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.ones(2, 2), r"must be a vector .* Got shape \(2, 2\)"),
        (torch.ones(0), r"must be a vector .* Got shape \(0,\)"),
        (torch.tensor([1.0, torch.inf]), "finite and at least 0. Got inf for 1"),
    ],
)
def test_what_is_no_distribution_is_refused(probs, message):
    with pytest.raises(ValueError, match=message):
        AliasTable(probs)


def test_seeds_are_those_that_earlier_runs_were_made_with():
    assert (mix_seed(5, 2), mix_seed(3, 0, 1, 0)) == (3226123765, 3578933982)
    assert epoch_seed(20_260_101, 7, 1) == ((20_260_101 * 1_000_003 + 7) * 1_000_003 + 1) % 2**64
    assert epoch_seed(3, 7, 2, weights=(1_000_003, 7_919, 104_729)) == 3 * 1_000_003 + 7 * 7_919 + 2 * 104_729


def test_the_alias_table_takes_little_more_memory_than_it_keeps(peak_memory):
    probs = torch.rand(4_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    built = []
    bytes_per_category = peak_memory(lambda: built.append(AliasTable(probs))) / len(probs)
    assert bytes_per_category < 20  # of which 12 are the table; half of these categories are large
