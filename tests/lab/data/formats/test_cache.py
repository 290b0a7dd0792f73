"""Parsed matrices that are kept: what is read back, and what is not."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from longtail.lab.data.formats._cache import cache_path, read_matrices, write_matrices


def test_matrices_come_back_as_they_were(tmp_path):
    matrix = csr_array(np.array([[0, 2.5], [0, 0]], dtype=np.float32))
    write_matrices(tmp_path / "new" / "a.npz", {"features": matrix})
    found = read_matrices(tmp_path / "new" / "a.npz", {"features": np.float32})["features"]
    assert found.toarray().tolist() == [[0, 2.5], [0, 0]]
    assert read_matrices(tmp_path / "new" / "a.npz", {"features": np.float64}) is None
    assert read_matrices(tmp_path / "new" / "a.npz", {"labels": np.float32}) is None
    assert read_matrices(tmp_path / "absent.npz", {"features": np.float32}) is None


def test_the_path_follows_the_state_of_the_source(tmp_path):
    source = tmp_path / "data.txt"
    source.write_text("one")
    first = cache_path(tmp_path, source)
    assert first == cache_path(tmp_path, source)
    source.write_text("another")
    assert cache_path(tmp_path, source) != first


@pytest.mark.parametrize("shape", [[2, -1], [5, 2], ["a", "b"]])
def test_a_shape_that_can_not_be_is_no_cache(tmp_path, shape):
    matrix = csr_array(np.eye(2, dtype=np.float32))
    parts = {f"features_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
    np.savez(tmp_path / "a.npz", features_shape=np.array(shape), **parts)
    assert read_matrices(tmp_path / "a.npz", {"features": np.float32}) is None
