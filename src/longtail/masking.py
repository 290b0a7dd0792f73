"""Partial label masking: leave out labels at random until each class has the ratio of positives it needs.

A sigmoid for each class sees its own imbalance: positives against negatives, r[c] = n_pos[c] / n_neg[c]. Head classes
lose positives, tail classes lose negatives, and the ratios follow training. Equations are those of Duarte et al.
(2021), "PLM: partial label masking for imbalanced multi-label classification".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longtail._core.checks import at_least, can_look_at, check_indicator, check_value_range
from longtail._core.collectives import is_initialized
from longtail._core.numerics import widen
from longtail._core.random import epoch_seed
from longtail.prior import ClassPrior, check_prior

__all__ = [
    "positive_ratio",
    "mask_probabilities",
    "count_bins",
    "divergence",
    "standardize",
    "adapt_ratio",
    "PartialLabelMasking",
    "MaskedLoss",
]


SMOOTHING = 1e-6
"""What ``divergence`` adds to every bin's share: small beside one sample in 100,000, and the logarithm exists."""


def positive_ratio(prior: ClassPrior) -> Tensor:
    """[C] float64, positives over negatives of each class; NaN for a class that has none of either.

    Formula:
        r[c] = n[c] / (N - n[c])

    Args:
        prior: counts of positives, and of samples; from ``ClassPrior.from_indicator`` for multi-label data.

    >>> positive_ratio(ClassPrior.from_indicator([[1, 1, 0], [0, 1, 0], [0, 1, 0]])).tolist()
    [0.5, nan, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking for imbalanced multi-label classification", section 2.
    """
    check_prior(prior)
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


def count_bins(probs: Tensor, target: Tensor, num_bins: int) -> Tensor:
    """Histograms of each class's probabilities, of its positives and its negatives apart.

    Args:
        probs: [N, C] in [0, 1].
        target: [N, C] of 0 and 1, or [N] class indices.
        num_bins: B, how many bins of equal width; bin b holds [b / B, (b + 1) / B), and the last one 1 as well.

    Returns:
        [2, C, B] int64: the negatives' histograms, then the positives'.

    >>> count_bins(torch.tensor([[0.9], [0.3], [1.0]]), torch.tensor([[1], [0], [1]]), num_bins=2).tolist()
    [[[1, 0]], [[0, 2]]]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (4) and appendix B.
    """
    at_least(num_bins, 2, "num_bins")
    is_positive = check_indicator(probs, target)
    _check_probabilities(probs)
    return _count_bins(widen(probs.detach()), is_positive, num_bins)


