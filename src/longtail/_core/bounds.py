"""Bounds of numbers, declared with the field that has them: ``epochs: Annotated[int, Bounds(1)] = 30``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple, get_args, get_type_hints

__all__ = ["Bounds", "check_bounds"]


class Bounds(NamedTuple):
    """Finite numbers from ``low`` to ``high``; of a list, each of them."""

    low: float
    high: float = math.inf
    is_low_excluded: bool = False
    is_high_excluded: bool = False

    def allow(self, value: float) -> bool:
        """Whether a number is finite and within the bounds."""
        is_above = value > self.low if self.is_low_excluded else value >= self.low
        is_below = value < self.high if self.is_high_excluded else value <= self.high
        return math.isfinite(value) and is_above and is_below

    def __str__(self) -> str:
        low = f"{'above' if self.is_low_excluded else 'at least'} {self.low:g}"
        if math.isinf(self.high):
            return f"{low} and finite"
        return f"{low} and {'below' if self.is_high_excluded else 'at most'} {self.high:g}"


def check_bounds(settings: Any, where: str) -> None:
    """Raise for a field of a dataclass whose value is out of the bounds that its annotation has.

    >>> Bounds(0, 1).allow(2.0), str(Bounds(0, 1, is_high_excluded=True))
    (False, 'at least 0 and below 1')
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = getattr(settings, field.name)
        for bounds in _find_bounds(hints[field.name]):
            for number in value if isinstance(value, tuple) else (value,):
                if not bounds.allow(number):
                    raise ValueError(f"{where}.{field.name} must be {bounds}. Got {number!r}.")


def _find_bounds(hint: Any) -> Iterator[Bounds]:
    return (part for part in get_args(hint) if isinstance(part, Bounds))
