"""Sparse rows select as SciPy does."""

import numpy as np
import torch
from scipy.sparse import csr_array, random_array

from longtail.lab.data.sparse_rows import SparseRows


def test_sparse_rows_select_as_scipy_does():
    matrix = csr_array(random_array((12, 30), density=0.1, rng=np.random.default_rng(0), format="csr"))
    rows = SparseRows.from_scipy(matrix)
    indices = torch.tensor([11, 0, 0, 7, 3])
    assert np.allclose(rows.batch(indices).dense().numpy(), matrix[indices.numpy()].toarray())
    assert len(rows.batch(indices)) == 5
    assert rows.batch(indices[:0]).dense().shape == (0, 30)
    assert rows.to(torch.float64).values.dtype == torch.float64
