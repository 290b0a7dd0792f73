"""Margins for gradient-boosted trees: starting scores where these are enough, and exact derivatives otherwise.

A logit-adjusted loss is the library's own loss with every sample started at tau * log pi, which XGBoost calls
``base_margin``, LightGBM ``init_score`` and CatBoost ``baseline``: no slower than plain training. Other margins are
an objective of their own, :class:`MarginObjective`. ``MarginBoostedClassifier`` does either around any of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from longtail._core.labels import to_numpy
from longtail.margins import Margins, is_shift

__all__ = ["Derivatives", "MarginObjective", "margin_derivatives", "starting_scores"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Derivatives(NamedTuple):
    """First and second derivatives of each sample's loss by each of its scores."""

    gradient: FloatArray
    """[N, C]."""
    hessian: FloatArray
    """[N, C], the diagonal of the [C, C] matrix that each sample has."""


def starting_scores(margins: Margins, num_samples: int) -> FloatArray:
    """What every sample's scores start at in training, so that the booster's own loss becomes the margin loss.

    Formula:
        f0[y] = negative[y], for margins with positive = -negative

    Args:
        margins: that shift logits, as ``logit_adjusted``; others raise.
        num_samples: N.

    Returns:
        [N, C] for more than two classes, and [N] for two, the second's minus the first's: ``base_margin``,
        ``init_score`` or ``baseline``.

    Use when:
        You train XGBoost, LightGBM or CatBoost through their own functions. Predict **without** it: what the trees
        learned beside it are the adjusted scores.
    Avoid when:
        XGBoost chooses its intercept: from version 2 on it predicts with the class frequencies of training put back,
        and nothing is adjusted. Set ``base_score=0.5``.
    Special cases:
        Zeros, which are plain training, for ``none``.

    >>> from longtail.margins import logit_adjusted
    >>> starting_scores(logit_adjusted(ClassPrior.from_counts([90, 10])), 2).round(2)
    array([-2.2, -2.2])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (10), whose offsets these are.
    """
    if not is_shift(margins):
        raise ValueError("margins must only shift logits, positive = -negative. Got others; use MarginObjective.")
    offsets = to_numpy(margins.negative).astype(np.float64)
    row = offsets[1:] - offsets[:1] if margins.num_classes == 2 else offsets
    scores = np.tile(row, (num_samples, 1))
    return scores[:, 0] if margins.num_classes == 2 else scores


