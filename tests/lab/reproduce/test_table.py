"""The table of experiments, and the commands that are made from it."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.cli.reproduce import print_outcome
from longtail.lab.reproduce import table
from longtail.lab.reproduce.experiment import Outcome, Summary
from longtail.lab.reproduce.table import EXPERIMENTS, load_experiment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_command_with_its_options(name):
    experiment = load_experiment(name)
    done = CliRunner().invoke(app, ["reproduce", name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert EXPERIMENTS[name] in done.stdout
    assert experiment.reference in done.stdout
    assert "--output" in done.stdout
    for field in dataclasses.fields(experiment.options):
        flag = field.metadata["flag"] or f"--{field.name.replace('_', '-')}"
        assert flag in done.stdout
        assert field.metadata["help"] in done.stdout


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_options_are_frozen_and_have_defaults(name):
    options = load_experiment(name).options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, dataclasses.fields(options)[0].name, 1)


def test_every_module_with_an_experiment_is_in_the_table():
    folder = Path(table.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "\nEXPERIMENT = " in path.read_text(encoding="utf-8")}
    assert modules == {name.replace("-", "_") for name in EXPERIMENTS}


def test_the_commands_are_those_of_the_table():
    done = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"})
    assert all(f" {name} " in done.stdout for name in EXPERIMENTS)
    assert CliRunner().invoke(app, ["reproduce", "nothing"]).exit_code == 2


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_word_or_number_of_a_table_is_cut_off_or_broken(width):
    names = ("the name of a method with many words", "another one")
    headings = ("method", "balanced accuracy", *(f"a heading of words {place}" for place in range(4)), "protocol")
    rows = [
        (name, "61.2", *(f"{place}.25 / 1.00 / 0.93" for place in range(4)), "resnet32, 40 epochs") for name in names
    ]
    screen = Console(width=width, file=io.StringIO(), markup=False, highlight=False)
    print_outcome(Outcome([Summary(headings, rows, "A note.")], []), screen)
    text = screen.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert {word for cell in (*headings, *sum(rows, ())) for word in cell.split()} <= set(text.split())
    assert all(text.count(number) == len(names) for number in rows[0][1:-1])


def test_a_table_that_is_too_wide_is_printed_in_parts_that_all_name_their_rows():
    headings = ("row", *(f"quantity {place}" for place in range(11)))
    screen = Console(width=80, file=io.StringIO(), markup=False, highlight=False)
    rows = [("plain", *["12.34 ± 0.56"] * 11), ("masked", *["12.34 ± 0.56"] * 11)]
    print_outcome(Outcome([Summary(headings, rows)], []), screen)
    text = screen.file.getvalue()
    assert text.count("12.34 ± 0.56") == 22
    assert text.count("masked") == text.count("row") == 3


def test_columns_of_a_paper_that_has_no_values_are_left_out():
    screen = Console(width=80, file=io.StringIO(), markup=False, highlight=False)
    print_outcome(Outcome([Summary(("row", "paper", "here"), [("a", "", "1.00")])], []), screen)
    assert "paper" not in screen.file.getvalue()


def test_a_table_that_fits_has_one_line_per_row():
    screen = Console(width=80, file=io.StringIO(), markup=False, highlight=False)
    print_outcome(Outcome([Summary(("method", "R@20"), [("two words", "0.1 ± 0.2")] * 3)], []), screen)
    assert len(screen.file.getvalue().splitlines()) == 5
