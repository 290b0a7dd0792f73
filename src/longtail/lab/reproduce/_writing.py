"""What the experiments share: results as files, and figures as pages that need no network."""

from __future__ import annotations

import csv
import html
import io
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from longtail._core.files import replacing

__all__ = ["csv_text", "json_text", "layout", "page", "plots", "write_files"]


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


def layout(height: int, top: int, legend_at: float) -> dict[str, Any]:
    """How figures of plotly look, with room of ``top`` pixels for titles and a legend at this height."""
    return {
        "template": "plotly_white",
        "height": height,
        "margin": {"l": 60, "r": 20, "t": top, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 14},
        "legend": {"orientation": "h", "x": 0.5, "xanchor": "center", "y": legend_at, "yanchor": "bottom"},
    }


def plots(figures: Iterable[Any]) -> list[str]:
    """Figures of plotly as HTML, in the order of one page: the first brings the script that draws all of them."""
    config = {"displaylogo": False, "responsive": True}
    return [
        figure.to_html(full_html=False, include_plotlyjs=number == 0, config=config)
        for number, figure in enumerate(figures)
    ]


def page(title: str, body: str, width: int = 1500) -> str:
    """A whole HTML page.

    Args:
        title: plain text, the heading too.
        body: HTML, what follows the heading.
        width: of the page at most, in pixels.
    """
    return _PAGE.format(title=html.escape(title), body=body, width=width)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; padding: 0 1rem; }}
body {{ max-width: {width}px; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; }}
h2 {{ font-size: 1.2rem; margin: 2rem 0 0; }}
p {{ max-width: 75rem; }}
td, th {{ padding: 0.2rem 0.8rem; text-align: left; border-bottom: 1px solid #ddd; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
