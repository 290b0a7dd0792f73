"""What a page is made of: sections of blocks. A block says what is shown; the template of its name says how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from markupsafe import Markup

from longtail.lab.report.digests.base import Comparison, MethodResults
from longtail.lab.report.figures.drawing import Figure, Series, Table, pair_series
from longtail.lab.report.figures.labels import draw_labels
from longtail.lab.report.text import clean, duration, with_interval

__all__ = [
    "Block",
    "Column",
    "Heading",
    "MethodTable",
    "Panels",
    "Paragraph",
    "Section",
    "Settings",
    "TableBlock",
    "arrange_figures",
    "build_label_section",
    "build_method_table",
    "build_settings",
]

MOST_SETTING = 200
"""Characters shown of one setting."""


class Block(Protocol):
    """A part of a section."""

    template: ClassVar[str]
    """The macro that draws it."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    short_title: str
    """For the navigation."""
    blocks: Sequence[Block]
    """A section without any is left out."""
    is_wide: bool = True


@dataclass(frozen=True)
class Paragraph:
    """Plain text, or our own words with markup in them."""

    template: ClassVar[str] = "paragraph"
    text: str | Markup


@dataclass(frozen=True)
class Heading:
    """The title of what follows."""

    template: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Panels:
    """Figures side by side under one legend."""

    template: ClassVar[str] = "panels"
    figures: Sequence[Figure]

    @property
    def legend(self) -> Sequence[Series]:
        """The longest of the figures'; nothing if it has but one entry."""
        longest = max((figure.legend for figure in self.figures), key=len)
        return longest if len(longest) > 1 else ()


@dataclass(frozen=True)
class TableBlock:
    """A table that scrolls by itself where it is wider than the page."""

    template: ClassVar[str] = "table_block"
    table: Table
    name: str
    """For screen readers."""
    most: int = 60
    """Characters shown of one cell."""


@dataclass(frozen=True)
class Settings:
    """Tables of settings, folded."""

    template: ClassVar[str] = "settings"
    tables: Mapping[str, TableBlock]
    """By their heading."""


@dataclass(frozen=True)
class Column:
    """A column of the table of methods."""

    key: str
    title: str
    short_title: str
    """For a phone, where there is no row of titles."""
    best: Callable[[Iterable[float]], float] | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of the table of methods."""

    text: str
    short_title: str
    is_best: bool


@dataclass(frozen=True)
class MethodRow:
    """A row of the table of methods."""

    series: Series
    cells: Sequence[Cell]
    num_seeds: int


@dataclass(frozen=True)
class MethodTable:
    """One row per method, best first."""

    template: ClassVar[str] = "method_table"
    intro: str
    titles: Sequence[str]
    rows: Sequence[MethodRow]


def arrange_figures(*figures: Figure | None) -> list[Block]:
    """The figures that there are, side by side."""
    found = [figure for figure in figures if figure is not None]
    return [Panels(found)] if found else []


def build_label_section(comparison: Comparison[Any]) -> Section:
    """How the labels are distributed."""
    figure = arrange_figures(draw_labels(comparison))
    return Section("labels", "How the labels are distributed", "Labels", figure, is_wide=False)


def build_method_table(comparison: Comparison[Any], columns: Sequence[Column], meaning: str) -> MethodTable:
    """The table of methods, with the best of a column marked.

    Args:
        comparison: the runs.
        columns: what is shown of a method.
        meaning: what the columns are, in words.
    """
    best = {column.key: _find_best(comparison, column) for column in columns}
    series_of = {id(method): series for series, method in pair_series(comparison)}
    rows = [
        MethodRow(
            series_of[id(method)],
            [_build_cell(method, column, best[column.key]) for column in columns],
            len(method.runs),
        )
        for method in comparison.ranked
    ]
    means = ": the mean over seeds ± a 95% interval (Student's t)" if comparison.has_intervals else ""
    bold = " The best of a column is bold." if len(comparison.methods) > 1 else ""
    intro = f"On the test set, in percent{means}.{bold} {meaning}"
    return MethodTable(intro, ["method", *(column.title for column in columns), "seeds"], rows)


def _find_best(comparison: Comparison[Any], column: Column) -> float:
    values = [method.metric(column.key).mean for method in comparison.methods]
    finite = [value for value in values if math.isfinite(value)]
    return column.best(finite) if column.best and len(values) > 1 and finite else math.nan


def _build_cell(method: MethodResults[Any], column: Column, best: float) -> Cell:
    value = method.metric(column.key)
    text = duration(value.mean) if column.key == "seconds" else with_interval(value)
    # What looks equal is equally good.
    is_best = math.isfinite(best) and f"{100 * value.mean:.1f}" == f"{100 * best:.1f}"
    return Cell(text, column.short_title, is_best)


def build_settings(comparison: Comparison[Any]) -> Settings:
    """What all runs share, and where they differ."""
    methods = comparison.methods
    keys = list(dict.fromkeys(key for method in methods for key in method.runs[0].settings))
    values = {key: [method.runs[0].settings.get(key, "") for method in methods] for key in keys}
    shared = [(key, found[0]) for key, found in values.items() if len(set(found)) == 1]
    differing = [(key, *found) for key, found in values.items() if len(set(found)) > 1]
    environments = _merge_environments(run.environment for method in methods for run in method.runs)
    seeds = [(method.label, ", ".join(str(run.seed) for run in method.runs)) for method in methods]
    tables = {
        "The same in all runs": Table(("setting", "value"), shared),
        "Different between methods": Table(("setting", *(clean(method.label) for method in methods)), differing),
        "Seeds": Table(("method", "seeds"), seeds),
        "Environment": Table(("what", "value"), environments),
    }
    return Settings({name: TableBlock(table, name, MOST_SETTING) for name, table in tables.items() if table.rows})


def _merge_environments(environments: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    found: dict[str, dict[str, None]] = {}
    for environment in environments:
        for key, value in environment.items():
            found.setdefault(key, {})[value] = None
    return [(key, "; ".join(values)) for key, values in found.items()]
