"""The ways to sample negatives that experiments on real data compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from longtail import negatives
from longtail.lab.reproduce.explanation import TABLE_2, WEIGHTINGS
from longtail.negatives.distributions import Distribution
from longtail.negatives.weightings import Weighting
from longtail.prior import ClassPrior

__all__ = ["COLORS", "DISTRIBUTIONS", "SCHEMES", "Scheme"]

DISTRIBUTIONS: Mapping[str, Callable[[ClassPrior], Distribution]] = {
    "uniform": lambda prior: negatives.uniform(prior.num_classes),
    "within-batch": negatives.WithinBatch,
}
"""What negatives are drawn from, by name."""

COLORS = {
    "cross-entropy": "#59636f",
    "constant": "#9a6700",
    "importance": "#6a51a3",
    "relative": "#c44e00",
    "tail": "#0072b2",
    "unit": "#a8478a",
}
"""Of the report, told apart also by color-blind readers."""


class Scheme(NamedTuple):
    """Negatives and their weighting, by name."""

    sampling: str
    weighting: str

    def __str__(self) -> str:
        return f"{self.sampling}, {self.weighting}"

    def build(self, prior: ClassPrior) -> tuple[Distribution, Weighting]:
        """What to draw from, and how to weight what is drawn."""
        build_weighting, _ = WEIGHTINGS[self.weighting]
        return DISTRIBUTIONS[self.sampling](prior), build_weighting(prior)


SCHEMES = tuple(Scheme(sampling, weighting) for sampling in DISTRIBUTIONS for weighting in TABLE_2)
"""The eight rows of Table 2."""
