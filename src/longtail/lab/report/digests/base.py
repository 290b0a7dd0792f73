"""What all runs have, whatever their labels: a digest of a run, the runs of a method, the methods of a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from longtail._core.numerics import row_chunks
from longtail.lab.report.digests.labels import FloatArray, IntArray, Labels
from longtail.lab.runs.folder import Predictions, Run
from longtail.lab.runs.statistics import Estimate, estimate
from longtail.methods.table import METHODS

__all__ = [
    "BASELINES",
    "MOST_SHOWN",
    "Comparison",
    "Digest",
    "MethodResults",
    "adjusts_logits",
    "check_predictions",
    "collect_facts",
    "sort_into_methods",
    "split_rows",
]

BASELINES = ("cross_entropy", "binary_cross_entropy")
"""The plain losses, for one label per sample and for multi-label data."""
MOST_SHOWN = 6
"""Methods that figures show at first."""
CHUNK_ELEMENTS = 2**20
"""Logits looked at together: they fit a processor's cache."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Digest:
    """One run, reduced to what every page shows."""

    path: Path
    method: str
    seed: int
    title: str
    """What the recipe says of itself."""
    settings: Mapping[str, str]
    """The flattened recipe, without the seed."""
    environment: Mapping[str, str]
    history: Sequence[Mapping[str, Any]]
    weight_norms: FloatArray | None
    metrics: Mapping[str, float]
    """Final metrics on the test set, and seconds."""
    hits: IntArray
    """[C] test samples of each class that it is rightly predicted for."""
    counts: IntArray
    """[C] test samples of each class."""


AnyDigest = TypeVar("AnyDigest", bound=Digest)


