"""Tables looked up by name: an unknown name gets the nearest known one, and options get checked by signature."""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["WANTED", "check_option_types", "check_options", "look_up", "suggest"]

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
    check_option_types(function, options, where)


LARGEST = 2**63 - 1
"""Whole numbers beyond it are no sizes, and fit into no tensor."""

WANTED: Mapping[Any, str] = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def check_option_types(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Raise for an option that is not of its parameter's type, or a number that is not finite.

    >>> def draw(size: int, rate: float = 0.5, names: Sequence[str] | None = None) -> None: ...
    >>> check_option_types(draw, {"size": 3, "rate": 1, "names": ["a"]}, "options")
    >>> check_option_types(draw, {"size": True}, "options")
    Traceback (most recent call last):
        ...
    ValueError: options.size must be a whole number. Got True.
    """
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # of someone's own function
        return
    for name, value in options.items():
        if name in hints and not _fits(value, hints[name]):
            raise ValueError(f"{where}.{name} must be {_describe_hint(hints[name])}. Got {value!r}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of TOML is of a type; of types that TOML does not have it may be."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    if get_origin(hint) in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    return not isinstance(value, bool | int | float) or get_origin(hint) is None


def _describe_hint(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        parts = dict.fromkeys(_describe_hint(part) for part in get_args(hint) if part is not type(None))
        return " or ".join(parts)
    if get_origin(hint) in (Sequence, list, tuple):
        return f"a list, each {_describe_hint(get_args(hint)[0])}"
    return WANTED.get(hint, "text")
