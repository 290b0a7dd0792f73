"""Help that a reader of no Python understands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

__all__ = ["PlainCommand", "PlainGroup"]

WORDS = {"path": "PATH", "int": "NUMBER", "float": "NUMBER"}
"""What typer's names of kinds of values hold, and what they are called here; all others are a TEXT."""


class PlainHelp:
    """Help that names no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters: a flag takes no value, and others a TEXT, PATH or NUMBER."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            kind = str(param.display_type(ctx))
            word = next((word for part, word in WORDS.items() if part in kind), "TEXT")
            if isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = "" if param.is_flag else word
            elif isinstance(param, TyperArgument):
                vars(param)["display_type"] = lambda ctx, word=word: word
        return params


class PlainCommand(PlainHelp, TyperCommand):
    """A command."""


class PlainGroup(PlainHelp, TyperGroup):
    """A group of commands."""
