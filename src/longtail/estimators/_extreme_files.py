"""Files of ExtremeClassifier: numbers and settings alone, written whole, and read without trust."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail._core.tensors_file import load_tensors, save_tensors
from longtail.estimators._extreme_network import Network
from longtail.prior import ClassPrior

__all__ = ["PathLike", "SavedModel", "build_model", "read_model", "write_model"]

PathLike = str | os.PathLike[str]

KIND = "extreme classifier"


class SavedModel(NamedTuple):
    """What a file holds."""

    settings: dict[str, Any]
    label_prior: ClassPrior
    num_features: int
    state: dict[str, Tensor]


def write_model(path: PathLike, model: SavedModel) -> None:
    """Write the model, or nothing."""
    metadata = {
        "settings": json.loads(json.dumps(model.settings, default=methodcaller("item"))),
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
    return SavedModel(dict(metadata["settings"]), prior, int(metadata["num_features"]), state)


def build_model(saved: SavedModel, hidden_size: int, activation: str, skip_connection: bool) -> Network:
    """The network with the saved numbers, if they are of its shapes."""
    network = Network(0, 0, 0, activation, skip_connection)
    sizes = (saved.num_features, saved.label_prior.num_classes, hidden_size)
    _check_state(saved.state, set(network.state_dict()), sizes)
    for name, value in saved.state.items():
        setattr(network, name, nn.Parameter(value))
    return network


def _check_state(state: Mapping[str, Tensor], names: set[str], sizes: tuple[int, int, int]) -> None:
    num_features, num_labels, hidden_size = sizes
    shapes = {
        "vectors": (num_features, hidden_size),
        "offset": (hidden_size,),
        "weight": (num_labels, hidden_size + 1),
        "direct": (num_features, num_labels),
    }
    for name in names:
        if tuple(state[name].shape) != shapes[name] or state[name].dtype != torch.float32:
            raise ValueError(f"{name} {tuple(state[name].shape)}")
    if set(state) != names:
        raise ValueError("other arrays")
