"""The class frequencies of unlabeled samples from a labeled holdout: three estimates, their intervals, and a test.

All assume that classes look the same as in the holdout, P(x | y) unchanged, and only their frequencies differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.labels import IntArray
from longtail.posthoc._inputs import Labels, Scores, as_scores, as_target
from longtail.posthoc.calibration import bias_corrected_temperature
from longtail.posthoc.shift import estimate_target_prior

__all__ = [
    "Estimator",
    "PriorInterval",
    "ShiftTest",
    "bbse_prior",
    "bootstrap_prior",
    "calibrated_em_prior",
    "detect_prior_shift",
    "rlls_prior",
]

Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of (holdout logits [M, C], holdout target [M], logits [N, C]) that returns [C] probabilities."""


def calibrated_em_prior(holdout_logits: Scores, holdout_target: Labels, logits: Scores) -> Tensor:
    """Expectation maximization on probabilities that a holdout has calibrated, class by class.

    Formula:
        ``bias_corrected_temperature`` on the holdout, then ``estimate_target_prior`` from its class frequencies

    Args:
        holdout_logits: [M, C] of labeled samples that the model was not trained on.
        holdout_target: [M] their class indices; every class must occur.
        logits: [N, C] of unlabeled samples from where the model is used.

    Returns:
        [C] float64, the estimated class frequencies of the unlabeled samples.

    Use when:
        There is a holdout. Of the three it is the most accurate as a rule.
    Avoid when:
        The holdout has but a few samples of some classes: ``rlls_prior`` takes less from each.
    Special cases:
        ``estimate_target_prior`` where the model is calibrated already.

    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 2.0]] * 50), torch.tensor([0, 1] * 45 + [1, 0] * 5)
    >>> calibrated_em_prior(logits, target, logits[::2]).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)

    Reference:
        Alexandari et al. (2020), "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift
        adaptation", section 2.
    """
    holdout, index, scores = _check_parts(holdout_logits, holdout_target, logits)
    calibration = bias_corrected_temperature(holdout, index)
    frequencies = torch.bincount(index, minlength=holdout.shape[1]).double() / len(index)
    return estimate_target_prior(calibration.apply(scores), frequencies).probs


def bbse_prior(holdout_logits: Scores, holdout_target: Labels, logits: Scores) -> Tensor:
    """Black-box shift estimation: solve the holdout's confusion matrix for the frequencies behind the predictions.

    Formula:
        w = K^-1 mu, K[i, j] = P(predicted i, true j) on the holdout, mu[i] = P(predicted i); p[y] = w[y] * pi[y]

    Args:
        holdout_logits: [M, C] of labeled samples that the model was not trained on; only their largest matters.
        holdout_target: [M] their class indices; every class must occur.
        logits: [N, C] of unlabeled samples from where the model is used.

    Returns:
        [C] float64; negative solutions become 0. A singular matrix is solved by least squares.

    Use when:
        The model gives predictions and no probabilities worth the name.
    Avoid when:
        There are many classes: the matrix has C^2 numbers to estimate, and its inverse magnifies their errors.
    Special cases:
        The frequencies of the predictions where these are always right.

    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 2.0]] * 50), torch.tensor([0, 1] * 50)
    >>> bbse_prior(logits, target, logits[[0, 2, 4, 1]])
    tensor([0.7500, 0.2500], dtype=torch.float64)

    Reference:
        Lipton et al. (2018), "Detecting and correcting for label shift with black box predictors", section 4.
    """
    joint, predicted = _confusion(*_check_parts(holdout_logits, holdout_target, logits))
    return _weigh_prior(_solve(joint, predicted), joint)


def rlls_prior(holdout_logits: Scores, holdout_target: Labels, logits: Scores, strength: float = 0.01) -> Tensor:
    """Regularized learning under label shift: ``bbse_prior`` that leaves the prior only as far as the samples say.

    Formula:
        w = 1 + argmin_t |K t - (mu - K 1)| + strength * D |t|, with D = 3 (2 l / (3 M) + sqrt(2 l / M)) and
        l = log(2 C / 0.05)

    Args:
        holdout_logits: [M, C] of labeled samples that the model was not trained on.
        holdout_target: [M] their class indices; every class must occur.
        logits: [N, C] of unlabeled samples from where the model is used.
        strength: times D, the bound's own regularization, which is far too strong in practice. 0 is ``bbse_prior``.

    Returns:
        [C] float64.

    Use when:
        There are many classes, or few samples, and ``bbse_prior`` gives frequencies of 0.
    Avoid when:
        Probabilities can be calibrated: ``calibrated_em_prior`` uses more of what the model says.
    Special cases:
        ``bbse_prior`` at strength 0; the holdout's frequencies as it grows.

    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 2.0]] * 50), torch.tensor([0, 1] * 50)
    >>> rlls_prior(logits, target, logits[[0, 2, 4, 1]], strength=100.0)
    tensor([0.5000, 0.5000], dtype=torch.float64)

    Deviates:
        The weights are w itself, the paper's with gamma = 1.

    Reference:
        Azizzadenesheli et al. (2019), "Regularized learning for domain adaptation under label shifts", eq. (5).
    """
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"rlls_prior: strength must be a finite number of at least 0. Got {strength}.")
    holdout, index, scores = _check_parts(holdout_logits, holdout_target, logits)
    joint, predicted = _confusion(holdout, index, scores)
    log_term = math.log(2 * len(joint) / 0.05)
    bound = 3 * (2 * log_term / (3 * len(index)) + math.sqrt(2 * log_term / len(index)))
    step = _least_norm_step(joint, predicted - joint.sum(dim=1), strength * bound)
    return _weigh_prior(1 + step, joint)


