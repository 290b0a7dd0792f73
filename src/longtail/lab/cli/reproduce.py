"""``longtail reproduce NAME``: commands made from the table of experiments, when one of them is wanted."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from longtail.lab.cli._console import printable
from longtail.lab.cli._help import PlainCommand, PlainGroup
from longtail.lab.reproduce.table import EXPERIMENTS, load_experiment

if TYPE_CHECKING:
    from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary

__all__ = ["app", "build_command", "print_outcome", "show_rows"]

LINE_SECONDS = 30.0
"""Between lines of progress where there is no terminal."""
GAP = 3
"""Letters between columns of a table."""
WORDS_WIDTH = 24
"""Letters that a column of words should have, if it needs them."""


class ExperimentGroup(PlainGroup):
    """The commands of the table. Only the one that is called imports its experiment."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the experiments."""
        return list(EXPERIMENTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the list says of one experiment; None if there is none of this name."""
        return PlainCommand(cmd_name, help=EXPERIMENTS[cmd_name]) if cmd_name in EXPERIMENTS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, with the options of its experiment."""
        name, command, rest = super().resolve_command(ctx, args)
        called = command if name is None else build_command(name, load_experiment(name))
        return name, called, rest


app = typer.Typer(cls=ExperimentGroup, no_args_is_help=True, help="Reproduce an experiment of the papers.")


@app.callback()
def _group() -> None:
    pass


def build_command(name: str, experiment: Experiment) -> Any:
    """A command with an option for every field of the experiment's options, and one for the folder."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    help = f"{EXPERIMENTS[name]}\n\n{experiment.reference}"
    single.command(name, help=help, cls=PlainCommand)(_build_function(name, experiment))
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
        for number, table in enumerate(_draw_tables(summary, console.width)):
            if place or number:
                console.print()
            console.print(table)
        if summary.note:
            console.print(Text(summary.note, "dim"))
    if outcome.written:
        typer.echo(f"Wrote {', '.join(str(path) for path in outcome.written)}.")
    if outcome.missing:
        rows = "1 row" if len(outcome.missing) == 1 else f"{len(outcome.missing)} rows"
        first_with = {row.reason: row.name for row in reversed(outcome.missing)}
        reasons = "; ".join(f"{name}: {reason}" for reason, name in reversed(first_with.items()))
        raise ValueError(f"{rows} failed; call again to resume. {reasons}")


def _build_function(name: str, experiment: Experiment) -> Callable[..., None]:
    def command(output: Path, **values: Any) -> None:
        chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        with show_rows() as say:
            outcome = experiment.run(experiment.options(**chosen), output, say)
        print_outcome(outcome, Console(markup=False, highlight=False))

    types = typing.get_type_hints(experiment.options)
    parameters = [_build_parameter(field, types[field.name]) for field in dataclasses.fields(experiment.options)]
    folder = Path("runs", name.replace("-", "_"))
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


@dataclass(frozen=True)
class _Column:
    """A column of a table. Words may be wrapped; a number on two lines could not be read."""

    heading: str
    cells: Sequence[str]
    is_words: bool

    @property
    def widest(self) -> int:
        """Letters with which nothing is wrapped."""
        return max(map(len, (self.heading, *self.cells)))

    @property
    def narrowest(self) -> int:
        """Letters with which nothing is broken."""
        parts = [part for cell in self.cells for part in (cell.split() if self.is_words else [cell])]
        return max(map(len, (*self.heading.split(), *parts)), default=0)


def _draw_tables(summary: Summary, width: int) -> Iterator[Table]:
    """The summary as a table, or as parts with the first column each where one would be too wide."""
    shown = summary.drop_empty_columns()
    columns = [
        _Column(heading, cells, is_words=place == 0 or heading == "protocol")
        for place, (heading, *cells) in enumerate(zip(shown.headings, *shown.rows, strict=True))
    ]
    for part in _split_columns(columns, width):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column, letters in zip(part, _share_width(part, width), strict=True):
            side: Literal["left", "right"] = "left" if column.is_words else "right"
            table.add_column(column.heading, justify=side, width=letters, overflow="fold")
        for row in zip(*(column.cells for column in part), strict=True):
            table.add_row(*row)
        yield table


def _split_columns(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """The first column with as many of the others as fit, then with those that follow."""
    first, *others = columns
    part, needed = [first], min(first.widest, max(first.narrowest, WORDS_WIDTH))
    alone = needed
    for column in others:
        letters = min(column.widest, max(column.narrowest, WORDS_WIDTH)) if column.is_words else column.narrowest
        if len(part) > 1 and needed + GAP + letters > width:
            yield part
            part, needed = [first], alone
        part.append(column)
        needed += GAP + letters
    yield part


def _share_width(part: Sequence[_Column], width: int) -> list[int]:
    """Letters of each column. Where not all fit, headings of numbers are wrapped first, then words."""
    room = width - GAP * (len(part) - 1)
    if sum(column.widest for column in part) <= room:
        return [column.widest for column in part]
    room -= sum(column.narrowest for column in part if not column.is_words)
    first, *others = (column for column in part if column.is_words)
    rest = sum(column.widest for column in others)
    own = min(first.widest, max(first.narrowest, room - rest, room // (1 + len(others))))
    letters = {id(first): own} | {id(column): max(column.narrowest, room - own) for column in others}
    return [letters.get(id(column), column.narrowest) for column in part]
