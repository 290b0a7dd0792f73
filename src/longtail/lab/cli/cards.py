"""Method cards: a docstring as sections, for the terminal and for the docs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Section", "card_section", "card_sections"]


@dataclass(frozen=True)
class Section:
    """A part of a docstring. Running text has the title "", a doctest "Example"."""

    title: str
    text: str


def card_sections(docstring: str) -> list[Section]:
    """The parts of a docstring in their order; paragraphs in a row are one part, and so are doctests.

    >>> card_sections("What it is." + chr(10) * 2 + "Use when:" + chr(10) + "    Always.")
    [Section(title='', text='What it is.'), Section(title='Use when', text='Always.')]
    """
    sections: list[Section] = []
    for section in _read_sections(inspect.cleandoc(docstring).splitlines()):
        if sections and section.title == sections[-1].title and section.title in ("", "Example"):
            section = Section(section.title, f"{sections.pop().text}\n\n{section.text}")
        sections.append(section)
    return sections


def card_section(docstring: str, title: str) -> str:
    """The text of one section, "" where there is none."""
    return next((section.text for section in card_sections(docstring) if section.title == title), "")


def _read_sections(lines: Sequence[str]) -> Iterator[Section]:
    """Titled sections, paragraphs and doctests, one by one."""
    start = 0
    while start < len(lines):
        line = lines[start]
        is_titled = bool(re.fullmatch(r"[A-Z][a-z]+( [a-z]+)?:", line)) and lines[start + 1 : start + 2] != [""]
        end = start + 1
        if is_titled:
            while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
                end += 1
            yield Section(line[:-1], textwrap.dedent("\n".join(lines[start + 1 : end])).strip())
        elif line:
            while end < len(lines) and lines[end]:
                end += 1
            yield Section("Example" if line.startswith(">>>") else "", "\n".join(lines[start:end]))
        start = end
