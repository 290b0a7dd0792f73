"""Losses of a true label against drawn negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import at_least, check_class_range
from longtail._core.numerics import loss_dtype, widen
from longtail.negatives._sampling import Sampling, check_finite_weights
from longtail.negatives.distributions import Batch, Distribution, Draw
from longtail.negatives.weightings import Weighting, check_scheme

__all__ = [
    "SampledLoss",
    "sampled_cross_entropy",
    "sampled_logistic",
    "sampled_hinge",
    "sampled_contrastive",
    "CROSS_ENTROPY",
    "LOGISTIC",
    "HINGE",
    "CONTRASTIVE",
    "NegativeSamplingLoss",
    "log_weights",
    "split_log_weights",
]


@dataclass(frozen=True)
class SampledLoss:
    """A loss that knows the negatives through one sum over them, which can be taken part by part.

    Called with the logits of the positive [N] and the negatives [N, m] and ``log w`` [N, m], it gives [N] losses in
    the dtype of the logits (float32 under autocast). A negative with ``log w`` of minus infinity does not count.
    """

    total: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    """Negatives [N, m] and log w [N, m] -> [N], the sum over negatives or its logarithm."""
    merge: Callable[[Tensor], Tensor] = field(repr=False)
    """[R, N] totals of R parts of the negatives -> [N], the total of all of them."""
    weigh: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    """Totals [N] and logarithms [N] of a factor that all negatives of a total share -> [N] totals with it."""
    finish: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    """Positives [N] and total [N] -> [N], the loss."""
    name: str = ""
    """What it is called where settings are shown."""

    def __call__(self, positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
        """[N] losses."""
        _check_sampled(positive, negative, log_weights)
        wide = widen(negative)
        total = self.total(wide, log_weights.to(wide))
        return self.finish(positive.to(wide), total).to(loss_dtype(negative))


# Named functions, for a head that holds them can then be pickled.
def _log_sum(negative: Tensor, log_weights: Tensor) -> Tensor:
    # A finite floor instead of minus infinity: where nothing counts, gradients are 0 and not NaN.
    floor = torch.finfo(negative.dtype).min / 4
    return torch.logsumexp(negative + log_weights.clamp_min(floor), dim=1)


def _merge_log_sums(totals: Tensor) -> Tensor:
    return totals.logsumexp(dim=0)


def _add_logarithm(total: Tensor, log_factor: Tensor) -> Tensor:
    return total + log_factor


def _log_one_plus(positive: Tensor, total: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(total), total - positive)


def _make_decoupled(pair: Callable[[Tensor, bool], Tensor], name: str) -> SampledLoss:
    return SampledLoss(partial(_weighted_sum, pair), _merge_sums, _multiply, partial(_plus_positive, pair), name)


def _weighted_sum(pair: Callable[[Tensor, bool], Tensor], negative: Tensor, log_weights: Tensor) -> Tensor:
    return (log_weights.exp() * pair(negative, False)).sum(dim=1)


def _merge_sums(totals: Tensor) -> Tensor:
    return totals.sum(dim=0)


def _multiply(total: Tensor, log_factor: Tensor) -> Tensor:
    return total * log_factor.exp()


def _plus_positive(pair: Callable[[Tensor, bool], Tensor], positive: Tensor, total: Tensor) -> Tensor:
    return pair(positive, True) + total


def _logistic(logits: Tensor, is_positive: bool) -> Tensor:
    return F.softplus(-logits if is_positive else logits)


def _hinge(logits: Tensor, is_positive: bool) -> Tensor:
    return F.relu(1 - logits if is_positive else 1 + logits)


def _contrastive(cosines: Tensor, is_positive: bool) -> Tensor:
    return (1 - cosines if is_positive else F.relu(cosines)).square()


CROSS_ENTROPY = SampledLoss(_log_sum, _merge_log_sums, _add_logarithm, _log_one_plus, "CROSS_ENTROPY")
"""The parts of ``sampled_cross_entropy``."""


LOGISTIC = _make_decoupled(_logistic, "LOGISTIC")
"""The parts of ``sampled_logistic``."""


HINGE = _make_decoupled(_hinge, "HINGE")
"""The parts of ``sampled_hinge``."""


CONTRASTIVE = _make_decoupled(_contrastive, "CONTRASTIVE")
"""The parts of ``sampled_contrastive``."""


def sampled_cross_entropy(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Softmax cross-entropy against drawn negatives.

    Formula:
        l = log(1 + sum_{y' drawn} w[y, y'] exp(f[y'] - f[y]))

    Args:
        positive: [N] logits f[y] of the true labels.
        negative: [N, m] logits of the negatives.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses. Where no negative counts, 0 with gradient 0.

    Use when:
        Exactly one label is right, and labels are too many to score them all.
    Avoid when:
        C is moderate: ``margin_cross_entropy`` has no sampling noise.
    Special cases:
        ``margin_cross_entropy`` with ``implied_margins``, as m grows; at any m, where negatives are drawn by the
        model's softmax over the other labels and weighted by importance.

    >>> sampled_cross_entropy(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3)).exp()
    tensor([4.])

    Deviates:
        Remark 4 prints the corrected logit as f - log w; by eq. (7) it is f + log w.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (7).
    """
    return CROSS_ENTROPY(positive, negative, log_weights)


