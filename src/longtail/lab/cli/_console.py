"""What the screens share: the console, tables, numbers in percent, and text that is safe to print."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table

__all__ = [
    "degrade_streams",
    "make_table",
    "percents",
    "print_screen",
    "printable",
    "say",
    "say_written",
    "show_progress",
    "substitute",
]

SUBSTITUTES = {"±": "+-", "…": "...", "┤": "|", "│": "|", "–": "-", "−": "-"} | dict.fromkeys("▁▂▃▄", "_")
"""What is printed where a terminal's encoding has no such letter; of all others it is "#"."""


def printable(text: str, keep: str = "") -> str:
    r"""Text of others as it can be shown: what could steer a terminal, or turn text around, is escaped.

    Args:
        text: such as the name of a class.
        keep: characters to leave, such as line ends.

    >>> printable("a\x1b[2Jb"), printable("a\nb"), printable("é")
    ('a\\x1b[2Jb', 'a\\nb', 'é')
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def print_screen(screen: RenderableType) -> None:
    """Print a screen as it is: square brackets are shapes and ranges here, not markup."""
    Console(markup=False, highlight=False).print(_Escaped(screen))


def say(text: str) -> None:
    """Print a line."""
    typer.echo(printable(text))


def say_written(paths: Iterable[Path]) -> None:
    """Print which files were written."""
    say(f"Wrote {', '.join(str(path) for path in paths)}.")


def make_table(*headings: str) -> Table:
    """A plain table; all columns but wordy ones are numbers, which are never cut: where room is short, words wrap."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    words = {"method", "family", "what it is", "because", "try", "group", "class", "consistent", ""}
    for heading in headings:
        is_wordy = heading in words
        table.add_column(
            heading,
            justify="left" if is_wordy else "right",
            no_wrap=not is_wordy or heading == "try",
            overflow="fold",
        )
    return table


def percents(*values: float | None) -> list[str]:
    """Shares as percentages; what is not known is a dash."""
    return ["-" if value is None or value != value else f"{value:.1%}" for value in values]


@contextmanager
def show_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, which a function that is called with how much more is done moves; nothing elsewhere."""
    from rich.progress import Progress  # of no use to most commands

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.advance(task, done)


def degrade_streams() -> None:
    """Print something like it for a letter that the terminal's encoding lacks, instead of failing."""
    codecs.register_error("longtail", substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="longtail")


def substitute(error: UnicodeError) -> tuple[str, int]:
    """A handler for letters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing: Sequence[str] = error.object[error.start : error.end]
    return "".join(SUBSTITUTES.get(letter, "#") for letter in missing), error.end


class _Escaped:
    """A screen without control characters, whatever names it has."""

    def __init__(self, screen: RenderableType) -> None:
        self.screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.screen, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)
