"""``longtail show``."""

import pytest

from longtail.methods import METHODS


@pytest.mark.parametrize("name", list(METHODS))
def test_show_prints_the_whole_card(run, name):
    shown = run("show", name)
    assert shown.exit_code == 0
    card = " ".join(shown.stdout.split())
    documented = (METHODS[name].card.__doc__ or "").replace("``", "").split()
    words = [word for word in documented if not word.endswith(":")]
    assert all(word in card for word in words)
    assert all(f"{option} = {value}" in card for option, value in METHODS[name].options.items())


def test_show_says_whether_a_method_is_consistent(run):
    assert "Yes:" in run("show", "logit_adjusted").stdout
    assert "No:" in run("show", "adaptive").stdout


def test_show_suggests_a_name(run):
    shown = run("show", "logit_ajusted")
    assert shown.exit_code == 2
    assert "did you mean 'logit_adjusted'?" in shown.stderr
