"""Tables 1, 5 and 6 of Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification".

Table 1 compares losses with and without partial label masking on multi-label data: samples with two labels. The
reference trains a ResNet-12 for 90 epochs on imbalanced MultiMNIST, as the recipe ``multimnist`` does; the default is
the same in small, on pairs of the digits that ship with scikit-learn.

Tables 5 and 6 vary the rate and the initial ratio of the masking. The reference does so on long-tailed CIFAR
with a ResNet-32; the default is long-tailed digits with a small network, with one label per sample as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.lab.data.registry import load_data
from longtail.lab.report import write_report
from longtail.lab.reproduce._rows import Row, RowFormat, conclude, make_rows
from longtail.lab.reproduce._writing import json_text, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.runs.folder import Run
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe

__all__ = [
    "COLUMNS",
    "EXPERIMENT",
    "INITIAL_RATIOS",
    "LOSSES",
    "RATES",
    "Options",
    "Result",
    "average",
    "plan_ablations",
    "plan_losses",
    "run",
    "tabulate_losses",
    "tabulate_settings",
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
class Options:
    """How to run the experiment."""

    recipe: str = add_option("two_digits", "Multi-label data, for Table 1; multimnist is the paper's.")
    one_label_recipe: str = add_option("digits", "Data with one label per sample, for Tables 5 and 6.")
    seeds: int = add_option(3, "How many runs of each row, with seeds 0, 1, ...", minimum=1, adds_rows=True)
    settings: tuple[str, ...] = add_option((), "A setting, such as train.epochs=5.", flag="--set")


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
"""The reference draws 500 samples per class, a 19th of those of its most frequent one."""


@dataclass(frozen=True)
class Result:
    """One run, as a row of a table."""

    table: int
    row: str
    seed: int
    values: Mapping[str, float]
    """Column -> value, as a share of 1."""
    reported: Mapping[str, float]
    """Column -> what the reference reports, as a share of 1."""
    run: Run


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Train every row of the tables, and summarize them beside the paper's."""
    names = (options.recipe, options.one_label_recipe)
    pairs, single = (load_recipe(find_recipe(name), options.settings) for name in names)
    seeds = range(options.seeds)
    rows = [*plan_losses(pairs, folder, seeds), *plan_ablations(single, folder, seeds)]
    results, missing = make_rows(rows, FORMAT, folder, say)
    return conclude(results, missing, folder, _tabulate, lambda done: write_results(done, folder))


