"""Tables whose rows are shared out to processes, as ``torch.distributed.tensor`` shares them: by ``Shard(0)``.

Parameters themselves stay plain tensors of a process's own rows, for a DTensor has no row-sparse gradients (torch
2.13). What leaves a module or an optimizer as its state is a DTensor over the same memory: it knows the whole table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail._core import collectives

__all__ = ["RowSharding", "find_sharding", "is_row_sharded", "mark_rows"]

ATTRIBUTE = "row_sharding"
"""Of a parameter, where it has the rows of one process."""


class RowSharding(NamedTuple):
    """Which rows of a table each process of a group has: the chunks of ``torch.chunk``; the last ones may be short.

    >>> [RowSharding(5, None).rows_of(rank, size=3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """

    num_rows: int
    """Of the whole table."""
    group: Any
    """The process group; None: all processes."""

    def rows_of(self, rank: int, size: int) -> tuple[int, int]:
        """The first row of a process out of ``size``, and the one after its last."""
        length = -(-self.num_rows // size)
        return min(rank * length, self.num_rows), min((rank + 1) * length, self.num_rows)

    def own_rows(self) -> tuple[int, int]:
        """The first row of this process, and the one after its last."""
        return self.rows_of(*collectives.world(self.group))

    def wrap(self, own: Tensor) -> Tensor:
        """This process's rows [n, ...] as a DTensor of the whole table, over the same memory."""
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size([self.num_rows, *own.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._mesh(own.device.type)
        return DTensor.from_local(own.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def unwrap(self, table: Tensor) -> Tensor:
        """This process's rows of a DTensor, however it is shared out, or of a plain tensor of the whole table."""
        from torch.distributed.tensor import DTensor, Shard

        if isinstance(table, DTensor):
            own: Tensor = table.redistribute(table.device_mesh, [Shard(0)]).to_local()
            return own
        first, end = self.own_rows()
        return table[first:end] if len(table) == self.num_rows else table

    def _mesh(self, device: str) -> Any:
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        group: Any = dist.group.WORLD if self.group is None else self.group
        return DeviceMesh.from_group(group, device)


def mark_rows(parameter: nn.Parameter, sharding: RowSharding) -> None:
    """Note that a parameter has one process's rows of a table."""
    setattr(parameter, ATTRIBUTE, sharding)


def find_sharding(parameter: Tensor) -> RowSharding | None:
    """Of which table a parameter has the rows of one process; None where it is whole."""
    return getattr(parameter, ATTRIBUTE, None)


def is_row_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor whose rows are shared out to processes; False where each has all of it."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(tensor, DTensor) or all(isinstance(place, Replicate) for place in tensor.placements):
        return False
    if tuple(tensor.placements) != (Shard(0),):
        raise ValueError(
            f"sharded tensors must be shared out by rows, over one dimension of processes. Got {tensor.placements}."
        )
    return True
