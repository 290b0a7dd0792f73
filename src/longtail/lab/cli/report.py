"""``longtail report``: one page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail._core.files import check_output
from longtail.lab.cli._console import say_written
from longtail.lab.cli._options import Force

__all__ = ["report"]

MARK = b'<meta name="generator" content="longtail '
START = 4096
"""Bytes of a page that have the mark."""


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders with such in them, at any depth.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading; default: what the recipe says of itself.")] = "",
    force: Force = False,
) -> None:
    """Write one page about runs: labels, methods, classes, groups, calibration, margins, training."""
    from longtail.lab.report import read_runs, write_report

    check_output(output, overwrite=force or _is_report(output))
    write_report(read_runs(folders), output, title)
    say_written([output])


def _is_report(path: Path) -> bool:
    """Whether this command wrote the file: then it may write it again."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK in file.read(START)
