"""How many threads a step of training is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["limit_threads"]

SMALL_STEP = 3e8
"""Floating-point operations of a forward pass on a batch, below which one thread is as fast as all of them."""


@contextmanager
def limit_threads(operations: float) -> Iterator[None]:
    """Compute with one thread in this block where a step has too little work for more.

    Threads that wait for work spin: a small model gains nothing by them, and on a busy machine it takes many times as
    long with two as with one.

    Args:
        operations: floating-point operations of a forward pass on a batch.

    >>> with limit_threads(1e6):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if operations < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
