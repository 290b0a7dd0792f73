"""The line of code that uses a method."""

from __future__ import annotations

from typing import Any

from longtail.lab.report.digests.base import MethodResults
from longtail.methods.table import METHODS

__all__ = ["write_usage"]

PLAIN = ("cross_entropy", "binary_cross_entropy")


def write_usage(method: MethodResults[Any]) -> str:
    """One line of Python with the options of the runs; nothing for a plain loss, or a method of the user's own.

    Args:
        method: the runs of one method.
    """
    known = METHODS.get(method.method)
    if known is None or known.name in PLAIN:
        return ""
    prefix = "method.options."
    settings = {key.removeprefix(prefix): value for key, value in method.runs[0].settings.items() if prefix in key}
    changed = {name: value for name, value in settings.items() if value != str(known.options.get(name, value))}
    given = "".join(f", {name}={value}" for name, value in changed.items())
    if known.family == "margin":
        return f"loss = MarginCrossEntropy(margins.{known.card.__name__}(prior{given}))"
    if known.family == "weight":
        return f"loss = MarginCrossEntropy(class_weights=weights.{known.card.__name__}(prior{given}))"
    if known.adjusts_logits:
        return f"logits = {known.card.__name__}(logits, prior{given})"
    return f'plan = get_method("{known.name}").plan(prior{given})'
