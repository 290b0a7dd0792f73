"""Which columns of a table, or arrays of a file, are meant, and whether they have names at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa

from longtail.lab.data.formats.table_files import TableFile

__all__ = ["check_names", "choose_name", "is_numeric", "join_names"]

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def check_names(table: TableFile, names: Sequence[str], example: str, may_be_numbers: bool = False) -> None:
    """Raise where columns share a name, or where a CSV lacks a row of names, so that its first sample would be lost.

    Args:
        table: what has the columns.
        names: those that may not all be numbers.
        example: what a first row could say.
        may_be_numbers: accept numbers that name classes.
    """
    filled = [name for name in names if name.strip()]
    are_numbers = table.has_text_header and bool(filled) and all(NUMBER.fullmatch(name) for name in filled)
    if are_numbers and not (may_be_numbers and _are_class_numbers(table, names)):
        raise ValueError(
            f"{table.name}: the first row must name the columns. Got numbers ({join_names(filled)}); "
            f"add a first row of names: {example}."
        )
    if len(set(table.names)) < len(table.names):
        raise ValueError(f"{table.name}: every column must have its own name. Got {join_names(table.names)}.")


def _are_class_numbers(table: TableFile, names: Sequence[str]) -> bool:
    """Whether whole numbers are above fractions, or are all numbers from 0 or 1 on."""
    chosen = set(names)
    if len(names) < 2 or len(chosen) < len(names) or not all(name.isdecimal() for name in names):
        return False
    start = int(names[0])
    if start < 2 and [int(name) for name in names] == [*range(start, start + len(names))]:
        return True
    return all(pa.types.is_floating(field.type) for field in table.schema() if field.name in chosen)


def choose_name(
    where: str, names: Iterable[str], wanted: str | None, option: str | None, usual: tuple[str, ...]
) -> str:
    """The column or array to read: the wanted one, which ``option`` names, the only one, or the one usual name."""
    names = list(names)
    if names == [""]:  # an .npy
        return ""
    if wanted is not None:
        if wanted not in names:
            spaced = [name for name in names if name.strip() == wanted]
            remedy = f" The name has spaces around it: {spaced[0]!r}." if spaced else ""
            raise ValueError(f"{where}: there is no column or array {wanted!r}. Got: {join_names(names)}.{remedy}")
        return wanted
    known = names if len(names) == 1 else [name for name in names if name in usual]
    if len(known) != 1:
        found = join_names(names) if names else "none that fits"
        remedy = f"name it with {option}" if option else f"call it {usual[0]!r}"
        raise ValueError(f"{where}: which column or array to read is not clear; {remedy}. Got: {found}.")
    return known[0]


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of this type has numbers."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def join_names(names: Iterable[object], most: int = 8) -> str:
    """The first names, and how many there are."""
    shown = [str(name) for name in names]
    more = f", ... ({len(shown)} in all)" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
