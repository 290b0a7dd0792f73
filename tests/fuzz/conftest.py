"""What the fuzz tests share: how long they try, the contract of every command, and counts of what was tried.

``pytest tests/fuzz`` takes about a minute; ``pytest tests/fuzz --fuzz-minutes 120`` tries new cases for two hours.
"""

import contextlib
import signal
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from longtail.lab.cli.app import app

NUM_TARGETS = 5
"""Tests that share the minutes."""

SECONDS_PER_CASE = 60
"""Of computing, not on the clock: the machine may be busy with others."""

COUNTS = pytest.StashKey[dict]()


class Stalled(BaseException):
    """A case that takes far too long."""


@contextlib.contextmanager
def limit_seconds(seconds):
    def stop(*_):
        raise Stalled(f"a case took more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture
def fuzz(request):
    """``fuzz(strategy, check, few)`` tries a few cases, or as many as time allows; ``check`` names an outcome."""

    def try_cases(strategy, check, few):
        minutes = request.config.getoption("--fuzz-minutes") / NUM_TARGETS
        counts = request.config.stash.setdefault(COUNTS, {}).setdefault(request.node.name, Counter())
        deadline = time.monotonic() + 60 * minutes
        examples = 50 if minutes else few

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @given(strategy)
        def try_one(case):
            with limit_seconds(SECONDS_PER_CASE):
                counts[check(case)] += 1

        try_one()
        while time.monotonic() < deadline:
            try_one()

    return try_cases


@pytest.fixture
def obey(monkeypatch, tmp_path):
    """``obey("inspect", path)`` runs a command: it must work, or say in one line why not and exit with 2."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
        told = f"longtail {' '.join(map(repr, arguments))}: exit code {done.exit_code}, {done.stderr!r}"
        assert done.exit_code in (0, 2), f"{told}, {done.exception!r}"
        if done.exit_code == 2:
            said = done.stderr.strip("\n")  # a progress bar ends with a line of its own
            is_usage = said.startswith("Usage: ")
            assert is_usage or said.startswith("longtail: "), told
            assert is_usage or "\n" not in said, told
            assert "Traceback" not in done.stderr, told
        assert "\x1b[2J" not in done.stdout + done.stderr, told
        return done

    return call


def pytest_terminal_summary(terminalreporter):
    for name, counts in terminalreporter.config.stash.get(COUNTS, {}).items():
        outcomes = ", ".join(f"{outcome} {number:,}" for outcome, number in counts.most_common())
        terminalreporter.write_line(f"{name}: {counts.total():,} cases: {outcomes}")
