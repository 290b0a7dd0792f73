"""The table of experiments. The commands ``longtail reproduce NAME`` are made from it.

A name is that of the module, with a dash for each underscore. Listing them imports none.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longtail.lab.reproduce.experiment import Experiment

__all__ = ["EXPERIMENTS", "load_experiment"]

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "logit-adjustment": "Logit adjustment and the methods it is compared with, beside the paper's numbers.",
        "gaussians": "Two Gaussians, 5% positives: what each loss makes of them, against the Bayes rule.",
        "moons": "Embeddings of two moons, 5% in the tail: how compact each method makes its classes.",
        "balms": "Features and heads trained in different ways, learned sample rates, and what re-sampling does.",
        "elm": "Embedding and logit margins: ELM and the methods it is compared with.",
        "plm": "Partial label masking around several losses, its rate and its start.",
        "sampling-bias": "Ways to sample negatives: sampled against implied losses, and long-tailed images trained "
        "with them.",
        "delicious": "Ways to sample negatives on real data, by slice of the labels.",
        "gowalla": "Recommendation on Gowalla: R@20 of all items and of rare ones, for ways to sample negatives.",
    }
)
"""Name -> what the experiment shows, in one sentence."""


def load_experiment(name: str) -> Experiment:
    """The experiment of this name."""
    module = import_module(f"longtail.lab.reproduce.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
