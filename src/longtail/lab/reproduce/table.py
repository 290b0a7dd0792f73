"""The table of experiments. The commands ``longtail reproduce NAME`` are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from longtail.lab.reproduce import (
    balms,
    delicious,
    elm,
    gaussians,
    gowalla,
    logit_adjustment,
    moons,
    plm,
    sampling_bias,
)
from longtail.lab.reproduce.experiment import Experiment

__all__ = ["EXPERIMENTS"]

_MODULES = (logit_adjustment, gaussians, moons, balms, elm, plm, sampling_bias, delicious, gowalla)

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
)
"""Every experiment by its name."""
