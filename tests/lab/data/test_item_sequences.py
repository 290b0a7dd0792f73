"""Sequences of items select as lists do, and say where an embedding is asked for."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail.lab.data.item_sequences import ItemSequences


def make_sequences(lists, max_length=6, **options):
    offsets = torch.tensor([0, *(len(one) for one in lists)]).cumsum(0)
    return ItemSequences(offsets, torch.tensor([*chain(*lists)]), 10, max_length, **options)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_a_batch_is_what_lists_give(lists, data):
    sequences = make_sequences(lists)
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    batch = sequences.batch(torch.tensor(chosen, dtype=torch.int64))
    assert batch.items.tolist() == [*chain(*(lists[i] for i in chosen))]
    assert batch.lengths.tolist() == [len(lists[i]) for i in chosen]
    assert batch.rows.tolist() == [row for row, i in enumerate(chosen) for _ in lists[i]]
    assert batch.places.tolist() == [place for i in chosen for place in range(6 - len(lists[i]), 6)]
    assert batch.items[batch.asked].tolist() == [lists[i][-1] for i in chosen]


def test_all_places_are_asked_for_where_told_so():
    sequences = make_sequences([[1, 2], [3]], asks_everywhere=True)
    assert sequences.asked.tolist() == [0, 1, 2]
    assert sequences.take(torch.tensor([1])).asked.tolist() == [0]
    assert sequences.to("cpu").asks_everywhere


@pytest.mark.parametrize("lists", [[[1], []], [[1] * 7]])
def test_lengths_that_no_model_takes(lists):
    with pytest.raises(ValueError, match="must have 1 to 6 items"):
        make_sequences(lists)
