"""The margin loss for samples with any number of labels, one value for each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.checks import can_look_at, check_class_range, check_logits
from longtail._core.numerics import gap_of_loss, leading_gap, loss_dtype, loss_of_gap, widen
from longtail.losses._terms import check_class_terms
from longtail.margins import Margins

__all__ = ["multilabel_margin_cross_entropy"]

SMALLEST_SHIFT = 1e-6
"""Margins whose parts cancel up to this are symmetric, and need no gap."""


def multilabel_margin_cross_entropy(
    logits: Tensor,
    samples: Tensor,
    labels: Tensor,
    margins: Margins | None = None,
    class_weights: Tensor | None = None,
    *,
    excludes_other_labels: bool = False,
) -> Tensor:
    """Margin cross-entropy that picks all labels: each label of a sample is the true one of a term of its own.

    Formula:
        l[p] = alpha[y] * log(1 + sum_{y' != y} exp(positive[y] + negative[y'] + f[y'] - f[y])), y = labels[p],
        f the logits of the sample of p; with excludes_other_labels, y' is none of the sample's labels

    Args:
        logits: [N, C], any floating dtype. Half precision is computed in float32.
        samples: [P] which row of the logits each label belongs to.
        labels: [P] class indices; a sample may have any number of them, or none.
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.
        excludes_other_labels: whether a label does not compete with the others of its sample.

    Returns:
        [P] losses in the dtype of ``logits`` (float32 under autocast). Summed over the labels of a sample
        they are the pick-all-labels reduction; divided by the number of its labels, the normalized one.

    One log-sum-exp per sample serves all its labels, so time and memory are those of one label per sample.

    Use when:
        Labels are ranked, as in retrieval and extreme classification, and precision or recall at k counts.
    Avoid when:
        Each label needs a probability of its own: ``binary_cross_entropy`` says yes or no for every label.
    Special cases:
        ``margin_cross_entropy``, for one label per sample.

    >>> logits, samples, labels = torch.zeros(2, 4), torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0])
    >>> multilabel_margin_cross_entropy(logits, samples, labels).exp()
    tensor([4., 4., 4.])
    >>> multilabel_margin_cross_entropy(logits, samples, labels, excludes_other_labels=True).exp()
    tensor([3., 3., 4.])

    Reference:
        Menon et al. (2019), "Multilabel reductions: what is my loss optimising?", pick-all-labels; with margins as in
        Rawat et al., "Disentangling sampling and labeling bias", eq. (11).
    """
    _check_pairs(logits, samples, labels, margins, class_weights)
    wide, samples, labels = widen(logits), samples.long(), labels.long()
    margins = None if margins is None else margins.to(wide)
    wide = wide if margins is None or margins.scale is None else wide * margins.scale
    shifted = wide if margins is None else wide + margins.negative
    shift = None if margins is None else _asymmetric_shift(margins)
    at_label = shifted[samples, labels]
    if margins is not None:
        is_hidden = margins.negative.isneginf()[labels]
        at_label = torch.where(is_hidden, wide[samples, labels], at_label)
    if excludes_other_labels:
        negatives = shifted.index_put((samples, labels), shifted.new_tensor(-torch.inf))
        gap = negatives.logsumexp(dim=1)[samples] - at_label
        losses = loss_of_gap(gap if shift is None else gap + shift[labels])
    else:
        losses = shifted.logsumexp(dim=1)[samples] - at_label
        if shift is not None:
            losses = loss_of_gap(_gaps_of_all(losses, shifted, samples, labels, is_hidden) + shift[labels])
    losses = losses if class_weights is None else losses * class_weights.to(losses)[labels]
    return losses.to(loss_dtype(logits))


def _gaps_of_all(losses: Tensor, shifted: Tensor, samples: Tensor, labels: Tensor, is_hidden: Tensor) -> Tensor:
    """[P] how far the others are above each label, from log-sum-exps of all less the label's logit."""
    top, top_gap = (part[samples, 0] for part in leading_gap(shifted))
    # A label that is nobody's negative is no part of the log-sum-exp, so the difference is its gap already.
    visible = torch.where(is_hidden, torch.ones_like(losses), losses)
    gaps = torch.where(labels == top, top_gap, gap_of_loss(visible))
    return torch.where(is_hidden, losses, gaps)


def _asymmetric_shift(margins: Margins) -> Tensor | None:
    """[C] what a label's gap grows by; None where that is 0, as far as values can be looked at.

    A label that is nobody's negative has no negative part to take back.
    """
    is_hidden = margins.negative.isneginf()
    shift = margins.positive + margins.negative.masked_fill(is_hidden, 0)
    is_zero = ~is_hidden & (shift.abs() < SMALLEST_SHIFT)
    is_symmetric = can_look_at(shift) and not shift.requires_grad and bool(is_zero.all())
    return None if is_symmetric else shift


def _check_pairs(
    logits: Tensor, samples: Tensor, labels: Tensor, margins: Margins | None, class_weights: Tensor | None
) -> None:
    check_logits(logits)
    num_classes = logits.shape[1]
    for name, indices, size in (("samples", samples, len(logits)), ("labels", labels, num_classes)):
        if indices.ndim != 1 or indices.is_floating_point() or indices.dtype == torch.bool:
            raise ValueError(f"{name} must be [P] integers. Got {indices.dtype} {tuple(indices.shape)}.")
        check_class_range(indices, size, name=name)
    if len(samples) != len(labels):
        raise ValueError(f"samples and labels must be equally many. Got {len(samples)} and {len(labels)}.")
    check_class_terms(num_classes, None if margins is None else margins.negative, class_weights)