def margin_derivatives(
    scores: Any, target: Any, margins: Margins, class_weights: Any = None, sample_weight: Any = None
) -> Derivatives:
    """Gradient and Hessian of the margin loss by the scores.

    Formula:
        q = softmax of f[y'] + positive[y] + negative[y'] for y' != y, and of f[y] itself;
        gradient[y'] = w * (q[y'] - 1[y' = y]), hessian[y'] = w * q[y'] * (1 - q[y'])

    Args:
        scores: [N, C], or [N] for two classes: the second's minus the first's.
        target: [N] class indices.
        margins: of C classes.
        class_weights: [C]; None is 1.
        sample_weight: [N]; None is 1.

    Returns:
        Derivatives, of the shape of the scores.

    Use when:
        A booster takes derivatives and no loss.
    Avoid when:
        The margins only shift logits: ``starting_scores`` is the same and faster.
    Special cases:
        Those of cross-entropy for ``none``. Boosters scale the second one themselves: XGBoost by 2 and LightGBM by
        C / (C - 1) for more than two classes.

    >>> from longtail.margins import none
    >>> margin_derivatives(np.zeros((1, 2)), np.array([1]), none(ClassPrior.from_counts([1, 1]))).gradient
    array([[ 0.5, -0.5]])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    values = np.asarray(scores, dtype=np.float64)
    index = _check_target(target, len(values), margins.num_classes)
    weight = _weigh(index, class_weights, sample_weight, margins.num_classes)
    margins.check_additive("boosting")
    positive, negative = (to_numpy(part).astype(np.float64) for part in (margins.positive, margins.negative))
    if values.ndim == 1:
        return _two_class_derivatives(values, index, positive, negative, weight)
    if values.shape != (len(index), margins.num_classes):
        raise ValueError(f"scores must be [N, {margins.num_classes}], or [N] for two classes. Got {values.shape}.")
    rows = np.arange(len(index))
    asked = values + positive[index, None] + negative
    asked[rows, index] = values[rows, index]
    asked -= asked.max(axis=1, keepdims=True)
    probs = np.exp(asked)
    probs /= probs.sum(axis=1, keepdims=True)
    hessian = probs * (1 - probs)
    probs[rows, index] -= 1
    return Derivatives(weight[:, None] * probs, weight[:, None] * hessian)


class MarginObjective:
    """The margin loss as an objective of XGBoost, LightGBM and CatBoost.

    Formula:
        l(y, f) = class_weights[y] * log(1 + sum_{y' != y} exp(positive[y] + negative[y'] + f[y'] - f[y]))

    Args:
        margins: of C classes, in the order of the codes 0..C - 1 that the booster is trained on.
        class_weights: [C]; None is 1.

    One object for all three: ``XGBClassifier(objective=...)``, ``LGBMClassifier(objective=...)`` and
    ``CatBoostClassifier(loss_function=..., eval_metric="Logloss" or "MultiClass")``. With an objective of your own,
    boosters predict raw scores: take their softmax, or of two classes the sigmoid.

    Use when:
        Margins separate classes beside shifting them, as adaptive ones.
    Avoid when:
        They only shift: ``starting_scores`` is the same, and faster. In CatBoost it is called for every sample when
        there are more than two classes, and is slow.
    Special cases:
        The booster's own loss for ``none``, up to its scale of the second derivative.

    >>> from longtail.margins import adaptive
    >>> objective = MarginObjective(adaptive(ClassPrior.from_counts([90, 10])))
    >>> gradient, hessian = objective(np.array([0, 1]), np.array([0.0, 0.0]))
    >>> gradient.round(2)
    array([ 0.74, -0.86])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """

    def __init__(self, margins: Margins, class_weights: Any = None) -> None:
        self.margins = margins
        self.class_weights = class_weights

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[FloatArray, FloatArray]:
        """Gradient and Hessian for scikit-learn's interface of XGBoost and LightGBM."""
        derivatives = margin_derivatives(y_pred, y_true, self.margins, self.class_weights, sample_weight)
        return derivatives.gradient, derivatives.hessian

    def calc_ders_range(
        self, approxes: Sequence[float], targets: Any, weights: Any = None
    ) -> list[tuple[float, float]]:
        """What CatBoost asks for two classes: derivatives of minus the loss, for many samples."""
        scores = np.asarray(approxes, dtype=np.float64)
        gradient, hessian = self(np.asarray(targets), scores, None if weights is None else np.asarray(weights))
        return list(zip((-gradient).tolist(), (-hessian).tolist(), strict=True))

    def calc_ders_multi(
        self, approxes: Any, target: float, weight: float | None = None
    ) -> tuple[list[float], list[list[float]]]:
        """What CatBoost asks for more classes: derivatives of minus one sample's loss, the second a matrix."""
        scores = np.asarray(approxes, dtype=np.float64)[None]
        (gradient,), _ = self(np.array([target]), scores, None if weight is None else np.array([weight]))
        index = int(target)
        scale = 1.0 if weight is None else float(weight)
        scale *= 1.0 if self.class_weights is None else float(to_numpy(self.class_weights)[index])
        probs = gradient / scale if scale > 0 else gradient.copy()
        probs[index] += 1
        matrix = scale * (np.outer(probs, probs) - np.diag(probs))
        return (-gradient).tolist(), matrix.tolist()


def _two_class_derivatives(
    values: FloatArray, index: IntArray, positive: FloatArray, negative: FloatArray, weight: FloatArray
) -> Derivatives:
    if len(positive) != 2:
        raise ValueError(f"scores must be [N, {len(positive)}] for {len(positive)} classes. Got {values.shape}.")
    asked = np.where(index == 1, values - positive[1] - negative[0], values + positive[0] + negative[1])
    prob = np.where(asked >= 0, 1.0, np.exp(-np.abs(asked))) / (1 + np.exp(-np.abs(asked)))
    return Derivatives(weight * (prob - index), weight * prob * (1 - prob))


def _check_target(target: Any, num_samples: int, num_classes: int) -> IntArray:
    labels = np.asarray(target)
    index = labels.astype(np.int64)
    is_valid = labels.shape == (num_samples,) and (index == labels).all()
    if not is_valid or (len(index) and not (index.min() >= 0 and index.max() < num_classes)):
        raise ValueError(
            f"target must be [{num_samples}] class indices in 0..{num_classes - 1}. "
            f"Got {labels.dtype} {labels.shape}."
        )
    return index


def _weigh(index: IntArray, class_weights: Any, sample_weight: Any, num_classes: int) -> FloatArray:
    weight = np.ones(len(index)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != index.shape:
        raise ValueError(f"sample_weight must be [{len(index)}]. Got {weight.shape}.")
    if class_weights is None:
        return weight
    by_class = to_numpy(class_weights).astype(np.float64)
    if by_class.shape != (num_classes,):
        raise ValueError(f"class_weights must be one for each of {num_classes} classes. Got {by_class.shape}.")
    weighed: FloatArray = weight * by_class[index]
    return weighed
