"""Tables of corrections on tabular data, and of conformal sets, from the rows of their benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from longtail.lab.runs.statistics import Estimate, estimate
from site_pages.markdown import table
from site_pages.rows import Row, group_rows, read_rows

MEASURES = {
    "balanced_accuracy": ("balanced accuracy, %", 100, True),
    "auprc": ("AUPRC, %", 100, True),
    "log_loss": ("log loss", 1, False),
    "calibration_error": ("calibration error, %", 100, False),
}
"""Each measure's title, its unit, and whether more is better."""
GROUPS = ("head_coverage", "torso_coverage", "tail_coverage", "worst_class")


def correction_tables(path: Path) -> str:
    """For each model a table of methods, with the best of each measure in bold, and those that are as good."""
    if not path.is_file():
        return "There are no rows yet. `python benchmarks/tabular.py` makes them."
    parts = []
    for (model,), rows in group_rows(read_rows(path), "model").items():
        methods = {method: members for (method,), members in group_rows(rows, "method").items()}
        parts.append(f"### {model[0].upper()}{model[1:]}\n\n{_method_table(methods)}")
    return "\n\n".join(parts)


def _method_table(methods: Mapping[str, Sequence[Row]]) -> str:
    cells = {method: [_estimate(rows, measure) for measure in MEASURES] for method, rows in methods.items()}
    body = []
    for method, values in cells.items():
        row = [method]
        for position, (measure, value) in enumerate(zip(MEASURES, values, strict=True)):
            others = {name: found[position] for name, found in cells.items()}
            row.append(_cell(value, measure, is_best=method in _best(others, methods, measure)))
        body.append(row)
    return table(["trained", *(title for title, _, _ in MEASURES.values())], body)


def _estimate(rows: Sequence[Row], measure: str) -> Estimate:
    """The mean over seeds of the mean over sets."""
    by_seed = group_rows(rows, "seed").values()
    return estimate(sum(float(row[measure]) for row in part) / len(part) for part in by_seed)


def _best(values: Mapping[str, Estimate], methods: Mapping[str, Sequence[Row]], measure: str) -> set[str]:
    """The method with the best mean, and those whose difference to it, by seed, has an interval around 0."""
    sign = 1 if MEASURES[measure][2] else -1
    best = max(values, key=lambda name: sign * values[name].mean)
    return {name for name in methods if _is_as_good(methods[name], methods[best], measure)}


def _is_as_good(rows: Sequence[Row], best: Sequence[Row], measure: str) -> bool:
    pairs = ({(row["set"], row["seed"]): float(row[measure]) for row in part} for part in (rows, best))
    own, other = pairs
    by_seed: dict[str, list[float]] = {}
    for (name, seed), value in own.items():
        by_seed.setdefault(seed, []).append(value - other[name, seed])
    difference = estimate(sum(part) / len(part) for part in by_seed.values())
    _, unit, _ = MEASURES[measure]
    is_rounding = abs(unit * difference.mean) < 0.5 * 10 ** -_digits(unit)
    return is_rounding or difference.low <= 0 <= difference.high


def _cell(value: Estimate, measure: str, is_best: bool) -> str:
    _, unit, _ = MEASURES[measure]
    digits = _digits(unit)
    shown = f"{unit * value.mean:.{digits}f} ± {unit * value.half_width:.{digits}f}"
    return f"**{shown}**" if is_best else shown


def _digits(unit: int) -> int:
    return 1 if unit == 100 else 3


def peers_table(path: Path) -> str:
    """The same conformal sets by two libraries."""
    if not path.is_file():
        return "There are no rows yet. `python benchmarks/conformal_peers.py` makes them."
    body = [
        [
            f"{row['data']}, {row['classes']} classes",
            row["library"],
            f"{100 * float(row['coverage']):.1f}",
            f"{float(row['set_size']):.2f}",
            f"{int(row['sets_that_differ']):,} of {int(row['samples']):,}",
            f"{float(row['ms_p50']):.0f}",
        ]
        for row in read_rows(path)
    ]
    return table(["data", "library", "coverage, %", "classes in a set", "sets that differ", "ms"], body)


def coverage_tables(folder: Path) -> str:
    """Coverage by group and size of sets, for each file of rows."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        return "There are no rows yet. `python benchmarks/conformal.py` makes them."
    parts = []
    for path in files:
        for (name,), rows in group_rows(read_rows(path), "data").items():
            groups = [group for group in GROUPS if group in rows[0]]
            body = [
                [
                    row["method"],
                    *(f"{100 * float(row[group]):.1f}" for group in groups),
                    f"{100 * float(row['within_2_points']):.0f}",
                    f"{float(row['set_size']):.1f}",
                ]
                for row in rows
            ]
            titles = [group.removesuffix("_coverage").replace("_", " ") for group in groups]
            header = ["thresholds", *titles, "classes within 2 points, %", "classes in a set"]
            parts.append(f"**{name}**\n\n{table(header, body)}")
    return "\n\n".join(parts)
