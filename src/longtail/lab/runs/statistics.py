"""Means over seeds, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import special

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and its 95% interval by Student's t distribution."""

    mean: float
    half_width: float
    """NaN where fewer than two seeds say nothing of the spread."""
    count: int

    @property
    def has_interval(self) -> bool:
        """Whether there are seeds enough for an interval."""
        return self.count > 1

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half_width

    def clip(self, lowest: float, highest: float) -> tuple[float, float]:
        """The interval's ends, within what the quantity can be at all.

        >>> Estimate(0.5, 2.0, 2).clip(0, 1), Estimate(0.5, 0.25, 2).clip(0, 1)
        ((0, 1), (0.25, 0.75))
        """
        return max(self.low, lowest), min(self.high, highest)


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of finite ``values`` with its interval; NaN if there are none.

    >>> found = estimate([1.0, 3.0])
    >>> found.mean, round(found.half_width, 6), found.count
    (2.0, 12.706205, 2)
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    count = len(finite)
    if count == 0:
        return Estimate(math.nan, math.nan, 0)
    half_width = math.nan
    if count > 1:
        half_width = float(special.stdtrit(count - 1, 0.975) * finite.std(ddof=1) / math.sqrt(count))
    return Estimate(float(finite.mean()), half_width, count)
