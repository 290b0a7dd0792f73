"""What the margin losses share: margins and class weights as buffers, and the loss of shifted logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import can_look_at, check_class_range, check_logits, check_tensor
from longtail._core.numerics import gap_of_loss, leading_gap, loss_of_gap
from longtail.losses._kernels import is_transformed, margin_factors, shift_target
from longtail.margins import Margins

__all__ = [
    "MarginLoss",
    "register_constant",
    "Terms",
    "make_terms",
    "scale_logits",
    "ShiftedMarginLoss",
    "add_negative",
    "excludes_labels",
    "losses_of_shifted",
    "is_learned",
    "class_indices",
    "replace_ignored",
    "check_target",
    "mean_of_counted",
    "check_shapes",
    "check_class_terms",
]


class MarginLoss(nn.Module):
    """A loss with margins and class weights as buffers; margins of 0 are left out."""

    positive: Tensor | None
    negative: Tensor | None
    scale: Tensor | None
    class_weights: Tensor | None

    def __init__(self, margins: Margins | None, class_weights: Tensor | None) -> None:
        super().__init__()
        if margins is not None and not isinstance(margins, Margins):
            raise TypeError(
                f"margins must be Margins, such as longtail.margins.logit_adjusted(prior). "
                f"Got {type(margins).__name__}."
            )
        if margins is not None and margins.scale is None and not (margins.positive.any() or margins.negative.any()):
            margins = None
        register_constant(self, "positive", None if margins is None else margins.positive)
        register_constant(self, "negative", None if margins is None else margins.negative)
        register_constant(self, "scale", None if margins is None else margins.scale)
        register_constant(self, "class_weights", class_weights)

    @property
    def margins(self) -> Margins | None:
        """Delta; None is 0."""
        if self.positive is None or self.negative is None:
            return None
        return Margins(self.positive, self.negative, self.scale)


def register_constant(module: nn.Module, name: str, values: Tensor | None) -> None:
    """A buffer of the default dtype, apart from the caller's tensor; None is one that is left out."""
    if values is not None:
        values = torch.as_tensor(values).to(torch.get_default_dtype(), copy=True)
    module.register_buffer(name, values)


def _target_shift(margins: Margins) -> Tensor:
    return -(margins.positive + margins.negative.masked_fill(margins.negative.isneginf(), 0))


class Terms(NamedTuple):
    """What a margin loss depends on beside logits and target."""

    negative: Tensor | None
    """[C] what comes to every logit: the negative part of the margins; None is 0."""
    target_shift: Tensor | None
    """[C] what comes to the target's logit after that; None is 0, as for symmetric margins. To a target whose
    negative part is minus infinity nothing came before."""
    factors: Tensor | None
    """[C] ``margin_factors`` of the negative part where they are at hand, else None."""
    class_weights: Tensor | None
    """[C]; None is 1."""
    ignore_index: int
    label_smoothing: float
    scale: Tensor | None = None
    """[C] what logits are multiplied by first; None is 1."""


def scale_logits(logits: Tensor, terms: Terms) -> Tensor:
    """Logits [N, C], or a bias [C], times what the margins scale them by."""
    return logits if terms.scale is None else logits * terms.scale.to(logits)


def make_terms(
    margins: Margins | None, class_weights: Tensor | None, ignore_index: int, label_smoothing: float
) -> Terms:
    """The terms of a function's arguments."""
    negative, shift = (None, None) if margins is None else (margins.negative, _target_shift(margins))
    scale = None if margins is None else margins.scale
    return Terms(negative, shift, None, class_weights, ignore_index, label_smoothing, scale)


