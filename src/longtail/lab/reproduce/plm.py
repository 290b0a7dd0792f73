"""Tables 1, 5 and 6 of Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification".

Table 1 compares losses with and without partial label masking on samples with two labels. The reference trains a
ResNet-12 for 90 epochs on imbalanced MultiMNIST, as the recipe ``multimnist`` does; the default is the same in
small, on pairs of the digits that ship with scikit-learn.

Tables 5 and 6 vary the rate and the initial ratio of the masking. The reference does so on long-tailed CIFAR
with a ResNet-32; the default is long-tailed digits with a small network, with one label a sample as there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.lab.data.registry import load_data
from longtail.lab.report import write_report
from longtail.lab.reproduce._writing import csv_text, json_text, write_files
from longtail.lab.runs.folder import Run
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import Recipe

__all__ = [
    "COLUMNS",
    "INITIAL_RATIOS",
    "LOSSES",
    "RATES",
    "Outcome",
    "mean",
    "run_ablations",
    "run_losses",
    "write_results",
]

COLUMNS = (
    "precision",
    "recall",
    "recall_rarest_5",
    "recall_rarest_3",
    "f1",
    "f1_rarest_5",
    "f1_rarest_3",
    "exact_match",
)
"""The columns of Table 1."""


@dataclass(frozen=True)
class Loss:
    """A row of Table 1: a method, and what the reference reports for it, in percent, column by column."""

    method: str
    reported: tuple[float, ...]
    is_masked: bool = False
    is_undersampled: bool = False


LOSSES = {
    "BCE": Loss("binary_cross_entropy", (86.96, 78.65, 63.39, 51.50, 80.35, 73.87, 65.73, 53.42)),
    "focal": Loss("binary_focal", (86.75, 78.28, 62.53, 50.44, 79.93, 73.33, 64.88, 52.64)),
    "BCE + CB": Loss("class_balanced_binary", (85.86, 76.55, 61.02, 49.12, 78.05, 72.32, 63.81, 48.51)),
    "BCE, undersampled": Loss(
        "undersampled_binary", (87.97, 79.00, 65.36, 54.16, 81.39, 75.57, 67.92, 54.46), is_undersampled=True
    ),
    "PLM (BCE)": Loss(
        "partial_label_masking", (87.41, 81.55, 71.91, 65.31, 83.73, 79.17, 74.27, 56.95), is_masked=True
    ),
    "PLM (focal)": Loss(
        "partial_label_masking_focal", (87.50, 80.95, 70.27, 62.31, 83.22, 78.13, 72.61, 56.45), is_masked=True
    ),
    "PLM (BCE + CB)": Loss(
        "partial_label_masking_class_balanced",
        (89.37, 75.24, 65.31, 56.25, 80.52, 75.64, 69.28, 49.95),
        is_masked=True,
    ),
    "PLM (BCE), undersampled": Loss(
        "partial_label_masking_undersampled",
        (88.54, 80.38, 71.29, 65.86, 83.56, 79.44, 75.10, 56.53),
        is_masked=True,
        is_undersampled=True,
    ),
}

RATES = {1.0: 24.86, 0.1: 25.08, 0.01: 25.64, 0.0: 29.43}
"""Table 5: rate -> error on CIFAR-10-LT at a ratio of 100, in percent. A rate of 0 is plain binary cross-entropy."""

INITIAL_RATIOS = {"min": 28.82, "max": 30.74, "mean": 25.65, "data": 24.86}
"""Table 6: initial ratio -> error on CIFAR-10-LT at a ratio of 100 and a rate of 1, in percent."""

UNDERSAMPLED_SHARE = 19
"""The reference draws 500 samples a class, a 19th of those of its most frequent one."""


@dataclass(frozen=True)
class Outcome:
    """One run, as a row of a table."""

    table: int
    row: str
    seed: int
    values: Mapping[str, float]
    """Column -> value, as a share of 1."""
    reported: Mapping[str, float]
    """Column -> what the reference reports, as a share of 1."""
    run: Run


def run_losses(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Table 1: every loss on samples with several labels. Masking is set as in the recipe's method."""
    per_class = max(1, int(load_data(recipe.data).prior.counts.max()) // UNDERSAMPLED_SHARE)
    for name, loss in LOSSES.items():
        masking = dict(recipe.method.options) if loss.is_masked else {}
        options = masking | ({"per_class": per_class} if loss.is_undersampled else {})
        reported = {column: value / 100 for column, value in zip(COLUMNS, loss.reported, strict=True)}
        for seed in seeds:
            variant = recipe.with_method(loss.method, options).with_seed(seed)
            run = train(variant, folder / "table-1" / loss.method / f"seed-{seed}", show_progress=False)
            yield Outcome(1, name, seed, {column: run.metrics[column] for column in COLUMNS}, reported, run)


def run_ablations(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Tables 5 and 6: rates and initial ratios, on samples with one label."""
    rows: list[tuple[int, str, dict[str, Any], float]] = [
        (5, f"rate {rate:g}", {"rate": rate}, error) for rate, error in RATES.items()
    ]
    rows += [(6, f"initial {name}", {"rate": 1.0, "initial": name}, error) for name, error in INITIAL_RATIOS.items()]
    for table, name, options, error in rows:
        for seed in seeds:
            variant = recipe.with_method("partial_label_masking", options).with_seed(seed)
            place = folder / f"table-{table}" / name.replace(" ", "-") / f"seed-{seed}"
            run = train(variant, place, show_progress=False)
            values = {"error": 1 - run.metrics["accuracy"]}
            yield Outcome(table, name, seed, values, {"error": error / 100}, run)


def mean(outcomes: Sequence[Outcome], row: str, column: str) -> float:
    """The mean over seeds of one cell."""
    found = [outcome.values[column] for outcome in outcomes if outcome.row == row]
    return sum(found) / len(found) if found else math.nan


def write_results(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write ``tables.csv``, ``results.json`` and, about the runs of Table 1, ``report.html``; return their paths."""
    written = write_files(folder, {"tables.csv": _csv(outcomes), "results.json": json_text(_results(outcomes))})
    page = folder / "report.html"
    runs = [outcome.run for outcome in outcomes if outcome.table == 1]
    write_report(runs, page, title="Partial label masking, Table 1")
    return [*written, page]


def _csv(outcomes: Sequence[Outcome]) -> str:
    rows = [
        (outcome.table, outcome.row, outcome.seed, column, value, outcome.reported[column])
        for outcome in outcomes
        for column, value in outcome.values.items()
    ]
    return csv_text(["table", "row", "seed", "column", "value", "reported"], rows)


def _results(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means over seeds, and the reference's."""
    rows = {outcome.row: outcome for outcome in outcomes}
    return {
        name: {
            "table": outcome.table,
            "recipe": outcome.run.recipe["name"],
            "values": {column: mean(outcomes, name, column) for column in outcome.values},
            "reported": dict(outcome.reported),
        }
        for name, outcome in rows.items()
    }
