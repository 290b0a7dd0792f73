"""Several labels a sample: partial label masking, and losses over independent sigmoids.

A sigmoid for each class sees its own imbalance: positives against negatives, r[c] = n_pos[c] / n_neg[c]. Partial
label masking leaves labels out of the loss at random, so that each class is trained at a ratio that suits it, and
moves that ratio by how far the predicted probabilities are from the labels. The losses return one value per sample,
summed over classes, and all take a mask.

Targets are [N, C] of 0 and 1 (a row may be all 0), or [N] class indices, which stand for their one-hot rows.
"""

from __future__ import annotations

import math
import warnings
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._collectives import is_initialized
from longtail.losses import _check_logits, _focused, _loss_dtype, _one_hot, _open_rates, _widened
from longtail.prior import ClassPrior

__all__ = [
    "DistributionBalancedLoss",
    "MaskedLoss",
    "MultilabelFunction",
    "MultilabelLoss",
    "PartialLabelMasking",
    "adapted_ratio",
    "asymmetric_loss",
    "binary_cross_entropy",
    "binary_focal_loss",
    "count_bins",
    "distribution_balanced_loss",
    "divergence",
    "mask_probabilities",
    "positive_ratio",
    "standardized",
]

SMOOTHING = 1e-6
"""What ``divergence`` adds to every bin's share: small beside one sample in 100,000, and the logarithm exists."""


def positive_ratio(prior: ClassPrior) -> Tensor:
    """[C] float64, positives over negatives of each class; NaN for a class that has none of either.

    Formula:
        r[c] = n[c] / (N - n[c])

    Args:
        prior: counts of positives, and of samples; from ``ClassPrior.from_indicator`` for several labels a sample.

    >>> positive_ratio(ClassPrior.from_indicator([[1, 1, 0], [0, 1, 0], [0, 1, 0]])).tolist()
    [0.5, nan, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking for imbalanced multi-label classification", section 2.
    """
    positives = prior.counts.double()
    negatives = prior.num_samples - positives
    return torch.where((positives > 0) & (negatives > 0), positives / negatives, math.nan)


