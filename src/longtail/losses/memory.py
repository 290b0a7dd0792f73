"""Recent embeddings, for losses that need partners a batch may not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail._core.checks import at_least, check_class_range, check_finite
from longtail._core.collectives import gather_rows, is_initialized
from longtail.losses._embeddings import EmbeddingLoss, check_pairs, check_width, take_saved_width

__all__ = ["Remembered", "ClassMemory", "CrossBatchMemory"]

NO_LABEL = -100


class Remembered(NamedTuple):
    """Recent embeddings of each class, as ``ClassMemory`` keeps them."""

    embeddings: Tensor
    """[C, K, D]."""
    counts: Tensor
    """[C] how many of a class's K places are filled, from the first on."""


class ClassMemory(nn.Module):
    """The most recent embeddings of each class, in a ring: no gradient, O(C * memory_size * D), in the state dict.

    Args:
        num_classes: C.
        memory_size: how many embeddings of a class to keep.

    D is that of the first embeddings. With several processes, ``remember`` keeps what all of them saw, so their
    memories stay the same and one of them is enough for a checkpoint; ``keep`` is for a batch that all of them have
    already. Embeddings that are not finite are not kept.

    >>> memory = ClassMemory(num_classes=3, memory_size=2)
    >>> memory.remember(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 0, 0, 2]))
    >>> memory.recall().counts.tolist(), sorted(memory.recall().embeddings[0, :, 0].tolist())
    ([2, 0, 1], [2.0, 3.0])
    """

    embeddings: Tensor
    written: Tensor

    def __init__(self, num_classes: int, memory_size: int) -> None:
        super().__init__()
        self.memory_size = at_least(memory_size, 1, "ClassMemory: memory_size")
        self.register_buffer("embeddings", torch.zeros(num_classes, memory_size, 0))
        self.register_buffer("written", torch.zeros(num_classes, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(partial(take_saved_width, "embeddings"))  # type: ignore[no-untyped-call]

    def recall(self) -> Remembered | None:
        """What is kept; None before the first embeddings came."""
        if self.embeddings.shape[-1] == 0:
            return None
        return Remembered(self.embeddings, self.written.clamp_max(self.memory_size))

    def remember(self, embeddings: Tensor, target: Tensor) -> None:
        """Keep what all processes have: embeddings [N, D] of classes target [N]."""
        self.keep(*_gather_batch("ClassMemory", embeddings, target))

    @torch.no_grad()
    def keep(self, embeddings: Tensor, target: Tensor) -> None:
        """Keep embeddings [N, D] of classes target [N]; the oldest of a full class are forgotten."""
        wide, target = check_pairs("ClassMemory", embeddings, target)
        check_class_range(target, len(self.written))
        is_finite = wide.isfinite().all(dim=1)
        wide, target = wide[is_finite], target[is_finite]
        self.embeddings = _widen_memory("ClassMemory", self.embeddings, wide)
        order = target.argsort(stable=True)
        arriving = target.bincount(minlength=len(self.written))
        ordered = target[order]
        rank = torch.arange(len(order), device=order.device) - (arriving.cumsum(0) - arriving)[ordered]
        is_kept = rank >= arriving[ordered] - self.memory_size  # earlier ones would collide with them in the ring
        kept, rank, ordered = order[is_kept], rank[is_kept], ordered[is_kept]
        self.embeddings[ordered, (self.written[ordered] + rank) % self.memory_size] = wide[kept].to(self.embeddings)
        self.written += arriving


class CrossBatchMemory(EmbeddingLoss):
    """The mean of any loss on pairs of embeddings, with those of recent batches as more partners.

    Formula:
        Omega[i] = loss(batch and memory together)[i], for the samples i of the batch

    Args:
        loss: embeddings [M, D], target [M] -> [M] values: ``supervised_contrastive``, ``triplet``, ``range_loss``, a
            ``functools.partial`` of one such as ``partial(pull, margin=margin)``, or your own. Where it has an
            argument ``num_anchors``, it is told how many rows are the batch's, which come first, and gives only their
            values.
        memory_size: how many recent embeddings to keep, of all classes together.

    Remembered embeddings have no gradient. The memory is written in training mode, after the values are taken, and is
    part of ``state_dict``. D is that of the first embeddings. With several processes, partners and memory are those
    of all of them. Embeddings that are not finite raise before they enter it.

    Use when:
        Batches are small beside the number of classes, and a sample seldom has a partner in its batch.
    Avoid when:
        Embeddings move fast, as at the start of training or at a large learning rate: remembered ones are then out of
        date. For ``pull`` alone, ``Pull`` with ``memory_size`` keeps as many of a rare class as of a frequent one.
    Special cases:
        The mean of the loss over the batch, while the memory is empty.

    >>> from functools import partial
    >>> from longtail.losses import triplet
    >>> loss = CrossBatchMemory(partial(triplet, margin=2.0), memory_size=3)
    >>> x, target = torch.zeros(2, 4), torch.tensor([0, 1])
    >>> loss(x, target).item(), loss(x, target).item()
    (0.0, 2.0)

    Deviates:
        The reference lets the memory in after a number of steps; here it is empty at first, and a sample of the batch
        may also meet an older embedding of itself, as there.

    Reference:
        Wang et al. (2020), "Cross-batch memory for embedding learning", section 3.2.
    """

    embeddings: Tensor
    """[memory_size, D]."""
    target: Tensor
    """[memory_size] classes; -100 where nothing is kept yet."""
    written: Tensor

    def __init__(self, loss: Callable[..., Tensor], memory_size: int) -> None:
        super().__init__()
        self.loss = loss
        self.memory_size = at_least(memory_size, 1, "CrossBatchMemory: memory_size")
        self.takes_num_anchors = "num_anchors" in inspect.signature(loss).parameters
        self.register_buffer("embeddings", torch.zeros(memory_size, 0))
        self.register_buffer("target", torch.full((memory_size,), NO_LABEL))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))
        self.register_load_state_dict_pre_hook(partial(take_saved_width, "embeddings"))  # type: ignore[no-untyped-call]

    def values(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """[N] values of the loss for the batch, with the memory."""
        return self._batch_values(*check_pairs("CrossBatchMemory", embeddings, target))

    def remember(self, embeddings: Tensor, target: Tensor) -> None:
        """Keep what all processes have: embeddings [N, D] of classes target [N]."""
        self.observe(*_gather_batch("CrossBatchMemory", embeddings, target))

    @torch.no_grad()
    def observe(self, embeddings: Tensor, target: Tensor) -> None:
        """Keep embeddings [N, D] of classes target [N]; the oldest make room."""
        wide, target = check_pairs("CrossBatchMemory", embeddings, target)
        check_finite(wide, "CrossBatchMemory: embeddings")
        self.embeddings = _widen_memory("CrossBatchMemory", self.embeddings, wide)
        recent = torch.arange(len(wide), device=wide.device)[-self.memory_size :]
        places = (self.written + recent) % self.memory_size
        self.embeddings[places], self.target[places] = wide[recent].to(self.embeddings), target[recent]
        self.written += len(wide)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"memory_size={self.memory_size}"

    def _batch_values(self, wide: Tensor, target: Tensor) -> Tensor:
        num_kept = min(int(self.written), self.memory_size)
        if num_kept:
            check_width("CrossBatchMemory", self.embeddings, wide.shape[1])
        everything = torch.cat([wide, self.embeddings[:num_kept].to(wide)]) if num_kept else wide
        options = {"num_anchors": len(wide)} if self.takes_num_anchors else {}
        values = self.loss(everything, torch.cat([target, self.target[:num_kept]]), **options)
        if values.shape not in (everything.shape[:1], wide.shape[:1]):
            raise ValueError(
                f"CrossBatchMemory: loss must return one value per sample, [{len(everything)}]; "
                f"give it a function such as triplet, not a module that takes the mean. Got {tuple(values.shape)}."
            )
        return values[: len(wide)]


def _gather_batch(name: str, embeddings: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What all processes saw."""
    wide, target = check_pairs(name, embeddings.detach(), target)
    if is_initialized():
        wide, target = gather_rows(wide, None), gather_rows(target, None)
    return wide, target


def _widen_memory(name: str, kept: Tensor, arriving: Tensor) -> Tensor:
    """The memory, as wide as the first embeddings that it gets."""
    if kept.shape[-1] == 0:
        kept = arriving.new_zeros(*kept.shape[:-1], arriving.shape[1])
    check_width(name, kept, arriving.shape[1])
    return kept
