"""CSV, Parquet, .npy and .npz files as named columns and arrays; none of them is trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from longtail.lab.data.locate import DAMAGES, read_bytes

__all__ = [
    "SUFFIXES",
    "check_names",
    "check_suffix",
    "choose_name",
    "is_table",
    "join_names",
    "list_numeric_columns",
    "read_arrays",
    "read_table",
    "restore_text",
]

SUFFIXES = (".csv", ".parquet", ".npy", ".npz")
"""What is read and written; a ``.csv`` is read packed too, as ``.csv.gz``."""

DEFAULT_BLOCK, LARGEST_BLOCK = 2**20, 2**31 - 1
"""Bytes that are parsed at a time, of which each row must fit into one."""
LARGEST_EXACT = 2.0**53
"""Up to this, float64 holds every whole number."""

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
CANONICAL_INTEGERS = r"^(0|-?[1-9][0-9]*|nan|NaN)$"
CANONICAL_FLOATS = r"^((0|-?[1-9][0-9]*)\.0|nan|NaN)$"
"""How programs write whole numbers in a column with gaps."""

# A quoted field from its first quote on; the group is empty where the closing quote is missing.
QUOTED_FIELD = re.compile(rb'(?:\A(?:\xef\xbb\xbf)?|(?<=[,\n\r]))"[^"]*+(?:""[^"]*+)*+("?)')


def check_suffix(path: Path) -> None:
    """Raise unless the file name says in which format it is."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}. Got {path.suffix!r}.")


def is_table(path: Path) -> bool:
    """Whether the file has columns, not arrays; an error where there is none or its suffix is unknown."""
    is_packed = path.name.endswith(".csv.gz")
    if not is_packed:
        check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return is_packed or path.suffix in (".csv", ".parquet")


def read_table(path: Path, reads_bools: bool = False) -> pa.Table:
    """The columns of a CSV, packed or not, or of a Parquet file. ``reads_bools``: true and false are no text."""
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.ParquetFile(path).read()
        content = read_bytes(path)
        if any(not field[1] for field in QUOTED_FIELD.finditer(content)):
            raise ValueError(f'{path}: a quote (") is not closed.')
        bools: dict[str, list[str]] = {} if reads_bools else {"true_values": [], "false_values": []}
        return _parse_csv(content, **bools)
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: this is no readable {path.suffix} file: {reason}") from error


def _parse_csv(content: bytes, **options: Any) -> pa.Table:
    """Only an empty field is missing: NA or null may be the name of a class."""
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, **options)
    for block_size in (DEFAULT_BLOCK, LARGEST_BLOCK):  # rows of very many classes need large ones
        try:
            read = pyarrow.csv.ReadOptions(block_size=min(block_size, len(content) + 1))
            return pyarrow.csv.read_csv(pa.BufferReader(content), read, parse, convert)
        except pa.ArrowInvalid as error:
            if block_size == LARGEST_BLOCK or "block" not in str(error):
                raise
    raise AssertionError("the last size returns or raises")


def restore_text(path: Path, table: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """Give whole numbers of a CSV their text back where it says more than the numbers, as 01 and 1 do.

    Args:
        path: the file.
        table: what was read from it.
        names: which columns to look at; default: all.
    """
    wanted = {*list_numeric_columns(table)} & {*(table.column_names if names is None else names)}
    if path.suffix == ".parquet" or not wanted:
        return table
    texts = _parse_csv(read_bytes(path), include_columns=[*wanted], column_types=dict.fromkeys(wanted, pa.string()))
    text_of = dict(zip(texts.column_names, texts.columns, strict=True))
    columns = [
        text_of[name] if name in wanted and _is_lossy(column, text_of[name]) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(columns, names=table.column_names)


def _is_lossy(numbers: pa.ChunkedArray, text: pa.ChunkedArray) -> bool:
    """Whether whole numbers are written otherwise than programs write them; fractions are what they are."""
    if pa.types.is_floating(numbers.type):
        is_whole = pc.or_(pc.equal(numbers, pc.floor(numbers)), pc.is_nan(numbers))
        if pc.all(is_whole).as_py() is False:
            return False
        if pc.any(pc.greater(pc.abs(numbers), LARGEST_EXACT)).as_py():
            return True
    trimmed = pc.utf8_trim_whitespace(text.drop_null())
    patterns = (CANONICAL_INTEGERS, CANONICAL_FLOATS)
    return all(pc.all(pc.match_substring_regex(trimmed, pattern)).as_py() is False for pattern in patterns)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz by name; that of an .npy, which has none, by the empty name."""
    try:
        if path.suffix == ".npy":
            # Mapping checks its size against the file before any memory is taken.
            return {"": _to_common_type(np.lib.format.open_memmap(path, mode="r"))}
        # np.load leaves a damaged file open, so it is not the one to open it.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: _to_common_type(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, MemoryError, *DAMAGES) as error:
        raise ValueError(f"{path}: this is no readable {path.suffix} file of plain arrays.") from error


def _to_common_type(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the byte order of this machine and at most 64 bits per number, which is all that others read."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_names(
    path: Path, table: pa.Table, names: Sequence[str], example: str, may_be_numbers: bool = False
) -> None:
    """Raise where columns share a name, or where a CSV lacks a row of names, so that its first sample would be lost.

    Args:
        path: the file.
        table: what it holds.
        names: the columns that may not all be numbers.
        example: what a first row could say.
        may_be_numbers: accept numbers that name classes.
    """
    filled = [name for name in names if name.strip()]
    are_numbers = bool(filled) and all(NUMBER.fullmatch(name) for name in filled)
    if path.suffix != ".parquet" and are_numbers and not (may_be_numbers and _are_class_numbers(table, names)):
        raise ValueError(
            f"{path}: the first row must name the columns. Got numbers ({join_names(filled)}); "
            f"add a first row of names: {example}."
        )
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError(f"{path}: every column must have its own name. Got {join_names(table.column_names)}.")


def _are_class_numbers(table: pa.Table, names: Sequence[str]) -> bool:
    """Whether whole numbers are above fractions, or are all numbers from 0 or 1 on."""
    chosen = set(names)
    if len(names) < 2 or len(chosen) < len(names) or not all(name.isdecimal() for name in names):
        return False
    start = int(names[0])
    if start < 2 and [int(name) for name in names] == [*range(start, start + len(names))]:
        return True
    return all(pa.types.is_floating(field.type) for field in table.schema if field.name in chosen)


def choose_name(
    path: Path, names: Iterable[str], wanted: str | None, option: str | None, usual: tuple[str, ...]
) -> str:
    """The column or array to read: the wanted one, which ``option`` names, the only one, or the one usual name."""
    names = list(names)
    if names == [""]:  # an .npy
        return ""
    if wanted is not None:
        if wanted not in names:
            raise ValueError(f"{path}: there is no column or array {wanted!r}. Got: {join_names(names)}.")
        return wanted
    known = names if len(names) == 1 else [name for name in names if name in usual]
    if len(known) != 1:
        found = join_names(names) if names else "none that fits"
        remedy = f"name it with {option}" if option else f"call it {usual[0]!r}"
        raise ValueError(f"{path}: which column or array to read is not clear; {remedy}. Got: {found}.")
    return known[0]


def list_numeric_columns(table: pa.Table) -> list[str]:
    """The names of the columns of numbers."""
    return [
        field.name for field in table.schema if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
    ]


def join_names(names: Iterable[object], most: int = 8) -> str:
    """The first names, and how many there are."""
    shown = [str(name) for name in names]
    more = f", ... ({len(shown)} in all)" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
