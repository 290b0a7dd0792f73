"""Methods from a user's own code: ``my_methods:focal_with_a_twist`` or ``path/to/file.py:focal_with_a_twist``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from longtail.methods.method import Method
from longtail.methods.plan import Phase, Plan
from longtail.prior import ClassPrior

__all__ = ["is_reference", "load_method", "make_method"]


def is_reference(name: str) -> bool:
    """Whether a method's name points at code: ``module:function``."""
    return ":" in name


def make_method(name: str, build: Callable[..., Plan | nn.Module]) -> Method:
    """A method from a function: prior, **options -> a plan, or a loss to train with from start to end.

    Args:
        name: how to call it.
        build: its keyword arguments with defaults become options, its docstring the card.

    >>> from longtail import MarginCrossEntropy, margins
    >>> def half_adjusted(prior, tau=0.5):
    ...     "Half of logit adjustment."
    ...     return MarginCrossEntropy(margins.logit_adjusted(prior, tau))
    >>> method = make_method("half_adjusted", half_adjusted)
    >>> method.summary, method.options, len(method.plan(ClassPrior.from_counts([9, 1])).phases)
    ('Half of logit adjustment.', {'tau': 0.5}, 1)
    """

    @functools.wraps(build)
    def plan(prior: ClassPrior, **options: Any) -> Plan:
        made = build(prior, **options)
        if isinstance(made, nn.Module):
            return Plan((Phase(made),))
        if not isinstance(made, Plan):
            raise TypeError(f"{name} must return a Plan or a loss module. Got {type(made).__name__}.")
        return made

    return Method(name, "custom", build, plan, accepts_multilabel=True)


def load_method(reference: str) -> Method:
    """The method at ``module:function`` or ``file.py:function``. This runs the code of that module."""
    place, _, function = reference.rpartition(":")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(
            f"method {reference!r} must be module:function or file.py:function. Got: {error}."
        ) from error
    build = getattr(module, function, None)
    if not callable(build):
        raise ValueError(f"method {reference!r}: {place} has no function {function!r}.")
    return make_method(reference, build)


def _load_file(path: Path) -> ModuleType:
    name = f"longtail_methods_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the file look for it here
    spec.loader.exec_module(module)
    return module