def sampled_logistic(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Logistic loss of the true label and of drawn negatives, each by itself.

    Formula:
        l = softplus(-f[y]) + sum_{y' drawn} w[y, y'] softplus(f[y'])

    Args:
        positive: [N] logits f[y] of the true labels.
        negative: [N, m] logits of the negatives.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses.

    Use when:
        Several labels may be right, or probabilities of single labels are wanted.
    Avoid when:
        Exactly one label is right: ``sampled_cross_entropy`` ranks better.
    Special cases:
        ``decoupled_logistic`` with ``implied_margins``, in expectation, at any m.

    >>> round(sampled_logistic(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3)).item() / 4, 4)
    0.6931

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8).
    """
    return LOGISTIC(positive, negative, log_weights)


def sampled_hinge(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Hinge loss of the true label and of drawn negatives, each by itself.

    Formula:
        l = [1 - f[y]]_+ + sum_{y' drawn} w[y, y'] [1 + f[y']]_+

    Args:
        positive: [N] f[y], the true labels' logits.
        negative: [N, m] f[y'], those of the negatives.
        log_weights: [N, m] log w, minus infinity for what does not count.

    Returns:
        [N] losses, 0 where all logits keep their distance of 1.

    Use when:
        Easy negatives should have no gradient at all.
    Avoid when:
        Probabilities are needed.
    Special cases:
        ``decoupled_hinge`` with ``implied_margins``, in expectation, at any m.

    >>> sampled_hinge(torch.ones(1), torch.zeros(1, 3), torch.zeros(1, 3)).item()
    3.0

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8).
    """
    return HINGE(positive, negative, log_weights)


def sampled_contrastive(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Contrastive loss on cosines with drawn negatives.

    Formula:
        l = (1 - z[y])^2 + sum_{y' drawn} w[y, y'] [z[y']]_+^2

    Args:
        positive: [N] cosines z[y] with the vectors of the true labels.
        negative: [N, m] cosines with the negatives' vectors.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses.

    Use when:
        Embeddings are searched by cosine.
    Avoid when:
        Rare labels matter most; the paper finds cross-entropy better there.
    Special cases:
        ``cosine_contrastive`` with ``implied_margins``, in expectation, at any m.

    >>> sampled_contrastive(torch.ones(1), torch.full((1, 2), 0.5), torch.zeros(1, 2)).item()
    0.5

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8) and section 5.1.
    """
    return CONTRASTIVE(positive, negative, log_weights)


def log_weights(weighting: Weighting, draw: Draw, target: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """``log w`` of drawn negatives; minus infinity where a negative is the true label itself.

    Args:
        weighting: w.
        draw: negatives, shared [m] or one row per sample [N, m].
        target: [N] true labels.
        dtype: of the result; its two terms are computed in float64.

    Returns:
        [N, m]. It costs O(N m), whatever the number of labels.

    >>> labels = torch.tensor([0, 1])
    >>> draw = WithinBatch(ClassPrior.from_counts([1, 1])).draw(Batch(labels, labels), num_negatives=2)
    >>> log_weights(constant, draw, labels)
    tensor([[-inf, 0.],
            [0., -inf]], dtype=torch.float64)

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1 and Remark 6.
    """
    positive, negative = split_log_weights(weighting, draw, target, dtype)
    values = positive[:, None] + negative
    return values.masked_fill_(draw.labels == target.to(draw.labels.device)[:, None], -math.inf)


def split_log_weights(
    weighting: Weighting, draw: Draw, target: Tensor, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """The two terms of ``log w``: [N] of the true labels, and of the negatives, in the shape they are drawn in."""
    device, num_samples = draw.labels.device, len(target)
    target = target.to(device)
    log_others = None
    if draw.log_others is not None:
        log_others = torch.cat([draw.log_others.to(device), torch.zeros(draw.labels.numel(), device=device)])
    sampling = Sampling(
        torch.cat([target, draw.labels.flatten()]),
        torch.cat([draw.positive_log_probs.to(device), draw.log_probs.to(device).flatten()]),
        draw.num_negatives,
        log_others,
    )
    weights = weighting(sampling)
    if device.type == "cpu":  # elsewhere a look at the values would wait for the device
        check_finite_weights(weights, sampling)
    positive, negative = (part.to(dtype) for part in (weights.positive[:num_samples], weights.negative[num_samples:]))
    return positive, negative.view(draw.labels.shape)


class NegativeSamplingLoss(nn.Module):
    """A sampled loss on logits of all labels: what a sampling scheme does, where labels are few enough to see it.

    Args:
        distribution: q.
        weighting: w.
        num_negatives: m.
        loss: ``CROSS_ENTROPY``, ``LOGISTIC``, ``HINGE`` or ``CONTRASTIVE``.

    It saves no time: use ``SampledLinear`` for that. Forward gives the mean over samples.

    >>> loss = NegativeSamplingLoss(uniform(5), importance, num_negatives=3)
    >>> loss(torch.zeros(2, 5), torch.tensor([0, 4])).shape
    torch.Size([])
    """

    def __init__(
        self,
        distribution: Distribution,
        weighting: Weighting,
        num_negatives: int,
        loss: SampledLoss = CROSS_ENTROPY,
    ) -> None:
        super().__init__()
        self.distribution, self.weighting, self.loss = distribution, weighting, loss
        self.num_negatives = at_least(num_negatives, 1, "NegativeSamplingLoss: num_negatives")
        check_scheme(distribution, weighting, num_negatives)

    def forward(self, logits: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        if logits.ndim != 2 or logits.shape[1] != self.distribution.num_classes or target.shape != logits.shape[:1]:
            raise ValueError(
                f"NegativeSamplingLoss: expected logits [N, {self.distribution.num_classes}] and target [N]. "
                f"Got {tuple(logits.shape)} and {tuple(target.shape)}."
            )
        check_class_range(target, logits.shape[1])
        # The logits are inner products of themselves with the unit vectors, which is what a model-based q asks for.
        width = logits.shape[1]
        batch = Batch(target, target, logits.detach(), lambda: torch.eye(width, device=logits.device))
        draw = self.distribution.draw(batch, self.num_negatives, generator)
        weights = log_weights(self.weighting, draw, target).to(logits.device)
        positive = logits.gather(1, target[:, None])[:, 0]
        negative = logits.gather(1, draw.labels.to(logits.device).expand(weights.shape))
        losses = self.loss(positive, negative, weights)
        return losses.sum() / max(1, len(losses))


def _check_sampled(positive: Tensor, negative: Tensor, log_weights: Tensor) -> None:
    is_right = positive.ndim == 1 and negative.ndim == 2 and negative.shape == log_weights.shape
    if not (is_right and len(positive) == len(negative)):
        raise ValueError(
            "sampled losses: expected positive [N], negative [N, m] and log_weights [N, m]. "
            f"Got {tuple(positive.shape)}, {tuple(negative.shape)} and {tuple(log_weights.shape)}."
        )
