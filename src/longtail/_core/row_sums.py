"""Sums of rows of a table, as sparse samples ask for them: each feature's vector, times its value."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["sum_rows"]


def sum_rows(columns: Tensor, values: Tensor, offsets: Tensor, table: Tensor, is_row_sparse: bool = False) -> Tensor:
    """[N, D] for each sample the sum of ``values`` times the rows of a table.

    Args:
        columns: [nonzeros] rows of the table.
        values: [nonzeros] what to multiply them with.
        offsets: [N + 1] sample i is at offsets[i] to offsets[i + 1] of both.
        table: [C, D].
        is_row_sparse: whether the table's gradient has only the rows that are asked for, each once.

    >>> table = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> sum_rows(torch.tensor([0, 1, 1]), torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0, 2, 3]), table).tolist()
    [[2.0, 3.0], [0.0, 4.0]]
    """
    if is_row_sparse:
        present, columns = torch.unique(columns, return_inverse=True)
        table = F.embedding(present, table, sparse=True)
    return F.embedding_bag(columns, table, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)
