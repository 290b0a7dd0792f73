"""What the meta-estimators share."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn
import torch
from sklearn.utils import Tags, get_tags

__all__ = [
    "check_is_classifier",
    "check_score_width",
    "copy_base_tags",
    "copy_feature_attributes",
    "is_text",
    "match_namespace",
    "select_rows",
    "stratified_splits",
    "target_probabilities",
]


Array = npt.NDArray[Any]


FloatArray = npt.NDArray[np.float64]


Split = tuple[Array, Array]


def copy_feature_attributes(model: Any) -> None:
    for attribute in ("n_features_in_", "feature_names_in_"):
        if hasattr(model.estimator_, attribute):
            setattr(model, attribute, getattr(model.estimator_, attribute))


def copy_base_tags(tags: Tags, base: Any) -> Tags:
    """The tags of an estimator around another, which takes the inputs and classes that this one takes."""
    base_tags = get_tags(base)
    tags.input_tags = deepcopy(base_tags.input_tags)
    if base_tags.classifier_tags is not None and tags.classifier_tags is not None:
        tags.classifier_tags.multi_class = base_tags.classifier_tags.multi_class
    return tags


def check_is_classifier(base: Any) -> None:
    if isinstance(base, type):
        raise TypeError(f"estimator must be a classifier. Got the class {base.__name__}; use {base.__name__}().")
    if not (hasattr(base, "predict_proba") or hasattr(base, "decision_function")):
        raise TypeError(
            f"estimator must be a classifier with predict_proba or decision_function. Got {type(base).__name__}."
        )


def target_probabilities(target: Any, prior: FloatArray, classes: Array) -> FloatArray:
    """[C] what ``target`` says: "uniform", "train", or probabilities, by label or in the order of the classes."""
    if is_text(target, "uniform"):
        return np.full_like(prior, 1 / len(prior))
    if is_text(target, "train"):
        return prior
    if isinstance(target, Mapping):
        labels = classes.tolist()
        if set(target) != set(labels):
            raise ValueError(f"target must have a probability for each of the classes {labels}. Got {target!r}.")
        target = [target[label] for label in labels]
    probabilities = np.asarray(target, dtype=np.float64)
    is_valid = (
        probabilities.shape == prior.shape and (probabilities >= 0).all() and np.isclose(probabilities.sum(), 1)
    )
    if not is_valid:
        raise ValueError(f"target must be {len(prior)} probabilities that sum to 1. Got {target!r}.")
    return probabilities


def check_score_width(model: Any, scores: FloatArray, num_classes: int) -> None:
    if scores.ndim != 2 or scores.shape[1] != num_classes:
        raise ValueError(
            f"{type(model).__name__} must give one score for each of {num_classes} classes. Got shape {scores.shape}."
        )


def stratified_splits(num_folds: int, codes: Array) -> list[Split]:
    """Folds over which each class is spread evenly; a class with a single sample is never held out."""
    sizes = np.bincount(codes)
    num_folds = min(num_folds, int(sizes.max()))
    if num_folds < 2:
        raise ValueError(
            "Cross-validation needs a class with at least 2 samples. Got one sample of every class; "
            "give tau as a number, and an estimator with predict_proba."
        )
    order = np.argsort(codes, kind="stable")
    repeated = order[sizes[codes[order]] > 1]
    fold_of = np.full(len(codes), -1)
    fold_of[repeated] = np.arange(len(repeated)) % num_folds
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(num_folds)]


def select_rows(X: Any, rows: Array) -> Any:
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "shape") else [X[row] for row in rows]


def match_namespace(values: Array, X: Any) -> Any:
    """Numbers as a tensor on the device of X, where X is one and scikit-learn's array API dispatch is on."""
    is_dispatched = isinstance(X, torch.Tensor) and sklearn.get_config()["array_api_dispatch"]
    return torch.from_numpy(values).to(X.device) if is_dispatched and values.dtype.kind in "biuf" else values


def is_text(value: Any, text: str) -> bool:
    """Equality that does not compare an array entry by entry."""
    return isinstance(value, str) and value == text
