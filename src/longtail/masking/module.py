"""Partial label masking in training: which labels of a batch count, and a loss around any other that masks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longtail._core.checks import at_least, can_look_at, check_indicator
from longtail._core.collectives import is_initialized
from longtail._core.numerics import widen
from longtail._core.random import epoch_seed
from longtail.masking.ratios import (
    adapt_ratio,
    count_bins,
    count_checked_bins,
    divergence,
    mask_probabilities,
    positive_ratio,
)
from longtail.prior import ClassPrior

__all__ = ["MaskedLoss", "PartialLabelMasking"]


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
        self.masking.histogram += count_checked_bins(probs, is_positive, self.masking.num_bins)
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
