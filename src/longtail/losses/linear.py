"""The margin loss of a linear head, without the [N, C] matrix of logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longtail._core.checks import check_target_length
from longtail._core.numerics import is_half, loss_dtype, row_chunks, widen
from longtail.losses._kernels import LINEAR_CHUNK_ELEMENTS, LINEAR_WHOLE_ELEMENTS, MeanLinearCrossEntropy
from longtail.losses._terms import (
    ShiftedMarginLoss,
    Terms,
    add_negative,
    check_shapes,
    check_target,
    class_indices,
    excludes_labels,
    is_learned,
    losses_of_shifted,
    make_terms,
    mean_of_counted,
    scale_logits,
)
from longtail.margins import Margins

__all__ = ["linear_margin_cross_entropy", "mean_linear_margin_cross_entropy", "LinearMarginCrossEntropy"]


def linear_margin_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    bias: Tensor | None = None,
    class_weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """``margin_cross_entropy(F.linear(x, linear_weight, bias), target, ...)`` without the [N, C] matrix.

    The negative part of the margin rides in the bias, so a margin costs nothing. Large problems go a few rows at a
    time and are computed again in the backward pass; for the mean, ``mean_linear_margin_cross_entropy`` avoids that.

    Args:
        x: [N, D] embeddings.
        linear_weight: [C, D] class vectors.
        target: [N] class indices, or [N, C] probabilities.
        margins: Delta; None is 0.
        bias: [C]; None is 0.
        class_weights: [C] alpha; None is 1.
        ignore_index: a target with this index has loss 0 and no gradient.
        label_smoothing: in [0, 1].

    Returns:
        [N] losses.

    >>> x, linear_weight = torch.ones(2, 3), torch.zeros(4, 3)
    >>> linear_margin_cross_entropy(x, linear_weight, torch.tensor([0, 3])).exp()
    tensor([4., 4.])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    terms = make_terms(margins, class_weights, ignore_index, label_smoothing)
    return _all_linear_losses(x, linear_weight, target, bias, terms)


def mean_linear_margin_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    bias: Tensor | None = None,
    class_weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The mean of ``linear_margin_cross_entropy`` over samples that are not ignored, in less time and memory.

    Knowing the reduction, it takes gradients in the forward pass, chunk by chunk, so large problems hold neither the
    [N, C] logits nor their gradient and compute nothing twice. That route allows one plain ``backward`` and no
    forward-mode or second derivatives; take ``linear_margin_cross_entropy(...).mean()`` for those. Small problems,
    half precision, autocast, ``torch.compile``, probability targets and label smoothing take that form by themselves.

    The arguments are those of ``linear_margin_cross_entropy``. The mean divides by the number of samples that count,
    also with class weights, not by the sum of their weights.

    Returns:
        A scalar; NaN if no sample counts, as PyTorch has it.

    >>> x, linear_weight = torch.ones(2, 3), torch.zeros(4, 3)
    >>> mean_linear_margin_cross_entropy(x, linear_weight, torch.tensor([0, 3])).exp()
    tensor(4.)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    terms = make_terms(margins, class_weights, ignore_index, label_smoothing)
    return _mean_linear_loss(x, linear_weight, target, bias, terms)


