"""``longtail show``: a method's card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from longtail.lab.cli._console import print_screen, printable
from longtail.lab.cli.cards import card_sections

if TYPE_CHECKING:
    from longtail.methods import Method

__all__ = ["answer_consistency", "render_card", "show"]

SAMPLE_COUNTS = (1000, 300, 100, 30, 10)
"""A long tail to ask methods about: whether they are consistent does not depend on which one."""


def show(name: Annotated[str, typer.Argument(help="A method, as longtail list names it.")]) -> None:
    """Show a method's card: what it does, its formula, when to use it and where it comes from."""
    from longtail.methods.table import get_method

    print_screen(render_card(get_method(name)))


def answer_consistency(method: Method) -> str:
    """Whether a method is consistent for the balanced error: yes, no or -."""
    from longtail.prior import ClassPrior

    return {True: "yes", False: "no", None: "-"}[method.is_consistent(ClassPrior.from_counts(SAMPLE_COUNTS))]


def render_card(method: Method) -> RenderableType:
    """The method's docstring, its options, and whether it is consistent."""
    answers = {
        "yes": "Yes: with enough data and a rich model it minimizes the balanced error.",
        "no": "No: with any amount of data its largest logit need not be best for the balanced error.",
        "-": "Not known.",
    }
    options = ", ".join(f"{name} = {value}" for name, value in method.options.items()) or "none"
    kind = ", ".join(filter(None, (method.family, method.variant)))
    heading = Text.assemble((printable(method.name), "bold"), printable(f"  ({kind})"))
    parts: list[RenderableType] = [heading, Text()]
    for section in card_sections((method.card.__doc__ or "").replace("``", "")):
        parts.extend(_render_section(section.title, section.text))
    parts.extend(_render_section("Options", options))
    parts.extend(_render_section("Consistent for the balanced error", answers[answer_consistency(method)]))
    return Group(*parts)


def _render_section(title: str, text: str) -> Iterator[RenderableType]:
    """Prose is joined, to be wrapped to the terminal; formulas and examples stay as they are."""
    if title:
        yield Text(title, "bold cyan")
    indent = (0, 0, 0, 4 if title else 0)
    if title in ("Formula", "Example"):
        yield Padding(Text(text, "green"), indent)
    else:
        for part in re.split(r"\n(?! )" if title == "Args" else r"\n\n", text):
            yield Padding(Text(" ".join(part.split())), indent)
    yield Text()
