"""What a way to sample negatives optimizes, in words and in the notation of Table 2 of Rawat et al.

The notation is read off the implied margins: a factor that is constant, or a power of a label's frequency, is found
by fitting a line, so that it says what the library computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from longtail import negatives
from longtail.margins import Margins, is_consistent
from longtail.negatives import KnownDistribution
from longtail.negatives.weightings import Weighting
from longtail.prior import ClassPrior

Choice = TypeVar("Choice")

__all__ = ["SAMPLINGS", "TABLE_2", "WEIGHTINGS", "Explanation", "explain_sampling"]

SAMPLINGS: Mapping[str, Callable[[ClassPrior, bool], KnownDistribution]] = {
    "uniform": lambda prior, excludes: negatives.uniform(prior.num_classes, excludes),
    "within-batch": lambda prior, excludes: _within_batch(prior, excludes),
    "prior": lambda prior, excludes: negatives.prior_power(prior, 1.0, excludes),
    "prior-0.75": lambda prior, excludes: negatives.prior_power(prior, 0.75, excludes),
    "log-uniform": lambda prior, excludes: negatives.log_uniform(prior.num_classes, excludes),
}
"""Distributions to draw negatives from, by name: prior and whether the true label is excluded by domain -> q."""

WEIGHTINGS: Mapping[str, tuple[Callable[[ClassPrior], Weighting], str]] = {
    "constant": (lambda prior: negatives.constant, "1/m"),
    "importance": (lambda prior: negatives.importance, "1/(m q[y'])"),
    "relative": (lambda prior: negatives.relative, "q[y]/q[y']"),
    "tail": (negatives.tail, "pi[y']/(m q[y'] pi[y])"),
    "unit": (lambda prior: negatives.unit, "1"),
}
"""Weightings of negatives by name, each with its formula."""

TABLE_2 = ("constant", "importance", "relative", "tail")
"""The weightings of the paper's table."""


@dataclass(frozen=True)
class Explanation:
    """The loss behind a way to sample negatives."""

    sampling: str
    weighting: str
    weight_formula: str
    formula: str
    """The implied loss, in the notation of Table 2."""
    name: str
    """What that loss is called."""
    favors: str
    """Who gains against cross-entropy: head, tail or neither."""
    is_consistent: bool | None
    """Whether the implied loss is Fisher consistent for the balanced error; None: not known."""
    rarest_against_most_frequent: float
    """rho where the rarest label is true and the most frequent one a negative."""
    most_frequent_against_rarest: float
    """rho the other way round."""

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return dict(vars(self))


def explain_sampling(
    sampling: str, weighting: str, num_negatives: int, prior: ClassPrior, excludes_positive: bool = False
) -> Explanation:
    """Say which loss a sampling scheme optimizes, for labels with this prior.

    >>> prior = ClassPrior.from_counts([1000, 300, 100, 30, 10])
    >>> explain_sampling("within-batch", "constant", 256, prior).formula
    "log[1 + sum_{y' != y} pi[y'] e^(f[y'] - f[y])]"
    """
    if prior.num_classes < 2:
        raise ValueError(f"negatives need at least 2 labels. Got {prior.num_classes}.")
    # From the most frequent label on, as log-uniform sampling numbers them.
    prior = ClassPrior.from_counts(prior.counts.sort(descending=True).values).smoothed(prior.pseudocount)
    sampling = sampling.replace("_", "-")  # as options of methods write it
    distribution = _look_up(sampling, SAMPLINGS, "sampling")(prior, excludes_positive)
    build, weight_formula = _look_up(weighting, WEIGHTINGS, "weighting")
    implied = negatives.implied_margins(distribution, build(prior), num_negatives)
    doubled = negatives.implied_margins(distribution, build(prior), 2 * num_negatives)
    growth = (doubled - implied).positive[0] + (doubled - implied).negative[0]
    factors = _factors(implied, distribution, prior, num_negatives if growth > 0.1 else 1)
    rho = torch.stack([implied.positive[-1] + implied.negative[0], implied.positive[0] + implied.negative[-1]]).exp()
    lean = _slope(implied.positive - implied.negative, prior.log_probs)
    return Explanation(
        sampling=sampling,
        weighting=weighting,
        weight_formula=weight_formula,
        formula=factors.loss(),
        name=factors.name(),
        favors="neither" if abs(lean) < 1e-9 else "tail" if lean < 0 else "head",
        is_consistent=is_consistent(implied, None, prior),
        rarest_against_most_frequent=float(rho[0]),
        most_frequent_against_rarest=float(rho[1]),
    )


