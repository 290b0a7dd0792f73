"""Rows of an experiment in CSV files, complete after each row. Processes that share a file wait for each other."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from longtail.lab.reproduce._writing import csv_text, write_files

__all__ = ["POINT_COLUMNS", "ROW_COLUMNS", "Ledger", "Line", "read_lines"]

Line = Mapping[str, str]
"""One line of a file, by column."""
Key = tuple[str, ...]

ROW_COLUMNS = ("recipe", "table", "row", "seed", "quantity", "value", "paper", "note", "protocol")
POINT_COLUMNS = ("recipe", "figure", "panel", "row", "series", "seed", "x", "y")


def read_lines(path: Path) -> list[Line]:
    """The lines of a CSV file; none if there is none."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Ledger:
    """A file of lines. Those of one key belong together; the lines of other calls stay.

    Args:
        path: the file; it need not be there.
        columns: of the file.
        key: the columns that tell rows apart.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path, self.columns, self.key = path, tuple(columns), tuple(key)

    def read(self) -> list[Line]:
        """All lines; a column that the file does not have, as it was written by an earlier version, is empty."""
        return [{name: line.get(name, "") for name in self.columns} for line in read_lines(self.path)]

    def has(self, *key: object) -> bool:
        """Whether the file has lines of this key."""
        return tuple(map(str, key)) in {self._key_of(line) for line in self.read()}

    def put(self, lines: Iterable[Mapping[str, object]], order: Mapping[Key, int]) -> None:
        """Add lines in place of those of the same key; lines are sorted by ``order`` of their first key columns."""
        fresh = [{name: _to_text(line.get(name, "")) for name in self.columns} for line in lines]
        if not fresh:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            replaced = {self._key_of(line) for line in fresh}
            kept = [line for line in self.read() if self._key_of(line) not in replaced]
            everything = sorted([*kept, *fresh], key=lambda line: self._rank(line, order))
            text = csv_text(self.columns, [[line[name] for name in self.columns] for line in everything])
            write_files(self.path.parent, {self.path.name: text.replace("\r\n", "\n")})

    def _key_of(self, line: Line) -> Key:
        return tuple(line[name] for name in self.key)

    def _rank(self, line: Line, order: Mapping[Key, int]) -> tuple[int, str]:
        *names, seed = self._key_of(line)
        return order.get(tuple(names), len(order)), seed.zfill(9)


def _to_text(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)
