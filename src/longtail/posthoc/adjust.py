"""Logit adjustment of a trained model, for balanced error or any target prior."""

from __future__ import annotations

from typing import overload

import numpy as np
import torch
from torch import Tensor

from longtail.posthoc._inputs import FloatArray, PriorLike, check_logits, logit_shift, warn_of_probabilities

__all__ = ["adjust_logits"]


@overload
def adjust_logits(
    logits: Tensor, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> Tensor: ...


@overload
def adjust_logits(
    logits: FloatArray, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> FloatArray: ...


def adjust_logits(
    logits: Tensor | FloatArray, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> Tensor | FloatArray:
    """Post-hoc logit adjustment: take the training prior out of the logits, and put the wanted one in.

    Formula:
        g[y] = f[y] - tau * (log pi[y] - log pi_target[y])

    Args:
        logits: [..., C] f of a model trained with plain cross-entropy, or log-probabilities; a tensor or an array.
        prior: the training prior, as counts or [C] probabilities; every class needs samples or smoothing.
        tau: strength, >= 0. 1 is right for calibrated logits, 0 changes nothing; ``tune_tau`` chooses it.
        target_prior: the prior to predict for; None is uniform, which is optimal for the balanced error. A class of
            target probability 0 gets the logit -inf, so it is never predicted.

    Returns:
        [..., C] logits of the type, dtype and device given. Their softmax is the adjusted probability.

    Use when:
        The model is trained, and rare classes matter or the label frequencies have changed.
    Avoid when:
        The model was trained with a logit-adjusted loss, class weights or balanced sampling: that would correct
        twice. So would normalizing the class vectors as well.
    Special cases:
        The logits themselves at tau = 0, or where the target prior is the training prior. At tau = 1 it undoes what
        ``margins.logit_adjusted`` adds in training.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> adjust_logits(np.log([[0.8, 0.2]]), prior).argmax(axis=1)
    array([1])

    Deviates:
        Eq. (9) is written without a target. A uniform one adds tau * log C to every logit, which changes no
        prediction and no probability.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (9).
    """
    if isinstance(logits, Tensor):
        check_logits(logits)
        warn_of_probabilities(logits)
        shift = logit_shift(prior, tau, target_prior, logits.shape[-1], torch.finfo(logits.dtype).max)
        return logits + shift.to(logits)
    array = np.asarray(logits)
    check_logits(array)
    warn_of_probabilities(array)
    largest = float(np.finfo(array.dtype).max)
    array_shift: FloatArray = logit_shift(prior, tau, target_prior, array.shape[-1], largest).numpy()
    return array + array_shift.astype(array.dtype)
