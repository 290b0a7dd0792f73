"""Sequences of items, such as what users bought in order: what sequence data hold and what their batches are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.lab.data.sparse_rows import locate_rows

__all__ = ["ItemSequences"]


@dataclass(frozen=True, eq=False, slots=True)
class ItemSequences:
    """Items in order of time, sequence after sequence, without padding.

    A batch is again ``ItemSequences``. A model makes one embedding for each place that is asked for: every place of
    sequences to train on, where each next item is a label, and the last place of sequences to test on.

    >>> sequences = ItemSequences(torch.tensor([0, 3, 5]), torch.tensor([7, 8, 9, 4, 5]), num_items=10, max_length=4)
    >>> batch = sequences.batch(torch.tensor([1, 0]))
    >>> batch.items.tolist(), batch.lengths.tolist(), batch.places.tolist(), batch.asked.tolist()
    ([4, 5, 7, 8, 9], [2, 3], [2, 3, 1, 2, 3], [1, 4])
    """

    offsets: Tensor
    """[N + 1] int64; sequence i is at offsets[i] to offsets[i + 1] of the items."""
    items: Tensor
    """[events] int64 in 0..num_items - 1."""
    num_items: int
    """How many items there are."""
    max_length: int
    """The longest sequence that there may be."""
    asks_everywhere: bool = False
    """Whether an embedding is asked for at every place; else at the last one of each sequence."""

    def __post_init__(self) -> None:
        lengths = self.offsets.diff()
        if len(lengths) and (int(lengths.min()) < 1 or int(lengths.max()) > self.max_length):
            wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
            raise ValueError(f"ItemSequences: sequences must have 1 to {self.max_length} items. Got {wrong}.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Places and items: a sequence is so many choices among so many."""
        return (self.max_length, self.num_items)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """[N] how many items each sequence has."""
        return self.offsets.diff()

    @property
    def rows(self) -> Tensor:
        """[events] the sequence that each item is in."""
        return torch.arange(len(self), device=self.items.device).repeat_interleave(self.lengths)

    @property
    def places(self) -> Tensor:
        """[events] the place of each item; the last one of every sequence is at max_length - 1."""
        ends = self.offsets[1:].repeat_interleave(self.lengths)
        return self.max_length - ends + torch.arange(len(self.items), device=self.items.device)

    @property
    def asked(self) -> Tensor:
        """[M] where among the items an embedding is asked for."""
        return (
            torch.arange(len(self.items), device=self.items.device) if self.asks_everywhere else self.offsets[1:] - 1
        )

    def batch(self, indices: Tensor) -> ItemSequences:
        """The sequences at ``indices``, in that order."""
        offsets, places = locate_rows(self.offsets, indices)
        return dataclasses.replace(self, offsets=offsets, items=self.items[places])

    def take(self, indices: Tensor) -> ItemSequences:
        """The same as :meth:`batch`: sequences are in memory."""
        return self.batch(indices)

    def to(self, *args: Any, **kwargs: Any) -> ItemSequences:
        """These sequences on another device, as ``Tensor.to``."""
        items = self.items.to(*args, **kwargs)
        return dataclasses.replace(self, offsets=self.offsets.to(items.device), items=items)
