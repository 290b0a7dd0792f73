"""Events of users in order of time, and leave-one-out data made of them: which item comes next?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from longtail._core.labels import NO_LABEL
from longtail._core.memory import check_memory, memory_budget
from longtail._core.suggestions import suggest
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.formats.columns import join_names
from longtail.lab.data.formats.sources import TABLE_SUFFIXES, find_parts
from longtail.lab.data.formats.table_files import open_table, read_columns
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.data.locate import PathLike, locate_path, read_bytes

__all__ = ["EVALUATE_ON", "Events", "leave_one_out", "load_events", "read_events"]

EVALUATE_ON = ("test", "validation")
"""What leave-one-out data may be tested on: the last item of each user, or the one before it."""

HELD_OUT = 2
"""Events of a user that are not trained on: one to validate, one to test."""

BYTES_PER_WORD = 120
"""What a word of a file of text takes while it is read."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Events:
    """Which items users took, in order of time."""

    users: tuple[str, ...]
    offsets: Tensor
    """[users + 1] int64; the items of user i are at offsets[i] to offsets[i + 1]."""
    items: Tensor
    """[events] int64 indices of ``item_names``."""
    item_names: tuple[str, ...]

    def histories(self, max_length: int) -> ItemSequences:
        """The last items of all users, at most ``max_length`` of each."""
        return self.sequences(torch.arange(len(self.users)), self.offsets[1:], max_length)

    def sequences(self, users: Tensor, ends: Tensor, max_length: int, asks_everywhere: bool = False) -> ItemSequences:
        """The last ``max_length`` items of ``users`` [n] before ``ends`` [n]."""
        starts = torch.maximum(self.offsets[users], ends - max_length)
        lengths = ends - starts
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        places = torch.arange(int(offsets[-1])) + (starts - offsets[:-1]).repeat_interleave(lengths)
        return ItemSequences(offsets, self.items[places], len(self.item_names), max_length, asks_everywhere)


def load_events(
    path: PathLike,
    user: str = "user",
    item: str = "item",
    time: str = "time",
    max_length: int = 50,
    evaluate_on: str = "test",
) -> Dataset:
    """Leave-one-out data from a file of events: the last item of each user is the test.

    Args:
        path: a table (``.parquet``, ``.csv`` or ``.tsv``) with a row for each event; or text with a line for each
            user: the user and then items in order of time, with spaces between. Packed as ``.gz`` too, but Parquet.
        user: the column of a table that says who.
        item: the column that says what.
        time: the column that says when; events of equal time stay in the order of the rows.
        max_length: how many of the last items a model sees.
        evaluate_on: "test", or "validation" to choose settings: the item before the last.
    """
    found = locate_path(path)
    return leave_one_out(read_events(found, user, item, time), found.name.split(".")[0], max_length, evaluate_on)


def read_events(path: PathLike, user: str = "user", item: str = "item", time: str = "time") -> Events:
    """Read a file of events; for the arguments see :func:`load_events`."""
    found = locate_path(path)
    if not found.is_file():
        raise FileNotFoundError(f"{found} was not found; name a file of events, or set LONGTAIL_DATA to its folder.")
    if found.name.endswith(TABLE_SUFFIXES):
        return _read_table(found, {"user": user, "item": item, "time": time})
    return _read_lines(found)


def leave_one_out(events: Events, name: str, max_length: int = 50, evaluate_on: str = "test") -> Dataset:
    """Sequences to train on without the last two items of each user, and one of these to test on.

    Args:
        events: of users. Those with fewer than three events are trained on alone; nothing of them is held out.
        name: of the data set.
        max_length: how many of the last items a model sees.
        evaluate_on: "test": the last item, after all that came before it; "validation": the one before the last.
            What is trained on is the same for both.

    >>> events = Events(("ann", "bob"), torch.tensor([0, 4, 6]), torch.tensor([0, 1, 2, 3, 3, 1]), tuple("abcd"))
    >>> data = leave_one_out(events, "example")
    >>> data.train.labels.tolist(), data.test.inputs.items.tolist(), data.test.labels.tolist()
    ([[1], [1]], [0, 1, 2], [3])

    Reference:
        Kang and McAuley (2018), "Self-attentive sequential recommendation", section IV.A, for the split.
    """
    if evaluate_on not in EVALUATE_ON:
        raise ValueError(f"evaluate_on must be one of {', '.join(EVALUATE_ON)}; {suggest(evaluate_on, EVALUATE_ON)}")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1. Got {max_length}.")
    lengths, ends = events.offsets.diff(), events.offsets[1:]
    is_tested = lengths > HELD_OUT
    train_ends = torch.where(is_tested, ends - HELD_OUT, ends)
    trained = torch.nonzero(train_ends - events.offsets[:-1] > 1).flatten()
    tested = torch.nonzero(is_tested).flatten()
    for part, users in (("train on", trained), ("test on", tested)):
        if len(users) == 0:
            raise ValueError(f"{name}: there must be users with four events or more to {part}. Got none.")
    inputs = events.sequences(trained, train_ends[trained] - 1, max_length, asks_everywhere=True)
    next_items = events.sequences(trained, train_ends[trained], max_length + 1)
    label_ends = ends[tested] - (1 if evaluate_on == "test" else HELD_OUT)
    test = Split(events.sequences(tested, label_ends, max_length), events.items[label_ends])
    return Dataset(name, Split(inputs, _label_places(inputs, next_items)), test, events.item_names)


