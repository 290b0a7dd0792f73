"""Files of a head: its numbers, and the record of what it learned from and what was done about it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from longtail._core.tensors_file import load_tensors, save_tensors
from longtail.correction import Correction, read_correction, record_correction
from longtail.errors import DamagedFileError
from longtail.heads import CosineLinear

__all__ = ["load_head", "save_head"]

PathLike = str | os.PathLike[str]

KIND = "head"


def save_head(head: nn.Module, path: PathLike, correction: Correction | None = None) -> None:
    """Write a head to a safetensors file, with prior, method, tau and whether it is corrected in its metadata.

    Args:
        head: ``nn.Linear`` or ``CosineLinear``, such as the last layer of a model.
        path: the file, which is replaced if it exists.
        correction: the record; None takes the head's own.
    """
    if not isinstance(head, nn.Linear | CosineLinear):
        raise TypeError(f"save_head: the head must be nn.Linear or CosineLinear. Got {type(head).__name__}.")
    record = read_correction(head) if correction is None else correction
    if record is None:
        raise ValueError("save_head: the head has no record of its prior; pass correction.")
    if record.prior.num_classes != len(head.weight):
        raise ValueError(
            f"correction is for {record.prior.num_classes} classes, but the head has {len(head.weight)}."
        )
    metadata: dict[str, Any] = {"correction": record.to_json()}
    if isinstance(head, CosineLinear):
        metadata["scale"] = head.scale
    save_tensors(path, head.state_dict(), KIND, metadata)


def load_head(path: PathLike) -> nn.Linear | CosineLinear:
    """The head that ``save_head`` wrote, with its record; a damaged file, or another's, is a ``DamagedFileError``.

    ``fold_adjustment`` refuses a head whose record says that it is corrected.
    """
    state, metadata = load_tensors(path, KIND)
    try:
        record = Correction.from_json(metadata["correction"])
        head = _build_head(state, metadata, record.prior.num_classes)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DamagedFileError(f"{path} must be a file that save_head wrote. Got: {reason}.") from error
    record_correction(head, record)
    return head


def _build_head(state: dict[str, Tensor], metadata: dict[str, Any], num_classes: int) -> nn.Linear | CosineLinear:
    weight = state["weight"]
    if weight.ndim != 2 or len(weight) != num_classes or not weight.is_floating_point():
        raise ValueError(f"weight {tuple(weight.shape)} for {num_classes} classes")
    with torch.device("meta"):
        head: nn.Linear | CosineLinear
        if "scale" in metadata:
            head = CosineLinear(weight.shape[1], num_classes, scale=float(metadata["scale"]))
        else:
            head = nn.Linear(weight.shape[1], num_classes, bias="bias" in state)
    head.load_state_dict(state, assign=True)
    return head
