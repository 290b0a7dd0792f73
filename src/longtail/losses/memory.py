"""Recent embeddings of each class, for losses that need partners a batch may not have."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail._core.collectives import gather_rows, is_initialized
from longtail.losses._embeddings import check_label_range, check_pairs, check_width, take_saved_width

__all__ = ["Remembered", "ClassMemory", "check_memory"]


class Remembered(NamedTuple):
    """Recent embeddings of each class, as ``ClassMemory`` keeps them."""

    embeddings: Tensor
    """[C, K, D]."""
    counts: Tensor
    """[C] how many of a class's K places are filled, from the first on."""


class ClassMemory(nn.Module):
    """The most recent embeddings of each class, in a ring: no gradient, O(C * size * D), in the state dict.

    Args:
        num_classes: C.
        size: how many embeddings of a class to keep.

    D is that of the first embeddings. With several processes, each remembers what all of them saw, so their memories
    stay the same and one of them is enough for a checkpoint.

    >>> memory = ClassMemory(num_classes=3, size=2)
    >>> memory.remember(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 0, 0, 2]))
    >>> memory.recall().counts.tolist(), sorted(memory.recall().embeddings[0, :, 0].tolist())
    ([2, 0, 1], [2.0, 3.0])
    """

    embeddings: Tensor
    written: Tensor

    def __init__(self, num_classes: int, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"ClassMemory: size must be at least 1. Got {size}.")
        self.size = size
        self.register_buffer("embeddings", torch.zeros(num_classes, size, 0))
        self.register_buffer("written", torch.zeros(num_classes, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(partial(take_saved_width, "embeddings"))  # type: ignore[no-untyped-call]

    def recall(self) -> Remembered | None:
        """What is kept; None before the first embeddings came."""
        if self.embeddings.shape[-1] == 0:
            return None
        return Remembered(self.embeddings, self.written.clamp_max(self.size))

    @torch.no_grad()
    def remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Keep embeddings [N, D] of classes labels [N]; the oldest of a full class are forgotten."""
        wide, labels = check_pairs("ClassMemory", embeddings, labels)
        check_label_range("ClassMemory", labels, len(self.written))
        if is_initialized():
            wide, labels = gather_rows(wide.detach(), None), gather_rows(labels, None)
        if self.embeddings.shape[-1] == 0:
            self.embeddings = wide.new_zeros(*self.embeddings.shape[:2], wide.shape[1])
        check_width("ClassMemory", self.embeddings, wide.shape[1])
        order = labels.argsort(stable=True)
        arriving = labels.bincount(minlength=len(self.written))
        ordered = labels[order]
        rank = torch.arange(len(order), device=order.device) - (arriving.cumsum(0) - arriving)[ordered]
        is_kept = rank >= arriving[ordered] - self.size  # a ring holds the last ones; earlier ones would collide
        kept, rank, ordered = order[is_kept], rank[is_kept], ordered[is_kept]
        self.embeddings[ordered, (self.written[ordered] + rank) % self.size] = wide[kept].to(self.embeddings)
        self.written += arriving


def check_memory(memory: Remembered, num_classes: int, width: int) -> None:
    """Raise unless the remembered embeddings fit the classes and the width of the batch."""
    kept = memory.embeddings
    if kept.ndim != 3 or (kept.shape[0], kept.shape[2]) != (num_classes, width):
        raise ValueError(f"pull: memory must hold [{num_classes}, K, {width}]. Got {tuple(kept.shape)}.")
