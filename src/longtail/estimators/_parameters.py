"""What the parameters of an estimator may be: declared once per estimator, and checked by one function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "ANYTHING",
    "FLAG",
    "FOLDS",
    "FUNCTION",
    "INTEGER",
    "NOTHING",
    "TARGET",
    "WHOLE",
    "Constraint",
    "Constraints",
    "check_parameters",
    "number",
    "text",
]


class Constraint(NamedTuple):
    """One kind of value that a parameter may have."""

    words: str
    """What comes after "must be" in a message."""
    accepts: Callable[[Any], bool]
    """Whether a value is of this kind."""


Constraints = Mapping[str, tuple[Constraint, ...]]
"""For each parameter of an estimator, the kinds of values it may have."""


def check_parameters(estimator: Any, constraints: Constraints) -> None:
    """Raise unless every parameter of the estimator is of one of its kinds; each must be declared."""
    parameters = estimator.get_params(deep=False)
    if set(parameters) != set(constraints):
        raise TypeError(f"constraints must be declared for {sorted(parameters)}. Got {sorted(constraints)}.")
    for name, value in parameters.items():
        if not any(kind.accepts(value) for kind in constraints[name]):
            words = " or ".join(kind.words for kind in constraints[name])
            raise ValueError(f"{name} must be {words}. Got {value!r}.")


def number(
    low: float, high: float = math.inf, *, excludes_low: bool = False, includes_high: bool = False
) -> Constraint:
    """A finite number from ``low`` up to ``high``."""

    def accepts(value: Any) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            return False
        is_above = float(value) > low if excludes_low else float(value) >= low
        return is_above and (float(value) <= high if includes_high else float(value) < high)

    words = f"a finite number {'above' if excludes_low else 'of at least'} {low:g}"
    if math.isfinite(high):
        words += f" and {'at most' if includes_high else 'below'} {high:g}"
    return Constraint(words, accepts)


def text(*values: str) -> Constraint:
    """One of these words."""
    return Constraint(" or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


ANYTHING = Constraint("anything", lambda value: True)
"""For what is checked where it is used, such as ``random_state``."""
NOTHING = Constraint("None", lambda value: value is None)
FLAG = Constraint("True or False", lambda value: isinstance(value, bool | np.bool_))
FUNCTION = Constraint("a function", callable)
INTEGER = Constraint("an integer", lambda value: isinstance(value, Integral))
FOLDS = Constraint("at least 2 folds", lambda value: not isinstance(value, Integral) or int(value) >= 2)
"""For ``cv``: a number of folds, None, or splits of any kind."""
WHOLE = Constraint("a whole number of at least 1", _is_whole)
TARGET = Constraint(
    "'uniform', 'train' or probabilities, as an array or by label",
    lambda value: not isinstance(value, str) or value in ("uniform", "train"),
)
"""For ``target``, the prior to predict for."""
