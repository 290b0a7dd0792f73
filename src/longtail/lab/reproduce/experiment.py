"""What an experiment is: options in, rows and a summary out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Experiment", "MissingRow", "Outcome", "Say", "Summary", "add_option"]

Say = Callable[[int, int, str], None]
"""Told how many rows are done, of how many, and what is going on."""


@dataclass(frozen=True)
class Summary:
    """A table for the screen. The first column is words, the others are numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """What the numbers are."""

    def drop_empty_columns(self) -> Summary:
        """The same for readers: without columns in which no row has anything, such as those of a paper's values.

        >>> Summary(("row", "paper", "here"), [("a", "", "1"), ("b", "", "2")]).drop_empty_columns().headings
        ('row', 'here')
        """
        kept = [place for place in range(len(self.headings)) if not place or any(row[place] for row in self.rows)]
        headings, *rows = (tuple(row[place] for place in kept) for row in (self.headings, *self.rows))
        return dataclasses.replace(self, headings=headings, rows=rows)


@dataclass(frozen=True)
class MissingRow:
    """A row that could not be made."""

    name: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What an experiment came to."""

    summaries: Sequence[Summary]
    written: Sequence[Path]
    missing: Sequence[MissingRow] = ()
    """A later call tries them again."""


@dataclass(frozen=True)
class Experiment:
    """What a module of the table of experiments has."""

    reference: str
    options: type[Any]
    """A frozen dataclass with a default for every field, made by ``add_option``."""
    run: Callable[[Any, Path, Say], Outcome]
    """options, folder, say -> what came of it. Rows that the folder holds are not made again."""


def add_option(
    default: Any, help: str, *, minimum: int | None = None, flag: str | None = None, adds_rows: bool = False
) -> Any:
    """A field of an experiment's options.

    Args:
        default: its value unless given.
        help: what it is, in a sentence.
        minimum: the least that is allowed.
        flag: its name on the command line; None: as the field's.
        adds_rows: it only says how many rows there are, so that rows of other values stay as they are.
    """
    metadata = {"help": help, "minimum": minimum, "flag": flag, "adds_rows": adds_rows}
    return dataclasses.field(default=default, metadata=metadata)
