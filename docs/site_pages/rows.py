"""Measured rows, from the CSV files in ``benchmarks/results``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str]
"""One line of a file of rows, by column."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def group_rows(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows by what they have in ``columns``, in the order of the file."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def group_by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each method."""
    return {method: members for (method,), members in group_rows(rows, "method").items()}
