"""Rows of an experiment in a file, which is complete after each row: what is there need not be made again."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from longtail.lab.reproduce._writing import csv_text, write_files
from longtail.lab.reproduce.experiment import MissingRow, Outcome, Say, Summary

__all__ = ["Row", "RowFile", "RowFormat", "check_settings", "conclude", "make_rows"]

NAME = "rows.csv"
SETTINGS = "settings.json"

Result = TypeVar("Result")
Key = tuple[str, ...]
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RowFormat(Generic[Result]):
    """How a result becomes lines of a file, and how these become a result."""

    key_columns: tuple[str, ...]
    """What tells rows apart."""
    to_lines: Callable[[Result], Lines]
    """Other columns -> values; all lines have the same columns."""
    from_lines: Callable[[Key, Sequence[Mapping[str, str]]], Result] | None = None
    """None where a result is more than its lines: then it is made again, from the run folder it has."""


@dataclass(frozen=True)
class Row(Generic[Result]):
    """A row to be made."""

    key: tuple[Any, ...]
    make: Callable[[], Result]

    @property
    def name(self) -> str:
        """For messages."""
        return ", ".join(map(str, self.key))


class RowFile(Generic[Result]):
    """The rows of a folder. Rows of other calls stay in the file, after those of this one."""

    def __init__(self, folder: Path, form: RowFormat[Result], order: Sequence[tuple[Any, ...]]) -> None:
        self.path, self.form = folder / NAME, form
        found: dict[Key, list[dict[str, str]]] = {}
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                for line in csv.DictReader(file):
                    found.setdefault(tuple(line.pop(name, "") for name in form.key_columns), []).append(line)
        self._places = {_to_text(key): place for place, key in enumerate(order)}
        self._lines: dict[Key, Lines] = dict(found)
        self._found = found

    def get(self, key: tuple[Any, ...]) -> Result | None:
        """The result that the file holds of this row; None if it holds none, or not all of it."""
        lines = self._found.get(_to_text(key))
        if lines is None or self.form.from_lines is None:
            return None
        return self.form.from_lines(_to_text(key), lines)

    def put(self, key: tuple[Any, ...], result: Result) -> None:
        """Add a row, and write the file."""
        self._lines[_to_text(key)] = self.form.to_lines(result)
        ranked = sorted(self._lines, key=lambda one: self._places.get(one, len(self._places)))
        columns = list(self._lines[_to_text(key)][0])
        lines = [[*one, *(line.get(name, "") for name in columns)] for one in ranked for line in self._lines[one]]
        write_files(self.path.parent, {self.path.name: csv_text([*self.form.key_columns, *columns], lines)})


def make_rows(
    rows: Sequence[Row[Result]], form: RowFormat[Result], folder: Path, say: Say
) -> tuple[list[Result], list[MissingRow]]:
    """Make the rows that the folder does not hold, one after the other, and write each when it is made.

    Returns:
        The results in order, and the rows that could not be made: one that fails does not stop the others.
    """
    file = RowFile(folder, form, [row.key for row in rows])
    results: list[Result] = []
    missing: list[MissingRow] = []
    for done, row in enumerate(rows):
        say(done, len(rows), row.name)
        result = file.get(row.key)
        if result is None:
            try:
                result = row.make()
            except Exception as error:  # whatever one row died of, the others are made
                reason = " ".join(str(error).split()) or type(error).__name__
                missing.append(MissingRow(row.name, reason))
                continue
            file.put(row.key, result)
        results.append(result)
    say(len(rows), len(rows), "")
    return results, missing


def conclude(
    results: Sequence[Result],
    missing: Sequence[MissingRow],
    folder: Path,
    summarize: Callable[[Sequence[Result]], Sequence[Summary]],
    write: Callable[[Sequence[Result]], Sequence[Path]],
) -> Outcome:
    """Summaries of the rows that there are; what else is written, once no row is missing."""
    if not results:
        return Outcome([], [], missing)
    written = [folder / NAME, *([] if missing else write(results))]
    return Outcome(summarize(results), written, missing)


def check_settings(folder: Path, options: Any) -> None:
    """Raise where the folder holds rows of other settings; else note there which these are."""
    fields = [field for field in dataclasses.fields(options) if not field.metadata["adds_rows"]]
    wanted = {field.name: getattr(options, field.name) for field in fields}
    path = folder / SETTINGS
    if (folder / NAME).is_file() and path.is_file():
        held = json.loads(path.read_text(encoding="utf-8"))
        if held != wanted:
            raise ValueError(
                f"{folder} holds rows with {_say_settings(held)}. Got {_say_settings(wanted)}; "
                "choose another --output."
            )
    write_files(folder, {SETTINGS: json.dumps(wanted, indent=2) + "\n"})


def _say_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _to_text(key: tuple[Any, ...]) -> Key:
    return tuple("" if part is None else str(part) for part in key)
