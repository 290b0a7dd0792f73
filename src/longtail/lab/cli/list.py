"""``longtail list``: all methods on one screen, or those of a family with a line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longtail.lab.cli._console import print_screen, printable
from longtail.lab.cli.show import answer_consistency

if TYPE_CHECKING:
    from longtail.methods import Method

__all__ = ["list_methods", "render_methods", "render_overview"]

START = {
    "posthoc_adjusted": "the model is trained already",
    "logit_adjusted": "you train it: one changed line",
    "partial_label_masking": "multi-label data",
    "sampled_softmax": "100,000 labels or more",
}
"""What to look at first, and when."""
HINT = "longtail list FAMILY says what each is, longtail show NAME prints one method's card."


def list_methods(
    family: Annotated[
        str | None, typer.Argument(help="Say what each method of this family is; all: of every one.")
    ] = None,
) -> None:
    """List the methods by family, and where to start."""
    from longtail._core.suggestions import suggest
    from longtail.methods.table import METHODS

    families = _group_by_family(METHODS.values())
    if family is None:
        print_screen(render_overview(families))
    elif family == "all":
        print_screen(render_methods(METHODS.values()))
    elif family in families:
        print_screen(render_methods(families[family]))
    else:
        raise ValueError(f"there is no family {family!r}; {suggest(family, families)}")


def render_overview(families: Mapping[str, Sequence[Method]]) -> RenderableType:
    """Where to start, and the names of all methods by family."""
    start = _make_table("start here", "if")
    for name, reason in START.items():
        start.add_row(Text(name, "bold"), reason)
    names = _make_table("family", "methods")
    for family, members in families.items():
        names.add_row(printable(family), ", ".join(printable(method.name) for method in members))
    return Group(start, Text(), names, Text(HINT, "dim"))


def render_methods(methods: Iterable[Method]) -> RenderableType:
    """One line per method, a table per family: so that one family's long names leave the others room for words."""
    return Group(*(_render_family(family, members) for family, members in _group_by_family(methods).items()))


def _group_by_family(methods: Iterable[Method]) -> dict[str, list[Method]]:
    families: dict[str, list[Method]] = {}
    for method in methods:
        families.setdefault(method.family, []).append(method)
    return families


def _render_family(family: str, members: Sequence[Method]) -> RenderableType:
    answers = [answer_consistency(method) for method in members]
    is_known = any(answer != "-" for answer in answers)
    table = _make_table(printable(family), *(["consistent"] if is_known else []), "what it is")
    for method, answer in zip(members, answers, strict=True):
        words = Text(printable(method.summary).replace("``", ""))
        table.add_row(Text(printable(method.name), "bold"), *([answer] if is_known else []), words)
    return Group(table, Text())


def _make_table(first: str, *others: str) -> Table:
    """A table whose first column is never broken."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading)
    return table
