"""Methods from a user's own code: ``my_methods:focal_with_a_twist`` or ``path/to/file.py:focal_with_a_twist``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from longtail.methods.method import Method
from longtail.methods.plan import Phase, Plan
from longtail.prior import ClassPrior

__all__ = ["is_reference", "load_method", "make_method"]


T = TypeVar("T")


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
        made = run_own_code(f"method {name!r}", lambda: build(prior, **options))
        if isinstance(made, nn.Module):
            return Plan((Phase(made),))
        if not isinstance(made, Plan):
            raise TypeError(f"{name} must return a Plan or a loss module. Got {type(made).__name__}.")
        return made

    required = [
        parameter.name
        for parameter in list(inspect.signature(build).parameters.values())[1:]
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if required:
        raise ValueError(
            f"method {name!r}: every argument after the prior needs a default. {required[0]!r} has none."
        )
    return Method(name, "custom", build, plan, accepts_multilabel=True)


class OwnCodeError(ValueError):
    """Code that is not the library's has failed."""


def run_own_code(what: str, call: Callable[[], T]) -> T:
    """Call someone's own code; what looks like a fault of the library's is said to be that code's."""
    try:
        return call()
    except (NameError, AttributeError, AssertionError, SyntaxError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if len(frames) > 1 else ""
        line = "" if isinstance(error, SyntaxError) else line  # says it itself
        raise OwnCodeError(f"{what} failed: {type(error).__name__}: {error}{line}.") from error


def load_method(reference: str) -> Method:
    """The method at ``module:function`` or ``file.py:function``. This runs the code of that module."""
    place, _, function = reference.rpartition(":")
    try:
        module = run_own_code(
            f"method {reference!r}",
            lambda: _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place),
        )
    except OwnCodeError:
        raise
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