def _label_places(inputs: ItemSequences, next_items: ItemSequences) -> Tensor:
    """[N, longest] the item after each one, filled up with -100; ``next_items`` have the item after the last."""
    labels = torch.full((len(inputs), int(inputs.lengths.max())), NO_LABEL)
    is_first = torch.zeros(len(next_items.items), dtype=torch.bool)
    is_first[next_items.offsets[:-1]] = True
    labels[inputs.rows, inputs.places - inputs.max_length + inputs.lengths[inputs.rows]] = next_items.items[~is_first]
    return labels


def _read_lines(path: Path) -> Events:
    """A line for each user: the user, and then items."""
    content = read_bytes(path)
    check_memory(BYTES_PER_WORD * (content.count(b" ") + content.count(b"\n")), str(path))
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text, a line for each user. Got: {error}.") from None
    users, lengths, items = [], [], []
    for number, line in enumerate(lines, start=1):
        user, *taken = line.split() or [""]
        if not taken:
            raise ValueError(f"{path}, line {number}: must be a user and then items. Got {line[:40]!r}.")
        users.append(user)
        lengths.append(len(taken))
        items += taken
    if len(set(users)) < len(users):
        again = next(user for number, user in enumerate(users) if user in users[:number])
        raise ValueError(f"{path} must have one line for each user. Got another one for {again!r}.")
    if not users:
        raise ValueError(f"{path} must have a line for each user. Got an empty file.")
    names, codes = np.unique(np.array(items), return_inverse=True)
    return _make_events(tuple(users), np.array(lengths), codes, names.tolist())


def _read_table(path: Path, columns: dict[str, str]) -> Events:
    """A row for each event."""
    budget = memory_budget()
    table = open_table(find_parts(path), budget)
    for option, column in columns.items():
        if column not in table.names:
            raise ValueError(
                f"{path}: there is no column {column!r}; name it with data.options.{option}. "
                f"Got: {join_names(table.names)}."
            )
    kinds = {field.name: field.type for field in table.schema()}
    rows = read_columns(table, list(columns.values()), kinds, budget)
    if rows.num_rows == 0:
        raise ValueError(f"{path} must have a row for each event. Got none.")
    for column in columns.values():
        if rows[column].null_count:
            raise ValueError(f"{path}: every event must have a {column!r}. Got {rows[column].null_count} without.")
    users, items = (_encode(rows[columns[part]]) for part in ("user", "item"))
    times = _to_numbers(rows[columns["time"]], f"{path}: {columns['time']!r}")
    order = np.lexsort((times, users[0]))  # stable: events of equal time stay in order
    return _make_events(tuple(users[1]), np.bincount(users[0]), items[0][order], items[1])


def _encode(column: pa.ChunkedArray) -> tuple[IntArray, list[str]]:
    """Indices, and the names that they are of."""
    values = column.combine_chunks().dictionary_encode()
    return values.indices.to_numpy(zero_copy_only=False).astype(np.int64), [
        str(v) for v in values.dictionary.to_pylist()
    ]


def _to_numbers(column: pa.ChunkedArray, name: str) -> npt.NDArray[Any]:
    if pa.types.is_temporal(column.type):
        column = pc.cast(column, pa.timestamp("us")).cast(pa.int64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError(f"{name} must be numbers or times. Got {column.type}.")
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers


def _make_events(users: tuple[str, ...], lengths: IntArray, items: IntArray, names: list[str]) -> Events:
    """Events whose items are in the order of their names, as numbers if all of them are such."""
    keys = [int(name) for name in names] if all(name.isdecimal() for name in names) else names
    order = sorted(range(len(names)), key=keys.__getitem__)
    ranks = np.empty(len(names), dtype=np.int64)
    ranks[order] = np.arange(len(names))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Events(
        users, torch.from_numpy(offsets), torch.from_numpy(ranks[items]), tuple(names[place] for place in order)
    )
