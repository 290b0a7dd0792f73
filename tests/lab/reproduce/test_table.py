"""The table of experiments, and the commands that are made from it."""

import dataclasses

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce.table import EXPERIMENTS


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_experiment_is_a_command_with_its_options(experiment):
    done = CliRunner().invoke(app, ["reproduce", experiment.name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert experiment.summary in done.stdout
    assert experiment.reference in done.stdout
    assert "--output" in done.stdout
    for field in dataclasses.fields(experiment.options):
        flag = field.metadata["flag"] or f"--{field.name.replace('_', '-')}"
        assert flag in done.stdout
        assert field.metadata["help"] in done.stdout


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_options_are_frozen_and_have_defaults(experiment):
    options = experiment.options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, dataclasses.fields(options)[0].name, 1)


def test_the_commands_are_those_of_the_table():
    done = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"})
    assert all(f" {name} " in done.stdout for name in EXPERIMENTS)
    assert CliRunner().invoke(app, ["reproduce", "nothing"]).exit_code == 2
