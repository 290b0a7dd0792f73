"""What tells a run's data from others: a digest of all numbers in memory, and of the names of files that are not."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Rows, Split
from longtail.lab.data.formats.image_files import ImageFiles
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.data.sparse_rows import SparseRows

__all__ = ["DataChanged", "check_same_data", "digest_data"]

CHUNK_BYTES, BLOCK_BYTES = 1 << 24, 1 << 15
LOOKED_AT = 256
"""Files of images whose sizes are asked for, spread evenly; asking for all would take as long as listing them."""


class DataChanged(ValueError):
    """The data are not those that a run was trained on."""


def digest_data(data: Dataset) -> str:
    """A digest of the training and the test split, and of the class names.

    All labels and all inputs in memory count: the CRC-32 of the sums of blocks of 32 KiB. A sum notices any number
    that changes, and is as fast as memory, so this costs a few percent of loading; a digest of every byte would
    cost a quarter. What only moves within a block, with its label, goes unnoticed. Of images in files, their number
    and names count, and the sizes of some.

    >>> from longtail.lab.data.sets.builtin import moons
    >>> digest_data(moons()) == digest_data(moons()), digest_data(moons()) == digest_data(moons(seed=1))
    (True, False)
    """
    parts = [str(part) for split in (data.train, data.test) for part in _describe_split(split)]
    names = "\0".join(data.class_names).encode("utf-8", "surrogatepass")
    return hashlib.sha256("\n".join([*parts, str(zlib.crc32(names))]).encode()).hexdigest()[:32]


def check_same_data(digest: str, stored: object, where: Path) -> None:
    """Raise unless a run's stored digest is that of the data at hand."""
    if stored != digest:
        raise DataChanged(
            f"{where}: the data have changed since this run was made (digest {digest}, not {stored}); "
            "bring the old data back, use another folder, or train it again with --restart."
        )


def _describe_split(split: Split) -> Iterator[object]:
    labels = split.labels.indices() if split.labels.is_sparse else split.labels
    yield _describe_tensor(labels)
    yield tuple(split.labels.shape)
    yield from _describe_inputs(split.inputs)


def _describe_inputs(inputs: Tensor | Rows) -> Iterator[object]:
    if isinstance(inputs, Tensor):
        yield _describe_tensor(inputs)
    elif isinstance(inputs, SparseRows):
        yield inputs.num_columns
        yield from map(_describe_tensor, (inputs.offsets, inputs.columns, inputs.values))
    elif isinstance(inputs, ItemSequences):
        yield inputs.input_shape
        yield from map(_describe_tensor, (inputs.offsets, inputs.items))
    elif isinstance(inputs, ImageFiles):
        yield inputs.input_shape
        yield zlib.crc32("\0".join(Path(path).name for path in inputs.paths).encode("utf-8", "surrogateescape"))
        step = -(-len(inputs.paths) // LOOKED_AT)
        yield [Path(path).stat().st_size for path in inputs.paths[::step]]
    else:
        raise TypeError(f"{type(inputs).__name__} has no digest yet; add it to {__name__}.")


def _describe_tensor(tensor: Tensor) -> tuple[object, ...]:
    """Type, shape and checksum of the values, a chunk of rows at a time: a turned tensor is not copied as a whole."""
    rows = tensor.flatten() if tensor.ndim < 2 else tensor
    per_chunk = max(1, CHUNK_BYTES // max(1, rows[:1].nbytes))
    value = 0
    for start in range(0, len(rows), per_chunk):
        chunk = rows[start : start + per_chunk]
        raw = chunk.contiguous().flatten().view(torch.uint8)
        raw = raw.clone() if raw.data_ptr() % 8 or raw.storage_offset() % 8 else raw
        whole = len(raw) // BLOCK_BYTES * BLOCK_BYTES
        sums = raw[:whole].view(torch.int64).view(-1, BLOCK_BYTES // 8).sum(dim=1)
        value = zlib.crc32(raw[whole:].numpy().data, zlib.crc32(sums.numpy().data, value))
    return str(tensor.dtype), tuple(tensor.shape), value