class ShiftedMarginLoss(MarginLoss):
    """A margin loss that keeps beside its margins what they come to in every call."""

    target_shift: Tensor | None
    factors: Tensor | None

    def __init__(
        self,
        margins: Margins | None = None,
        class_weights: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(margins, class_weights)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        _keep_terms(self)
        self.register_load_state_dict_post_hook(_keep_terms)  # type: ignore[no-untyped-call]

    @property
    def terms(self) -> Terms:
        """What the loss depends on beside logits and target."""
        kept = self.negative, self.target_shift, self.factors, self.class_weights
        return Terms(*kept, self.ignore_index, self.label_smoothing, self.scale)


def _keep_terms(module: MarginLoss, _: object = None) -> None:
    """Keep target shift and factors, also after loading; symmetric margins have no shift, and skip a step."""
    margins = module.margins
    shift = None if margins is None else _target_shift(margins)
    module.register_buffer("target_shift", None if shift is None or not shift.any() else shift, persistent=False)
    factors = None if margins is None else margin_factors(margins.negative)
    module.register_buffer("factors", factors, persistent=False)


def excludes_labels(terms: Terms) -> bool:
    """Whether some label is nobody's negative, with a negative part of minus infinity, as far as one can look."""
    negative = terms.negative
    if negative is None or type(negative) not in (Tensor, nn.Parameter) or not can_look_at(negative):
        return False
    return not is_transformed(negative) and bool(negative.isneginf().any())


def add_negative(logits: Tensor, target: Tensor, terms: Terms) -> Tensor:
    """``logits + negative``, where targets that are nobody's negative keep their logits."""
    if terms.negative is None:
        return logits
    negative = terms.negative.to(logits)
    excludes = excludes_labels(terms)
    if excludes and _is_distribution(target, terms):
        return logits + negative.masked_fill(negative.isneginf(), 0)
    shifted = logits + negative
    if excludes:
        index = target.clamp(0, logits.shape[1] - 1)[:, None]
        own = torch.where(negative[index].isneginf(), logits.gather(1, index), shifted.gather(1, index))
        # The gradient of a sum with a constant is that of the logit itself, so autograd need not know.
        shifted.detach().scatter_(1, index, own.detach())
    return shifted


def losses_of_shifted(shifted: Tensor, target: Tensor, terms: Terms, take_mean: bool) -> Tensor:
    """[N] losses, or their mean, from ``logits + negative``, which is overwritten where the target is shifted."""
    if _is_distribution(target, terms):
        losses = _expected_losses(shifted, target, terms)
        return mean_of_counted(losses, target, terms.ignore_index) if take_mean else losses
    class_weights = None if terms.class_weights is None else terms.class_weights.to(shifted)
    # PyTorch's own mean divides by the weights, so with weights it is taken here.
    reduction = "mean" if take_mean and class_weights is None else "none"
    if terms.target_shift is not None:
        shifted = _shift_targets(shifted, target, terms.target_shift)
    try:
        losses = F.cross_entropy(shifted, target, class_weights, ignore_index=terms.ignore_index, reduction=reduction)
    except IndexError:
        check_target(target, shifted.shape[1], terms.ignore_index)
        raise
    return mean_of_counted(losses, target, terms.ignore_index) if take_mean and class_weights is not None else losses


def _is_distribution(target: Tensor, terms: Terms) -> bool:
    return target.is_floating_point() or terms.label_smoothing > 0


def _shift_targets(shifted: Tensor, target: Tensor, target_shift: Tensor) -> Tensor:
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
        safe = check_target(target, num_classes, terms.ignore_index)
        target = safe[:, None] == torch.arange(num_classes, device=safe.device)  # one_hot has no rule for vmap
    target = target.to(shifted) * (1 - terms.label_smoothing) + terms.label_smoothing / num_classes
    others = shifted
    is_excluded = terms.negative.isneginf() if terms.negative is not None and excludes_labels(terms) else None
    if is_excluded is not None:
        others = shifted.masked_fill(is_excluded, -torch.inf)
    per_label = torch.logsumexp(others, dim=1, keepdim=True) - shifted
    if terms.target_shift is not None or is_excluded is not None:
        gap = gap_of_loss(per_label).scatter(1, *leading_gap(others))
        if is_excluded is not None:  # it is not among the labels it is compared with
            gap = torch.where(is_excluded, per_label, gap)
        per_label = loss_of_gap(gap if terms.target_shift is None else gap - terms.target_shift.to(shifted))
    if terms.class_weights is not None:
        target = target * terms.class_weights.to(shifted)
    losses = (target * per_label).sum(dim=1)
    return losses if ignored is None else losses.masked_fill(ignored, 0)


def is_learned(terms: Terms) -> bool:
    """Whether the margins have gradients."""
    return any(part is not None and part.requires_grad for part in (terms.negative, terms.target_shift))


def class_indices(target: Tensor) -> Tensor:
    """Class indices as int64: a byte selects like a mask, and equals -100 where it is 156."""
    return target if target.is_floating_point() else target.long()


def replace_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """Class indices in which the ignored ones point at class 0."""
    target = class_indices(target)
    return target.masked_fill(target == ignore_index, 0)


def check_target(target: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """``replace_ignored``, if all the others are classes."""
    safe = replace_ignored(target, ignore_index)
    check_class_range(safe, num_classes, ignore_index)
    return safe


def mean_of_counted(losses: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """The mean over samples that count, whatever their weights."""
    if target.is_floating_point():
        return losses.mean()
    wide = torch.promote_types(losses.dtype, torch.float32)  # a sum in float16 would overflow
    return (losses.sum(dtype=wide) / (class_indices(target) != ignore_index).sum()).to(losses.dtype)


def check_class_terms(num_classes: int, negative: Tensor | None, class_weights: Tensor | None) -> None:
    """Raise unless margins and class weights are for that many classes."""
    if negative is not None and len(negative) != num_classes:
        raise ValueError(f"margins are for {len(negative)} classes, but logits have {num_classes}.")
    if class_weights is not None and class_weights.shape != (num_classes,):
        raise ValueError(f"class_weights must be [{num_classes}]. Got {tuple(class_weights.shape)}.")


def check_shapes(logits: Tensor, target: Tensor, terms: Terms) -> None:
    """Raise unless logits, target, margins and class weights fit each other."""
    check_logits(logits)
    check_tensor(target, "target")
    num_classes = logits.shape[1]
    wanted = logits.shape if target.is_floating_point() else logits.shape[:1]
    if target.shape != wanted:
        raise ValueError(
            f"target must be [N] class indices or [N, C] probabilities for logits {tuple(logits.shape)}. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    check_class_terms(num_classes, terms.negative, terms.class_weights)
    if not 0 <= terms.label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]. Got {terms.label_smoothing}.")
