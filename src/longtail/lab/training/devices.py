"""Lightning Fabric on the devices that were asked for, or one line that says why not."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException

__all__ = ["open_fabric"]


def open_fabric(accelerator: str, devices: int | str = 1, precision: Any = None) -> Fabric:
    """Fabric with these settings; what the machine doesn't have is a ValueError.

    >>> open_fabric("cpu").device
    device(type='cpu')
    """
    try:
        return Fabric(accelerator=accelerator, devices=devices, precision=precision)
    except (ImportError, MisconfigurationException, RuntimeError) as error:
        raise ValueError(
            f"accelerator {accelerator!r} with devices {devices!r} can't be had here; there is {_available()}."
        ) from error


def _available() -> str:
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append(f"cuda (devices 0 to {torch.cuda.device_count() - 1})")
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join(found)
