"""What an estimator does, or has done, to the prior: read from its parameters, as far as they tell."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV

from longtail.estimators._common import Array, FloatArray, is_text

__all__ = ["check_not_corrected", "class_weight_vector", "find_class_weights", "find_sampler", "warn_if_weighted"]

WEIGHTS = {"class_weight", "class_weights", "auto_class_weights", "scale_pos_weight", "is_unbalance"}
"""Parameters by which classifiers of scikit-learn, XGBoost, LightGBM and CatBoost weight classes."""


def check_not_corrected(model: Any, base: Any) -> None:
    """Raise where the estimator inside corrects the prior already: a second correction would be one too many."""
    inner = _last_model(base)
    if inner is not None and getattr(inner, "corrects_prior", False):
        raise ValueError(
            f"{type(model).__name__}: estimator must not correct the prior itself, or it is corrected twice. "
            f"Got {type(inner).__name__}; set its target instead."
        )


def warn_if_weighted(model: Any, base: Any, classes: Array, prior: FloatArray) -> None:
    """Warn where the estimator inside is trained with class weights, or resamples."""
    sampler = find_sampler(base)
    weights = find_class_weights(base, classes, prior)
    if sampler is None and weights is None:
        return
    done = "class weights" if sampler is None else f"{type(sampler).__name__} in its pipeline"
    warnings.warn(
        f"{type(model).__name__}: {type(base).__name__} has {done}: a correction of the prior already. Adjusting it "
        "by the prior of y corrects twice; train without, or use PriorCorrectedClassifier.",
        UserWarning,
        stacklevel=3,
    )


def find_sampler(base: Any) -> Any:
    """The step of a pipeline that resamples, as those of imbalanced-learn; None without one."""
    steps = [step for _, step in getattr(base, "steps", ())]
    return next((step for step in reversed(steps) if hasattr(step, "fit_resample")), None)


def find_class_weights(base: Any, classes: Array, prior: FloatArray) -> FloatArray | None:
    """[C] the class weights that the estimator's parameters set, of whatever library; None for equal ones."""
    inner = _last_model(base)
    parameters = _shallow_parameters(inner)
    weights = _read_class_weight(parameters, classes, prior)
    positive = parameters.get("scale_pos_weight")
    if positive is not None and float(positive) != 1 and len(classes) == 2:
        weights = np.array([1.0, float(positive)])
    if parameters.get("is_unbalance"):
        weights = 1 / prior
    return None if weights is None or np.allclose(weights, weights[0]) else weights


def class_weight_vector(class_weight: Any, classes: Array, prior: FloatArray) -> FloatArray:
    """[C] from "balanced" or from weights by label; a label that is not named weighs 1, as in scikit-learn."""
    if is_text(class_weight, "balanced"):
        balanced: FloatArray = 1 / (len(prior) * prior)
        return balanced
    unknown = [label for label in class_weight if label not in classes.tolist()]
    if unknown:
        raise ValueError(f"class weights must be for the classes {classes}. Got one for {unknown[0]!r}.")
    weights = np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError(f"class weights must be finite numbers above 0. Got {class_weight!r}.")
    return weights


def _read_class_weight(parameters: Mapping[str, Any], classes: Array, prior: FloatArray) -> FloatArray | None:
    """From scikit-learn's and LightGBM's ``class_weight``, or CatBoost's ``class_weights`` and their automatic."""
    given = parameters.get("class_weight")
    if given is None:
        given = parameters.get("class_weights")
    automatic = parameters.get("auto_class_weights")
    if is_text(given, "balanced") or is_text(given, "balanced_subsample") or is_text(automatic, "Balanced"):
        return class_weight_vector("balanced", classes, prior)
    if is_text(automatic, "SqrtBalanced"):
        return np.sqrt(1 / prior)
    if isinstance(given, Mapping):
        return class_weight_vector(given, classes, prior)
    if given is not None and np.shape(given) == classes.shape:
        return np.asarray(given, dtype=np.float64)
    return None


def _last_model(base: Any) -> Any:
    """The model at the end of pipelines and of estimators around others; None where its output is remade.

    ``CalibratedClassifierCV`` calibrates on the prior of its data, so what its estimator did to it is undone.
    """
    while True:
        if isinstance(base, CalibratedClassifierCV):
            return None
        if getattr(base, "corrects_prior", False) or WEIGHTS & set(_shallow_parameters(base)):
            return base
        if getattr(base, "steps", None):
            base = base.steps[-1][1]
        elif getattr(base, "estimator", None) is not None:
            base = base.estimator
        else:
            return base


def _shallow_parameters(model: Any) -> dict[str, Any]:
    has_parameters = hasattr(model, "get_params") and not isinstance(model, type)
    return dict(model.get_params(deep=False)) if has_parameters else {}
