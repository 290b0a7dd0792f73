"""What the README says in numbers, from committed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from longtail.lab.runs.statistics import Estimate, estimate
from site_pages import ROOT
from site_pages.markdown import table
from site_pages.rows import DATA_NAMES, EXTREME_SETS, Row, comparison_rows, group_by_method, group_rows, read_rows

QUALITY = ROOT / "benchmarks" / "results" / "quality"
GROUPS = ("tail", "torso", "head")
"""Rarest first."""


class DataSet(NamedTuple):
    """What is said of a recipe's data."""

    what: str
    classes: int
    largest: int
    smallest: int


DATA_SETS = {
    "cifar10_lt_fast": DataSet("images, ResNet-32", 10, 5000, 50),
    "cifar100_lt_fast": DataSet("images, ResNet-32", 100, 500, 5),
    "tiny_imagenet_lt_features": DataSet("image features, linear", 200, 500, 5),
    "clinc150": DataSet("texts, bag of features", 150, 100, 25),
}
"""In the order of the table; a recipe without rows is left out."""
METHODS = {
    "cross_entropy": "plain",
    "class_balanced": "class weights",
    "smote": "SMOTE",
    "posthoc_adjusted": "adjusted after training",
    "logit_adjusted": "adjusted loss",
}
"""The columns, and what they are called."""
TABULAR_METHODS = {
    "plain": "cross_entropy",
    "class weights": "class_balanced",
    "SMOTE": "smote",
    "adjusted afterwards": "posthoc_adjusted",
    "adjusted in training": "logit_adjusted",
}
"""What rows of tables call methods -> the column that they belong to."""
RIVALS = {
    "one-vs-rest": "one-vs-rest",
    "napkinXC PLT": "napkinXC PLT",
    "PECOS XR-Linear": "PECOS",
    "ours, defaults": "longtail",
}
"""What rows of extreme classification call models, and what the table does."""


def real_data_table(folder: Path = QUALITY) -> str:
    """Balanced accuracy on real data, and what happens to the rarest and the most frequent group of classes."""
    body = []
    for recipe, data in DATA_SETS.items():
        rows = comparison_rows(folder, recipe)
        if rows:
            methods = group_by_method(rows)
            found = [_measure(methods.get(method, ()), "balanced_accuracy") for method in METHODS]
            best = max(value.mean for value in found if value.count)
            size = f"{data.classes} classes, {data.largest:,} to {data.smallest} samples"
            seeds = f"{found[0].count} seed{'s' if found[0].count > 1 else ''}"
            cells = [_write(value, best) for value in found]
            body.append([f"**{DATA_NAMES[recipe]}**: {data.what}; {size}; {seeds}", *cells, _write_groups(methods)])
    body += _tabular_rows(folder.parent / "tabular" / "rows.csv")
    return table(["data", *METHODS.values(), "rarest / most frequent classes"], body)


def _tabular_rows(path: Path) -> list[list[str]]:
    """Means over real tables, one line per model."""
    rows = read_rows(path) if path.is_file() else []
    num_sets = len({row["set"] for row in rows})
    body = []
    for (model,), members in group_rows(rows, "model").items():
        columns: dict[str, Estimate] = {}
        for (method,), runs in group_rows(members, "method").items():
            if method in TABULAR_METHODS:
                means = [_measure(of_seed, "balanced_accuracy").mean for of_seed in group_rows(runs, "seed").values()]
                columns[TABULAR_METHODS[method]] = estimate(means)
        best = max(value.mean for value in columns.values())
        seeds = columns["cross_entropy"].count
        cells = [_write(columns[name], best) if name in columns else "" for name in METHODS]
        body.append([f"**{num_sets} real tables**: {model}; 2 to 3 classes; {seeds} seeds", *cells, ""])
    return body


def extreme_table(path: Path = QUALITY.parent / "extreme" / "sets.csv") -> str:
    """Precision of the first prediction where there are many labels, beside other libraries."""
    body = []
    for (name,), rows in group_rows(read_rows(path), "set").items():
        by_model = {model: members for (model,), members in group_rows(rows, "model").items()}
        models = {model: estimate(float(row["P@1"]) for row in members) for model, members in by_model.items()}
        if "ours, defaults" in models:
            found = [models.get(model) for model in RIVALS]
            best = max(value.mean for value in found if value is not None)
            cells = ["" if value is None else f"{value.mean:.1f}" for value in found]
            title = EXTREME_SETS.get(name, name)
            body.append([title, *(f"**{cell}**" if cell == f"{best:.1f}" else cell for cell in cells)])
    return table(["precision of the first label, %", *RIVALS.values()], body)


def gain_sentence(recipe: str = "tiny_imagenet_lt_features", folder: Path = QUALITY) -> str:
    """The gain of adjusting a trained model, and its price."""
    methods = group_by_method(read_rows(folder / f"{recipe}.csv"))
    data = DATA_SETS[recipe]
    parts = {group: _change(methods, group) for group in ("tail", "head")}
    told = {group: f"from {100 * a:.1f} % to {100 * b:.1f} % ({_points(b - a)})" for group, (a, b) in parts.items()}
    return (
        f"**The gain and its price**, on {DATA_NAMES[recipe]} ({data.classes} classes): accuracy on rare classes "
        f"(fewer than 20 images) goes {told['tail']}, on frequent ones (100 or more) {told['head']}. No retraining: "
        "one subtraction per logit."
    )


def _change(methods: Mapping[str, Sequence[Row]], group: str) -> tuple[float, float]:
    before, after = (_measure(methods[name], group).mean for name in ("cross_entropy", "posthoc_adjusted"))
    return before, after


def _measure(rows: Sequence[Row], name: str) -> Estimate:
    return estimate(float(row.get(name) or "nan") for row in rows)


def _write(value: Estimate, best: float) -> str:
    if not value.count:
        return ""
    text = f"{100 * value.mean:.1f}"
    spread = f" ± {100 * value.half_width:.1f}" if value.has_interval else ""
    return f"**{text}**{spread}" if text == f"{100 * best:.1f}" else f"{text}{spread}"


def _write_groups(methods: Mapping[str, Sequence[Row]]) -> str:
    changes = [(a, b) for a, b in (_change(methods, group) for group in GROUPS) if a == a]
    return " / ".join(_points(after - before) for before, after in (changes[0], changes[-1]))


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")
