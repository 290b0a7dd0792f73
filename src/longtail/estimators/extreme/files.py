"""Files of ExtremeClassifier: numbers and settings alone, written whole, and read without trust."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from longtail._core.tensors_file import load_tensors, save_tensors
from longtail.correction import Correction
from longtail.estimators.extreme.calibration import Calibration
from longtail.estimators.extreme.features import FeatureScaling
from longtail.estimators.extreme.network import Network
from longtail.estimators.extreme.parameters import NOT_SAVED
from longtail.prior import ClassPrior

__all__ = ["LoadedModel", "PathLike", "SavedModel", "build_model", "collect_model", "read_model", "write_model"]

PathLike = str | os.PathLike[str]

KIND = "extreme classifier"


class SavedModel(NamedTuple):
    """What a file holds."""

    settings: dict[str, Any]
    facts: dict[str, Any]
    """Names of labels and of features, None for numbers; whether rows are normalized; calibration; correction."""
    label_prior: ClassPrior
    num_features: int
    state: dict[str, Tensor]
    """The network's, "shift" [C] and, where features are tf-idf, "idf" [D]."""


class LoadedModel(NamedTuple):
    """What predictions are made with."""

    network: Network
    scaling: FeatureScaling
    calibration: Calibration
    shift: Tensor
    names: npt.NDArray[Any]
    feature_names: npt.NDArray[Any] | None
    correction: Correction


def collect_model(estimator: Any) -> SavedModel:
    """What a file keeps of a fitted ExtremeClassifier."""
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name not in NOT_SAVED}
    state = {**estimator.model_.state_dict(), "shift": estimator.shift_}
    if estimator.scaling_.idf is not None:
        state["idf"] = torch.from_numpy(estimator.scaling_.idf)
    feature_names = getattr(estimator, "feature_names_in_", None)
    facts = {
        "names": None if estimator.classes_.dtype.kind in "iu" else estimator.classes_.tolist(),
        "feature_names": None if feature_names is None else feature_names.tolist(),
        "normalizes_rows": estimator.scaling_.normalizes_rows,
        "calibration": list(estimator.calibration_),
        "correction": estimator.correction_.to_json() | {"counts": []},  # they are a tensor of the file
    }
    return SavedModel(settings, facts, estimator.label_prior_, estimator.n_features_in_, state)


def write_model(path: PathLike, model: SavedModel) -> None:
    """Write the model, or nothing."""
    metadata = {
        "settings": json.loads(json.dumps(model.settings, default=methodcaller("item"))),
        "facts": model.facts,
        "num_samples": model.label_prior.num_samples,
        "pseudocount": model.label_prior.pseudocount,
        "num_features": model.num_features,
    }
    save_tensors(path, {**model.state, "counts": model.label_prior.counts}, KIND, metadata)


def read_model(path: PathLike) -> SavedModel:
    """What ``write_model`` wrote, or a ValueError; sizes are checked by ``build_model``."""
    state, metadata = load_tensors(path, KIND)
    prior = replace(
        ClassPrior.from_counts(state.pop("counts")),
        num_samples=int(metadata["num_samples"]),
        pseudocount=float(metadata["pseudocount"]),
    )
    settings, facts = dict(metadata["settings"]), dict(metadata["facts"])
    return SavedModel(settings, facts, prior, int(metadata["num_features"]), state)


def build_model(saved: SavedModel, activation: str, skip_connection: bool, scale: float | None) -> LoadedModel:
    """The network with the saved numbers and what goes with it, if all is of the right shapes."""
    network = Network(0, 0, 0, activation, skip_connection or "direct" in saved.state, scale)
    state, num_labels = dict(saved.state), saved.label_prior.num_classes
    shift, idf = state.pop("shift"), state.pop("idf", None)
    _check_shape("shift", shift, (num_labels,))
    if idf is not None:
        _check_shape("idf", idf, (saved.num_features,))
    _check_state(state, set(network.state_dict()), (saved.num_features, num_labels, len(state["offset"])))
    for name, value in state.items():
        setattr(network, name, nn.Parameter(value))
    slope, offset, is_single, is_decoupled = saved.facts["calibration"]
    scaling = FeatureScaling(None if idf is None else idf.numpy(), bool(saved.facts["normalizes_rows"]))
    calibration = Calibration(float(slope), float(offset), bool(is_single), bool(is_decoupled))
    label_names = _read_names(saved.facts["names"], num_labels)
    feature_names = _read_names(saved.facts["feature_names"], saved.num_features)
    names = np.arange(num_labels) if label_names is None else np.asarray(label_names)
    columns = None if feature_names is None else np.asarray(feature_names, dtype=object)
    record = {**saved.facts["correction"], "counts": saved.label_prior.counts}
    return LoadedModel(network, scaling, calibration, shift, names, columns, Correction.from_json(record))


def _read_names(names: list[str] | None, num_names: int) -> list[str] | None:
    if names is not None and (len(names) != num_names or not all(isinstance(name, str) for name in names)):
        raise ValueError(f"{len(names)} names of {num_names}")
    return names


def _check_state(state: Mapping[str, Tensor], names: set[str], sizes: tuple[int, int, int]) -> None:
    num_features, num_labels, hidden_size = sizes
    shapes = {
        "vectors": (num_features, hidden_size),
        "offset": (hidden_size,),
        "weight": (num_labels, hidden_size + 1),
        "direct": (num_features, num_labels),
    }
    for name in names:
        _check_shape(name, state[name], shapes[name])
    if set(state) != names:
        raise ValueError("other arrays")


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape or value.dtype != torch.float32:
        raise ValueError(f"{name} {tuple(value.shape)}")
