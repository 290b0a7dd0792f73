"""Sparse matrices that were parsed from a file, kept for the next time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from longtail._core.files import replacing
from longtail.lab.data.formats.array_files import ArrayFile, open_arrays

__all__ = ["cache_path", "read_matrices", "write_matrices"]

VERSION = 2
PARTS = ("data", "indices", "indptr", "shape")


def cache_path(folder: Path, source: Path) -> Path:
    """Where what was parsed from this file, in its present state, is kept."""
    status = source.stat()
    state = f"{VERSION} {source.resolve()} {status.st_size} {status.st_mtime_ns}"
    return folder / f"{source.name}-{hashlib.sha256(os.fsencode(state)).hexdigest()[:16]}.npz"


def write_matrices(path: Path, matrices: Mapping[str, Any]) -> None:
    """Write SciPy CSR arrays by name, whole or not at all."""
    arrays: dict[str, Any] = {
        f"{name}_{part}": np.asarray(getattr(matrices[name], part)) for name in matrices for part in PARTS
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, **arrays)


def read_matrices(path: Path, dtypes: Mapping[str, type]) -> dict[str, Any] | None:
    """The matrices with these names and types, or None where the file is absent, damaged or another."""
    try:
        arrays = open_arrays(path)
        return {name: _read_matrix(arrays, name, dtype) for name, dtype in dtypes.items()}
    except (OSError, ValueError, KeyError):
        return None


def _read_matrix(arrays: ArrayFile, name: str, dtype: type) -> Any:
    *parts, shape = (arrays.read(f"{name}_{part}") for part in PARTS)
    matrix = csr_array(tuple(parts), shape=tuple(shape.tolist()))
    matrix.check_format(full_check=True)
    if matrix.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}. Got {matrix.dtype}.")
    return matrix
