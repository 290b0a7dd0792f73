"""The strength of an adjustment, chosen on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail.posthoc._inputs import (
    FloatArray,
    Labels,
    PriorLike,
    Scores,
    as_scores,
    as_target,
    logit_shift,
    sample_counts,
    share_out,
    target_probabilities,
    warn_of_probabilities,
)
from longtail.posthoc.objectives import balanced_error_shares

__all__ = ["TauSearch", "tune_tau", "cross_validate_tau"]


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""logits [N, C], target [N], sample_weight [N] that sums to 1 -> [N], each sample's share of a score to minimize."""


@dataclass(frozen=True, eq=False, slots=True)
class TauSearch:
    """How well each tau did on a holdout, and which one to take."""

    tau: float
    """The tau to use: of those in doubt, the one nearest to 1."""
    interval: tuple[float, float]
    """The smallest and largest tau in doubt: those less than one standard error worse than the best score."""
    taus: Tensor
    """[T] float64, what was tried, in rising order."""
    scores: Tensor
    """[T] float64, the objective at each tau; less is better."""
    standard_errors: Tensor
    """[T] float64, the standard error of each score; infinite if every class has a single sample."""
    missing_classes: Tensor
    """int64, the classes without samples in the holdout: they have no say."""


def tune_tau(
    logits: Scores,
    target: Labels,
    prior: PriorLike,
    taus: Sequence[float] | Tensor | FloatArray | None = None,
    objective: Objective = balanced_error_shares,
    target_prior: PriorLike | None = None,
    sample_weight: Tensor | FloatArray | None = None,
) -> TauSearch:
    """Choose the strength of ``adjust_logits`` on a holdout, which may be long-tailed itself.

    Each class counts with its probability in the target prior, whatever its share of the holdout. The model must not
    have seen the holdout in training.

    A tail class with three samples moves the balanced error in steps of a third of its share, so the lowest point of
    the curve is mostly luck. Theory says 1 for calibrated logits. So the choice is the tau nearest to 1 that is not
    worse than the best one by more than a standard error. That is the standard error of their difference, in which
    samples that both get right, or both wrong, cancel; it is much less than that of the scores. A class's variance is
    averaged with the mean variance of all classes as if that were one more sample, so a class with one or two samples
    does not look certain.

    Args:
        logits: [N, C] of the model, not adjusted.
        target: [N] class indices.
        prior: the prior of the model's training data.
        taus: what to try; default: 0 to 3 by 0.05. If the interval ends where these end, try further.
        objective: what to minimize: ``balanced_error_shares``, ``balanced_log_loss_shares``,
            ``balanced_calibration_error_shares`` or a function of (logits, target, sample_weight) like these.
        target_prior: the prior to predict for; None is uniform.
        sample_weight: [N] how many samples each one stands for; None is 1.

    Returns:
        The choice, its uncertainty, and the curve.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> search = tune_tau(logits, torch.tensor([0, 0, 0, 1, 1, 1]), prior)
    >>> search.tau, search.interval
    (0.9, (0.5, 0.9))

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.1 and figure 3.
    """
    weights = None if sample_weight is None else [sample_weight]
    return cross_validate_tau([(logits, target, prior)], taus, objective, target_prior, weights)