class LinearMarginCrossEntropy(ShiftedMarginLoss):
    """``mean_linear_margin_cross_entropy`` of embeddings and a head: the loss for large C.

    Args:
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.
        ignore_index: a target with this index does not count.
        label_smoothing: in [0, 1].

    >>> head = torch.nn.Linear(8, 5)
    >>> LinearMarginCrossEntropy()(torch.randn(4, 8), head.weight, torch.tensor([0, 1, 2, 3]), head.bias).shape
    torch.Size([])
    """

    def forward(self, x: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """The mean loss of embeddings x [N, D] under the head ``linear_weight`` [C, D], ``bias`` [C]: a scalar."""
        return _mean_linear_loss(x, linear_weight, target, bias, self.terms)


def _all_linear_losses(x: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor | None, terms: Terms) -> Tensor:
    """``linear_margin_cross_entropy``."""
    _check_linear(x, linear_weight, bias)
    linear_weight, bias, terms = _fold_scale(linear_weight, bias, terms)
    target = class_indices(target)
    if target.is_floating_point() or len(x) * len(linear_weight) <= LINEAR_WHOLE_ELEMENTS:
        return _linear_losses(x, linear_weight, bias, target, terms, take_mean=False)
    check_target_length(len(x), target)
    parts = [
        checkpoint(
            _linear_losses,
            x[rows],
            linear_weight,
            bias,
            target[rows],
            terms,
            take_mean=False,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for rows in row_chunks(len(x), len(linear_weight), LINEAR_CHUNK_ELEMENTS)
    ]
    return torch.cat(parts)


def _mean_linear_loss(x: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor | None, terms: Terms) -> Tensor:
    """``mean_linear_margin_cross_entropy``."""
    _check_linear(x, linear_weight, bias)
    linear_weight, bias, terms = _fold_scale(linear_weight, bias, terms)
    target = class_indices(target)
    if len(x) * len(linear_weight) <= LINEAR_WHOLE_ELEMENTS:
        return _linear_losses(x, linear_weight, bias, target, terms, take_mean=True)
    needs_general_form = (
        target.is_floating_point()
        or terms.label_smoothing > 0
        or is_half(x)
        or torch.compiler.is_compiling()
        or is_learned(terms)
        or excludes_labels(terms)
    )
    if needs_general_form:
        return mean_of_counted(_all_linear_losses(x, linear_weight, target, bias, terms), target, terms.ignore_index)
    check_target_length(len(x), target)
    valid, safe = target != terms.ignore_index, check_target(target, len(linear_weight), terms.ignore_index)
    scale = valid.to(x.dtype) if terms.class_weights is None else valid * terms.class_weights.to(x)[safe]
    scale = scale / valid.sum()
    shift = torch.zeros_like(scale) if terms.target_shift is None else terms.target_shift.to(x)[safe]
    shifted_bias = _shifted_bias(linear_weight, bias, terms.negative)
    if shifted_bias is None:
        shifted_bias = linear_weight.new_zeros(len(linear_weight))
    tensors = (x, linear_weight, shifted_bias, safe, shift, scale)
    return MeanLinearCrossEntropy.apply(*tensors, torch.is_grad_enabled())  # type: ignore[no-any-return, no-untyped-call]


def _linear_losses(
    x: Tensor, linear_weight: Tensor, bias: Tensor | None, target: Tensor, terms: Terms, take_mean: bool
) -> Tensor:
    """``_margin_losses`` of a linear head. Where it can, the negative part of the margin rides in its bias."""
    rides = not (is_half(x) or excludes_labels(terms))
    logits = F.linear(x, linear_weight, _shifted_bias(linear_weight, bias, terms.negative) if rides else bias)
    check_shapes(logits, target, terms)
    shifted = widen(logits)
    shifted = shifted if rides else add_negative(shifted, target, terms)
    losses = losses_of_shifted(shifted, target, terms, take_mean)
    return losses if losses.dtype == logits.dtype else losses.to(loss_dtype(logits))


def _fold_scale(linear_weight: Tensor, bias: Tensor | None, terms: Terms) -> tuple[Tensor, Tensor | None, Terms]:
    """A head whose logits are scaled as the margins say, and terms that no longer say it."""
    if terms.scale is None:
        return linear_weight, bias, terms
    scaled = scale_logits(linear_weight.T, terms).T
    return scaled, None if bias is None else scale_logits(bias, terms), terms._replace(scale=None)


def _shifted_bias(linear_weight: Tensor, bias: Tensor | None, negative: Tensor | None) -> Tensor | None:
    if negative is None:
        return bias
    negative = negative.to(linear_weight)
    return negative if bias is None else bias + negative


def _check_linear(x: Tensor, linear_weight: Tensor, bias: Tensor | None) -> None:
    if x.ndim != 2 or linear_weight.ndim != 2 or x.shape[1] != linear_weight.shape[1]:
        raise ValueError(
            f"x must be [N, D] and linear_weight [C, D]. Got {tuple(x.shape)} and {tuple(linear_weight.shape)}."
        )
    if bias is not None and bias.shape != linear_weight.shape[:1]:
        raise ValueError(f"bias must be [{linear_weight.shape[0]}]. Got {tuple(bias.shape)}.")
