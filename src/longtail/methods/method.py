"""Method: a name, a card, and a function from a prior and options to a plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from longtail._core.suggestions import suggest
from longtail.margins import is_consistent
from longtail.methods.plan import Plan
from longtail.prior import ClassPrior

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A named composition of the library's parts.

    >>> from longtail import get_method
    >>> method = get_method("logit_adjusted")
    >>> method.options, method.plan(ClassPrior.from_counts([9, 1]), tau=0.5).margins.negative.shape
    ({'tau': 1.0}, torch.Size([2]))
    """

    name: str
    family: str
    card: Callable[..., Any]
    """The function whose docstring is the method card."""
    build: Callable[..., Plan]
    """prior, **options -> plan."""
    variant: str = ""
    """What sets it apart from another method with the same card."""
    accepts_multilabel: bool = False
    """Whether its losses take multi-label targets, [N, C] of 0 and 1, as well as class indices."""
    accepts_label_lists: bool = False
    """Whether its losses take multi-label targets as lists, [N, L], and rank labels: for very many of them."""

    @property
    def summary(self) -> str:
        """The card's first sentence, and the variant."""
        sentence = (inspect.getdoc(self.card) or "").partition("\n")[0]
        return f"{sentence.removesuffix('.')}; here {self.variant}." if self.variant else sentence

    @cached_property
    def options(self) -> dict[str, Any]:
        """The names and defaults of what can be set."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def plan(self, prior: ClassPrior, **options: Any) -> Plan:
        """What to do for this prior; an option that the method does not have is an error."""
        for name in options:
            if name not in self.options:
                raise ValueError(f"{self.name} has no option {name!r}; {suggest(name, self.options)}")
        return self.build(prior, **options)

    @cached_property
    def is_posthoc(self) -> bool:
        """Whether it leaves training alone and acts on the trained model."""
        return self._example.is_posthoc

    @cached_property
    def adjusts_logits(self) -> bool:
        """Whether it adjusts the logits of the trained model, so that adjusting them again would correct twice."""
        return self._example.adjust_logits is not None

    @cached_property
    def _example(self) -> Plan:
        return self.build(ClassPrior.from_counts([2, 1]))

    def is_consistent(self, prior: ClassPrior, **options: Any) -> bool | None:
        """Whether the method is Fisher consistent for the balanced error; None: not known."""
        plan = self.plan(prior, **options)
        if not plan.is_margin_loss:
            return plan.is_consistent
        return is_consistent(plan.margins, plan.class_weights, prior)
