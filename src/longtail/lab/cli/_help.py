"""Help that a reader of no Python understands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

__all__ = ["PlainCommand", "PlainGroup"]


class PlainHelp:
    """Help that names no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters: a flag takes no value, and one that may be repeated takes one at a time."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = "" if param.is_flag else "<str>" if param.multiple else None
            elif isinstance(param, TyperArgument) and param.nargs == -1:
                vars(param)["display_type"] = lambda ctx: "<path>"
        return params


class PlainCommand(PlainHelp, TyperCommand):
    """A command."""


class PlainGroup(PlainHelp, TyperGroup):
    """A group of commands."""
