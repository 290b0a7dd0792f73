"""Markdown from text, docstrings and rows."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence


def fenced(text: str, language: str) -> str:
    """A Markdown code block."""
    return f"```{language}\n{text}\n```"


def admonition(kind: str, title: str, text: str) -> str:
    """A colored box with a title."""
    return f'!!! {kind} "{title}"\n' + textwrap.indent(text, "    ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def first_line(documented: object) -> str:
    """The first paragraph of a docstring."""
    return one_line(inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0]).replace("``", "`")
