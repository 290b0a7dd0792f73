"""FileBatches: batches from files, of which each process reads its own parts, resumable at any step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core import collectives
from longtail._core.checks import at_least
from longtail._core.labels import NO_LABEL
from longtail._core.random import mix_seed
from longtail._core.sparse_chunks import (
    COLUMNS,
    Chunk,
    check_parquet,
    join_chunks,
    make_chunk,
    parse_columns,
    select_rows,
)
from longtail._core.sparse_lines import Lines, Part, Sizes, parse_lines
from longtail._core.sparse_parts import BLOCK, LARGEST_INDEX, parse_header

__all__ = ["FileBatches", "SparseBatch"]


class SparseBatch(NamedTuple):
    """This process's samples of one step."""

    columns: Tensor
    """[K] features that are not 0, sample by sample."""
    values: Tensor
    """[K] float32, of each of them."""
    offsets: Tensor
    """[n + 1] where each sample's features begin: ``F.embedding_bag(columns, vectors, offsets, mode="sum",
    per_sample_weights=values, include_last_offset=True)``."""
    target: Tensor
    """[n, L] labels, filled up with -100, as ``SampledLinear`` takes them."""


class FileBatches:
    r"""Endless batches from files that need not fit on one machine: each process reads its own parts of them.

    Args:
        path: a text file of the extreme-classification repository, a Parquet file, or a folder of them with columns
            of lists ``labels``, ``features`` and ``values``.
        batch_size: samples per step, of all processes together; a multiple of ``num_parts``.
        num_parts: into how many parts samples are shared out, which follow each other in the files; a multiple of the
            number of processes. A step takes equally many samples from each part.
        block_size: samples of a text file that are read together. In every pass over a part its blocks come in a new
            order, and the samples of a block too. In Parquet a block is a row group: write small ones.
        seed: of these orders.
        num_replicas: how many processes there are; default: what the process group says.
        rank: which of them this is; default: what the process group says.

    Which samples a step has depends on ``num_parts`` and ``seed`` and not on the number of processes: training that
    was stopped resumes at any step, also with fewer or more processes, and reads no more than it uses. A process goes
    through the bytes of its parts once, for the places of lines; Parquet files know theirs.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> path = Path(folder.name) / "tiny.txt"
    >>> _ = path.write_text("4 3 2\n0 0:1\n1 1:1\n0,1 2:1\n1 0:1 2:1\n")
    >>> batches = FileBatches(path, batch_size=2, num_parts=2)
    >>> batch = next(batches.start_at(0))
    >>> batch.target.shape[0], batch.offsets.shape
    (2, torch.Size([3]))
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int,
        *,
        num_parts: int = 1,
        block_size: int = 2**14,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        can_ask = num_replicas is None or num_replicas == 1
        self.num_replicas, self.rank = collectives.process_rank(num_replicas, rank)
        self.num_parts, self.seed = at_least(num_parts, 1, "FileBatches: num_parts"), seed
        self.batch_size = at_least(batch_size, 1, "FileBatches: batch_size")
        if num_parts % self.num_replicas or batch_size % num_parts:
            raise ValueError(
                "FileBatches: num_parts must be a multiple of the number of processes, and batch_size one of "
                f"num_parts. Got {num_parts} parts, {self.num_replicas} processes and {batch_size} samples."
            )
        own = num_parts // self.num_replicas
        self._own_parts = range(self.rank * own, (self.rank + 1) * own)
        source = _open(Path(path))
        self._blocks = {part: source.find_blocks(part, num_parts, block_size) for part in self._own_parts}
        self._source = source.check(self._count() if can_ask else None, self._own_parts)

    def start_at(self, step: int) -> Iterator[SparseBatch]:
        """This process's batches, endlessly, from a step on."""
        share = self.batch_size // self.num_parts
        readers = [self._read(part, share, at_least(step, 0, "FileBatches: step")) for part in self._own_parts]
        while True:
            yield _make_batch(join_chunks([next(reader) for reader in readers]))

    def _read(self, part: int, size: int, step: int) -> Iterator[Chunk]:
        """So many samples of a part per step: of one pass after the other."""
        blocks = self._blocks[part]
        if not blocks:
            raise ValueError(f"FileBatches: part {part} of {self.num_parts} has no samples; use fewer parts.")
        epoch, skipped = divmod(step * size, sum(block.num_samples for block in blocks))
        held: list[Chunk] = []
        num_held = 0
        while True:
            for number in _shuffle(len(blocks), self.seed, epoch, part):
                if skipped >= blocks[number].num_samples:
                    skipped -= blocks[number].num_samples
                    continue
                order = _shuffle(blocks[number].num_samples, self.seed, epoch, part, int(number) + 1)[skipped:]
                chunk, skipped = select_rows(self._source.read(blocks[number]), order), 0
                held.append(chunk)
                num_held += len(order)
                if num_held >= size:
                    pool, start = join_chunks(held), 0
                    while num_held - start >= size:
                        yield select_rows(pool, np.arange(start, start + size))
                        start += size
                    held, num_held = [select_rows(pool, np.arange(start, num_held))], num_held - start
            epoch += 1

    def _count(self) -> list[int]:
        """How many samples each part has, as the processes tell each other."""
        own = [sum(block.num_samples for block in self._blocks[part]) for part in self._own_parts]
        counts = torch.tensor(own) if self.num_replicas == 1 else collectives.gather_everywhere(torch.tensor(own))
        return [int(count) for count in counts]


