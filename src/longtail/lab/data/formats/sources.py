"""Where data are: files, folders of parts, and URLs of object stores, as a list of parts to read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.fs

__all__ = [
    "SUFFIXES",
    "Part",
    "Progress",
    "Source",
    "check_suffix",
    "find_file_system",
    "find_parts",
    "is_table",
    "is_url",
]

Source = str | Path
Progress = Callable[[int], None]
"""Called with how many bytes of the parts have been read since the last call."""

SUFFIXES = (".csv", ".parquet", ".npy", ".npz")
"""What is read and written; a ``.csv`` is read packed too, as ``.csv.gz``."""
TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass(frozen=True)
class Part:
    """One file, on this machine or in an object store."""

    name: str
    """What a message calls it."""
    path: str
    filesystem: pa.fs.FileSystem
    size: int
    """Bytes."""

    @property
    def suffix(self) -> str:
        """``.csv``, ``.parquet``, ``.npy``, ``.npz`` or another; that of a packed file without its ``.gz``."""
        return PurePosixPath(self.path.removesuffix(".gz")).suffix

    def open(self) -> pa.NativeFile:
        """The file, to read anywhere in it."""
        return self.filesystem.open_input_file(self.path)

    @contextmanager
    def stream(self, progress: Progress | None = None) -> Iterator[Callable[[int], bytes]]:
        """A function that reads the next so many bytes, unpacked where the name ends in ``.gz``."""
        with self.open() as raw:
            counted = cast(BinaryIO, _Counted(raw, progress) if progress else raw)
            if not self.path.endswith(".gz"):
                yield counted.read
                return
            try:
                with gzip.open(counted) as file:
                    yield file.read
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise ValueError(f"{self.name} must be a complete gzip file. Got: {error}.") from error


class _Counted:
    """A file that tells how much of it is read."""

    def __init__(self, file: Any, progress: Progress) -> None:
        self.file, self.progress = file, progress

    def read(self, size: int = -1) -> bytes:
        content: bytes = self.file.read(size)
        self.progress(len(content))
        return content


def is_url(source: Source) -> bool:
    """Whether this names a file system, such as ``s3://bucket/folder``.

    >>> is_url("s3://bucket/labels.parquet"), is_url("labels.parquet")
    (True, False)
    """
    return isinstance(source, str) and "://" in source


def find_file_system(url: str) -> tuple[pa.fs.FileSystem, str]:
    """The file system of a URL, such as S3 or Google's, and the path in it; credentials are where its tools look."""
    found: tuple[pa.fs.FileSystem, str] = pa.fs.FileSystem.from_uri(url)
    return found


def check_suffix(path: Path) -> None:
    """Raise unless the file name says in which format it is."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}. Got {path.suffix!r}.")


def is_table(parts: Sequence[Part]) -> bool:
    """Whether the parts have columns, not arrays."""
    return parts[0].suffix in TABLE_SUFFIXES


def find_parts(sources: Source | Sequence[Source]) -> list[Part]:
    """The parts of a table, in order, or the file of an array.

    Args:
        sources: files, folders whose tables are the parts, at any depth and in the order of their names, or URLs of
            either that pyarrow has a file system for. Names that begin with a dot or an underscore are no parts.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    parts = [part for source in given for part in _find(source)]
    kinds = {part.suffix for part in parts}
    if len(kinds) > 1:
        raise ValueError(f"all parts must have one format. Got {', '.join(sorted(kinds))}.")
    if len(parts) > 1 and not is_table(parts):
        raise ValueError(f"only tables may have several parts. Got {parts[0].name} and {parts[1].name}.")
    return parts


def _find(source: Source) -> list[Part]:
    try:
        filesystem, path = find_file_system(str(source)) if is_url(source) else (pa.fs.LocalFileSystem(), str(source))
        found = filesystem.get_file_info(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{source}: {str(error).splitlines()[0]}") from error
    if found.type == pa.fs.FileType.Directory:
        return _find_in_folder(source, filesystem, path)
    if not path.endswith((*TABLE_SUFFIXES, *SUFFIXES)):
        readable = ", ".join(dict.fromkeys([*TABLE_SUFFIXES, *SUFFIXES]))
        raise ValueError(f"{path}: the suffix must be one of {readable}. Got {''.join(Path(path).suffixes[-2:])!r}.")
    if not found.is_file:
        raise FileNotFoundError(f"{source}: there is no such file.")
    return [Part(str(source), path, filesystem, found.size or 0)]


def _find_in_folder(source: Source, filesystem: pa.fs.FileSystem, folder: str) -> list[Part]:
    parts = []
    for found in filesystem.get_file_info(pa.fs.FileSelector(folder, recursive=True)):
        relative = found.path.removeprefix(folder).lstrip("/")
        is_hidden = any(name.startswith((".", "_")) for name in relative.split("/"))
        if found.is_file and not is_hidden and relative.endswith(TABLE_SUFFIXES):
            parts.append(Part(f"{str(source).rstrip('/')}/{relative}", found.path, filesystem, found.size or 0))
    if not parts:
        raise FileNotFoundError(
            f"{source}: there is no such file, but a folder without tables ({', '.join(TABLE_SUFFIXES)})."
        )
    return sorted(parts, key=lambda part: part.path)