def cross_validate_tau(
    folds: Sequence[tuple[Scores, Labels, PriorLike]],
    taus: Sequence[float] | Tensor | FloatArray | None = None,
    objective: Objective = balanced_error_shares,
    target_prior: PriorLike | None = None,
    sample_weight: Sequence[Tensor | FloatArray] | None = None,
) -> TauSearch:
    """``tune_tau`` on the held-out parts of a cross-validation, pooled.

    Pooling before scoring lets a class with fewer samples than folds count as in one holdout.

    Args:
        folds: (logits [N, C], target [N], prior) of each held-out part, where the prior is that of the part which the
            fold's model was trained on.
        taus: what to try; default: 0 to 3 by 0.05.
        objective: what to minimize.
        target_prior: the prior to predict for; None is uniform.
        sample_weight: for each fold [N]; None is 1.

    Returns:
        As ``tune_tau``.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> fold = (torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), prior)
    >>> cross_validate_tau([fold, fold], taus=[0.0, 0.7, 1.0]).scores
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    if not folds:
        raise ValueError("cross_validate_tau: there must be at least one fold. Got none.")
    grid = _tau_grid(taus)
    num_classes = as_tensor(folds[0][0]).shape[-1]
    wanted = target_probabilities(target_prior, num_classes)
    parts = _held_out_parts(folds, sample_weight, wanted)
    index, count = torch.cat([part.index for part in parts]), torch.cat([part.count for part in parts])
    weights = share_out(wanted, index, count)

    shares: list[Tensor] = []
    for tau in grid.tolist():
        adjusted = torch.cat([_adjust(part, tau, wanted) for part in parts])
        shares.append(_check_shares(objective(adjusted, index, weights), len(index)))
    return _choose(grid, shares, index.cpu(), count.cpu(), weights.cpu(), wanted)


@dataclass(frozen=True, eq=False, slots=True)
class _HeldOut:
    """What a model says about samples that it was not trained on, and how many samples each one stands for."""

    scores: Tensor
    index: Tensor
    count: Tensor
    prior: PriorLike


def _held_out_parts(
    folds: Sequence[tuple[Scores, Labels, PriorLike]],
    sample_weight: Sequence[Tensor | FloatArray] | None,
    wanted: Tensor,
) -> list[_HeldOut]:
    if sample_weight is not None and len(sample_weight) != len(folds):
        raise ValueError(f"sample_weight must be one vector per fold, {len(folds)}. Got {len(sample_weight)}.")
    parts = []
    for position, (logits, target, prior) in enumerate(folds):
        scores = as_scores(logits)
        warn_of_probabilities(scores)
        if scores.shape[1] != len(wanted):
            raise ValueError(f"folds must have the same classes. Got {len(wanted)} and {scores.shape[1]}.")
        index = as_target(target, scores)
        count = sample_counts(None if sample_weight is None else sample_weight[position], index)
        # Samples that do not count would bring 0 * inf.
        kept = (count > 0) & (wanted.to(index.device)[index] > 0)
        parts.append(_HeldOut(scores[kept], index[kept], count[kept], prior))
    return parts


def _adjust(part: _HeldOut, tau: float, wanted: Tensor) -> Tensor:
    largest = torch.finfo(part.scores.dtype).max
    return part.scores + logit_shift(part.prior, tau, wanted, len(wanted), largest).to(part.scores)


def _choose(
    taus: Tensor, shares: list[Tensor], index: Tensor, count: Tensor, weights: Tensor, wanted: Tensor
) -> TauSearch:
    scores = torch.stack([share.sum() for share in shares])
    excess = scores - scores.min()
    rounding = 1e-9 * scores.abs().max()
    # Of several best ones, which rounding alone tells apart, the nearest to 1 is what the others are compared with.
    best = shares[int(torch.where(excess <= rounding, (taus - 1).abs(), math.inf).argmin())]

    def standard_errors(terms: list[Tensor]) -> Tensor:
        return torch.stack([_standard_error(term / weights, index, count, wanted) for term in terms])

    in_doubt = excess <= standard_errors([share - best for share in shares]) + rounding
    candidates = taus[in_doubt].tolist()
    ranked = sorted(
        (abs(tau - 1), score, tau) for tau, score in zip(candidates, scores[in_doubt].tolist(), strict=True)
    )
    missing = (torch.bincount(index, minlength=len(wanted)) == 0) & (wanted > 0)
    return TauSearch(
        tau=ranked[0][-1],
        interval=(min(candidates), max(candidates)),
        taus=taus,
        scores=scores,
        standard_errors=standard_errors(shares),
        missing_classes=torch.nonzero(missing)[:, 0],
    )


def _standard_error(values: Tensor, index: Tensor, count: Tensor, wanted: Tensor) -> Tensor:
    """Of sum_y wanted[y] * (mean of the values of class y), where a sample stands for ``count`` samples."""
    sizes = torch.zeros_like(wanted).index_add_(0, index, count)
    present, several = sizes > 0, sizes > 1
    if not several.any():
        return torch.tensor(math.inf, dtype=torch.float64)
    divisors = torch.where(present, sizes, 1.0)
    means = torch.zeros_like(wanted).index_add_(0, index, count * values) / divisors
    squares = torch.zeros_like(wanted).index_add_(0, index, count * (values - means[index]).square())
    freedom = (sizes - 1).clamp_min(0)
    typical = (squares[several] / freedom[several]).mean()
    variances = (squares + typical) / (freedom + 1)
    share = torch.where(present, wanted, 0.0)
    return ((share / share.sum()).square() * variances / divisors).sum().sqrt()


def _check_shares(shares: Tensor, length: int) -> Tensor:
    if shares.shape != (length,):
        raise ValueError(
            f"objective must return [{length}], one share of the score for each sample. Got {tuple(shares.shape)}."
        )
    shares = shares.detach().cpu().double()
    if not torch.isfinite(shares).all():
        raise ValueError("objective must return finite numbers. Got NaN or an infinity.")
    return shares


def _tau_grid(taus: Sequence[float] | Tensor | FloatArray | None) -> Tensor:
    if taus is None:
        return torch.arange(61, dtype=torch.float64) / 20
    grid = as_tensor(taus).to("cpu", torch.float64)
    if grid.ndim != 1 or len(grid) == 0 or not bool((torch.isfinite(grid) & (grid >= 0)).all()):
        raise ValueError(f"taus must be a vector of finite numbers of at least 0. Got {taus!r}.")
    return torch.tensor(sorted(set(grid.tolist())), dtype=torch.float64)
