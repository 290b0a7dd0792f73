"""Tables of the strong recipes: beside published results, and what each ingredient adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from longtail.lab.runs.statistics import Estimate, estimate
from site_pages.markdown import fenced, table
from site_pages.rows import Row, group_rows, read_rows

SETS = ("cifar10_lt", "cifar100_lt")
TITLES = ("CIFAR-10-LT", "CIFAR-100-LT")
KINDS = {"strong": "one network", "experts": "three experts"}
"""Recipes are SET_KIND."""
FULL_LENGTH = 100
"""Epochs of the recipes with one network."""


class Published(NamedTuple):
    """Accuracies in percent on CIFAR-10-LT and CIFAR-100-LT, ratio 100, ResNet-32 of width 16."""

    name: str
    reference: str
    kind: str
    epochs: str
    accuracies: tuple[float | None, float | None]


PUBLISHED = (
    Published("BalPoE", "Aimar et al., 2023", "three experts", "400", (86.8, 55.9)),
    Published("SHIKE", "Jin et al., 2023", "three experts", "200", (None, 56.3)),
    Published("ProCo", "Du et al., 2024", "one network", "200", (85.6, 52.8)),
    Published("BCL", "Zhu et al., 2022", "one network", "200", (84.3, 51.9)),
    Published("BALMS", "Ren et al., 2020", "one network", "400", (84.9, 50.8)),
    Published("Logit adjustment", "Menon et al., 2021", "one network", "over 1,000", (77.7, 43.9)),
)
"""As their authors, or those who compare with them, print them: mostly of the best epoch, some of one seed."""


def published_table(folder: Path) -> str:
    """Our recipes, of the last epoch, above what is published."""
    ours = []
    for kind, title in KINDS.items():
        lengths = [_read_recipe(folder / f"{name}_{kind}.csv") for name in SETS]
        for epochs in sorted({epochs for by_length in lengths for epochs in by_length}):
            found = [by_length.get(epochs, []) for by_length in lengths]
            cells = [_show(_accuracy(rows)) if rows else "" for rows in found]
            recipes = ", ".join(f"`{name}_{kind}`" for name, rows in zip(SETS, found, strict=True) if rows)
            ours.append([f"**longtail**: {recipes}; {_count_seeds(found)}", title, str(epochs), *cells])
    others = [
        [f"{one.name} ({one.reference})", one.kind, one.epochs, *(_show_number(value) for value in one.accuracies)]
        for one in PUBLISHED
    ]
    return table(["", "kind", "epochs", *TITLES], ours + others)


def strong_sentence(folder: Path) -> str:
    """What the recipes reach, for the README."""
    found = [_read_recipe(folder / f"{name}_strong.csv").get(FULL_LENGTH, []) for name in SETS]
    reached = " and ".join(f"{_show(_accuracy(rows))} %" for rows in found if rows)
    titles = " and ".join(name for name, rows in zip(TITLES, found, strict=True) if rows)
    experts = [_read_recipe(folder / f"{name}_experts.csv") for name in SETS]
    longest = {title: max(rows.items()) for title, rows in zip(TITLES, experts, strict=True) if rows}
    parts = [f"{_show(_accuracy(rows))} % on {title}" for title, (_, rows) in longest.items()]
    length = max((length for length, _ in longest.values()), default=0)
    more = f" Three experts reach {' and '.join(parts)} in {length} epochs." if parts else ""
    return (
        "`longtail train cifar10_lt_strong` and `cifar100_lt_strong` add a cosine head, AutoAugment and "
        f"{FULL_LENGTH} epochs to the adjusted loss: the same network then reaches {reached} on {titles} at the last "
        f"epoch ({_count_seeds(found)}).{more}"
    )


def ingredients_table(path: Path) -> str:
    """What a recipe reaches, and what it reaches with one ingredient more or less."""
    command = fenced(f"python benchmarks/ingredients.py {path.stem}", "bash")
    if not path.is_file():
        return f"There are no rows yet. To make them:\n\n{command}"
    groups = group_rows(read_rows(path), "ingredient", "epochs")
    bases = {epochs: rows for (name, epochs), rows in groups.items() if name == "recipe"}
    body = []
    for (name, epochs), rows in groups.items():
        accuracy, base = _accuracy(rows), bases.get(epochs)
        gain = "" if base is None or name == "recipe" else f"{accuracy.mean - _accuracy(base).mean:+.1f}"
        parts = [_mean(rows, name) for name in ("head", "torso", "tail", "calibration_error")]
        body.append([name, epochs, _show(accuracy), gain.replace("-", "−"), *parts, _mean_minutes(rows)])
    header = [
        "",
        "epochs",
        "accuracy, %",
        "difference",
        "head",
        "torso",
        "tail",
        "calibration error",
        "minutes of one core",
    ]
    return f"{table(header, body)}\n\n{command}"


def _read_recipe(path: Path) -> dict[int, list[Row]]:
    """Rows of the recipe itself by their epochs; short trainings, in which ingredients are compared, do not count."""
    rows = [row for row in read_rows(path) if row["ingredient"] == "recipe"] if path.is_file() else []
    by_length = {int(epochs): members for (epochs,), members in group_rows(rows, "epochs").items()}
    return {epochs: members for epochs, members in by_length.items() if epochs >= FULL_LENGTH}


def _count_seeds(found: Sequence[Sequence[Row]]) -> str:
    counts = {len(rows) for rows in found if rows}
    words = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{words} seed{'s' * (counts != {1})}"


def _accuracy(rows: Sequence[Row]) -> Estimate:
    return estimate(100 * float(row["balanced_accuracy"]) for row in rows)


def _show(value: Estimate) -> str:
    return f"{value.mean:.1f}" + (f" ± {value.half_width:.1f}" if value.has_interval else "")


def _show_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _mean(rows: Sequence[Row], name: str) -> str:
    found = estimate(100 * float(row.get(name) or "nan") for row in rows)
    return f"{found.mean:.1f}" if found.count else ""


def _mean_minutes(rows: Sequence[Row]) -> str:
    found = [float(row["processor_seconds"]) / 60 for row in rows if row["processor_seconds"]]
    return f"{sum(found) / len(found):.0f}" if found else ""
