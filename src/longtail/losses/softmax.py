"""Losses over class logits that take margins and class weights, one value per sample, and their modules.

The margin loss, eq. (11) of "Long-tail learning via logit adjustment", is

    l(y, f) = alpha[y] * log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])).

With ``Delta[y, y'] = positive[y] + negative[y']`` it is plain cross-entropy on ``f + negative`` once the target's own
logit is ``f[y] - positive[y]``: one addition and N scattered numbers, nothing of size C x C. On CPUs even that
addition is saved; ``ScaledSoftmaxCrossEntropy`` says how.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longtail._core.numerics import loss_dtype, widen
from longtail.losses._kernels import ScaledSoftmaxCrossEntropy, is_transformed, margin_factors
from longtail.losses._terms import (
    ShiftedMarginLoss,
    Terms,
    add_negative,
    check_shapes,
    check_target,
    class_indices,
    is_learned,
    losses_of_shifted,
    make_terms,
    mean_of_counted,
    scale_logits,
)
from longtail.margins import Margins

__all__ = ["margin_cross_entropy", "MarginCrossEntropy"]


def margin_cross_entropy(
    logits: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    class_weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy with a margin between the true label and every other.

    Formula:
        l = alpha[y] * log(1 + sum_{y' != y} exp(positive[y] + negative[y'] + f[y'] - f[y]))

    Args:
        logits: [N, C] f, any floating dtype. Half precision is computed in float32.
        target: [N] class indices, or [N, C] probabilities (mixup).
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.
        ignore_index: a target with this index has loss 0 and no gradient.
        label_smoothing: in [0, 1], mixes the target with the uniform distribution.

    Returns:
        [N] losses in the dtype of ``logits`` (float32 under autocast).

    A target distribution t, given or made by smoothing, costs sum_y t[y] * l(y, f): each label in it asks for its own
    margin and carries its own weight. For margins with positive = -negative that is cross-entropy between t and the
    softmax of ``logits + negative``.

    >>> from longtail import ClassPrior, margins
    >>> prior = ClassPrior.from_counts([90, 10])
    >>> margin_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), margins.logit_adjusted(prior)).exp().round()
    tensor([10.])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    return _margin_losses(
        logits, target, make_terms(margins, class_weights, ignore_index, label_smoothing), take_mean=False
    )


class MarginCrossEntropy(ShiftedMarginLoss):
    """``margin_cross_entropy``, averaged over the samples that are not ignored.

    Args:
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1. The mean divides by the number of samples, where PyTorch's own class
            weights divide by the sum of weights.
        ignore_index: a target with this index does not count.
        label_smoothing: in [0, 1].

    The margins and class weights are buffers: they move with ``.to`` and are part of ``state_dict``.

    >>> from longtail import ClassPrior, MarginCrossEntropy, margins
    >>> prior = ClassPrior.from_labels([0, 0, 0, 1])
    >>> loss = MarginCrossEntropy(margins.logit_adjusted(prior))
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N] or [N, C]: a scalar, NaN if no sample counts."""
        return _margin_losses(logits, target, self.terms, take_mean=True)


def _margin_losses(logits: Tensor, target: Tensor, terms: Terms, take_mean: bool) -> Tensor:
    """``margin_cross_entropy``, or its mean, which PyTorch takes in fewer passes when it knows."""
    check_shapes(logits, target, terms)
    wide, target = scale_logits(widen(logits), terms), class_indices(target)
    negative = None if terms.negative is None else terms.negative.to(wide)
    losses = None
    if negative is not None and _has_short_way(wide, target, terms):
        losses = _scaled_losses(wide, target, negative, terms, take_mean)
    if losses is None:
        losses = losses_of_shifted(add_negative(wide, target, terms), target, terms, take_mean)
    return losses if losses.dtype == logits.dtype else losses.to(loss_dtype(logits))


def _scaled_losses(logits: Tensor, target: Tensor, negative: Tensor, terms: Terms, take_mean: bool) -> Tensor | None:
    """``_margin_losses`` by ``ScaledSoftmaxCrossEntropy``; None where a probability is near underflow."""
    # Kept factors of a half-precision module would be too coarse, and small ones 0.
    is_kept = terms.factors is not None and terms.factors.dtype == logits.dtype
    factors = terms.factors if is_kept else margin_factors(negative)
    shift = None if terms.target_shift is None else terms.target_shift.to(logits)
    lowest, highest = (int(end) for end in torch.aminmax(target))
    all_count = terms.ignore_index < 0 <= lowest and highest < logits.shape[1]
    safe = target if all_count else check_target(target, logits.shape[1], terms.ignore_index)
    is_plain_mean = take_mean and all_count and terms.class_weights is None
    try:
        losses: Tensor = ScaledSoftmaxCrossEntropy.apply(logits, safe, factors, shift, is_plain_mean)  # type: ignore[no-untyped-call]
    except FloatingPointError:
        return None
    if is_plain_mean:
        return losses
    if terms.class_weights is not None:
        losses = losses * terms.class_weights.to(losses).index_select(0, safe)
    losses = losses if all_count else losses.masked_fill(target == terms.ignore_index, 0)
    return mean_of_counted(losses, target, terms.ignore_index) if take_mean else losses


def _has_short_way(logits: Tensor, target: Tensor, terms: Terms) -> bool:
    """Whether to try ``_scaled_losses``: elsewhere its look at values would wait for the device or break a graph."""
    return (
        type(logits) in (Tensor, nn.Parameter)
        and logits.device.type == "cpu"
        and len(target) > 0
        and not target.is_floating_point()
        and terms.label_smoothing == 0
        and not torch.compiler.is_compiling()
        and not is_transformed(logits)
        and not is_learned(terms)
    )
