"""``longtail reproduce NAME``: commands made from the table of experiments, when one of them is wanted."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from longtail.lab.cli._console import printable
from longtail.lab.cli._help import PlainCommand, PlainGroup

if TYPE_CHECKING:
    from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary

__all__ = ["app", "build_command", "print_outcome", "show_rows"]

LINE_SECONDS = 30.0
"""Between lines of progress where there is no terminal."""


class ExperimentGroup(PlainGroup):
    """The commands of the table. It is read when they are listed or called: it imports all experiments."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the experiments."""
        from longtail.lab.reproduce.table import EXPERIMENTS

        return list(EXPERIMENTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one experiment; None if there is none of this name."""
        from longtail.lab.reproduce.table import EXPERIMENTS

        return build_command(EXPERIMENTS[cmd_name]) if cmd_name in EXPERIMENTS else None


app = typer.Typer(cls=ExperimentGroup, no_args_is_help=True, help="Reproduce an experiment of the papers.")


@app.callback()
def _group() -> None:
    pass


def build_command(experiment: Experiment) -> Any:
    """A command with an option for every field of the experiment's options, and one for the folder."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    help = f"{experiment.summary}\n\n{experiment.reference}"
    single.command(experiment.name, help=help, cls=PlainCommand)(_build_function(experiment))
    return typer.main.get_command(single)


@contextmanager
def show_rows() -> Iterator[Say]:
    """A bar on a terminal; elsewhere a line for what is going on, whenever it changes and at most twice a minute."""
    screen = Console(stderr=True)
    last_text, last_time = "", -math.inf

    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("Rows", total=None)

        def say(done: int, total: int, doing: str) -> None:
            nonlocal last_text, last_time
            bar.update(task, completed=done, total=total, description=f"{done} of {total}  {doing}".strip())
            text = f"{done} of {total} done: {doing}"
            if not screen.is_terminal and doing and text != last_text and time.monotonic() - last_time > LINE_SECONDS:
                typer.echo(printable(text), err=True)
                last_text, last_time = text, time.monotonic()

        yield say


def print_outcome(outcome: Outcome, console: Console) -> None:
    """The summaries, what was written, and an error if rows are missing."""
    for place, summary in enumerate(outcome.summaries):
        if place:
            console.print()
        console.print(_draw_table(summary, console.width))
        if summary.note:
            console.print(Text(summary.note, "dim"))
    if outcome.written:
        typer.echo(f"Wrote {', '.join(str(path) for path in outcome.written)}.")
    if outcome.missing:
        rows = "1 row" if len(outcome.missing) == 1 else f"{len(outcome.missing)} rows"
        first_with = {row.reason: row.name for row in reversed(outcome.missing)}
        reasons = "; ".join(f"{name}: {reason}" for reason, name in reversed(first_with.items()))
        raise ValueError(f"{rows} failed; call again to resume. {reasons}")


def _build_function(experiment: Experiment) -> Callable[..., None]:
    def command(output: Path, **values: Any) -> None:
        chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        with show_rows() as say:
            outcome = experiment.run(experiment.options(**chosen), output, say)
        print_outcome(outcome, Console(markup=False, highlight=False))

    types = typing.get_type_hints(experiment.options)
    parameters = [_build_parameter(field, types[field.name]) for field in dataclasses.fields(experiment.options)]
    folder = Path("runs", experiment.name.replace("-", "_"))
    described = Annotated[Path, typer.Option(help="Folder for the rows and what is made of them.")]
    parameters.append(_name_parameter("output", folder, described))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _build_parameter(field: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    about = field.metadata
    is_repeated = kind == tuple[str, ...]
    flags = [about["flag"]] if about["flag"] else []
    option = typer.Option(*flags, help=about["help"], min=about["minimum"])
    default: Any = field.default
    if is_repeated:
        return _name_parameter(field.name, list(default), Annotated[list[str], option])
    return _name_parameter(field.name, default, Annotated[kind, option])


def _name_parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _draw_table(summary: Summary, width: int) -> Table:
    """A table in which nothing is cut off: what is wider than the screen has its words and headings wrapped."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    is_wide = _measure_width(summary) > width
    for place, heading in enumerate(summary.headings):
        is_words = place == 0 or heading == "protocol"
        can_wrap = is_wide or heading == "protocol"
        table.add_column(heading, justify="left" if is_words else "right", no_wrap=not can_wrap, overflow="fold")
    for row in summary.rows:
        table.add_row(*row)
    return table


def _measure_width(summary: Summary) -> int:
    """Letters in the widest line of the table, with its longest column of words wrapped as far as it goes."""
    columns = zip(summary.headings, *summary.rows, strict=True)
    widths = [
        max(len(word) for cell in column for word in (cell.split() if column[0] == "protocol" else [cell]) or [""])
        for column in columns
    ]
    return sum(widths) + 2 * (len(widths) - 1)