@dataclass(frozen=True)
class _Factors:
    """rho[y, y'] = constant * symbol[y]^positive * symbol[y']^negative * rest."""

    constant: float
    constant_name: str
    symbol: str
    positive: float
    negative: float
    rest: str

    def loss(self) -> str:
        common = [self.constant_name] if self.constant_name else []
        common += [_power(f"{self.symbol}[y]", self.positive)] if self.positive > 0 else []
        common += [self.rest] if self.rest else []
        inner = _power(f"{self.symbol}[y']", self.negative)
        if self.positive < 0:
            inner = f"({inner or '1'}/{_power(f'{self.symbol}[y]', -self.positive)})"
        total = f"sum_{{y' != y}} {inner + ' ' if inner else ''}e^(f[y'] - f[y])"
        return f"log[1 + {' '.join([*common, total])}]"

    def name(self) -> str:
        powers = (round(self.positive, 6), round(self.negative, 6)) if self.symbol == "pi" and not self.rest else None
        match powers:
            case (0, 0):
                is_plain = abs(self.constant - 1) < 1e-9
                change = "downweighted" if self.constant < 1 else "upweighted"
                return "softmax cross-entropy" + ("" if is_plain else f" with {change} negatives")
            case (-1, 1):
                return "logit-adjusted loss"
            case (0, power) if power > 0:
                return "equalized loss" if power == 1 else f"equalized loss with tau = {power:g}"
            case (power, 0) if power > 0:
                return "softmax cross-entropy with upweighted head labels"
        return "softmax cross-entropy with pairwise margins"


def _factors(implied: Margins, distribution: KnownDistribution, prior: ClassPrior, per_negative: int) -> _Factors:
    """``per_negative``: m where rho grows with it, else 1."""
    log_q = distribution.log_probs
    others = torch.log1p(-log_q.exp()) if distribution.excludes_positive else torch.zeros_like(log_q)
    shifted = Margins(implied.positive + others, implied.negative)
    size = prior.num_classes
    over = "1" if per_negative == 1 else "m"
    names = {1 / size: f"{over}/L", 1 / (size - 1): f"{over}/(L-1)", 1.0: over.replace("1", "")}
    attempts: Sequence[tuple[Margins, Tensor, str, str]] = (
        (implied, prior.log_probs, "pi", ""),
        (shifted, prior.log_probs, "pi", "1/(1 - q[y])"),
        (implied, log_q, "q", ""),
        (shifted, log_q, "q", "1/(1 - q[y])"),
    )
    for margins, logs, symbol, rest in attempts:
        positive, negative = (_slope(part, logs) for part in (margins.positive, margins.negative))
        offsets = margins.positive - positive * logs, margins.negative - negative * logs
        if all(float(part.max() - part.min()) < 1e-9 for part in offsets):
            constant = math.exp(float(offsets[0][0] + offsets[1][0]))
            scaled = constant / per_negative
            near = [name for value, name in names.items() if math.isclose(value, scaled, rel_tol=1e-9)]
            return _Factors(constant, near[0] if near else f"{constant:.4g}", symbol, positive, negative, rest)
    raise AssertionError("every weighting by name is a power of q or pi")


def _slope(values: Tensor, logs: Tensor) -> float:
    """Of the line of ``values`` over ``logs``; 0 where all logs are the same."""
    centered = logs - logs.mean()
    variance = float(centered.square().sum())
    slope = float((centered * values).sum()) / variance if variance > 1e-18 else 0.0
    return round(slope, 9) + 0.0  # no -0


def _power(symbol: str, exponent: float) -> str:
    if exponent == 0:
        return ""
    return symbol if exponent == 1 else f"{symbol}^{exponent:g}"


def _within_batch(prior: ClassPrior, excludes_positive: bool) -> KnownDistribution:
    if excludes_positive:
        raise ValueError("within-batch negatives are given, not drawn: the true label gets weight 0; try prior.")
    return negatives.WithinBatch(prior)


def _look_up(name: str, table: Mapping[str, Choice], kind: str) -> Choice:
    if name not in table:
        raise ValueError(f"{kind} must be one of {', '.join(table)}. Got {name!r}.")
    return table[name]
