"""Whether a margin loss is consistent for the balanced error: Theorem 1 and Lemma 2 of the logit-adjustment paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.margins.algebra import Margins
from longtail.margins.builders import none
from longtail.prior import ClassPrior, check_prior

__all__ = ["is_consistent"]


def is_consistent(
    margins: Margins | None, weights: Tensor | None, prior: ClassPrior, tolerance: float = 1e-6
) -> bool | None:
    """Whether the weighted margin loss is Fisher consistent for the balanced error; None: not known.

    Consistent means: with enough data and a rich enough model, the largest logit is the balanced-error-optimal
    label. Theorem 1 is sufficient: some delta > 0 has ``alpha[y] = delta[y] / pi[y]`` and
    ``Delta[y, y'] = log(delta[y'] / delta[y])``, each up to one common factor of alpha. Lemma 2 is necessary for
    each pair of classes, since samples may be of these two only, and with two classes it is sufficient too:
    ``alpha[y] pi[y] sigma(Delta[y, y']) = alpha[y'] pi[y'] sigma(Delta[y', y])``, where the best logits tie at equal
    ``P(y | x) / pi[y]``.

    Args:
        margins: Delta; None is no margin.
        weights: [C] alpha > 0; None is 1 for every class.
        prior: the training prior.
        tolerance: how far logarithms may differ, absolutely.

    Returns:
        True where Theorem 1, or for two classes Lemma 2, holds; False where a class fails Lemma 2 with
        the one of largest or smallest ``alpha pi``, or where logits are scaled by different factors; None otherwise.

    With factors the best logits are ``(log P(y | x) + c(x) - ...) / scale[y]``, where c(x) is free: which is largest
    depends on it. One factor for all classes changes nothing.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> is_consistent(logit_adjusted(prior), None, prior), is_consistent(adaptive(prior), None, prior)
    (True, False)

    Deviates:
        Lemma 2 prints sigma(z) = 1 / (1 + exp(z)), by which the logit-adjusted loss would fail; it is
        1 / (1 + exp(-z)).

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", Theorem 1 and Lemma 2.
    """
    margins = none(prior) if margins is None else margins
    check_prior(prior)
    log_probs = prior.log_probs
    log_weights = torch.zeros_like(log_probs) if weights is None else weights.double().log()
    if not len(log_probs) == margins.num_classes == len(log_weights):
        raise ValueError(
            f"is_consistent: margins, weights and prior must have the same classes. "
            f"Got {margins.num_classes}, {len(log_weights)} and {len(log_probs)}."
        )
    if margins.scale is not None and float(margins.scale.max() - margins.scale.min()) > tolerance:
        return False
    positive, negative, log_delta = margins.positive.double(), margins.negative.double(), log_weights + log_probs
    is_granted = bool(_theorem_gaps(positive, negative, log_delta).abs().max() <= tolerance)
    is_possible = bool((_pair_gaps(positive, negative, log_delta).abs() <= tolerance).all())
    if prior.num_classes == 2:
        return is_possible
    if is_granted:
        return True
    return None if is_possible else False


def _theorem_gaps(positive: Tensor, negative: Tensor, log_delta: Tensor) -> Tensor:
    """How far Theorem 1 is from holding, for three classes or more: 0 where it holds.

    Off the diagonal, positive[y] + log delta[y] must cancel negative[y'] - log delta[y'] for every pair, which they
    do only if each is constant.
    """
    rows, columns = positive + log_delta, negative - log_delta
    return torch.stack([rows.max() + columns.max(), rows.min() + columns.min()])


def _pair_gaps(positive: Tensor, negative: Tensor, log_delta: Tensor) -> Tensor:
    """[C, 2] how far Lemma 2 is from holding for each class with the one of largest and of smallest delta."""
    others = torch.stack([log_delta.argmax(), log_delta.argmin()])
    as_positive = log_delta[:, None] + F.logsigmoid(positive[:, None] + negative[others])
    as_negative = log_delta[others] + F.logsigmoid(positive[others] + negative[:, None])
    is_other = torch.arange(len(log_delta))[:, None] != others
    return torch.where(is_other, as_positive - as_negative, 0.0)
