"""Which rows a process has: as torch.chunk deals them out, each row once."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longtail._core.shards import RowSharding, find_sharding, is_row_sharded, mark_rows


@given(num_rows=st.integers(1, 200), size=st.integers(1, 20))
def test_rows_are_the_chunks_of_torch(num_rows, size):
    sharding, table = RowSharding(num_rows, None), torch.arange(num_rows)
    parts = [table[slice(*sharding.rows_of(rank, size))] for rank in range(size)]
    chunks = list(table.chunk(size))
    assert [part.tolist() for part in parts if len(part)] == [chunk.tolist() for chunk in chunks]
    assert all(len(part) == 0 for part in parts[len(chunks) :])


def test_a_parameter_keeps_its_mark_when_its_type_changes():
    module = nn.Linear(2, 3)
    assert find_sharding(module.weight) is None
    mark_rows(module.weight, RowSharding(6, None))
    assert find_sharding(module.double().weight) == RowSharding(6, None)
    assert not is_row_sharded(module.weight)