def mask_probabilities(data_ratio: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """With which probability a positive and a negative label of each class is kept.

    Formula:
        positive: min(1, ratio[c] / data_ratio[c]); negative: min(1, data_ratio[c] / ratio[c])

    Args:
        data_ratio: [C] positives over negatives in the data; NaN keeps everything.
        ratio: [C] the ratio wanted.

    Returns:
        Two [C]. At most one of the two is below 1.

    >>> [part.tolist() for part in mask_probabilities(torch.tensor([2.0, 0.1]), torch.tensor([1.0, 0.2]))]
    [[0.5, 1.0], [1.0, 0.5]]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (3).
    """
    keep_positive = (ratio / data_ratio).clamp_max(1).nan_to_num(nan=1.0)
    keep_negative = (data_ratio / ratio).clamp_max(1).nan_to_num(nan=1.0)
    return keep_positive, keep_negative


def count_bins(probs: Tensor, targets: Tensor, bins: int) -> Tensor:
    """Histograms of each class's probabilities, of its positives and its negatives apart.

    Args:
        probs: [N, C] in [0, 1].
        targets: [N, C] of 0 and 1, or [N] class indices.
        bins: how many bins of equal width; bin b holds [b / bins, (b + 1) / bins), and the last one 1 as well.

    Returns:
        [2, C, bins] int64: the negatives' histograms, then the positives'.

    >>> count_bins(torch.tensor([[0.9], [0.3], [1.0]]), torch.tensor([[1], [0], [1]]), bins=2).tolist()
    [[[1, 0]], [[0, 2]]]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (4) and appendix B.
    """
    if bins < 2:
        raise ValueError(f"bins must be at least 2. Got {bins}.")
    is_positive = _checked_indicator(probs, targets)
    _check_probabilities(probs)
    return _count_bins(_widened(probs.detach()), is_positive, bins)


def divergence(histogram: Tensor, target_bin: int, smoothing: float = SMOOTHING) -> Tensor:
    """How far predicted probabilities are from labels, all of which lie in one bin.

    Formula:
        KL(Q || P), with Q the histogram's shares and P all in target_bin, each as (share + s) / (1 + bins * s)

    Args:
        histogram: [..., bins] counts of probabilities.
        target_bin: the bin of the labels: the last one for positives, 0 for negatives.
        smoothing: s, added to the share of every bin. It is a share, not a count, so that the result does not depend
            on the number of samples.

    Returns:
        [...] in the default dtype, at least 0; NaN for a histogram without samples.

    Without smoothing the divergence is infinite as soon as one probability is in another bin. Its size grows as
    log(1 / s), the same for all classes, which ``standardized`` takes out.

    >>> divergence(torch.tensor([[0, 5], [5, 0]]), target_bin=-1).round().tolist()
    [0.0, 14.0]

    Deviates:
        The paper does not say how it avoids the infinity; additive smoothing of both distributions is ours.

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (5).
    """
    shares = histogram.to(torch.get_default_dtype())
    shares = shares / shares.sum(dim=-1, keepdim=True)
    labels = torch.zeros_like(shares)
    labels[..., target_bin] = 1
    scale = 1 + shares.shape[-1] * smoothing
    predicted, wanted = (shares + smoothing) / scale, (labels + smoothing) / scale
    return (predicted * (predicted / wanted).log()).sum(dim=-1)


def standardized(values: Tensor) -> Tensor:
    """Values minus their mean, over their standard deviation (that of a population); NaN stays and does not count.

    Formula:
        (D[c] - mu) / sigma; 0 where all values are equal

    Args:
        values: [C].

    >>> standardized(torch.tensor([1.0, 3.0, math.nan])).tolist()
    [-1.0, 1.0, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6).
    """
    centered = values - values.nanmean()
    deviation = centered.square().nanmean().sqrt()
    # Equal values differ from their mean by rounding alone: dividing by it would make noise of size 1.
    is_spread = deviation > 8 * torch.finfo(values.dtype).eps * values.abs().nan_to_num(nan=0.0).amax()
    return torch.where(is_spread, centered / deviation, centered * 0)


def adapted_ratio(ratio: Tensor, positive_divergence: Tensor, negative_divergence: Tensor, rate: float) -> Tensor:
    """The ratio of the next epoch: larger where positives are predicted worse than negatives, as classes go.

    Formula:
        ratio[c] * exp(rate * (standardized(D_pos)[c] - standardized(D_neg)[c]))

    Args:
        ratio: [C] of this epoch.
        positive_divergence: [C] D_pos from ``divergence``; NaN: the class's ratio stays.
        negative_divergence: [C] D_neg likewise.
        rate: lambda, how fast ratios move.

    >>> adapted_ratio(torch.ones(2), torch.tensor([4.0, 1.0]), torch.tensor([1.0, 4.0]), rate=1.0).log().tolist()
    [2.0, -2.0]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6) and (7).
    """
    is_known = ~(positive_divergence.isnan() | negative_divergence.isnan())
    positive = standardized(torch.where(is_known, positive_divergence, math.nan))
    negative = standardized(torch.where(is_known, negative_divergence, math.nan))
    step = torch.where(is_known, positive - negative, 0.0)
    return ratio * torch.exp(rate * step)


class PartialLabelMasking(nn.Module):
    """Leave labels out of the loss at random, so that each class is trained at a ratio of positives that suits it.

    Formula:
        keep a positive with min(1, t[c] / r[c]), a negative with min(1, r[c] / t[c]);
        after each epoch t[c] <- t[c] * exp(rate * (D_pos[c] - D_neg[c])), with standardized divergences D

    Args:
        prior: counts of positives and of samples; ``ClassPrior.from_indicator`` for several labels a sample. A class
            without positives or without negatives has no ratio: a warning says so, and it is never masked.
        rate: lambda. The paper takes 0.01 over 90 epochs (1.0 on CIFAR-10); fewer epochs need a larger one.
        bins: of the histograms of probabilities.
        initial: the first t: "data" (r itself, nothing is masked at first), "mean", "min" or "max" of r over classes,
            or [C] ratios above 0.
        clip: (lowest, highest) ratio; None is no limit. The paper takes (0, 1) for MSCOCO.

    In a training loop: ``mask`` before the loss, ``observe`` with the probabilities of the same batch, and ``adapt``
    after the epoch. ``MaskedLoss`` does the first two. There is no second pass over the data: the histograms are
    those of the training steps, 2 * C * bins numbers. ``adapt`` sums them over all processes, so all have the same
    ratios.

    Use when:
        Rare labels are hardly ever predicted at a threshold of 0.5 and recall matters more than precision; labels
        that occur together make resampling useless.
    Avoid when:
        Only the ranking of scores matters, or thresholds are tuned for each class on a holdout, which does the
        same without training; and where probabilities must be those of the data.
    Equals:
        The plain loss, with rate = 0 and initial = "data".

    >>> prior = ClassPrior.from_indicator(torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]]))
    >>> masking = PartialLabelMasking(prior, rate=0.5)
    >>> targets = torch.tensor([[1, 0], [0, 1]])
    >>> masking.mask(targets).tolist()
    [[True, True], [True, True]]
    >>> masking.observe(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), targets)
    >>> masking.adapt()
    >>> bool(masking.ratio[0] < masking.data_ratio[0]), bool(masking.ratio[1] > masking.data_ratio[1])
    (True, True)

    Deviates:
        Masks are drawn anew in each step, not once an epoch, which is the same for data seen once an epoch. The
        histograms are those of the probabilities during the epoch; the paper does not say which it takes. A class
        of which an epoch shows no positive or no negative keeps its ratio. See ``divergence`` for the smoothing.

    Reference:
        Duarte et al., "PLM: Partial label masking for imbalanced multi-label classification", eq. (2)-(7),
        algorithm 1.
    """

    data_ratio: Tensor
    """[C] r; NaN where undefined."""
    ratio: Tensor
    """[C] t, the ratio that masks aim at now; NaN where undefined."""
    histogram: Tensor
    """[2, C, bins] int64, probabilities of negatives and positives seen since the last ``adapt``."""

    def __init__(
        self,
        prior: ClassPrior,
        rate: float = 0.01,
        bins: int = 10,
        initial: str | Tensor = "data",
        clip: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"PartialLabelMasking: rate must be a finite number >= 0. Got {rate}.")
        if bins < 2:
            raise ValueError(f"PartialLabelMasking: bins must be at least 2. Got {bins}.")
        self.rate = rate
        self.bins = bins
        self.clip = _checked_clip(clip)
        data_ratio = positive_ratio(prior)
        _warn_of_undefined(data_ratio)
        ratio = self._clipped(_initial_ratio(data_ratio, initial))
        dtype = torch.get_default_dtype()
        self.register_buffer("data_ratio", data_ratio.to(dtype))
        self.register_buffer("ratio", ratio.to(dtype))
        self.register_buffer("histogram", torch.zeros(2, prior.num_classes, bins, dtype=torch.int64))
        self._history = [self.ratio.clone()]

    @property
    def ratio_history(self) -> Tensor:
        """[T + 1, C] the ratios after 0, 1, ..., T calls of ``adapt``. Part of ``state_dict``."""
        return torch.stack([row.to(self.ratio) for row in self._history])

    @property
    def undefined_classes(self) -> Tensor:
        """Indices of classes without positives or without negatives, which are never masked."""
        return torch.nonzero(self.data_ratio.isnan()).flatten()

    def mask(self, targets: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """[N, C] bool, False where a label of ``targets`` ([N, C] of 0 and 1, or [N] indices) does not count."""
        is_positive = _checked_indicator(self.data_ratio, targets)
        return self._mask(is_positive, generator)

    def observe(self, probs: Tensor, targets: Tensor) -> None:
        """Add probabilities [N, C] and their targets to the histograms."""
        self._check_classes(probs)
        self.histogram += count_bins(probs, targets, self.bins)

    def adapt(self) -> None:
        """Move the ratios by what was observed, in all processes together, and forget it."""
        total = self.histogram.clone()
        if is_initialized():
            dist.all_reduce(total)
        if not total.any():
            raise ValueError("PartialLabelMasking.adapt: call observe before it. Got no probabilities.")
        positive, negative = divergence(total[1], target_bin=-1), divergence(total[0], target_bin=0)
        moved = adapted_ratio(self.ratio.double(), positive.double(), negative.double(), self.rate)
        self.ratio.copy_(self._clipped(moved))
        self._history.append(self.ratio.clone())
        self.histogram.zero_()

    def get_extra_state(self) -> Tensor:
        """The history, whose length is no part of the module's shape."""
        return self.ratio_history

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the history of a ``state_dict``."""
        self._history = list(state)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"num_classes={len(self.ratio)}, rate={self.rate}, bins={self.bins}, clip={self.clip}"

    def _mask(self, is_positive: Tensor, generator: torch.Generator | None) -> Tensor:
        self._check_classes(is_positive)
        keep_positive, keep_negative = mask_probabilities(self.data_ratio, self.ratio)
        # Of each class only one kind of label is ever left out, so one comparison with [C] numbers does.
        return _draw_kept(is_positive, keep_positive < 1, torch.minimum(keep_positive, keep_negative), generator)

    def _clipped(self, ratio: Tensor) -> Tensor:
        return ratio if self.clip is None else ratio.clamp(*self.clip)

    def _check_classes(self, matrix: Tensor) -> None:
        if matrix.ndim != 2 or matrix.shape[1] != len(self.ratio):
            raise ValueError(
                f"PartialLabelMasking: expected [N, {len(self.ratio)}], a column a class. Got {tuple(matrix.shape)}."
            )


def binary_cross_entropy(
    logits: Tensor, target: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy of independent sigmoids, summed over classes.

    Formula:
        l = sum_c g[c] * w[c] * (y[c] * softplus(-f[c]) + (1 - y[c]) * softplus(f[c]))

    Args:
        logits: [N, C] f, any floating dtype. Half precision is computed in float32.
        target: [N, C] y, of 0 and 1 (or probabilities), or [N] class indices.
        weights: [C] w; None is 1. With ``effective_number`` it is the class-balanced loss.
        mask: [N, C] g, bool, False where a label does not count; None: all count.

    Returns:
        [N] losses in the dtype of ``logits`` (float32 under autocast).

    Use when:
        A sample may have several labels, or none, and probabilities should be those of the data.
    Avoid when:
        Rare labels matter and predictions are made at 0.5: nearly all of what it sees of them are negatives.
    Equals:
        ``binary_focal_loss`` at gamma = 0; ``decoupled_logistic`` for one label a sample.

    >>> binary_cross_entropy(torch.zeros(1, 3), torch.tensor([[1, 0, 1]])).exp().round()
    tensor([8.])

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (1), (2) and (8).
    """
    _check_mask(logits, mask)
    wide = _widened(logits)
    labels = _labels(wide, target, may_be_soft=True)
    losses = F.binary_cross_entropy_with_logits(wide, labels, _element_weights(wide, weights, mask), reduction="none")
    return losses.sum(dim=1).to(_loss_dtype(logits))


def binary_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Focal loss of independent sigmoids, summed over classes: labels that are already right count less.

    Formula:
        l = sum_c g[c] * w[c] * (1 - p[c])^gamma * -log p[c], with p the probability of the true label, 0 or 1

    Args:
        logits: [N, C].
        target: [N, C] of 0 and 1, or [N] class indices.
        gamma: focusing strength, >= 0.
        weights: [C] w; None is 1.
        mask: [N, C] g, bool, False where a label does not count; None: all count.

    Returns:
        [N] losses.

    Use when:
        Easy negatives outnumber everything else, as in detection.
    Avoid when:
        Probabilities must be calibrated, or rare labels must be predicted at 0.5.
    Equals:
        ``binary_cross_entropy`` at gamma = 0; ``asymmetric_loss`` with equal gammas and no shift.

    >>> binary_focal_loss(torch.zeros(1, 2), torch.tensor([[1, 0]]), gamma=1.0).item() / 0.5
    1.3862943649291992

    Deviates:
        The factor alpha of Lin et al., one for positives and one for negatives, is left out, as in the PLM paper.

    Reference:
        Lin et al. (2017), "Focal loss for dense object detection", eq. (4).
    """
    if not gamma >= 0:
        raise ValueError(f"binary_focal_loss: gamma must be at least 0. Got {gamma}.")
    _check_mask(logits, mask)
    wide = _widened(logits)
    cross_entropy = F.binary_cross_entropy_with_logits(wide, _labels(wide, target), reduction="none")
    return _total(_focused(cross_entropy, gamma), weights, mask).to(_loss_dtype(logits))


def asymmetric_loss(
    logits: Tensor,
    target: Tensor,
    positive_gamma: float = 0.0,
    negative_gamma: float = 4.0,
    shift: float = 0.05,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """ASL: focal loss that forgives negatives more than positives, and drops the easiest negatives.

    Formula:
        l = sum_c w[c] * (1 - p[c])^positive_gamma * -log p[c] over positives
          + sum_c w[c] * q[c]^negative_gamma * -log(1 - q[c]) over negatives, with q = max(p - shift, 0)

    Args:
        logits: [N, C].
        target: [N, C] of 0 and 1, or [N] class indices.
        positive_gamma: focusing of positives, >= 0.
        negative_gamma: focusing of negatives, >= 0; larger is more lenient.
        shift: m in [0, 1): negatives with a probability up to m do not count.
        weights: [C] w; None is 1.
        mask: [N, C] bool, False where a label does not count; None: all count.

    Returns:
        [N] losses.

    Use when:
        Samples have few of many labels, and mean average precision counts.
    Avoid when:
        Probabilities are needed: they are far too high, and 0.5 is no natural threshold.
    Equals:
        ``binary_focal_loss`` with equal gammas and shift = 0; ``binary_cross_entropy`` with both 0 as well.

    >>> asymmetric_loss(torch.tensor([[0.0, -4.0]]), torch.tensor([[1, 0]])).exp().round()
    tensor([2.])

    Deviates:
        The authors' code can treat the focusing factor as a constant; here it has its gradient, as in their paper.

    Reference:
        Ridnik et al. (2021), "Asymmetric loss for multi-label classification", eq. (4)-(7).
    """
    if not (positive_gamma >= 0 and negative_gamma >= 0 and 0 <= shift < 1):
        raise ValueError(
            "asymmetric_loss: gammas must be at least 0 and shift in [0, 1). "
            f"Got {positive_gamma=}, {negative_gamma=}, {shift=}."
        )
    _check_mask(logits, mask)
    wide = _widened(logits)
    is_positive = _checked_indicator(wide, target)
    positive = _focused(F.softplus(-wide), positive_gamma)
    if shift == 0:
        negative = _focused(F.softplus(wide), negative_gamma)
    else:  # 1 - q is at least the shift, so its logarithm is safe
        negative = _focused(-torch.log1p(-(wide.sigmoid() - shift).clamp_min(0)), negative_gamma)
    return _total(torch.where(is_positive, positive, negative), weights, mask).to(_loss_dtype(logits))


def distribution_balanced_loss(
    logits: Tensor,
    target: Tensor,
    rates: Tensor,
    floor: float = 0.1,
    slope: float = 10.0,
    center: float = 0.2,
    bias_scale: float = 0.05,
    negative_scale: float = 2.0,
    gamma: float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Weights that undo how labels occur together, and negatives that stop pushing once they are low.

    Formula:
        l = sum_c w[c] * (softplus(-z[c]) if y[c] else softplus(lambda * z[c]) / lambda), with
        z[c] = f[c] - kappa * log(1 / rate[c] - 1),
        w[c] = floor + sigmoid(slope * (s[c] - center)),  s[c] = (1 / rate[c]) / sum_{j: y[j] = 1} 1 / rate[j]

    Args:
        logits: [N, C] f.
        target: [N, C] of 0 and 1, or [N] class indices. A row without labels has s = infinity: full weights.
        rates: [C] share of samples with each label, in (0, 1), as ``ClassPrior.rates``.
        floor: the least weight; alpha in the paper.
        slope: of the map from s to weights; beta in the paper.
        center: of that map; mu in the paper (0.2 for COCO-MLT, 0.3 for VOC-MLT).
        bias_scale: kappa, how much of the log-odds is taken off the logits.
        negative_scale: lambda >= 1, how soon negatives are left alone (2 for COCO-MLT, 5 for VOC-MLT).
        gamma: focusing strength on top; 2 in the authors' configurations.
        mask: [N, C] bool, False where a label does not count; None: all count.

    Returns:
        [N] losses, summed over classes.

    Use when:
        Samples are drawn class by class (``RepeatFactorSampler``, class-aware sampling), and labels occur together.
    Avoid when:
        Labels hardly occur together, or 0.5 must mean something.
    Equals:
        ``binary_cross_entropy`` with weights 1, at floor = 0.5, slope = 0, bias_scale = 0 and negative_scale = 1.

    >>> logits, target, rates = torch.zeros(1, 2), torch.tensor([[1, 0]]), torch.tensor([0.5, 0.5])
    >>> distribution_balanced_loss(logits, target, rates, floor=0.5, slope=0.0, negative_scale=1.0).exp().round()
    tensor([4.])

    Deviates:
        The paper averages over classes, here they are summed, as in the other losses. Its code divides kappa by
        lambda and doubles the focal form; here formulas are the paper's.

    Reference:
        Wu et al. (2020), "Distribution-balanced loss for multi-label classification in long-tailed datasets",
        section 3.
    """
    if not (gamma >= 0 and negative_scale > 0):
        raise ValueError(
            "distribution_balanced_loss: gamma must be at least 0 and negative_scale above 0. "
            f"Got {gamma=}, {negative_scale=}."
        )
    _check_mask(logits, mask)
    wide = _widened(logits)
    is_positive = _checked_indicator(wide, target)
    rates = rates.to(wide)
    shifted = wide - bias_scale * torch.log(1 / rates - 1)
    inverse = 1 / rates
    # A row without labels divides by 0: its shares are infinite, and its weights floor + 1.
    shares = inverse / torch.where(is_positive, inverse, 0).sum(dim=1, keepdim=True)
    balance = floor + torch.sigmoid(slope * (shares - center)) if slope else shares.new_tensor(floor + 0.5)
    positive = _focused(F.softplus(-shifted), gamma)
    negative = _focused(F.softplus(negative_scale * shifted), gamma) / negative_scale
    return _total(balance * torch.where(is_positive, positive, negative), None, mask).to(_loss_dtype(logits))


class MultilabelFunction(Protocol):
    """A loss that ``MultilabelLoss`` can call, such as ``binary_cross_entropy``, or a ``partial`` of another."""

    def __call__(
        self, logits: Tensor, target: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """[N] losses."""


class MultilabelLoss(nn.Module):
    """The mean over samples of a loss over independent sigmoids.

    Args:
        function: ``binary_cross_entropy``, ``binary_focal_loss``, ``asymmetric_loss``, or a function with their
            arguments; set others with ``functools.partial``.
        weights: [C] class weights; None is 1.

    >>> MultilabelLoss()(torch.zeros(2, 3), torch.tensor([[1, 0, 1], [0, 0, 0]])).exp().round()
    tensor(8.)
    """

    weights: Tensor | None

    def __init__(self, function: MultilabelFunction = binary_cross_entropy, weights: Tensor | None = None) -> None:
        super().__init__()
        self.function = function
        dtype = torch.get_default_dtype()
        self.register_buffer("weights", None if weights is None else weights.to(dtype, copy=True))

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N, C] or [N]: a scalar."""
        return self.function(logits, target, weights=self.weights, mask=mask).mean()


class DistributionBalancedLoss(nn.Module):
    """``distribution_balanced_loss`` for a prior, averaged over samples.

    Args:
        prior: counts of positives and of samples; every class needs some of both.
        floor: see the function.
        slope: see the function.
        center: see the function.
        bias_scale: see the function.
        negative_scale: see the function.
        gamma: see the function.

    >>> prior = ClassPrior.from_indicator([[1, 0], [0, 1], [1, 0]])
    >>> DistributionBalancedLoss(prior)(torch.zeros(2, 2), torch.tensor([[1, 0], [0, 0]])).shape
    torch.Size([])
    """

    rates: Tensor

    def __init__(
        self,
        prior: ClassPrior,
        floor: float = 0.1,
        slope: float = 10.0,
        center: float = 0.2,
        bias_scale: float = 0.05,
        negative_scale: float = 2.0,
        gamma: float = 0.0,
    ) -> None:
        super().__init__()
        rates = _open_rates(prior, "DistributionBalancedLoss")
        self.register_buffer("rates", rates.to(torch.get_default_dtype()))
        self.settings = (floor, slope, center, bias_scale, negative_scale, gamma)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N, C] or [N]: a scalar."""
        return distribution_balanced_loss(logits, target, self.rates, *self.settings, mask=mask).mean()


class MaskedLoss(nn.Module):
    """Partial label masking around any loss that takes a mask, for a training loop.

    Args:
        loss: a module called as ``loss(logits, target, mask=mask)``: ``MultilabelLoss``,
            ``DistributionBalancedLoss``, ``BalancedSigmoid``, or your own.
        masking: what masks, and learns from the probabilities.
        seed: masks are drawn from this seed, the epoch and the process's rank, apart from PyTorch's own generator:
            a run that is resumed after an epoch draws the same ones.

    In training mode a call draws a mask, and adds the sigmoids of its logits to the histograms; call
    :meth:`end_epoch` after each epoch. In evaluation mode it is the plain loss.

    >>> prior = ClassPrior.from_indicator([[1, 0], [1, 0], [1, 1], [0, 0]])
    >>> loss = MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior, rate=0.1))
    >>> loss(torch.zeros(4, 2), torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]])).exp().round()
    tensor(4.)
    >>> loss.end_epoch()
    >>> loss.masking.ratio_history.shape
    torch.Size([2, 2])

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (2) and algorithm 1.
    """

    def __init__(self, loss: nn.Module, masking: PartialLabelMasking, seed: int = 0) -> None:
        super().__init__()
        self.loss = loss
        self.masking = masking
        self.seed = seed
        self._generator: torch.Generator | None = None

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N, C] or [N]: a scalar."""
        if not self.training:
            value: Tensor = self.loss(logits, target)
            return value
        is_positive = _checked_indicator(logits, target)
        mask = self.masking._mask(is_positive, self._epoch_generator(logits.device))
        probs = _widened(logits.detach()).sigmoid()
        self.masking.histogram += _count_bins(probs, is_positive, self.masking.bins)
        value = self.loss(logits, target, mask=mask)
        return value

    def end_epoch(self) -> None:
        """Adapt the ratios to the epoch that ends."""
        self.masking.adapt()
        self._generator = None

    def _epoch_generator(self, device: torch.device) -> torch.Generator:
        if self._generator is None or self._generator.device != device:
            rank = dist.get_rank() if is_initialized() else 0
            numbers = torch.tensor([self.seed, len(self.masking._history), rank])
            # Three primes mix the numbers: neighbors in any of them have unrelated seeds.
            mixed = int((numbers * torch.tensor([1_000_003, 7_919, 104_729])).sum())
            self._generator = torch.Generator(device).manual_seed(mixed)
        return self._generator


def _count_bins(probs: Tensor, is_positive: Tensor, bins: int) -> Tensor:
    """``count_bins`` without checks; NaN counts as 0."""
    num_classes = probs.shape[1]
    first = torch.arange(num_classes, dtype=torch.int32, device=probs.device) * bins
    # One number for each bin of each class of each label; int32 halves the traffic.
    cell = (probs * bins).int().clamp_(0, bins - 1).add_(first)
    cell.add_(is_positive.view(torch.uint8).int(), alpha=num_classes * bins)
    flat, size = cell.flatten(), 2 * num_classes * bins
    if torch.compiler.is_compiling():  # a fixed shape, where bincount's depends on values
        counts = torch.zeros(size, dtype=torch.int64, device=probs.device)
        counts = counts.scatter_add(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
    else:
        counts = torch.bincount(flat, minlength=size)
    return counts.view(2, num_classes, bins)


def _draw_kept(
    is_positive: Tensor, drops_positives: Tensor, keep: Tensor, generator: torch.Generator | None
) -> Tensor:
    """[N, C] bool, False with 1 - keep[c] for labels of the kind that class c drops.

    8 random bits a label cost a quarter of what 32 do. What they lack in precision, each class makes up by rounding
    its threshold up or down at random: over all draws, its labels stay with exactly this probability.
    """
    dither = torch.rand(keep.shape, generator=generator, device=keep.device)
    threshold = (keep * 256 + dither).int().clamp_max_(256)  # 256 and the largest dithers round to 257
    stays = _random_bytes(is_positive, generator).lt_(threshold.byte())  # a comparison into bool is far slower
    # At 256 all stay, though it is 0 as a byte: 2 is no label, so none is at risk.
    at_risk = drops_positives.byte().masked_fill_(threshold == 256, 2)
    return stays.view(torch.bool) | (is_positive.view(torch.uint8) != at_risk)


def _random_bytes(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform uint8 numbers in the shape of ``like``: eight from each draw of 64 bits."""
    size = like.numel()
    draws = torch.randint(-(2**63), 2**63 - 1, ((size + 7) // 8,), generator=generator, device=like.device)
    return draws.view(torch.uint8)[:size].view(like.shape)


def _initial_ratio(data_ratio: Tensor, initial: str | Tensor) -> Tensor:
    """[C] float64 first ratios; NaN where the data has none."""
    if isinstance(initial, Tensor):
        return _checked_initial(data_ratio, initial)
    known = data_ratio[~data_ratio.isnan()]
    if known.numel() == 0:
        return data_ratio
    named = {"data": data_ratio, "mean": known.mean(), "min": known.min(), "max": known.max()}
    if initial not in named:
        raise ValueError(
            f"PartialLabelMasking: initial must be one of {', '.join(named)}, or [C] ratios. Got {initial!r}."
        )
    return torch.where(data_ratio.isnan(), math.nan, named[initial])


def _checked_initial(data_ratio: Tensor, initial: Tensor) -> Tensor:
    if initial.shape != data_ratio.shape:
        raise ValueError(
            f"PartialLabelMasking: initial must be [{len(data_ratio)}] ratios. Got shape {tuple(initial.shape)}."
        )
    wide = torch.where(data_ratio.isnan(), math.nan, initial.detach().cpu().double())
    bad = torch.nonzero(~data_ratio.isnan() & ~((wide > 0) & wide.isfinite())).flatten()
    if len(bad):
        raise ValueError(
            f"PartialLabelMasking: initial ratios must be finite and above 0. Got {float(initial[bad[0]])} "
            f"for class {int(bad[0])}."
        )
    return wide


def _checked_clip(clip: tuple[float, float] | None) -> tuple[float, float] | None:
    if clip is None:
        return None
    bounds = tuple(clip)
    if len(bounds) != 2 or not (0 <= bounds[0] < bounds[1]):
        raise ValueError(
            "PartialLabelMasking: clip must be (lowest, highest) ratio with 0 <= lowest < highest. "
            f"Got {', '.join(str(bound) for bound in bounds)}."
        )
    return float(bounds[0]), float(bounds[1])


def _warn_of_undefined(data_ratio: Tensor) -> None:
    undefined = torch.nonzero(data_ratio.isnan()).flatten().tolist()
    if undefined:
        others = f" and {len(undefined) - 1} more have" if len(undefined) > 1 else " has"
        warnings.warn(
            f"PartialLabelMasking: class {undefined[0]}{others} no positives or no negatives, so no ratio; "
            "never masked.",
            stacklevel=3,
        )


def _labels(wide: Tensor, target: Tensor, may_be_soft: bool = False) -> Tensor:
    """[N, C] target in the dtype of the logits."""
    if may_be_soft and target.is_floating_point() and target.shape == wide.shape:
        _check_range(target, "target", "in [0, 1]")
        return target.to(wide)
    return _checked_indicator(wide, target).to(wide)


def _checked_indicator(like: Tensor, target: Tensor) -> Tensor:
    """[N, C] bool from 0 and 1 or from indices, for logits, probabilities, or a vector [C] in place of them."""
    num_classes = like.shape[-1]
    if target.ndim == 1 and not target.is_floating_point() and target.dtype != torch.bool:
        if like.ndim == 2 and len(target) != len(like):
            raise ValueError(f"target must be [{len(like)}] indices or [{len(like)}, C]. Got {tuple(target.shape)}.")
        return _one_hot(target, like.new_empty(0, num_classes), None).bool()
    if target.ndim != 2 or target.shape[1] != num_classes or (like.ndim == 2 and len(target) != len(like)):
        rows = len(like) if like.ndim == 2 else "N"
        raise ValueError(
            f"target must be [{rows}, {num_classes}] of 0 and 1, or [{rows}] class indices. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    is_positive = target.bool()
    if target.dtype != torch.bool and _is_looked_at(target):
        _check_equal(is_positive, target)
    return is_positive


def _check_equal(is_positive: Tensor, target: Tensor) -> None:
    """Raise unless the target is 0 where False and 1 where True."""
    difference = (is_positive.view(torch.uint8).to(target.dtype) - target).flatten()
    # The sum of squares is the fastest look; those of integers might wrap around.
    if torch.dot(difference, difference) != 0 if difference.is_floating_point() else difference.any():
        wrong = target[(target != 0) & (target != 1)][0]
        raise ValueError(f"target must be 0 or 1. Got {float(wrong):g}.")


def _check_probabilities(probs: Tensor) -> None:
    if not probs.is_floating_point():
        raise TypeError(f"probabilities must be floating-point. Got {probs.dtype}.")
    _check_range(probs, "probabilities", "in [0, 1]")


def _check_range(values: Tensor, name: str, wanted: str) -> None:
    if not _is_looked_at(values):
        return
    low, high = (float(value) for value in torch.aminmax(values.detach()))
    if not (low >= 0 and high <= 1):  # also if both are NaN, as aminmax has it when anything is
        raise ValueError(f"{name} must be {wanted}. Got {high if low >= 0 or low != low else low:g}.")


def _is_looked_at(values: Tensor) -> bool:
    """On CPUs only: elsewhere a look at the values would wait for the device."""
    return values.device.type == "cpu" and values.numel() > 0 and not torch.compiler.is_compiling()


def _check_mask(logits: Tensor, mask: Tensor | None) -> None:
    _check_logits(logits)
    if mask is not None and mask.shape != logits.shape:
        raise ValueError(f"mask must be {tuple(logits.shape)}, as the logits. Got {tuple(mask.shape)}.")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool. Got {mask.dtype}.")


def _element_weights(wide: Tensor, weights: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """[N, C] or [C], what each loss is multiplied with; None is 1."""
    if weights is None:
        return None if mask is None else mask.view(torch.uint8).to(wide)  # bool itself is slow to convert
    if weights.shape != wide.shape[1:]:
        raise ValueError(f"weights must be [{wide.shape[1]}]. Got {tuple(weights.shape)}.")
    return weights.to(wide) if mask is None else mask.view(torch.uint8).to(wide) * weights.to(wide)


def _total(losses: Tensor, weights: Tensor | None, mask: Tensor | None) -> Tensor:
    factors = _element_weights(losses, weights, mask)
    return (losses if factors is None else losses * factors).sum(dim=1)
