"""What travels between processes, with gradients where rows of a head are sharded.

All processes compute the same loss, the mean over the samples of all of them. A process's part of a total therefore
gets its gradient locally, and an embedding gets the sum of what all processes say about it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "common_seed",
    "gather_everywhere",
    "group_device",
    "gather_parts",
    "gather_samples",
    "gather_rows",
    "is_initialized",
    "largest",
    "num_processes",
    "sum_parts",
    "world",
    "process_rank",
    "mean_over_processes",
]


def is_initialized() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def world(group: Any) -> tuple[int, int]:
    """This process's rank in the group, and the group's size."""
    return dist.get_rank(group), dist.get_world_size(group)


def num_processes() -> int:
    """How many processes there are: 1 without a process group."""
    return dist.get_world_size() if is_initialized() else 1


def largest(value: int, group: Any, device: torch.device) -> int:
    """The largest of the processes' values."""
    shared = torch.tensor(value, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return int(shared)


def common_seed(generator: torch.Generator | None, group: Any, device: torch.device) -> int:
    """One seed for all processes, drawn by the first of them."""
    seed = torch.randint(2**31, (), generator=generator).to(device)
    dist.broadcast(seed, group_src=0, group=group)
    return int(seed)


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """The rows [N, ...] of all processes, one process after the other; each may have another number of them.

    The gradient of a row is the sum over processes, times their number: averaged over processes, as data-parallel
    training does, it is the gradient of the mean over all samples.
    """
    if rows.requires_grad:
        return _GatherRows.apply(rows, group)  # type: ignore[no-any-return, no-untyped-call]
    return _gather(rows, group)[0]


def gather_samples(rows: Tensor) -> Tensor:
    """The rows [N, ...] of all processes, for a loss that every process computes of all of them.

    Where all have equally many, they come in turn, the first of each process, then the second of each: as samplers
    deal a batch out, so that it has the order that it has in one process.

    Its gradient needs no communication: every process has that of all rows, and keeps its own, times the number of
    processes, so that the average over processes, as data-parallel training takes it, is the gradient of that loss.
    """
    return _GatherSamples.apply(rows, None)  # type: ignore[no-any-return, no-untyped-call]


def gather_everywhere(rows: Tensor) -> Tensor:
    """The rows [N, ...] of all processes, without gradients; without a process group the rows themselves."""
    return _gather(rows.detach().to(group_device()), None)[0].to(rows.device) if is_initialized() else rows


def gather_parts(part: Tensor, group: Any) -> Tensor:
    """[R, ...] the processes' parts, equal in shape. The gradient is that of this process's part."""
    return _GatherParts.apply(part, group)  # type: ignore[no-any-return, no-untyped-call]


def sum_parts(part: Tensor, group: Any) -> Tensor:
    """The sum of the processes' parts. The gradient is passed on as it is."""
    return _SumParts.apply(part, group)  # type: ignore[no-any-return, no-untyped-call]


def _gather(rows: Tensor, group: Any) -> tuple[Tensor, list[int]]:
    size = torch.tensor([len(rows)], device=rows.device)
    gathered_sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered_sizes, size, group=group)
    sizes = [int(size) for size in gathered_sizes]
    padding = [0, 0] * (rows.ndim - 1) + [0, max(sizes) - len(rows)]
    padded = F.pad(rows.detach(), padding).contiguous()
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)]), sizes


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        gathered, sizes = _gather(rows, group)
        rank = dist.get_rank(group)
        ctx.group, ctx.own = group, slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.own] * dist.get_world_size(ctx.group), None


class _GatherSamples(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        gathered, sizes = _gather(rows, group)
        rank, ctx.size = world(group)
        if len(set(sizes)) > 1:
            ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            return gathered
        ctx.own = slice(rank, None, ctx.size)
        return gathered.view(ctx.size, sizes[0], *rows.shape[1:]).transpose(0, 1).reshape(gathered.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0][ctx.own] * ctx.size, None


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        ctx.rank = dist.get_rank(group)
        gathered = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, part.contiguous(), group=group)
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0][ctx.rank], None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def process_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """How many processes there are and which one this is: as given, or else the process group's answer."""
    if num_replicas is None and rank is None:
        return (dist.get_world_size(), dist.get_rank()) if is_initialized() else (1, 0)
    if num_replicas is None or rank is None or not 0 <= rank < num_replicas:
        raise ValueError(
            f"rank must be in 0..num_replicas - 1, and both be given or neither. Got {rank=}, {num_replicas=}."
        )
    return num_replicas, rank


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of all processes' values, without gradients; without a process group the value itself."""
    if not is_initialized():
        return value
    total = value.detach().clone().to(group_device())
    dist.all_reduce(total)
    return (total / dist.get_world_size()).to(value.device)


def group_device() -> str:
    """Where tensors must be to travel between processes."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"  # NCCL knows no other
