"""One process at a time in a run folder. The system lets go of the lock when a process dies, however it dies."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["FolderInUse", "last_sign_of_life", "lock_folder", "show_life"]

LOCK, OWNER = ".lock", ".lock.owner"


class FolderInUse(OSError):
    """Another process has the run folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a run folder, which is made if it is not there, or raise ``FolderInUse`` at once.

    A folder in which nothing was left is removed again, with those above it that were made for it.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUse(
            f"{folder} is in use by {_read_owner(folder)}; wait for it, stop it, or use another folder."
        ) from None
    try:
        (folder / OWNER).write_text(f"process {os.getpid()} on {platform.node()}")
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        is_empty = [path.name for path in folder.iterdir()] == [LOCK]
        if is_empty:  # else the file stays: whoever waits for a lock must not be left with one on a deleted file
            (folder / LOCK).unlink()
        lock.release()
        if is_empty:
            with suppress(OSError):  # someone else has put something in it
                for path in made or [folder]:
                    path.rmdir()


def show_life(folder: Path) -> None:
    """Leave a sign that the training in this folder moves; whoever waits for it looks at the time of it."""
    with suppress(OSError):
        os.utime(folder / OWNER)


def last_sign_of_life(folder: Path) -> float:
    """When the training in this folder last moved, in seconds since 1970; 0 where none has begun."""
    try:
        return (folder / OWNER).stat().st_mtime
    except OSError:
        return 0.0


def _read_owner(folder: Path) -> str:
    try:
        return (folder / OWNER).read_text() or "another process"
    except OSError:
        return "another process"