class _Lines(NamedTuple):
    """Lines of a text file that are read together."""

    start: int
    """The first byte."""
    end: int
    """The byte after the last."""
    num_samples: int
    part: int
    first_line: int
    """How many lines of the part come before."""


class _Rows(NamedTuple):
    """Rows of a Parquet file's row group that are read together."""

    path: Path
    group: int
    first_row: int
    num_samples: int


class _Source(Protocol):
    def find_blocks(self, part: int, num_parts: int, block_size: int) -> list[Any]: ...

    def check(self, counts: list[int] | None, own_parts: range) -> _Source: ...

    def read(self, block: Any) -> Chunk: ...


def _open(path: Path) -> _Source:
    if path.is_dir() or path.suffix == ".parquet":
        paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"{path} must have files that end with .parquet. Got none.")
        return _ParquetSource(paths)
    if path.suffix == ".gz":
        raise ValueError(f"FileBatches: {path} must be unpacked, for parts of it are read. Got a packed file.")
    with path.open("rb") as file:
        return _TextSource(path, parse_header(path, file.readline(256)), file.tell(), {})


class _TextSource(NamedTuple):
    path: Path
    sizes: Sizes
    start: int
    """Where the samples begin."""
    first_lines: dict[int, int]
    """Of parts, the number of their first line, where that is known."""

    def find_blocks(self, part: int, num_parts: int, block_size: int) -> list[_Lines]:
        """Blocks of whole lines between two places that divide the file into parts of equally many bytes."""
        with self.path.open("rb") as file:
            size = _find_end(file)
            start, end = (
                _next_line(file, self.start, self.start + (size - self.start) * place // num_parts)
                for place in (part, part + 1)
            )
            blocks: list[_Lines] = []
            num_lines, first = 0, start
            for line_ends in _find_lines(file, start, min(end, size)):
                for place in range(block_size - 1 - num_lines % block_size, len(line_ends), block_size):
                    stop = int(line_ends[place])
                    blocks.append(_Lines(first, stop, block_size, part, len(blocks) * block_size))
                    first = stop
                num_lines += len(line_ends)
            left = num_lines - len(blocks) * block_size
            if left:
                blocks.append(_Lines(first, min(end, size), left, part, len(blocks) * block_size))
        return blocks

    def check(self, counts: list[int] | None, own_parts: range) -> _TextSource:
        """With the lines that parts begin at; raises where there are not as many samples as the first line says."""
        if counts is None:
            return self
        if sum(counts) != self.sizes.samples:
            raise ValueError(
                f"{self.path} must have {self.sizes.samples} samples, as its first line says. Got {sum(counts)}; "
                "the file is cut off, or its first line is wrong."
            )
        return self._replace(first_lines={part: sum(counts[:part]) for part in own_parts})

    def read(self, block: _Lines) -> Chunk:
        with self.path.open("rb") as file:
            file.seek(block.start)
            content = file.read(block.end - block.start)
        first_line = self.first_lines.get(block.part, 0) + block.first_line + 2
        end = b"" if content.endswith(b"\n") else b"\n"
        part = parse_lines(Lines(self.path, content + end, first_line), self.sizes)
        if len(part.labels_per_line) != block.num_samples:
            raise ValueError(f"{self.path} must not change while it is read. Got another number of lines.")
        return make_chunk(part, self.sizes.features, self.sizes.labels)


class _ParquetSource(NamedTuple):
    paths: list[Path]

    def find_blocks(self, part: int, num_parts: int, block_size: int) -> list[_Rows]:
        """What row groups have of the rows of a part; parts have equally many rows."""
        from pyarrow import parquet

        groups = []
        for path in self.paths:
            metadata = parquet.read_metadata(path)
            check_parquet(path, metadata)
            groups += [
                (path, number, metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)
            ]
        total = sum(num_rows for *_, num_rows in groups)
        first, end = total * part // num_parts, total * (part + 1) // num_parts
        blocks, start = [], 0
        for path, number, num_rows in groups:
            low, high = max(first, start), min(end, start + num_rows)
            if low < high:
                blocks.append(_Rows(path, number, low - start, high - low))
            start += num_rows
        return blocks

    def check(self, counts: list[int] | None, own_parts: range) -> _ParquetSource:
        return self

    def read(self, block: _Rows) -> Chunk:
        from pyarrow import parquet

        with parquet.ParquetFile(block.path) as file:
            table = file.read_row_group(block.group, columns=COLUMNS).slice(block.first_row, block.num_samples)
        parts = [parse_columns(block.path, batch) for batch in table.to_batches()]
        joined = Part(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        return make_chunk(joined, LARGEST_INDEX, LARGEST_INDEX)


def _find_end(file: BinaryIO) -> int:
    """The byte after the last line that is not blank."""
    size = file.seek(0, os.SEEK_END)
    while size:
        start = max(0, size - BLOCK)
        file.seek(start)
        content = file.read(size - start).rstrip()
        if content:
            return min(start + len(content) + 1, size)
        size = start
    return 0


def _next_line(file: BinaryIO, first: int, place: int) -> int:
    """Where the first line begins that begins at a place or after it; the first of all at ``first``."""
    if place <= first:
        return first
    file.seek(place - 1)
    file.readline()
    return file.tell()


def _find_lines(file: BinaryIO, start: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
    """Where lines end between two places, some at a time; the last one may lack its end."""
    file.seek(start)
    while start < end:
        block = np.frombuffer(file.read(min(BLOCK, end - start)), dtype=np.uint8)
        found = np.flatnonzero(block == ord("\n")) + start + 1
        start += len(block)
        if start == end and (not len(found) or found[-1] != end):
            found = np.append(found, end)
        yield found


def _shuffle(size: int, *seeds: int) -> npt.NDArray[np.int64]:
    """0 .. size - 1 in random order."""
    order: npt.NDArray[np.int64] = torch.randperm(
        size, generator=torch.Generator().manual_seed(mix_seed(*seeds))
    ).numpy()
    return order


def _make_batch(chunk: Chunk) -> SparseBatch:
    features, labels = chunk
    counts = np.diff(labels.indptr)
    target = np.full((len(counts), max(1, int(counts.max(initial=0)))), NO_LABEL, dtype=np.int64)
    target[np.arange(target.shape[1]) < counts[:, None]] = labels.indices
    parts: list[Any] = [features.indices.astype(np.int64), features.data, features.indptr.astype(np.int64), target]
    return SparseBatch(*(torch.from_numpy(part) for part in parts))
