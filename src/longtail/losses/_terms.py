"""What the margin losses share: margins and weights as buffers, and the loss of shifted logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import check_class_range, check_logits
from longtail._core.numerics import gap_of_loss, leading_gap, loss_of_gap
from longtail.losses._kernels import margin_factors, shift_target
from longtail.margins import Margins

__all__ = [
    "register_margins",
    "keep_target_shift",
    "keep_factors",
    "margins_of_module",
    "Terms",
    "make_terms",
    "terms_of_module",
    "losses_of_shifted",
    "is_learned",
    "class_indices",
    "replace_ignored",
    "mean_of_counted",
    "check_shapes",
]


def register_margins(module: nn.Module, margins: Margins | None, weights: Tensor | None) -> None:
    """Margins and weights as buffers of the default dtype, apart from the caller's; zero margins are left out."""
    dtype = torch.get_default_dtype()
    if margins is not None and not (margins.positive.any() or margins.negative.any()):
        margins = None
    module.register_buffer("positive", None if margins is None else margins.positive.to(dtype, copy=True))
    module.register_buffer("negative", None if margins is None else margins.negative.to(dtype, copy=True))
    module.register_buffer("weights", None if weights is None else weights.to(dtype, copy=True))


def keep_target_shift(module: nn.Module, _: object = None) -> None:
    """Keep what the margins add at the target beside them, None where it is 0: so symmetric margins skip a step."""
    margins = margins_of_module(module)
    shift = None if margins is None else _target_shift(margins)
    is_symmetric = shift is None or not shift.any()
    module.register_buffer("target_shift", None if is_symmetric else shift, persistent=False)


def keep_factors(module: nn.Module, _: object = None) -> None:
    """Keep what the margins multiply probabilities with beside them."""
    margins = margins_of_module(module)
    factors = None if margins is None else margin_factors(margins.negative)
    module.register_buffer("factors", factors, persistent=False)


def _target_shift(margins: Margins) -> Tensor:
    return -(margins.positive + margins.negative)


def margins_of_module(module: nn.Module) -> Margins | None:
    positive, negative = module.positive, module.negative
    return None if positive is None or negative is None else Margins(positive, negative)  # type: ignore[arg-type]


class Terms(NamedTuple):
    """What a margin loss depends on beside logits and target."""

    negative: Tensor | None
    """[C] what comes to every logit: the negative part of the margins; None is 0."""
    target_shift: Tensor | None
    """[C] what comes to the target's logit after that; None is 0, as for symmetric margins."""
    factors: Tensor | None
    """[C] ``margin_factors`` of the negative part where they are at hand, else None."""
    weights: Tensor | None
    ignore_index: int
    label_smoothing: float


def make_terms(margins: Margins | None, weights: Tensor | None, ignore_index: int, label_smoothing: float) -> Terms:
    negative, shift = (None, None) if margins is None else (margins.negative, _target_shift(margins))
    return Terms(negative, shift, None, weights, ignore_index, label_smoothing)


def terms_of_module(module: Any, factors: Tensor | None) -> Terms:
    kept = module.negative, module.target_shift, factors, module.weights
    return Terms(*kept, module.ignore_index, module.label_smoothing)


def losses_of_shifted(shifted: Tensor, target: Tensor, terms: Terms, take_mean: bool) -> Tensor:
    """[N] losses, or their mean, from ``logits + negative``, which is overwritten where the target is shifted."""
    if target.is_floating_point() or terms.label_smoothing > 0:
        losses = _expected_losses(shifted, target, terms)
        return mean_of_counted(losses, target, terms.ignore_index) if take_mean else losses
    weights = None if terms.weights is None else terms.weights.to(shifted)
    # PyTorch's own mean divides by the weights, so with weights it is taken here.
    reduction = "mean" if take_mean and weights is None else "none"
    try:
        if terms.target_shift is not None:
            shifted = _with_target_shifted(shifted, target, terms.target_shift)
        losses = F.cross_entropy(shifted, target, weights, ignore_index=terms.ignore_index, reduction=reduction)
    except (IndexError, RuntimeError):
        check_class_range(replace_ignored(target, terms.ignore_index), shifted.shape[1])
        raise
    return mean_of_counted(losses, target, terms.ignore_index) if take_mean and weights is not None else losses


def _with_target_shifted(shifted: Tensor, target: Tensor, target_shift: Tensor) -> Tensor:
    """Add the shift of each target to its logit, in place."""
    # An ignored target may be no class at all: any class will do for it.
    safe = target.clamp(0, shifted.shape[1] - 1)
    shift = target_shift.index_select(0, safe).to(shifted)
    if shift.requires_grad:
        return shift_target(shifted, safe, shift)
    # A constant leaves the gradient as it is, so autograd need not know: that saves a pass backward.
    shift_target(shifted.detach(), safe, shift)
    return shifted


def _expected_losses(shifted: Tensor, target: Tensor, terms: Terms) -> Tensor:
    """[N] sum_y t[y] * alpha[y] * l(y, f) for a target distribution t."""
    num_classes = shifted.shape[1]
    ignored: Tensor | None = None
    if not target.is_floating_point():
        ignored = target == terms.ignore_index
        target = replace_ignored(target, terms.ignore_index)
        check_class_range(target, num_classes)
        target = F.one_hot(target, num_classes)
    target = target.to(shifted) * (1 - terms.label_smoothing) + terms.label_smoothing / num_classes
    per_label = torch.logsumexp(shifted, dim=1, keepdim=True) - shifted
    if terms.target_shift is not None:
        gap = gap_of_loss(per_label).scatter(1, *leading_gap(shifted))
        per_label = loss_of_gap(gap - terms.target_shift.to(shifted))
    if terms.weights is not None:
        target = target * terms.weights.to(shifted)
    losses = (target * per_label).sum(dim=1)
    return losses if ignored is None else losses.masked_fill(ignored, 0)


def is_learned(terms: Terms) -> bool:
    return any(part is not None and part.requires_grad for part in (terms.negative, terms.target_shift))


def class_indices(target: Tensor) -> Tensor:
    """Class indices as int64: a byte selects like a mask, and equals -100 where it is 156."""
    return target if target.is_floating_point() else target.long()


def replace_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """Class indices in which the ignored ones point at class 0."""
    target = class_indices(target)
    return target.masked_fill(target == ignore_index, 0)


def mean_of_counted(losses: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """The mean over samples that count, whatever their weights."""
    if target.is_floating_point():
        return losses.mean()
    wide = torch.promote_types(losses.dtype, torch.float32)  # a sum in float16 would overflow
    return (losses.sum(dtype=wide) / (class_indices(target) != ignore_index).sum()).to(losses.dtype)


def check_shapes(logits: Tensor, target: Tensor, terms: Terms) -> None:
    check_logits(logits)
    num_classes = logits.shape[1]
    wanted = logits.shape if target.is_floating_point() else logits.shape[:1]
    if target.shape != wanted:
        raise ValueError(
            f"target must be [N] class indices or [N, C] probabilities for logits {tuple(logits.shape)}. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    if terms.negative is not None and len(terms.negative) != num_classes:
        raise ValueError(f"margins are for {len(terms.negative)} classes, but logits have {num_classes}.")
    if terms.weights is not None and terms.weights.shape != (num_classes,):
        raise ValueError(f"weights must be [{num_classes}]. Got {tuple(terms.weights.shape)}.")
    if not 0 <= terms.label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]. Got {terms.label_smoothing}.")
