"""Tables of measured speed, from the rows of benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from site_pages.markdown import table
from site_pages.rows import Row, group_rows, read_rows


def benchmark_tables(folder: Path) -> str:
    """Every file of rows in ``folder`` as tables, or how to make them where there are none."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        return "There are no rows yet. `make bench` measures them and writes them to `benchmarks/results/`."
    return "\n\n".join(f"## {_words(path.stem).capitalize()}\n\n{_benchmark(path)}" for path in files)


def _benchmark(path: Path) -> str:
    rows = read_rows(path)
    constant = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
    varying = [name for name in rows[0] if name not in constant]
    parts = [", ".join(f"{_words(name)} {value}" for name, value in constant.items())] if constant else []
    if {"method", "size", "ratio"} <= set(varying):
        parts += _ratio_tables(rows)
    else:
        parts.append(
            table([_words(name) for name in varying], [[_shown(row[name]) for name in varying] for row in rows])
        )
    return "\n\n".join(parts)


def _ratio_tables(rows: Sequence[Row]) -> list[str]:
    """One table for every question: methods down, sizes across, and how many times the baseline's time each takes."""
    labels = [name for name in ("question", "allocator") if name in rows[0]]
    parts = []
    for group, members in group_rows(rows, *labels).items():
        sizes = list(dict.fromkeys(row["size"] for row in members))
        cells = {(row["method"], row["size"]): f"{float(row['ratio']):.2f}" for row in members}
        methods = list(dict.fromkeys(row["method"] for row in members))
        body = [[f"`{method}`", *(cells.get((method, size), "") for size in sizes)] for method in methods]
        if labels:
            named = (
                f"{name} {value}" if name == "allocator" else value for name, value in zip(labels, group, strict=True)
            )
            parts.append(f"### {', '.join(named).capitalize()}")
        parts.append(table(["time, as a multiple", *sizes], body))
    return parts


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: str) -> str:
    return f"`{value}`" if re.search(r"[a-z]_|\.[a-z]", value) else value
