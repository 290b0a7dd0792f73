"""Losses that score each label by itself, with margins as weights on the negatives."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from longtail._core.checks import check_class_range
from longtail._core.numerics import loss_dtype, widen
from longtail.losses._terms import MarginLoss, check_shapes, class_indices, make_terms
from longtail.margins import Margins

__all__ = ["decoupled_logistic", "decoupled_hinge", "cosine_contrastive", "DecoupledLoss"]


def decoupled_logistic(
    logits: Tensor, target: Tensor, margins: Margins | None = None, class_weights: Tensor | None = None
) -> Tensor:
    """One-against-the-rest logistic loss with margins as weights on the negatives.

    Formula:
        l = alpha[y] * (softplus(-f[y]) + sum_{y' != y} exp(Delta[y, y']) * softplus(f[y']))

    Args:
        logits: [N, C].
        target: [N] class indices.
        margins: Delta; None is 0, all negatives count 1.
        class_weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        Labels are scored independently, as in retrieval; sampled negatives then estimate it without bias.
    Avoid when:
        Exactly one label is right and C is moderate: softmax cross-entropy is better there.
    Special cases:
        Binary cross-entropy summed over classes, with no margins.

    >>> round(decoupled_logistic(torch.zeros(1, 3), torch.tensor([0])).item() / 3, 4)
    0.6931

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (5) and (9).
    """
    return _decoupled(logits, target, lambda z: F.softplus(-z), F.softplus, margins, class_weights)


def decoupled_hinge(
    logits: Tensor, target: Tensor, margins: Margins | None = None, class_weights: Tensor | None = None
) -> Tensor:
    """One-against-the-rest hinge loss with margins as weights on the negatives.

    Formula:
        l = alpha[y] * ([1 - f[y]]_+ + sum_{y' != y} exp(Delta[y, y']) * [1 + f[y']]_+)

    Args:
        logits: [N, C].
        target: [N] class indices.
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        A support-vector flavor is wanted: samples beyond the margin have no gradient.
    Avoid when:
        Probabilities are needed.
    Special cases:
        The one-against-the-rest linear SVM's loss, with no margins.

    >>> decoupled_hinge(torch.tensor([[2.0, -2.0]]), torch.tensor([0])).item()
    0.0

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (5).
    """
    return _decoupled(logits, target, lambda z: F.relu(1 - z), lambda z: F.relu(1 + z), margins, class_weights)


def cosine_contrastive(
    similarities: Tensor, target: Tensor, margins: Margins | None = None, class_weights: Tensor | None = None
) -> Tensor:
    """Contrastive loss on cosines: the true label's to 1, the others' to at most 0.

    Formula:
        l = alpha[y] * ((1 - z[y])^2 + sum_{y' != y} exp(Delta[y, y']) * [z[y']]_+^2)

    Args:
        similarities: [N, C] cosines z between embeddings and class vectors.
        target: [N] class indices.
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        Embeddings are searched by cosine.
    Avoid when:
        Balanced accuracy is the aim; the papers find softmax cross-entropy better on tails.
    Special cases:
        The paper's contrastive baseline, with no margins.

    >>> cosine_contrastive(torch.tensor([[1.0, -0.5]]), torch.tensor([0])).item()
    0.0

    Deviates:
        The paper's eq. (5) writes the negative's loss at -f; its pair is meant on f itself, as here.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.1.
    """
    return _decoupled(
        similarities, target, lambda z: (1 - z).square(), lambda z: F.relu(z).square(), margins, class_weights
    )


DecoupledFunction = Callable[[Tensor, Tensor, Margins | None, Tensor | None], Tensor]


class DecoupledLoss(MarginLoss):
    """The mean of ``decoupled_logistic``, ``decoupled_hinge`` or ``cosine_contrastive``.

    Args:
        function: one of those three, or a function with their arguments.
        margins: Delta; None is 0.
        class_weights: [C] alpha; None is 1.

    >>> DecoupledLoss(decoupled_hinge)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    3.0
    """

    def __init__(
        self, function: DecoupledFunction, margins: Margins | None = None, class_weights: Tensor | None = None
    ) -> None:
        super().__init__(margins, class_weights)
        self.function = function

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = self.function(logits, target, self.margins, self.class_weights)
        return losses.mean()


def _decoupled(
    logits: Tensor,
    target: Tensor,
    positive_loss: Callable[[Tensor], Tensor],
    negative_loss: Callable[[Tensor], Tensor],
    margins: Margins | None,
    class_weights: Tensor | None,
) -> Tensor:
    check_shapes(logits, target, make_terms(margins, class_weights, ignore_index=-100, label_smoothing=0.0))
    if target.is_floating_point():
        raise TypeError("decoupled losses: target must be class indices. Got probabilities.")
    check_class_range(target, logits.shape[1])
    wide, target = widen(logits), class_indices(target)
    index = target[:, None]
    negatives = negative_loss(wide).scatter(1, index, 0.0)
    if margins is None:
        pushed = negatives.sum(dim=1)
    else:
        margins.check_additive("decoupled losses")
        margins = margins.to(wide)
        # No matrix product: autocast would take it in half precision.
        pushed = (negatives * margins.negative.exp()).sum(dim=1) * margins.positive.exp()[target]
    losses = positive_loss(wide.gather(1, index)[:, 0]) + pushed
    losses = losses if class_weights is None else losses * class_weights.to(losses)[target]
    return losses.to(loss_dtype(logits))
