"""Tables of methods, from the rows of ``longtail compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mkdocs.exceptions import PluginError

from longtail.lab.runs.statistics import estimate
from site_pages.markdown import fenced, table
from site_pages.rows import Row, group_by_method, read_rows


def comparison_table(path: Path) -> str:
    """The table of a recipe's rows, and the command that makes them."""
    if not path.is_file():
        command = _compare_command(path.stem, ("cross_entropy", "posthoc_adjusted", "logit_adjusted"), 3)
        return f"There are no rows yet. To make them:\n\n{command}"
    rows = read_rows(path)
    names = {row["recipe"] for row in rows}
    if len(names) != 1:
        raise PluginError(f"{path} must have rows of one recipe. Got {', '.join(sorted(names)) or 'none'}.")
    name = names.pop()
    methods = group_by_method(rows)
    shown = _label_quality(methods) if "f1" in rows[0] else _accuracy_quality(methods)
    return f"{shown}\n\n{_compare_command(name, methods, max(map(len, methods.values())))}"


def _accuracy_quality(methods: Mapping[str, Sequence[Row]]) -> str:
    header = ["method", "balanced error, %", "head", "torso", "tail", "seconds"]
    return table(header, [_quality_row(method, members) for method, members in methods.items()])


def _label_quality(methods: Mapping[str, Sequence[Row]]) -> str:
    """Where a sample may have several labels: means over all classes, and over the rarest ones."""
    first = next(iter(methods.values()))[0]
    rarest = min(int(name.rpartition("_")[2]) for name in first if name.startswith("f1_rarest_"))
    columns = {
        "f1": "F1",
        "precision": "precision",
        "recall": "recall",
        f"f1_rarest_{rarest}": f"F1, {rarest} rarest",
        f"recall_rarest_{rarest}": f"recall, {rarest} rarest",
        "exact_match": "exact match",
        "mean_average_precision": "mAP",
    }
    body = []
    for method, rows in methods.items():
        found = [estimate(100 * float(row[name]) for row in rows) for name in columns]
        intervals = [f" ± {value.half_width:.1f}" if value.has_interval else "" for value in found]
        cells = [f"{value.mean:.1f}{interval}" for value, interval in zip(found, intervals, strict=True)]
        body.append([f"`{method}`", *cells, str(len(rows))])
    return table(["method", *columns.values(), "seeds"], body)


def _quality_row(method: str, rows: Sequence[Row]) -> list[str]:
    """Balanced error, and accuracy in the groups; a group without classes has none."""
    found = estimate(100 * (1 - float(row["balanced_accuracy"])) for row in rows)
    interval = f" ± {found.half_width:.2f} ({found.count} seeds)" if found.has_interval else " (1 seed)"
    error = f"{found.mean:.2f}{interval}"
    groups = [estimate(100 * float(row.get(group) or "nan") for row in rows) for group in ("head", "torso", "tail")]
    seconds = estimate(float(row["seconds"]) for row in rows).mean
    shown = [f"{group.mean:.1f}" if group.count else "" for group in groups]
    return [f"`{method}`", error, *shown, f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"]


def compactness_tables(folder: Path) -> str:
    """For every file of rows in ``folder`` that has them: how far apart the samples of a class are, in three ways."""
    parts = []
    for path in sorted(folder.glob("*.csv")):
        rows = read_rows(path)
        if "train_tail_raw" in rows[0]:
            header = ["method", "balanced error, %", "head, train", "tail, train", "head, test", "tail, test"]
            parts += [
                f"### {path.stem}",
                table(header, [_compactness_row(group) for group in group_by_method(rows).values()]),
            ]
    return "\n\n".join(parts)


def _compactness_row(rows: Sequence[Row]) -> list[str]:
    """Means over the runs of one method: as it is / by the largest norm / by the distance of class means."""
    cells = []
    for place in ("train_head", "train_tail", "test_head", "test_tail"):
        found = (f"{place}_{measure}" for measure in ("raw", "by_norm", "by_class_means"))
        cells.append(" / ".join(f"{estimate(float(row[name]) for row in rows).mean:.2f}" for name in found))
    return [*_quality_row(rows[0]["method"], rows)[:2], *cells]


def _compare_command(recipe: str, methods: Iterable[str], num_seeds: int) -> str:
    return fenced(
        f"longtail compare {recipe} --seeds {num_seeds} \\\n    --methods {','.join(methods)}\n"
        f"cp runs/{recipe}/comparison.csv benchmarks/results/quality/{recipe}.csv",
        "bash",
    )
