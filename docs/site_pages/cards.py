"""Method cards in the form that mkdocstrings reads."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

from longtail.lab.cli.cards import card_sections
from site_pages.markdown import fenced
from site_pages.typeset import place_formula


class CardSections(griffe.Extension):
    """Brings method cards into the form that mkdocstrings reads: blank lines between sections, code in fences."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object of the package."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value)


def google_style(docstring: str) -> str:
    """The docstring with blank lines between its sections and with formulas and doctests as code."""
    parts = []
    for section in card_sections(docstring):
        text = re.sub(r":\w+:`([^`]+)`", r"`\1`", section.text)
        if section.title == "Formula":
            text = place_formula(text)
        if section.title == "Example":
            parts.append(fenced(text, "pycon"))
        else:
            parts.append(f"{section.title}:\n{textwrap.indent(text, '    ')}" if section.title else text)
    return "\n\n".join(parts)
