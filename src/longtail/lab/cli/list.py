"""``longtail list``: all methods, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longtail.lab.cli._console import print_screen, printable
from longtail.lab.cli.show import answer_consistency

if TYPE_CHECKING:
    from longtail.methods import Method

__all__ = ["list_methods", "render_methods"]


def list_methods() -> None:
    """List all methods, one line each."""
    from longtail.methods.table import METHODS

    print_screen(render_methods(METHODS.values()))


def render_methods(methods: Iterable[Method]) -> RenderableType:
    """One line per method, a table per family: so that one family's long names leave the others room for words."""
    families: dict[str, list[Method]] = {}
    for method in methods:
        families.setdefault(method.family, []).append(method)
    return Group(*(_render_family(family, members) for family, members in families.items()))


def _render_family(family: str, members: Sequence[Method]) -> RenderableType:
    answers = [answer_consistency(method) for method in members]
    is_known = any(answer != "-" for answer in answers)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(printable(family), no_wrap=True)
    for heading in ("consistent", "what it is") if is_known else ("what it is",):
        table.add_column(heading)
    for method, answer in zip(members, answers, strict=True):
        words = Text(printable(method.summary).replace("``", ""))
        table.add_row(Text(printable(method.name), "bold"), *([answer] if is_known else []), words)
    return Group(table, Text())
