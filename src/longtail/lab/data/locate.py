"""Finding and reading files that others made: where they should be, and how much memory they may ask for."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import zipfile
import zlib
from pathlib import Path

from longtail._core.memory import check_memory, memory_budget

__all__ = [
    "DAMAGES",
    "GZIP_EXPANSION",
    "PathLike",
    "data_root",
    "first_folder",
    "locate_path",
    "not_found",
    "published_file",
    "read_bytes",
]

PathLike = str | os.PathLike[str]

READ_SIZE = 2**22
"""Bytes to unpack at a time."""

DAMAGES = (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error, RuntimeError)
"""What reading an ``.npz`` may raise that is damaged, cut off, or encrypted (``RuntimeError``), beside ValueError."""

GZIP_EXPANSION = 1032
"""Deflate never makes more than this many bytes out of one, so no honest header claims more."""


def data_root(root: PathLike | None = None) -> Path:
    """The folder that data sets are in: ``root``, else the variable LONGTAIL_DATA, else ``~/.cache/longtail``."""
    if root is not None:
        return Path(root)
    return Path(os.environ.get("LONGTAIL_DATA") or Path.home() / ".cache" / "longtail")


def locate_path(path: PathLike) -> Path:
    """The path itself if it exists or is absolute; else below the folder of data sets."""
    given = Path(path)
    return given if given.exists() or given.is_absolute() else data_root() / given


def first_folder(root: Path, names: tuple[str, ...]) -> Path | None:
    """The first of these folders that exists."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def not_found(name: str, root: Path, files: str) -> FileNotFoundError:
    """An error that says in one line which files to put where."""
    return FileNotFoundError(
        f"{name} was not found: put {files} into {root}, or set LONGTAIL_DATA to the folder that holds it."
    )


def published_file(name: str, root: Path, relative: str) -> Path:
    """The file of a published set, packed or not."""
    for path in (root / relative, root / f"{relative}.gz"):
        if path.is_file():
            return path
    raise not_found(name, root, f"{relative} or {relative}.gz")


def read_bytes(path: Path, budget: int | None = None) -> bytes:
    """All bytes of a file, unpacked if its name ends in ``.gz``; no more than the budget of memory has room for."""
    limit = memory_budget() if budget is None else budget
    check_memory(path.stat().st_size, str(path), limit)
    if path.suffix != ".gz":
        return path.read_bytes()
    content = io.BytesIO()
    try:
        with gzip.open(path) as file:
            while block := file.read(READ_SIZE):
                content.write(block)
                check_memory(2 * content.tell(), f"{path}, unpacked,", limit)
        return content.getvalue()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a complete gzip file. Got: {error}.") from error