@dataclass(frozen=True, eq=False)
class MethodResults(Generic[AnyDigest]):
    """The runs of one method, which differ in nothing but the seed."""

    label: str
    runs: tuple[AnyDigest, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.runs[0].method

    @property
    def adjusted_by(self) -> float | None:
        """The tau by which the method adjusts logits after training; None if it does not, or does not say."""
        tau = self.runs[0].settings.get("method.options.tau", "1")
        is_number = tau.replace(".", "", 1).isdecimal()
        return float(tau) if adjusts_logits(self.method) and is_number else None

    @property
    def is_posthoc(self) -> bool:
        """Whether the method changes what the trained model predicts, so that training does not show it."""
        return self.method in METHODS and METHODS[self.method].is_posthoc

    def metric(self, name: str) -> Estimate:
        """The mean of a final metric over seeds."""
        return estimate(run.metrics.get(name, math.nan) for run in self.runs)

    def test_counts(self) -> IntArray:
        """[C] test samples of each class, over all seeds."""
        counts: IntArray = np.sum([run.counts for run in self.runs], axis=0)
        return counts

    def hits(self) -> IntArray:
        """[C] test samples of each class that it is rightly predicted for, over all seeds."""
        hits: IntArray = np.sum([run.hits for run in self.runs], axis=0)
        return hits

    def weight_norms(self) -> FloatArray | None:
        """[C] norms of the class vectors, the mean over seeds; None where the heads have none."""
        norms = [run.weight_norms for run in self.runs if run.weight_norms is not None]
        return np.mean(norms, axis=0) if norms else None

    def sample_rates(self) -> FloatArray | None:
        """[C] the class rates that a sampler had learned in the last epoch, the mean over seeds."""
        last = [run.history[-1].get("sample_rates") for run in self.runs if run.history]
        num_classes = len(self.test_counts())
        rates = [each for each in last if isinstance(each, list) and len(each) == num_classes]
        rates = [each for each in rates if all(isinstance(rate, int | float) for rate in each)]
        return np.mean(rates, axis=0) if rates else None

    def history(self, name: str) -> tuple[list[int], list[float]]:
        """Epochs in which ``name`` was measured, and its mean over seeds."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for row in run.history:
                if isinstance(row.get(name), int | float):
                    values.setdefault(int(row["epoch"]), []).append(float(row[name]))
        epochs = sorted(values)
        return epochs, [float(np.mean(values[epoch])) for epoch in epochs]


AnyResults = TypeVar("AnyResults", bound=MethodResults[Any])


@dataclass(frozen=True, eq=False)
class Comparison(Generic[AnyResults]):
    """All that a page shows."""

    labels: Labels
    methods: tuple[AnyResults, ...]
    """In the order of METHODS, so that a plain loss is first."""
    main_metric: str
    """What methods are ranked by."""

    @property
    def ranked(self) -> list[AnyResults]:
        """The methods, best first."""
        return sorted(self.methods, key=lambda method: -method.metric(self.main_metric).mean)

    @property
    def best(self) -> AnyResults:
        """The method with the highest main metric."""
        return max(self.methods, key=lambda method: method.metric(self.main_metric).mean)

    @property
    def reference(self) -> AnyResults | None:
        """What to hold the best method against: the plain loss, or the next best; None if there is but one."""
        others = [method for method in self.ranked if method is not self.best]
        plain = [method for method in self.methods if method in others and method.method in BASELINES]
        return next(iter(plain or others), None)

    @property
    def title(self) -> str:
        """What the recipe says of itself; that of the first run, if they differ."""
        return self.methods[0].runs[0].title or "Long-tail report"

    @property
    def has_intervals(self) -> bool:
        """Whether any method has seeds enough for intervals."""
        return any(len(method.runs) > 1 for method in self.methods)

    @property
    def preselected(self) -> list[AnyResults]:
        """What figures show at first: all while they are few, else the reference and the best three."""
        if len(self.methods) <= MOST_SHOWN:
            return list(self.methods)
        return [method for method in self.methods if method in self.ranked[:3] or method is self.reference]

    def difference(self, name: str, one: AnyResults | None = None, other: AnyResults | None = None) -> Estimate:
        """How much a method exceeds another in a metric; seed by seed where both have the same seeds.

        Args:
            name: of the metric.
            one: the best, if not given.
            other: the reference, if not given.
        """
        one, other = one or self.best, other or self.reference
        if other is None:
            return Estimate(math.nan, math.nan, 0)
        first, second = ({run.seed: run.metrics.get(name, math.nan) for run in each.runs} for each in (one, other))
        if first.keys() == second.keys():
            return estimate(first[seed] - second[seed] for seed in first)
        return Estimate(one.metric(name).mean - other.metric(name).mean, math.nan, 1)


def adjusts_logits(name: str) -> bool:
    """Whether the method of this name adjusts logits after training."""
    return name in METHODS and METHODS[name].adjusts_logits


def split_rows(scores: Tensor) -> Iterator[slice]:
    """Rows of [N, C] to look at together."""
    num_rows, num_classes = scores.shape
    return row_chunks(num_rows, num_classes, CHUNK_ELEMENTS)


def collect_facts(run: Run) -> dict[str, Any]:
    """The fields of a digest that do not depend on the kind of labels."""
    norms = run.predictions.weight_norms
    return {
        "path": run.path,
        "method": run.method,
        "seed": run.seed,
        "title": str(run.recipe.get("description") or run.recipe.get("name") or ""),
        "settings": {key: value for key, value in _flatten(run.recipe) if key not in ("train.seed", "description")},
        "environment": _read_environment(run.path),
        "history": run.history,
        "weight_norms": None if norms is None else norms.astype(np.float64),
    }


def sort_into_methods(digests: Sequence[AnyDigest]) -> list[tuple[str, tuple[AnyDigest, ...]]]:
    """Labels and runs, by method; a method that was run with several recipes counts as several."""
    by_recipe: dict[tuple[str, str], list[AnyDigest]] = {}
    for one in digests:
        by_recipe.setdefault((one.method, json.dumps(one.settings, sort_keys=True)), []).append(one)
    recipes_of: dict[str, list[Mapping[str, str]]] = {}
    for (method, _), same in by_recipe.items():
        _check_seeds(same)
        recipes_of.setdefault(method, []).append(same[0].settings)
    place_of = {name: index for index, name in enumerate(METHODS)}
    results = [
        (method, _label_method(method, same[0].settings, recipes_of[method]), sorted(same, key=lambda one: one.seed))
        for (method, _), same in by_recipe.items()
    ]
    results.sort(key=lambda result: (place_of.get(result[0], len(place_of)), result[1]))
    return [(label, tuple(same)) for _, label, same in results]


def _label_method(method: str, settings: Mapping[str, str], recipes: Sequence[Mapping[str, str]]) -> str:
    differing = [key for key, value in settings.items() if any(other.get(key) != value for other in recipes)]
    named = [f"{key.rpartition('.')[2]}={settings[key]}" for key in differing]
    return f"{method} ({', '.join(named)})" if named else method


def _check_seeds(same: Sequence[Digest]) -> None:
    first_with: dict[int, Digest] = {}
    for one in same:
        first = first_with.setdefault(one.seed, one)
        if first is not one:
            raise ValueError(
                f"runs must differ in method, recipe or seed. {first.path} and {one.path} are both {one.method} with "
                f"seed {one.seed}; leave one out."
            )


def check_predictions(path: Path, predictions: Predictions) -> None:
    """Raise a ValueError of one line if the arrays of a run do not fit together."""
    logits, scores, labels = predictions.logits, predictions.scores, predictions.labels
    num_classes = len(predictions.class_names)
    shape = (len(labels), num_classes)
    for name, array in (("logits", logits), ("scores", scores)):
        if array.shape != shape or array.dtype.kind != "f":
            raise ValueError(f"{path}: {name} must be numbers of shape {shape}. Got {array.dtype} {array.shape}.")
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} must be finite. Got NaN or an infinity; look for a diverged model.")
    vectors: dict[str, npt.NDArray[Any] | None] = {
        "train_counts": predictions.train_counts,
        "weight_norms": predictions.weight_norms,
    }
    for name, vector in vectors.items():
        if vector is not None and vector.shape != (num_classes,):
            raise ValueError(
                f"{path}: {name} must have one number per class, {num_classes}. Got shape {vector.shape}."
            )
    if labels.shape == shape and labels.dtype == np.bool_ and len(labels):
        return
    if num_classes < 2 or labels.ndim != 1 or not len(labels):
        raise ValueError(f"{path}: a test set must have samples, and at least 2 classes. Got logits {logits.shape}.")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: labels must be whole numbers. Got {labels.dtype}.")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"{path}: labels must be in 0..{num_classes - 1}. Got {labels.min()} to {labels.max()}.")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, default=str)


def _read_environment(path: Path) -> dict[str, str]:
    """What environment.json says; a run without one has none."""
    file = path / "environment.json"
    if not file.is_file():
        return {}
    try:
        return dict(_flatten(json.loads(file.read_text(encoding="utf-8"))))
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} is not a JSON table: {error}") from error
