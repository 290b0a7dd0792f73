"""``longtail list``."""

import pytest

from longtail.lab.cli.list import START
from longtail.methods import METHODS


def test_list_names_every_method_on_one_screen_and_where_to_start(run):
    lines = run("list", columns=80).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).replace(",", " ").split()
    assert all(name in words for name in METHODS)
    assert lines[0].split()[:2] == ["start", "here"]
    assert [line.split()[0] for line in lines[2 : 2 + len(START)]] == list(START)
    assert START.keys() <= METHODS.keys()


def test_a_family_has_a_line_per_method(run):
    row = next(line for line in run("list", "margin").stdout.splitlines() if line.startswith("logit_adjusted "))
    assert "yes" in row.split()
    assert "focal" not in run("list", "margin").stdout


def test_list_leaves_room_for_words_on_a_narrow_terminal(run):
    lines = run("list", "all", columns=80).stdout.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in METHODS)
    assert len(lines) < 4 * len(METHODS)


def test_an_unknown_family_gets_a_suggestion(run):
    result = run("list", "margins")
    assert result.exit_code == 2
    assert "margin" in result.stderr


@pytest.mark.parametrize("command", ["adjust", "compare", "inspect", "report", "train", "list"])
def test_help_names_no_types_of_python(run, command):
    text = run(command, "--help", columns=80).stdout
    assert not any(word in text for word in ("<str", "<bool", "<int", "<path", "<list", "<float"))
    assert max(map(len, text.splitlines())) <= 80
