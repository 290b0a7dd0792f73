"""Read the data in a pickle without running it: no import, no call, no object of a class that the file names.

A pickle is a program for a small stack machine, and ``pickle`` runs it. The files of CIFAR's python version need a
dictionary of lists, strings, numbers and byte arrays, so this machine knows the instructions that make those, treats
names of functions as names, and stops at anything else.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PlainArray", "read_plain_pickle"]


@dataclass(slots=True)
class PlainArray:
    """A NumPy array of bytes as a pickle describes it; ``array`` checks the description."""

    shape: tuple[int, ...] = ()
    raw: bytes = b""
    column_major: bool = False

    def array(self) -> npt.NDArray[np.uint8]:
        """The array; raises if its size is not that of its bytes."""
        if min(self.shape, default=0) < 0 or math.prod(self.shape) != len(self.raw):
            raise ValueError(f"an array of shape {self.shape} must have as many bytes. Got {len(self.raw)}")
        flat = np.frombuffer(self.raw, dtype=np.uint8)
        return flat.reshape(self.shape, order="F" if self.column_major else "C")


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of something a pickle would import."""

    value: str


_RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_BYTE_TYPES = {"u1", "|u1", "B", "uint8"}
_MARK = object()

_PUSH_ARGUMENT = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_PUSH_CONSTANT: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_PUSH_EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLE_SIZE = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_plain_pickle(data: bytes) -> Any:
    """The value that a pickle describes, if it is made of plain data.

    Args:
        data: the whole file.

    Returns:
        Dictionaries, lists, tuples, numbers, text, bytes and ``PlainArray``. Python 2's strings, which don't say
        whether they are text or bytes, come as text with one character a byte.

    >>> import pickle
    >>> read_plain_pickle(pickle.dumps({"labels": [3, 1]}, protocol=2))
    {'labels': [3, 1]}
    >>> read_plain_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    ValueError: it must hold plain data and byte arrays only. Got builtins print
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return _plain(stack.pop())
            _step(opcode.name, argument, stack, memo)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"it must be a complete pickle. Got {type(error).__name__}: {error}") from error
    raise ValueError("it must be a complete pickle. Got no end")  # pragma: no cover (genops raises first)


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _PUSH_ARGUMENT:
        stack.append(argument)
    elif name in _PUSH_CONSTANT:
        stack.append(_PUSH_CONSTANT[name])
    elif name in _PUSH_EMPTY:
        stack.append(_PUSH_EMPTY[name]())
    elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name in _TUPLE_SIZE:
        stack.append(tuple(_pop(stack, _TUPLE_SIZE[name])))
    elif name == "TUPLE":
        stack.append(tuple(_pop_to_mark(stack)))
    elif name == "LIST":
        stack.append(_pop_to_mark(stack))
    elif name == "DICT":
        items = _pop_to_mark(stack)
        stack.append(dict(zip(items[::2], items[1::2], strict=True)))
    elif name in ("APPEND", "APPENDS"):
        items = _pop(stack, 1) if name == "APPEND" else _pop_to_mark(stack)
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _pop(stack, 2) if name == "SETITEM" else _pop_to_mark(stack)
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name == "GLOBAL":
        stack.append(_Name(argument))
    elif name == "STACK_GLOBAL":
        stack.append(_Name(" ".join(_pop(stack, 2))))
    elif name == "REDUCE":
        function, arguments = _pop(stack, 2)
        stack.append(_meant_by_call(function, arguments))
    elif name == "BUILD":
        _describe(stack[-2], stack.pop())
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"it must hold plain data and byte arrays only. Got the instruction {name}")


def _meant_by_call(function: Any, arguments: Any) -> Any:
    """What a call to one of three known functions stands for."""
    called = function.value if isinstance(function, _Name) else repr(function)
    if called in _RECONSTRUCT:
        return PlainArray()
    if called == "_codecs encode" and arguments[1] == "latin1":  # how Python 3 writes bytes for Python 2
        return arguments[0].encode("latin-1")
    if called == "numpy dtype" and arguments[0] in _BYTE_TYPES:
        return _Name("numpy dtype")
    raise ValueError(f"it must hold plain data and byte arrays only. Got a call to {called}{arguments!r:.80}")


def _describe(target: Any, state: Any) -> None:
    """Take a shape and bytes into an array; a byte type has nothing to be told."""
    if isinstance(target, PlainArray):
        _, shape, kind, column_major, raw = state
        if kind != _Name("numpy dtype"):
            raise ValueError("arrays must be of bytes")
        target.shape = tuple(int(size) for size in shape)
        target.column_major = bool(column_major)
        target.raw = raw if isinstance(raw, bytes) else raw.encode("latin-1")
    elif target != _Name("numpy dtype"):
        raise ValueError(f"it must hold plain data and byte arrays only. Got a state for {type(target).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, _Name):
        raise ValueError(f"it must hold plain data and byte arrays only. Got {value.value}")
    return value


def _pop(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError("the stack is empty")
    items = stack[-count:]
    del stack[-count:]
    return items


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    for start in range(len(stack) - 1, -1, -1):
        if stack[start] is _MARK:
            items = stack[start + 1 :]
            del stack[start:]
            return items
    raise IndexError("the stack has no mark")