def plan_losses(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> list[Row[Result]]:
    """Table 1: every loss on multi-label data. Masking is set as in the recipe's method."""
    per_class = max(1, int(load_data(recipe.data).prior.counts.max()) // UNDERSAMPLED_SHARE)
    rows = []
    for name, loss in LOSSES.items():
        masking = dict(recipe.method.options) if loss.is_masked else {}
        options = masking | ({"per_class": per_class} if loss.is_undersampled else {})
        reported = {column: value / 100 for column, value in zip(COLUMNS, loss.reported, strict=True)}
        for seed in seeds:
            variant = recipe.with_method(loss.method, options).with_seed(seed)
            place = folder / "table-1" / loss.method / f"seed-{seed}"
            rows.append(_plan_row(1, name, variant, place, reported, _measure_scores))
    return rows


def plan_ablations(recipe: Recipe, folder: Path, seeds: Sequence[int]) -> list[Row[Result]]:
    """Tables 5 and 6: rates and initial ratios, on data with one label per sample."""
    cells: list[tuple[int, str, dict[str, Any], float]] = [
        (5, f"rate {rate:g}", {"rate": rate}, error) for rate, error in RATES.items()
    ]
    cells += [(6, f"initial {name}", {"rate": 1.0, "initial": name}, error) for name, error in INITIAL_RATIOS.items()]
    rows = []
    for table, name, options, error in cells:
        for seed in seeds:
            variant = recipe.with_method("partial_label_masking", options).with_seed(seed)
            place = folder / f"table-{table}" / name.replace(" ", "-") / f"seed-{seed}"
            rows.append(_plan_row(table, name, variant, place, {"error": error / 100}, _measure_error))
    return rows


def _plan_row(
    table: int,
    name: str,
    recipe: Recipe,
    folder: Path,
    reported: Mapping[str, float],
    measure: Callable[[Run], dict[str, float]],
) -> Row[Result]:
    seed = recipe.train.seed

    def make() -> Result:
        run = train(recipe, folder, show_progress=False)
        return Result(table, name, seed, measure(run), reported, run)

    return Row((table, name, seed), make)


def _measure_scores(run: Run) -> dict[str, float]:
    return {column: run.metrics[column] for column in COLUMNS}


def _measure_error(run: Run) -> dict[str, float]:
    return {"error": 1 - run.metrics["accuracy"]}


def _split_result(result: Result) -> list[dict[str, Any]]:
    return [
        {"column": column, "value": value, "reported": result.reported[column]}
        for column, value in result.values.items()
    ]


FORMAT = RowFormat(("table", "row", "seed"), _split_result)


def average(results: Sequence[Result], row: str, column: str) -> float:
    """The mean over seeds of one cell."""
    found = [result.values[column] for result in results if result.row == row]
    return sum(found) / len(found) if found else math.nan


def _tabulate(results: Sequence[Result]) -> list[Summary]:
    parts = [result for result in results if result.table == 1], [result for result in results if result.table != 1]
    tabulators = (tabulate_losses, tabulate_settings)
    return [tabulate(part) for tabulate, part in zip(tabulators, parts, strict=True) if part]


def tabulate_losses(results: Sequence[Result]) -> Summary:
    """Table 1: what was measured, and in brackets what the paper reports."""
    columns = {"recall": "recall", "recall_rarest_3": "recall, 3 rarest", "f1": "F1", "f1_rarest_3": "F1, 3 rarest"}
    reported = {result.row: result.reported for result in results}
    rows = [
        (row, *(f"{100 * average(results, row, name):.1f} ({100 * reported[row][name]:.1f})" for name in columns))
        for row in LOSSES
        if row in reported
    ]
    note = f"Recipe {results[0].run.recipe['name']}; in brackets: the paper's, of MultiMNIST over 90 epochs."
    return Summary(("method", *columns.values()), rows, note)


def tabulate_settings(results: Sequence[Result]) -> Summary:
    """Tables 5 and 6."""
    found = {result.row: result for result in results}
    rows = [
        (row, f"{100 * average(results, row, 'error'):.2f}", f"{100 * result.reported['error']:.2f}")
        for row, result in found.items()
    ]
    recipe = results[0].run.recipe["name"]
    note = f"Error in percent, recipe {recipe}; the paper's: CIFAR-10-LT, ratio 100. Initial ratios are at rate 1."
    return Summary(("method", "error", "in the paper"), rows, note)


def write_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write ``results.json`` and, about the runs of Table 1, ``report.html``; return their paths."""
    written = write_files(folder, {"results.json": json_text(_collect_results(results))})
    page = folder / "report.html"
    runs = [result.run for result in results if result.table == 1]
    write_report(runs, page, title="Partial label masking, Table 1")
    return [*written, page]


def _collect_results(results: Sequence[Result]) -> dict[str, Any]:
    """Means over seeds, and the reference's."""
    rows = {result.row: result for result in results}
    return {
        name: {
            "table": result.table,
            "recipe": result.run.recipe["name"],
            "values": {column: average(results, name, column) for column in result.values},
            "reported": dict(result.reported),
        }
        for name, result in rows.items()
    }


EXPERIMENT = Experiment(
    "plm",
    "Partial label masking around several losses, its rate and its start.",
    'Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification", Tables 1, 5, 6.',
    Options,
    run,
)