class PriorInterval(NamedTuple):
    """An estimate, and how sure it is."""

    probs: Tensor
    """[C] of all samples."""
    low: Tensor
    """[C] the lower ends of the intervals."""
    high: Tensor
    """[C] the upper ends."""


def bootstrap_prior(
    estimator: Estimator,
    holdout_logits: Scores,
    holdout_target: Labels,
    logits: Scores,
    *,
    num_resamples: int = 200,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> PriorInterval:
    """Intervals of an estimated prior: the estimate again and again, on samples drawn with replacement.

    Formula:
        the (B + 1) (1 - level) / 2-th smallest and largest of B resampled estimates, between them where it is no
        whole number; holdout and unlabeled samples are both drawn, so that the errors of both count

    Args:
        estimator: ``calibrated_em_prior``, ``bbse_prior``, ``rlls_prior`` or a function like these.
        holdout_logits: [M, C].
        holdout_target: [M]. Drawn class by class, so that every class keeps its samples' number.
        logits: [N, C].
        num_resamples: B; at least 2 / (1 - level) - 1, which is 39 for 0.95, or there would be no such ends.
        level: how often the interval of a class is to hold its true frequency.
        generator: for the draws; None is seeded with 0.

    Returns:
        The estimate and the ends of each class's interval.

    Use when:
        Something is decided by the estimate, and a class has but a few samples.
    Avoid when:
        It is to say whether anything shifted at all: ``detect_prior_shift`` is exact, and fast. The holdout has ten
        samples of a class or fewer: drawing the same few again shows too little of how a model errs on it, and
        intervals near 0 hold the truth less often than promised.

    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 2.0]] * 50), torch.tensor([0, 1] * 50)
    >>> found = bootstrap_prior(bbse_prior, logits, target, logits[::2], num_resamples=39)
    >>> found.low.tolist(), found.high.tolist()
    ([1.0, 0.0], [1.0, 0.0])

    Reference:
        Efron (1979), "Bootstrap methods: another look at the jackknife"; Davison and Hinkley (1997), "Bootstrap
        methods and their application", section 5.3, for the ends. The usual quantiles of B values would hold the
        truth level * (B - 1) / (B + 1) of the time.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1. Got {level}.")
    at_least(num_resamples, math.ceil(2 / (1 - level) - 1 - 1e-9), "num_resamples")
    holdout, index, scores = _check_parts(holdout_logits, holdout_target, logits)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    by_class = [torch.nonzero(index == label).flatten() for label in range(holdout.shape[1])]
    found = []
    for _ in range(num_resamples):
        rows = torch.cat([part[torch.randint(len(part), (len(part),), generator=generator)] for part in by_class])
        draws = torch.randint(len(scores), (len(scores),), generator=generator)
        found.append(estimator(holdout[rows], index[rows], scores[draws]))
    low, high = _interval_ends(torch.stack(found).double(), level)
    return PriorInterval(estimator(holdout, index, scores), low, high)


class ShiftTest(NamedTuple):
    """Whether class frequencies have changed."""

    statistic: float
    """Pearson's chi-squared of predicted classes by where samples come from."""
    p_value: float
    """How often a difference as large comes by chance alone; small values speak for a shift."""


def detect_prior_shift(
    holdout_logits: Scores, logits: Scores, num_permutations: int = 9999, generator: torch.Generator | None = None
) -> ShiftTest:
    """Test whether unlabeled samples have the class frequencies of a holdout, by the classes predicted in both.

    Formula:
        chi2 = sum over places and classes of (predicted - expected)^2 / expected; its p-value by permutations

    Args:
        holdout_logits: [M, C] of samples with the old frequencies, not trained on. Labels are not needed.
        logits: [N, C] of samples from where the model is used.
        num_permutations: how often samples change places, to see what chance does.
        generator: for the permutations; None is seeded with 0.

    Returns:
        Statistic and p-value. The p-value is exact however rare a class is, for nothing is assumed of its counts.

    Use when:
        Before anything is corrected for a shift: without one, an estimate only adds noise.
    Avoid when:
        Inputs may have changed otherwise: the test then finds *a* shift, not whether it is one of the classes.

    >>> detect_prior_shift(torch.eye(2).repeat(50, 1), torch.eye(2)[:1].repeat(20, 1)).p_value < 0.01
    True

    Reference:
        Lipton et al. (2018), "Detecting and correcting for label shift with black box predictors", section 4.1;
        Rabanser et al. (2019), "Failing loudly", whose test of predicted classes this is.
    """
    at_least(num_permutations, 1, "num_permutations")
    old, new = as_scores(holdout_logits), as_scores(logits)
    if len(old) == 0 or len(new) == 0 or old.shape[1] != new.shape[1]:
        raise ValueError(
            f"both must have samples of the same classes. Got {tuple(old.shape)} and {tuple(new.shape)}."
        )
    counts = [np.bincount(part.argmax(dim=1).cpu().numpy(), minlength=old.shape[1]) for part in (old, new)]
    pooled = counts[0] + counts[1]
    present = pooled > 0
    pooled, drawn = pooled[present], counts[1][present]
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    permuted = np.random.default_rng(seed).multivariate_hypergeometric(pooled, len(new), size=num_permutations)
    # Both places miss their expectation by the same amount, so one of them says it all, up to a factor.
    expected = pooled * (len(new) / pooled.sum())
    scale = pooled.sum() / len(old)

    def statistic(sampled: IntArray) -> Any:
        return scale * (np.square(sampled - expected) / expected).sum(axis=-1)

    observed = float(statistic(drawn))
    num_as_large = int((statistic(permuted) >= observed * (1 - 1e-12)).sum())
    return ShiftTest(observed, (1 + num_as_large) / (1 + num_permutations))


def _interval_ends(found: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Between which values a further draw of [B, C] falls with a chance of ``level``, column by column."""
    ordered = found.sort(dim=0).values
    rank = max((len(ordered) + 1) * (1 - level) / 2, 1.0)
    whole, part = int(rank + 1e-9), max(rank - int(rank + 1e-9), 0.0)
    low, high = (torch.lerp(values[whole - 1], values[whole], part) for values in (ordered, ordered.flip(0)))
    return low, high


def _check_parts(holdout_logits: Scores, holdout_target: Labels, logits: Scores) -> tuple[Tensor, Tensor, Tensor]:
    holdout, scores = (as_scores(part).double().cpu() for part in (holdout_logits, logits))
    if holdout.shape[1] != scores.shape[1]:
        raise ValueError(f"logits must have the holdout's {holdout.shape[1]} classes. Got {scores.shape[1]}.")
    if len(scores) == 0:
        raise ValueError("there must be at least one unlabeled sample. Got none.")
    index = as_target(holdout_target, holdout)
    missing = torch.nonzero(torch.bincount(index, minlength=holdout.shape[1]) == 0).flatten().tolist()
    if missing:
        raise ValueError(
            f"the holdout must have samples of every class. Got none of class {missing[0]}"
            + (f" and {len(missing) - 1} others." if len(missing) > 1 else ".")
        )
    return holdout, index, scores


def _confusion(holdout: Tensor, index: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[C, C] P(predicted i, true j) on the holdout, and [C] P(predicted i) on the unlabeled samples."""
    num_classes = holdout.shape[1]
    pairs = holdout.argmax(dim=1) * num_classes + index
    joint = torch.bincount(pairs, minlength=num_classes**2).double().view(num_classes, num_classes) / len(index)
    predicted = torch.bincount(scores.argmax(dim=1), minlength=num_classes).double() / len(scores)
    return joint, predicted


def _weigh_prior(weights: Tensor, joint: Tensor) -> Tensor:
    probs = weights.clamp_min(0) * joint.sum(dim=0)
    return probs / probs.sum()


def _least_norm_step(matrix: Tensor, wanted: Tensor, strength: float) -> Tensor:
    """argmin_t |A t - b| + strength |t|: a ridge solution, whose ridge is the root of one rising function."""
    from scipy.optimize import brentq  # loads for half a second, where all else here is there at once

    left, values, right = torch.linalg.svd(matrix)
    target = left.T @ wanted

    def solve(log_ridge: float) -> Tensor:
        step: Tensor = values / (values.square() + math.exp(log_ridge)) * target
        return step

    def excess(log_ridge: float) -> float:
        step = solve(log_ridge)
        return math.exp(log_ridge) * float(step.norm()) - strength * float((values * step - target).norm())

    if strength == 0:
        return _solve(matrix, wanted)
    if float(wanted.norm()) == 0 or float((values * target).norm()) <= strength * float(target.norm()):
        return torch.zeros_like(wanted)
    low, high = -60.0, 60.0
    ridge = brentq(excess, low, high, xtol=1e-12) if excess(low) < 0 < excess(high) else low
    found: Tensor = right.T @ solve(ridge)
    return found


def _solve(matrix: Tensor, wanted: Tensor) -> Tensor:
    """By least squares, for the matrix may be singular."""
    solution: Tensor = torch.linalg.lstsq(matrix, wanted[:, None], driver="gelsd").solution[:, 0]
    return solution
