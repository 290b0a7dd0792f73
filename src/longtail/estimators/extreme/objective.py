"""The objective of ExtremeClassifier, from its parameters and the labels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.numerics import varies
from longtail.correction import Correction
from longtail.estimators.extreme.labels import find_columns
from longtail.estimators.extreme.losses import Criterion, DrawnNegatives, FullDecoupled, FullSoftmax
from longtail.estimators.extreme.settings import tau_of
from longtail.margins import logit_adjusted
from longtail.negatives.head import SampledLinear
from longtail.negatives.losses import CROSS_ENTROPY, LOGISTIC, SampledLoss
from longtail.negatives.weightings import targeting
from longtail.prior import ClassPrior

__all__ = ["describe_correction", "initial_bias", "make_criterion"]


def make_criterion(model: Any, loss: SampledLoss, prior: ClassPrior, names: npt.NDArray[Any]) -> Criterion:
    """What the parameters of an estimator ask for, with this loss and labels of these names and counts."""
    builder = partial(logit_adjusted, tau=tau_of(model.emphasis)) if model.margins is None else model.margins
    margins, class_weights = builder(prior), _read_class_weights(model.class_weights, prior, names)
    class_weights = None if class_weights is None else class_weights.to(model.device)
    if model.distribution is None:
        margins = margins.to(model.device, torch.float32)
        if loss is CROSS_ENTROPY:
            return FullSoftmax(margins, class_weights, model.excludes_other_labels)
        return FullDecoupled(loss, margins, class_weights, model.excludes_other_labels)
    weighting = targeting(margins) if model.weighting is None else model.weighting
    with torch.random.fork_rng(devices=[]):  # the network has vectors of its own
        head = SampledLinear(
            1,
            prior.num_classes,
            model.distribution(prior),
            weighting,
            model.num_negatives,
            loss=loss,
            scale=model.scale,
            excludes_other_labels=model.excludes_other_labels,
        )
    return DrawnNegatives(head, class_weights)


def describe_correction(model: Any, prior: ClassPrior, criterion: Criterion) -> Correction:
    """What the loss of an estimator does about the prior."""
    is_corrected = varies(criterion.implied_margins(prior).negative) or varies(criterion.class_weights)
    chosen = model.weighting if model.margins is None else model.margins
    if chosen is None:
        tau = tau_of(model.emphasis)
        return Correction(prior, "logit_adjusted" if tau else "cross_entropy", tau, is_corrected)
    named = chosen.func if isinstance(chosen, partial) else chosen
    parameter = inspect.signature(chosen).parameters.get("tau")
    strength = parameter.default if parameter is not None and isinstance(parameter.default, int | float) else None
    return Correction(prior, getattr(named, "__name__", type(named).__name__), strength, is_corrected)


def initial_bias(prior: ClassPrior, criterion: Criterion) -> Tensor:
    """[C] the best logits for a sample about which nothing is known.

    Differences are all that matters to a softmax; the logistic loss asks for log odds themselves.
    """
    implied = criterion.implied_margins(prior)
    known = prior.log_probs - implied.negative
    if criterion.loss is LOGISTIC:
        return known - torch.logsumexp(prior.log_probs + implied.positive, dim=0)
    return known - known.mean()


def _read_class_weights(given: Any, prior: ClassPrior, names: npt.NDArray[Any]) -> Tensor | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = np.ones(len(names), dtype=np.float32)
        found[find_columns(list(given), names)] = list(given.values())
    else:
        found = given(prior) if callable(given) else given
    weights = torch.as_tensor(found, dtype=torch.float32)
    if weights.shape != (len(names),) or not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ValueError(
            f"class_weights must be {len(names)} finite numbers of at least 0. Got {tuple(weights.shape)}, "
            f"from {float(weights.min())} to {float(weights.max())}."
        )
    return weights
