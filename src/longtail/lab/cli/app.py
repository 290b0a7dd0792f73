"""The application: the commands, what becomes of errors, and the options that all commands share.

``longtail --help`` imports every command's module, so none of them imports torch or pyarrow before it runs.
"""

from __future__ import annotations

import sys
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer

import longtail
from longtail.lab.cli import name_missing_package
from longtail.lab.cli._console import printable
from longtail.lab.cli._help import PlainCommand, PlainGroup
from longtail.lab.cli.adjust.options import adjust
from longtail.lab.cli.compare import compare
from longtail.lab.cli.demo import demo
from longtail.lab.cli.download import download
from longtail.lab.cli.embed import embed
from longtail.lab.cli.explain import explain
from longtail.lab.cli.export import export
from longtail.lab.cli.inspect import inspect
from longtail.lab.cli.list import list_methods
from longtail.lab.cli.recommend import recommend
from longtail.lab.cli.report import report
from longtail.lab.cli.reproduce import app as reproduce
from longtail.lab.cli.show import show
from longtail.lab.cli.train import train

__all__ = ["CommandGroup", "app"]

BUG = "this is a bug of longtail; please report it with the traceback below, as CONTRIBUTING.md says."
VAGUE_ERRORS = (TypeError, KeyError, ArithmeticError, RecursionError, EOFError, zipfile.BadZipFile, zlib.error)
"""What says neither file nor setting: the arguments of the command are named beside it."""

USER_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    OSError,
    ArithmeticError,
    ImportError,
    EOFError,
    MemoryError,
    RecursionError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What inputs cause; pyarrow's errors too, where it was needed."""


class CommandGroup(PlainGroup):
    """All commands. An error that the user can mend is one line on stderr, and exit code 2; a warning is one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _end_if_misused(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        arguments = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            with warnings.catch_warnings():
                if not ctx.params["debug"]:
                    warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except Exception as error:
            _end_if_misused(error)
            is_signal = isinstance(error, typer.Abort) or hasattr(error, "exit_code")
            if is_signal or ctx.params["debug"]:
                raise
            if _is_user_error(error):
                typer.echo(f"longtail: {_locate(error, arguments)}{_describe(error)}", err=True)
                raise typer.Exit(2) from None
            typer.echo(f"longtail: {_describe(error)}; {BUG}", err=True)
            raise


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learning from imbalanced labels: inspect labels, adjust a trained model's scores, train, compare, report.",
)
COMMANDS = (
    list_methods,
    show,
    inspect,
    adjust,
    train,
    compare,
    report,
    recommend,
    embed,
    export,
    explain,
    download,
    demo,
)
for command in COMMANDS:
    app.command("list" if command is list_methods else command.__name__, cls=PlainCommand)(command)
app.add_typer(reproduce, name="reproduce")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"longtail {longtail.__version__}")
        raise typer.Exit


@app.callback()
def _set_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    pass


def _end_if_misused(error: Exception) -> None:
    """Print what is wrong with a call, such as an option that does not exist, in one line instead of a box."""
    if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return
    message = " ".join(error.format_message().split())
    message += "" if message.endswith((".", "?")) else "."
    context = getattr(error, "ctx", None)
    where = "longtail" if context is None else context.command_path
    typer.echo(printable(f"longtail: {message[:1].lower()}{message[1:]} See {where} --help."), err=True)
    raise typer.Exit(2) from None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    typer.echo(printable(f"longtail: {' '.join(str(message).split())}"), err=True)


def _is_user_error(error: Exception) -> bool:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "longtail":
        return False
    arrow = sys.modules.get("pyarrow")
    return isinstance(error, USER_ERRORS) or (arrow is not None and isinstance(error, arrow.ArrowException))


def _locate(error: Exception, arguments: Sequence[str]) -> str:
    """Which command an error that names nothing is about; "" where the message says it."""
    if not isinstance(error, VAGUE_ERRORS) or isinstance(error, FloatingPointError):
        return ""
    return printable(f"in {' '.join(['longtail', *arguments])[:200]}: ")


def _describe(error: Exception) -> str:
    """An error in one line that is safe to print."""
    missing = name_missing_package(error) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None:
        return missing
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, RecursionError):
        message = "a file or a setting is nested too deeply to be read"
    elif isinstance(error, KeyError) and error.args:  # its text is the quoted key
        message = str(error.args[0])
    else:
        message = str(error)
    kind = "" if isinstance(error, USER_ERRORS) and message else f"{type(error).__name__}: "
    return printable(" ".join(f"{kind}{message}".split())).rstrip(":")
