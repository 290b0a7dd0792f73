"""Measured rows, from the CSV files in ``benchmarks/results``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

METHOD_ROWS = {
    "ERM": "cross_entropy",
    "Class-balanced": "class_balanced",
    "Post-hoc adjustment (tau = 1)": "posthoc_adjusted",
    "Logit-adjusted loss": "logit_adjusted",
}
"""Rows of Table 2 of logit adjustment -> methods."""
EXTREME_SETS = {
    "clinc150": "CLINC150: texts, 150 intents",
    "corel5k": "Corel5k: images, 374 words",
    "debian": "Debian: packages, 597 tags",
    "dependencies": "Debian: packages, 3,771 dependencies",
    "delicious": "Delicious: bookmarks, 983 tags",
    "eurlex57k": "EURLEX57K: laws, 4,271 subjects",
    "rcv1": "RCV1, subset 1: news, 101 topics",
    "reuters90": "Reuters-90: news, 90 topics",
    "tmc2007": "TMC2007-500: flight reports, 22 problems",
}
"""Sets of extreme classification, as ``benchmarks/extreme_table.py`` calls them, and what they are."""
DATA_NAMES = {
    "cifar10_lt": "CIFAR-10-LT, the papers' schedule",
    "cifar100_lt": "CIFAR-100-LT, the papers' schedule",
    "cifar10_lt_fast": "CIFAR-10-LT",
    "cifar100_lt_fast": "CIFAR-100-LT",
    "multimnist_fast": "MultiMNIST",
    "tiny_imagenet_lt_features": "Tiny-ImageNet-LT",
    "clinc150": "CLINC-150",
    "digits": "Digits",
}
"""Recipe -> what its data are called."""
Row = Mapping[str, str]
"""One line of a file of rows, by column."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def group_rows(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows by what they have in ``columns``, in the order of the file."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def group_by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each method."""
    return {method: members for (method,), members in group_rows(rows, "method").items()}


def recorded_rows(folder: Path, recipe: str) -> list[Row]:
    """The rows of a recipe as ``longtail compare`` writes them, from what ``longtail reproduce`` recorded of it."""
    path = folder / "logit_adjustment" / f"{recipe}.csv"
    if not path.is_file():
        return []
    runs: dict[tuple[str, str], dict[str, str]] = {}
    for line in read_rows(path):
        method = METHOD_ROWS.get(line["row"])
        if method is not None and line["quantity"].endswith("_error"):
            name = line["quantity"].removesuffix("_error")
            name = "balanced_accuracy" if name == "balanced" else name
            run = runs.setdefault((method, line["seed"]), {"recipe": recipe, "method": method, "seed": line["seed"]})
            run[name] = str(1 - float(line["value"]) / 100)
    return list(runs.values())


def comparison_rows(folder: Path, recipe: str) -> list[Row]:
    """The rows of a recipe: what ``longtail reproduce`` recorded, once all is there, or of ``longtail compare``."""
    path, recorded = folder / f"{recipe}.csv", recorded_rows(folder, recipe)
    if {row["method"] for row in recorded} >= {"cross_entropy", "posthoc_adjusted", "logit_adjusted"}:
        return recorded
    return read_rows(path) if path.is_file() else []
