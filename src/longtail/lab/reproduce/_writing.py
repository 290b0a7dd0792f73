"""What the experiments share: results as files, and figures as pages that need no network."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from longtail._core.files import replacing
from longtail.lab.report.document import dump_figures, load_templates, render_document
from longtail.lab.report.figures.drawing import Table
from longtail.lab.reproduce.panels import to_panels

__all__ = ["csv_text", "draw_table", "json_text", "page", "plots", "write_files"]

MOST_LETTERS = 1000
"""Of a cell in a table of a page."""


def write_files(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    """Write a text under each name into ``folder``, which is made if needed, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        with replacing(folder / name) as file:
            file.write(text.encode())
    return [folder / name for name in contents]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV.

    >>> csv_text(["seed", "error"], [[0, 0.5]])
    'seed,error\\r\\n0,0.5\\r\\n'
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def json_text(results: Mapping[str, Any]) -> str:
    """Results as JSON, with the versions that they were made with."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return json.dumps({"versions": versions, **results}, indent=2, allow_nan=False) + "\n"


def plots(figures: Iterable[Any]) -> list[str]:
    """Figures of plotly as HTML, each with its legend, for one page."""
    parts = load_templates().get_template("blocks.html").module
    found = [to_panels(figure, f"figure-{number}") for number, figure in enumerate(figures)]
    return [f"{parts.panels(one)}{_DATA.format(dump_figures(one.figures))}" for one in found]  # type: ignore[attr-defined]


def draw_table(headings: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table as HTML, in a box in which it scrolls where it is wide.

    Args:
        headings: of columns.
        rows: of text; the first of each is its name.
        name: what the table is, for those who do not see it.
    """
    parts = load_templates().get_template("blocks.html").module
    return str(parts.table(Table(headings, rows), name, MOST_LETTERS))  # type: ignore[attr-defined]


def page(title: str, body: str) -> str:
    """A whole HTML page, in the style of the report.

    Args:
        title: plain text, the heading too.
        body: HTML, what follows the heading.
    """
    from plotly.offline import get_plotlyjs

    return render_document("article.html", get_plotlyjs(), title=title, body=Markup(body))


_DATA = '<script type="application/json">{}</script>'
