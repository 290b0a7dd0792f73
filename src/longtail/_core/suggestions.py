"""Tables looked up by name: an unknown name gets the nearest known one, and options get checked by signature."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

__all__ = ["check_options", "look_up", "suggest"]

Row = TypeVar("Row")


def suggest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name.

    >>> suggest("focl", ["focal", "equalized"]), suggest("x", ["focal"]), suggest("x", [])
    ("did you mean 'focal'?", 'known: focal.', 'known: none.')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}."


def look_up(table: Mapping[str, Row], name: str, where: str) -> Row:
    """The row of a table; a ValueError says ``where`` the name came from and suggests another."""
    if name not in table:
        raise ValueError(f"{where}: there is no {name!r}; {suggest(name, table)}")
    return table[name]


def check_options(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Raise if ``options`` are not keyword arguments of ``function``, or lack one that has no default."""
    parameters = inspect.signature(function).parameters
    for name in options:
        if name not in parameters:
            raise ValueError(f"{where} has no setting {name!r}; {suggest(name, parameters)}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"{where} must set {name!r}.")
