"""Checkpoints of training with sharded rows: each process writes its own, and any number of processes reads them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from longtail._core import collectives
from longtail._core.checks import at_least
from longtail._core.shards import RowSharding, is_row_sharded
from longtail._core.tensors_file import load_tensors, pack_state, save_tensors, unpack_state
from longtail.errors import DamagedFileError

__all__ = ["ShardedCheckpoints"]

KIND, ROWS_KIND, MANIFEST = "sharded checkpoint", "rows of a sharded checkpoint", "manifest.safetensors"
BYTES_PER_FILE = 2**27
"""Of rows at most, where one row has no more: what reading and writing take beside the table itself."""
FLOATS, INTEGERS = ("float64", "float32", "float16", "bfloat16"), ("int64", "int32", "int16", "int8", "uint8", "bool")
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS + INTEGERS}
"""Of tables."""


class _Table(NamedTuple):
    """A tensor whose rows are shared out."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * max(1, torch.Size(self.shape[1:]).numel())

    def blocks(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The rows first..end in parts that fit into a file."""
        length = max(1, BYTES_PER_FILE // self.row_bytes)
        for start in range(first, end, length):
            yield start, min(start + length, end)


class _Manifest(NamedTuple):
    """What makes a folder of files a checkpoint."""

    whole: dict[str, Tensor]
    """Tensors that are not shared out."""
    tree: Any
    """Of the state, as ``unpack_state`` takes it."""
    tables: list[_Table]
    files: list[tuple[int, int, int]]
    """Number of a table, first row and the one after the last."""
    token: int
    """The same in all files of a checkpoint, and in no other."""


class ShardedCheckpoints:
    """Checkpoints of a model with sharded rows, in a folder: written by all processes, and resumed by any number.

    Args:
        folder: made if it is not there; on a file system that all processes see.
        keep: how many of the newest checkpoints stay.
        group: the process group; default: all processes. Without one it is a single process with all rows.

    A state is what ``state_dict`` gives: of a ``SampledLinear``, of a row-wise optimizer, of the rest of the model.
    DTensors that are shared out by rows (``Shard(0)``, so FSDP2's too) are written by the processes that have them,
    some rows per file; all else is the first process's. Files are safetensors with a checksum, without pickle.
    The manifest is written last, and a checkpoint without one does not exist: a process may be killed at any moment,
    and the checkpoint before stays. If one process fails, all raise.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> checkpoints = ShardedCheckpoints(folder.name)
    >>> checkpoints.save(100, {"weight": torch.eye(2), "seed": 3})
    >>> checkpoints.latest(), checkpoints.load()
    (100, {'weight': tensor([[1., 0.],
            [0., 1.]]), 'seed': 3})
    >>> folder.cleanup()
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, group: Any = None) -> None:
        self.folder, self.group = Path(folder), group
        self.keep = at_least(keep, 1, "ShardedCheckpoints: keep")

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; None where there is none. All processes get one answer."""
        steps = self._steps() if self._world()[0] == 0 else []
        newest = self._share(steps[-1] if steps else -1)
        return None if newest < 0 else newest

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, by all processes together. What a broken one of this step left is removed first.

        Args:
            step: its name, and by what the newest is found.
            state: of tensors, numbers, text, None, and dictionaries, lists and tuples of these.
        """
        folder = self._folder(at_least(step, 0, "ShardedCheckpoints.save: step"))
        rank, size = self._world()
        tensors, tree = pack_state(state)
        sharded = {name: tensor for name, tensor in tensors.items() if is_row_sharded(tensor)}
        whole = {name: _local(tensor) for name, tensor in tensors.items() if name not in sharded}
        tables = [_Table(name, tuple(tensor.shape), tensor.dtype) for name, tensor in sharded.items()]
        token = self._share(secrets.randbits(62))
        self._together(rank == 0, lambda: _make_anew(folder))
        self._together(True, lambda: self._write_rows(folder, tables, sharded, token))
        files = [
            (number, start, end)
            for number, table in enumerate(tables)
            for process in range(size)
            for start, end in table.blocks(*self._sharding(table).rows_of(process, size))
        ]
        described = [[table.name, list(table.shape), str(table.dtype).removeprefix("torch.")] for table in tables]
        metadata = {"tree": tree, "tables": described, "files": files, "token": token, "step": step}
        self._together(rank == 0, lambda: self._finish(folder, whole, metadata))

    def load(self, step: int | None = None, into: Mapping[str, Any] | None = None) -> Any:
        """The state of a checkpoint, with tables shared out to the processes that there are now.

        Args:
            step: which one; default: the newest.
            into: a state whose tables have the memory to read into, such as ``{"head": head.state_dict()}``: what it
                names is read in place, so that no second copy is made. Nothing else of it is used.

        Returns:
            The state as it was saved; tables are DTensors of this number of processes, or plain tensors without a
            process group.
        """
        step = self.latest() if step is None else step
        if step is None:
            raise FileNotFoundError(f"{self.folder} must have a complete checkpoint. Got none.")
        folder = self._folder(step)
        given = pack_state(into or {})[0]
        found: dict[str, Any] = {}

        def read() -> None:
            manifest = _read_manifest(folder)
            tensors = dict(manifest.whole)
            for number, table in enumerate(manifest.tables):
                tensors[table.name] = self._read_table(folder, manifest, number, given.get(table.name))
            found["state"] = unpack_state(tensors, manifest.tree)

        self._together(True, read)
        return found["state"]

    def _write_rows(self, folder: Path, tables: list[_Table], sharded: Mapping[str, Any], token: int) -> None:
        for number, table in enumerate(tables):
            first, end = self._own_rows(table)
            own = sharded[table.name].to_local()
            if len(own) != end - first:
                raise ValueError(
                    f"{table.name} must be shared out over the processes of the checkpoint's group, "
                    f"{end - first} rows for this one. Got {len(own)}."
                )
            for start, stop in table.blocks(first, end):
                metadata = {"token": token, "table": table.name, "rows": [start, stop]}
                rows = {"rows": own[start - first : stop - first]}
                save_tensors(folder / _file_name(number, start, stop), rows, ROWS_KIND, metadata)

    def _finish(self, folder: Path, whole: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        missing = [_file_name(*file) for file in metadata["files"] if not (folder / _file_name(*file)).exists()]
        if missing:
            raise FileNotFoundError(
                f"{folder} must be on a file system that all processes see. The first one does not see {missing[0]}."
            )
        save_tensors(folder / MANIFEST, whole, KIND, metadata)
        for step in self._steps()[: -self.keep]:
            _remove(self._folder(step))

    def _read_table(self, folder: Path, manifest: _Manifest, number: int, given: Tensor | None) -> Tensor:
        """This process's rows of a table, read from the files that have some of them, into what is given."""
        table = manifest.tables[number]
        first, end = self._own_rows(table)
        shape = (end - first, *table.shape[1:])
        own = torch.empty(shape, dtype=table.dtype) if given is None else _local(given)
        if tuple(own.shape) != shape or own.dtype != table.dtype:
            raise ValueError(
                f"{table.name} must be {table.dtype} {table.shape} as in {folder}. Got {own.dtype} and "
                f"{tuple(own.shape)} for the rows {first}..{end - 1}."
            )
        for place, start, stop in manifest.files:
            low, high = max(start, first), min(stop, end)
            if place == number and low < high:
                rows = _read_rows(folder / _file_name(number, start, stop), table, (start, stop), manifest.token)
                own[low - first : high - first].copy_(rows[low - start : high - start])
        return self._sharding(table).wrap(own) if self._is_grouped() else own

    def _sharding(self, table: _Table) -> RowSharding:
        return RowSharding(table.shape[0], self.group)

    def _own_rows(self, table: _Table) -> tuple[int, int]:
        return self._sharding(table).rows_of(*self._world())

    def _folder(self, step: int) -> Path:
        return self.folder / f"step-{step:012d}"

    def _steps(self) -> list[int]:
        names = [path.parent.name.removeprefix("step-") for path in self.folder.glob(f"step-*/{MANIFEST}")]
        return sorted(int(name) for name in names if name.isdecimal())

    def _is_grouped(self) -> bool:
        return collectives.is_initialized()

    def _world(self) -> tuple[int, int]:
        return collectives.world(self.group) if self._is_grouped() else (0, 1)

    def _share(self, number: int) -> int:
        """The first process's number."""
        if self._is_grouped():
            shared = torch.tensor(number, device=collectives.group_device())
            dist.broadcast(shared, group_src=0, group=self.group)
            number = int(shared)
        return number

    def _together(self, takes_part: bool, action: Callable[[], None]) -> None:
        """Do something where this process takes part, and wait for the others; raise if any of them failed."""
        problem: Exception | None = None
        try:
            if takes_part:
                action()
        except Exception as error:
            problem = error
        if self._is_grouped():
            device = torch.device(collectives.group_device())
            has_failed = collectives.largest(int(problem is not None), self.group, device)
            if has_failed and problem is None:
                raise OSError(f"{self.folder}: another process failed; its own message says why.")
        if problem is not None:
            raise problem


def _local(tensor: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def _make_anew(folder: Path) -> None:
    _remove(folder)
    folder.mkdir(parents=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, first what makes it one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _file_name(number: int, start: int, end: int) -> str:
    return f"table-{number:03d}-rows-{start:012d}-{end:012d}.safetensors"


def _read_rows(path: Path, table: _Table, rows: tuple[int, int], token: int) -> Tensor:
    tensors, note = load_tensors(path, ROWS_KIND)
    found = tensors.get("rows", torch.empty(0))
    is_right = note == {"token": token, "table": table.name, "rows": list(rows)}
    if not is_right or found.shape != (rows[1] - rows[0], *table.shape[1:]) or found.dtype != table.dtype:
        raise DamagedFileError(f"{path} must have rows {rows[0]}..{rows[1] - 1} of this checkpoint's {table.name}.")
    return found


def _read_manifest(folder: Path) -> _Manifest:
    """What a checkpoint has, if its files are there and as large as the tables that they are to fill."""
    whole, metadata = load_tensors(folder / MANIFEST, KIND)
    try:
        tables = [
            _Table(str(name), tuple(map(int, shape)), DTYPES[dtype]) for name, shape, dtype in metadata["tables"]
        ]
        files = sorted((int(number), int(start), int(end)) for number, start, end in metadata["files"])
        manifest = _Manifest(whole, metadata["tree"], tables, files, metadata["token"])
    except (KeyError, TypeError, ValueError):
        raise DamagedFileError(f"{folder / MANIFEST} must list tables and files. Got something else.") from None
    for number, table in enumerate(tables):
        end_of_last = num_bytes = 0
        for start, end in [file[1:] for file in files if file[0] == number]:
            if start != end_of_last or end <= start:
                raise DamagedFileError(f"{folder} must have each row of {table.name} once. Row {end_of_last} is not.")
            num_bytes += (folder / _file_name(number, start, end)).stat().st_size
            end_of_last = end
        needed = table.row_bytes * table.shape[0]
        if end_of_last != table.shape[0] or num_bytes < needed:
            raise DamagedFileError(
                f"{folder} must have {table.shape[0]} rows of {table.name}, {needed} bytes. "
                f"Got {end_of_last} rows and {num_bytes} bytes."
            )
    return manifest
