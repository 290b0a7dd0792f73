"""``longtail list``."""

from longtail.methods import METHODS


def test_list_names_every_method(run):
    listed = run("list").stdout
    assert all(name in listed for name in METHODS)
    row = next(line for line in listed.splitlines() if line.startswith("logit_adjusted "))
    assert "yes" in row.split()


def test_list_leaves_room_for_words_on_a_narrow_terminal(run):
    lines = run("list", columns=80).stdout.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in METHODS)
    assert len(lines) < 4 * len(METHODS)
