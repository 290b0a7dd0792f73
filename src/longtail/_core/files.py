"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_output", "replacing", "sync_file"]


def check_output(path: Path, overwrite: bool) -> None:
    """Raise, before any work is done, where ``path`` could not or should not be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the output must exist. Got {path}.")
    if path.is_symlink():
        raise FileExistsError(f"the output must be a regular file. Got {path}, a link to {path.readlink()}.")
    if path.is_dir():
        raise IsADirectoryError(f"the output must be a file. Got the folder {path}.")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"the output must be a regular file. Got {path}, a device, pipe or socket.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already; choose another name or overwrite it with --force.")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` when all went well, and else leaves no trace.

    The content reaches the disk before the name does. What a process that was killed left of the same file goes too.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file. Got a folder.")
    _remove_stale_parts(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        sync_file(partial)
        partial.replace(path)
        if os.name == "posix":
            _sync(path.parent, os.O_RDONLY)
    finally:
        partial.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk, so that it survives a loss of power."""
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale_parts(path: Path) -> None:
    """Remove the partial files of ``path`` whose processes are gone; this process's number was another's before."""
    start = f".{path.name}."
    for found in path.parent.iterdir():
        number = found.name.removeprefix(start).removesuffix(".partial")
        if found.name == f"{start}{number}.partial" and number.isdecimal() and not _is_running(int(number)):
            found.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether another process has this number; True where the system can't be asked."""
    if process == os.getpid():
        return False
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # someone else's
        return True
    return True
