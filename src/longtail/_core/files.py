"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_output", "replacing"]


def check_output(path: Path, overwrite: bool) -> None:
    """Raise, before any work is done, where ``path`` could not or should not be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the output must exist. Got {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"the output must be a file. Got the folder {path}.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already; choose another name or overwrite it with --force.")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` when all went well, and else leaves no trace."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
