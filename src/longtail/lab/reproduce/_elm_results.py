"""The runs of the experiment on ELM, reduced to what its table and figures need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from longtail.diagnostics import intraclass_distances, split_by_group
from longtail.lab.report.digests.base import check_predictions
from longtail.lab.report.digests.embeddings import SCALES
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.digests.single_label import SingleLabelDigest, digest_run
from longtail.lab.runs.folder import Run
from longtail.lab.runs.statistics import Estimate, estimate
from longtail.lab.training.recipe import Recipe
from longtail.methods.embedding import ELM_SETTINGS
from longtail.methods.table import get_method
from longtail.prior import ClassPrior

__all__ = [
    "GROUPS",
    "QUANTITIES",
    "REFERENCE_ACCURACY",
    "ROWS",
    "Result",
    "average",
    "choose_options",
    "find_strength",
    "list_groups",
    "reduce_run",
    "sort_by_strength",
    "sort_into_rows",
]

ROWS = {
    "CE": "cross_entropy",
    "CB focal": "class_balanced_focal",
    "LDAM + DRW": "adaptive_deferred",
    "LogAdj": "logit_adjusted",
    "CE + DRO-LT": "dro_lt",
    "CE + weight norm": "weight_normalized",
    "ELM": "elm",
}
"""A row of Table 2 -> the method that it is here. DRO-LT is in one stage, weight normalization after training."""

REFERENCE_ACCURACY = {
    "CE": 0.7284,
    "CB focal": 0.7457,
    "LDAM + DRW": 0.7703,
    "LogAdj": 0.7767,
    "CE + DRO-LT": 0.7270,
    "CE + weight norm": 0.7850,
    "ELM": 0.7795,
}
"""Balanced accuracy on CIFAR-10-LT, ratio 100: Table 2."""

GROUPS = ("head", "torso", "tail")
QUANTITIES = (
    "balanced_accuracy",
    *GROUPS,
    *(f"{group}_distance_{scale}" for scale in SCALES for group in GROUPS),
    "nearest_mean",
    "nearest_neighbors",
)
"""What is written of each run; distances are means over test samples."""


@dataclass(frozen=True, eq=False)
class Result:
    """One run, reduced to what the table and the figures need."""

    method: str
    strength: float | None
    """Of ELM; None for other methods."""
    digest: SingleLabelDigest
    prior: ClassPrior
    distances: Mapping[str, Mapping[str, Tensor]]
    """Scale -> group -> the largest distance within the class, of the group's training samples."""

    def quantity(self, name: str) -> float:
        """One of ``QUANTITIES``; NaN for a group without classes."""
        embeddings = self.digest.embeddings
        assert embeddings is not None
        if name in embeddings.accuracy:
            return embeddings.accuracy[name]
        group, _, scale = name.partition("_distance_")
        if scale:
            return embeddings.distances[scale].get(group, math.nan)
        return self.digest.metrics.get(name, math.nan)


def reduce_run(run: Run) -> Result:
    """What is needed of a run."""
    check_predictions(run.path, run.predictions)
    reduced, data = digest_run(run, Labels.of(run.predictions, names_few=False)), run.load_embeddings()
    if data is None:
        raise ValueError(f"{run.path} kept no embeddings; train it again in another folder.")
    inputs = data.train.inputs
    assert isinstance(inputs, Tensor)
    found = intraclass_distances(inputs, data.train.labels)
    groups = run.predictions.prior.groups()
    return Result(
        method=run.method,
        strength=find_strength(run.summary["options"]) if run.method == "elm" else None,
        digest=reduced,
        prior=run.predictions.prior,
        distances={scale: split_by_group(getattr(found, scale), data.train.labels, groups) for scale in SCALES},
    )


def sort_into_rows(results: Sequence[Result], recipe: Recipe) -> dict[str, list[Result]]:
    """The results of each row of Table 2."""
    strength = find_strength(choose_options(recipe))
    return {
        label: [result for result in results if result.method == method and result.strength in (None, strength)]
        for label, method in ROWS.items()
    }


def sort_by_strength(results: Sequence[Result]) -> dict[float, list[Result]]:
    """The results of ELM by their strength, ascending."""
    found = sorted({result.strength for result in results if result.strength is not None})
    return {strength: [result for result in results if result.strength == strength] for strength in found}


def list_groups(results: Iterable[Result]) -> list[str]:
    """Head, torso and tail, as far as there are classes of that frequency; the rarest is last."""
    groups = next(iter(results)).prior.groups()
    return [name for name in GROUPS if len(groups[name])]


def average(results: Iterable[Result], name: str) -> Estimate:
    """The mean of one of ``QUANTITIES`` over seeds, and its interval."""
    return estimate(result.quantity(name) for result in results)


def choose_options(recipe: Recipe) -> Mapping[str, Any]:
    """The recipe's own, or the paper's where the recipe's name has one of its data sets in it."""
    if recipe.method.name == "elm":
        return recipe.method.options
    return next((found for name, found in ELM_SETTINGS.items() if name in recipe.name), {})


def find_strength(options: Mapping[str, Any]) -> float:
    return float(options.get("strength", get_method("elm").options["strength"]))
