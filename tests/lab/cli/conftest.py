"""What the tests of all commands use."""

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app


@pytest.fixture(scope="session")
def run():
    """``run("inspect", path)`` calls the command in this process."""

    def call(*arguments, columns=200):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})

    return call


@pytest.fixture(scope="session")
def refuse(run):
    """``refuse("adjust", ..., message="...")`` expects exit code 2 and one line with the message, which it gives."""

    def call(*arguments, message):
        done = run(*arguments)
        assert done.exit_code == 2, done.stdout
        assert done.stderr.startswith("longtail: ")
        assert done.stderr.count("\n") == 1
        assert message in done.stderr
        return done.stderr

    return call


@pytest.fixture(scope="session")
def trained(run, tmp_path_factory):
    """A run folder made by the command itself."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = run("train", "digits", "--set", "train.epochs=2", "--method", "logit-adjusted", "--output", folder)
    assert done.exit_code == 0, done.stderr
    assert "logit_adjusted" in done.stdout
    return folder
