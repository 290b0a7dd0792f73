"""Arrays of .npy and .npz files: what they claim to be is read first, and only what is asked for is unpacked."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from longtail._core.memory import check_memory, memory_budget
from longtail.lab.data.formats.sources import Part, find_parts
from longtail.lab.data.locate import DAMAGES, PathLike

__all__ = ["ArrayFile", "Header", "open_arrays", "read_header"]

Array = npt.NDArray[Any]
BATCH = 2**25
"""Bytes to read at a time."""
HEADER_DAMAGES = (ValueError, TypeError, ArithmeticError, SyntaxError, TokenError, MemoryError, RecursionError)
"""What reading a header may raise, which is a literal of Python."""


class Header(NamedTuple):
    """What an array says of itself, in agreement with the size of its file."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    offset: int
    """Where its content begins."""

    @property
    def num_bytes(self) -> int:
        """Of its content."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_arrays(path: PathLike, budget: int | None = None) -> ArrayFile:
    """The arrays of a file on this machine."""
    return ArrayFile(find_parts(Path(path))[0], memory_budget() if budget is None else budget)


def read_header(file: BinaryIO, file_size: int) -> Header:
    """The header at the start of an array; an error where it says another size than the file's."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header = Header(*read(file), offset=file.tell())
    is_wrong = min(header.shape, default=0) < 0 or header.offset + header.num_bytes != file_size
    if is_wrong and not header.dtype.hasobject:
        raise ValueError(
            f"it must have the size its header says, {header.shape} of {header.dtype}, and has {file_size} bytes"
        )
    return header


class ArrayFile:
    """The arrays of an .npz by name; that of an .npy, which has none, by the empty name.

    Args:
        part: the file.
        budget: bytes that an array may take.
    """

    def __init__(self, part: Part, budget: int) -> None:
        self.part, self.budget = part, budget
        self.headers: dict[str, Header] = {}
        with self._reading(), part.open() as raw:
            if part.suffix == ".npy":
                self.headers[""] = read_header(cast(BinaryIO, raw), part.size)
                return
            with zipfile.ZipFile(cast(BinaryIO, raw)) as archive:
                for member in archive.infolist():
                    if member.filename.endswith(".npy"):
                        with archive.open(member) as file:
                            header = read_header(cast(BinaryIO, file), member.file_size)
                        self.headers[member.filename.removesuffix(".npy")] = header

    def header(self, name: str) -> Header:
        """What an array says of itself; an error where it has Python objects, which are never read."""
        header = self.headers[name]
        with self._reading():
            if header.dtype.hasobject:
                raise ValueError(f"{name or 'it'} has Python objects, which are not read.")
        return header

    @property
    def name(self) -> str:
        """What a message calls the file."""
        return self.part.name

    def read(self, name: str) -> Array:
        """A whole array, if it fits into the budget."""
        check_memory(self.header(name).num_bytes, self._describe(name), self.budget)
        with self._open(name) as file:
            return _to_common_type(np.lib.format.read_array(file, allow_pickle=False))

    def batches(self, name: str) -> Iterator[Array]:
        """An array some rows at a time."""
        header = self.header(name)
        row_bytes = header.num_bytes // max(1, header.shape[0])
        num_rows = max(1, BATCH // max(1, row_bytes))
        check_memory(row_bytes, f"a row of {self._describe(name)}", self.budget)
        if header.is_fortran and len(header.shape) > 1:
            whole = self.read(name)
            yield from (whole[start : start + num_rows] for start in range(0, len(whole), num_rows))
            return
        with self._open(name) as file:
            file.read(header.offset)
            for start in range(0, header.shape[0], num_rows):
                shape = (min(num_rows, header.shape[0] - start), *header.shape[1:])
                content = file.read(math.prod(shape) * header.dtype.itemsize)
                yield _to_common_type(np.frombuffer(content, header.dtype).reshape(shape))

    def _describe(self, name: str) -> str:
        return f"{self.name}: {name}" if name else self.name

    @contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        """The file of an array, at its start."""
        with self._reading(), self.part.open() as raw:
            if self.part.suffix == ".npy":
                yield cast(BinaryIO, raw)
                return
            with zipfile.ZipFile(cast(BinaryIO, raw)) as archive, archive.open(f"{name}.npy") as file:
                yield cast(BinaryIO, file)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever a damaged file raises as one line."""
        try:
            yield
        except (*HEADER_DAMAGES, KeyError, OSError, NotImplementedError, *DAMAGES) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self.name}: this is no readable {self.part.suffix} file of plain arrays: {reason}"
            ) from error


def _to_common_type(array: Array) -> Array:
    """The array in the byte order of this machine and at most 64 bits per number, which is all that others read."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