def divergence(histogram: Tensor, target_bin: int, smoothing: float = SMOOTHING) -> Tensor:
    """How far predicted probabilities are from labels, all of which lie in one bin.

    Formula:
        KL(Q || P), with Q the histogram's shares and P all in target_bin, each as (share + s) / (1 + B * s)

    Args:
        histogram: [..., B] counts of probabilities.
        target_bin: the bin of the labels: the last one for positives, 0 for negatives.
        smoothing: s, added to the share of every bin. It is a share, not a count, so that the result does not depend
            on the number of samples.

    Returns:
        [...] in the default dtype, at least 0; NaN for a histogram without samples.

    Without smoothing the divergence is infinite as soon as one probability is in another bin. Its size grows as
    log(1 / s), the same for all classes, which ``standardize`` takes out.

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


def standardize(values: Tensor) -> Tensor:
    """Values minus their mean, over their standard deviation (that of a population); NaN stays and does not count.

    Formula:
        (D[c] - mu) / sigma; 0 where all values are equal

    Args:
        values: [C].

    >>> standardize(torch.tensor([1.0, 3.0, math.nan])).tolist()
    [-1.0, 1.0, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6).
    """
    centered = values - values.nanmean()
    deviation = centered.square().nanmean().sqrt()
    # Equal values differ from their mean by rounding alone: dividing by it would make noise of size 1.
    is_spread = deviation > 8 * torch.finfo(values.dtype).eps * values.abs().nan_to_num(nan=0.0).amax()
    return torch.where(is_spread, centered / deviation, centered * 0)


def adapt_ratio(ratio: Tensor, positive_divergence: Tensor, negative_divergence: Tensor, rate: float) -> Tensor:
    """The ratio of the next epoch: larger where positives are predicted worse than negatives, as classes go.

    Formula:
        ratio[c] * exp(rate * (standardize(D_pos)[c] - standardize(D_neg)[c]))

    Args:
        ratio: [C] of this epoch.
        positive_divergence: [C] D_pos from ``divergence``; NaN: the class's ratio stays.
        negative_divergence: [C] D_neg likewise.
        rate: lambda, how fast ratios move.

    >>> adapt_ratio(torch.ones(2), torch.tensor([4.0, 1.0]), torch.tensor([1.0, 4.0]), rate=1.0).log().tolist()
    [2.0, -2.0]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6) and (7).
    """
    is_known = ~(positive_divergence.isnan() | negative_divergence.isnan())
    positive = standardize(torch.where(is_known, positive_divergence, math.nan))
    negative = standardize(torch.where(is_known, negative_divergence, math.nan))
    step = torch.where(is_known, positive - negative, 0.0)
    return ratio * torch.exp(rate * step)


class PartialLabelMasking(nn.Module):
    """Leave labels out of the loss at random, so that each class is trained at a ratio of positives that suits it.

    Formula:
        keep a positive with min(1, t[c] / r[c]), a negative with min(1, r[c] / t[c]);
        after each epoch t[c] <- t[c] * exp(rate * (D_pos[c] - D_neg[c])), with standardized divergences D

    Args:
        prior: counts of positives and of samples; ``ClassPrior.from_indicator`` for multi-label data. A class
            without positives or without negatives has no ratio: a warning says so, and it is never masked.
        rate: lambda. The paper takes 0.01 over 90 epochs (1.0 on CIFAR-10); fewer epochs need a larger one.
        num_bins: of the histograms of probabilities.
        initial: the first t: "data" (r itself, nothing is masked at first), "mean", "min" or "max" of r over classes,
            or [C] ratios above 0.
        clip: (lowest, highest) ratio; None is no limit. The paper takes (0, 1) for MSCOCO. With or without it, ratios
            stay within the normal positive numbers of their dtype, 1e-38 to 3e38 in float32: from 0 or infinity they
            could not move again.

    In a training loop: ``mask`` before the loss, ``observe`` with the probabilities of the same batch, and ``adapt``
    after the epoch. ``MaskedLoss`` does the first two. There is no second pass over the data: the histograms are
    those of the training steps, 2 * C * num_bins numbers. ``adapt`` sums them over all processes, so all have the
    same ratios.

    Use when:
        Rare labels are hardly ever predicted at a threshold of 0.5 and recall matters more than precision; labels
        that occur together make resampling useless.
    Avoid when:
        Only the ranking of scores matters, or thresholds are tuned for each class on a holdout, which does the
        same without training; and where probabilities must be those of the data.
    Special cases:
        The plain loss, with rate = 0 and initial = "data".

    >>> prior = ClassPrior.from_indicator(torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]]))
    >>> masking = PartialLabelMasking(prior, rate=0.5)
    >>> target = torch.tensor([[1, 0], [0, 1]])
    >>> masking.mask(target).tolist()
    [[True, True], [True, True]]
    >>> masking.observe(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), target)
    >>> masking.adapt()
    >>> bool(masking.ratio[0] < masking.data_ratio[0]), bool(masking.ratio[1] > masking.data_ratio[1])
    (True, True)

    Deviates:
        Masks are drawn anew in each step, not once per epoch, which is the same for data seen once per epoch. The
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
    """[2, C, num_bins] int64, probabilities of negatives and positives seen since the last ``adapt``."""

    def __init__(
        self,
        prior: ClassPrior,
        rate: float = 0.01,
        num_bins: int = 10,
        initial: str | Tensor = "data",
        clip: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"PartialLabelMasking: rate must be a finite number >= 0. Got {rate}.")
        self.rate = rate
        self.num_bins = at_least(num_bins, 2, "PartialLabelMasking: num_bins")
        self.clip = _check_clip(clip)
        data_ratio = positive_ratio(prior)
        _warn_of_undefined(data_ratio)
        dtype = torch.get_default_dtype()
        self.register_buffer("data_ratio", data_ratio.to(dtype))
        self.register_buffer("ratio", self._limit(_initial_ratio(data_ratio, initial), dtype))
        self.register_buffer("histogram", torch.zeros(2, prior.num_classes, num_bins, dtype=torch.int64))
        self._history = [self.ratio.clone()]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartialLabelMasking:
        """Ratios follow a model to devices and to double, but not to half, which would round their steps away."""
        kept = {name: getattr(self, name) for name in ("data_ratio", "ratio")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, values in kept.items():
            moved = getattr(self, name)
            if moved.dtype.itemsize < 4:
                setattr(self, name, values.to(moved.device, torch.promote_types(values.dtype, torch.float32)))
        return self

    @property
    def ratio_history(self) -> Tensor:
        """[T + 1, C] the ratios after 0, 1, ..., T calls of ``adapt``. Part of ``state_dict``."""
        return torch.stack([row.to(self.ratio) for row in self._history])

    @property
    def undefined_classes(self) -> Tensor:
        """Indices of classes without positives or without negatives, which are never masked."""
        return torch.nonzero(self.data_ratio.isnan()).flatten()

    def mask(self, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """[N, C] bool, False where a label of ``target`` ([N, C] of 0 and 1, or [N] indices) does not count."""
        is_positive = check_indicator(self.data_ratio, target)
        return self._mask(is_positive, generator)

    def observe(self, probs: Tensor, target: Tensor) -> None:
        """Add probabilities [N, C] and their target to the histograms."""
        self._check_classes(probs)
        self.histogram += count_bins(probs, target, self.num_bins)

    def adapt(self) -> None:
        """Move the ratios by what was observed, in all processes together, and forget it."""
        total = self.histogram.clone()
        if is_initialized():
            dist.all_reduce(total)
        if not total.any():
            raise ValueError("PartialLabelMasking.adapt: call observe before it. Got no probabilities.")
        positive, negative = divergence(total[1], target_bin=-1), divergence(total[0], target_bin=0)
        moved = adapt_ratio(self.ratio.double(), positive.double(), negative.double(), self.rate)
        self.ratio.copy_(self._limit(moved, self.ratio.dtype))
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
        return f"num_classes={len(self.ratio)}, rate={self.rate}, num_bins={self.num_bins}, clip={self.clip}"

    def _mask(self, is_positive: Tensor, generator: torch.Generator | None) -> Tensor:
        self._check_classes(is_positive)
        keep_positive, keep_negative = mask_probabilities(self.data_ratio, self.ratio)
        # Of each class only one kind of label is ever left out, so one comparison with [C] numbers does.
        return _draw_kept(is_positive, keep_positive < 1, torch.minimum(keep_positive, keep_negative), generator)

    def _limit(self, ratio: Tensor, dtype: torch.dtype) -> Tensor:
        """The ratio in this dtype, within the clip and neither 0 nor infinite."""
        limits = torch.finfo(dtype)
        clipped = ratio if self.clip is None else ratio.clamp(*self.clip)
        return clipped.clamp(limits.tiny, limits.max).to(dtype)

    def _check_classes(self, matrix: Tensor) -> None:
        if matrix.ndim != 2 or matrix.shape[1] != len(self.ratio):
            raise ValueError(
                f"PartialLabelMasking: expected [N, {len(self.ratio)}], one column per class. "
                f"Got {tuple(matrix.shape)}."
            )


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
    {'positive_ratios': [3.0, 0.333333]}
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
        is_positive = check_indicator(logits, target)
        probs = widen(logits.detach()).sigmoid()
        # Probabilities have a finite sum unless one is NaN, and no look at them is faster.
        if can_look_at(probs) and probs.sum().isnan():
            raise ValueError("MaskedLoss: logits must not be NaN. Got NaN; look for a diverged model.")
        mask = self.masking._mask(is_positive, self._epoch_generator(logits.device))
        self.masking.histogram += _count_bins(probs, is_positive, self.masking.num_bins)
        value = self.loss(logits, target, mask=mask)
        return value

    def end_epoch(self) -> dict[str, list[float | None]]:
        """Adapt the ratios to the epoch that ends."""
        self.masking.adapt()
        self._generator = None
        return {"positive_ratios": [round(r, 6) if r == r else None for r in self.masking.ratio.tolist()]}

    def _epoch_generator(self, device: torch.device) -> torch.Generator:
        if self._generator is None or self._generator.device != device:
            rank = dist.get_rank() if is_initialized() else 0
            seed = epoch_seed(self.seed, len(self.masking._history), rank, weights=(1_000_003, 7_919, 104_729))
            self._generator = torch.Generator(device).manual_seed(seed)
        return self._generator


def _count_bins(probs: Tensor, is_positive: Tensor, num_bins: int) -> Tensor:
    """``count_bins`` without checks; NaN does not count."""
    num_classes = probs.shape[1]
    first = torch.arange(num_classes, dtype=torch.int32, device=probs.device) * num_bins
    # One number for each bin of each class of each label; int32 halves the traffic.
    cell = (probs * num_bins).int().clamp_(0, num_bins - 1).add_(first)
    cell.add_(is_positive.view(torch.uint8).int(), alpha=num_classes * num_bins)
    size = 2 * num_classes * num_bins
    if not can_look_at(probs):  # else the caller has looked for NaN
        cell.masked_fill_(probs.isnan(), size)
    flat = cell.flatten()
    if torch.compiler.is_compiling():  # a fixed shape, where bincount's depends on values
        counts = torch.zeros(size + 1, dtype=torch.int64, device=probs.device)
        counts = counts.scatter_add(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
    else:
        counts = torch.bincount(flat, minlength=size + 1)
    return counts[:size].view(2, num_classes, num_bins)


def _draw_kept(
    is_positive: Tensor, drops_positives: Tensor, keep: Tensor, generator: torch.Generator | None
) -> Tensor:
    """[N, C] bool, False with 1 - keep[c] for labels of the kind that class c drops.

    8 random bits per label cost a quarter of what 32 do. What they lack in precision, each class makes up by rounding
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
        return _check_initial(data_ratio, initial)
    known = data_ratio[~data_ratio.isnan()]
    if known.numel() == 0:
        return data_ratio
    named = {"data": data_ratio, "mean": known.mean(), "min": known.min(), "max": known.max()}
    if initial not in named:
        raise ValueError(
            f"PartialLabelMasking: initial must be one of {', '.join(named)}, or [C] ratios. Got {initial!r}."
        )
    return torch.where(data_ratio.isnan(), math.nan, named[initial])


def _check_initial(data_ratio: Tensor, initial: Tensor) -> Tensor:
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


def _check_clip(clip: tuple[float, float] | None) -> tuple[float, float] | None:
    if clip is None:
        return None
    bounds = tuple(clip) if isinstance(clip, Iterable) else (clip,)
    are_numbers = all(isinstance(bound, int | float) for bound in bounds)
    if len(bounds) != 2 or not are_numbers or not 0 <= bounds[0] < bounds[1]:
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


def _check_probabilities(probs: Tensor) -> None:
    if not probs.is_floating_point():
        raise TypeError(f"probabilities must be floating-point. Got {probs.dtype}.")
    check_value_range(probs, "probabilities", "in [0, 1]")
