"""``longtail demo``."""

import pytest


@pytest.mark.slow
def test_demo_shows_the_gain_and_writes_a_page(run, tmp_path):
    printed = run("demo", "--output", tmp_path / "demo").stdout
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if "±" in line}
    balanced = {name: float(cells[0]) for name, cells in lines.items()}
    tail = {name: float(cells[6]) for name, cells in lines.items()}
    assert len(balanced) == 5
    for adjusted in ("posthoc_adjusted", "logit_adjusted"):
        assert balanced[adjusted] >= balanced["cross_entropy"] + 4
        assert tail[adjusted] >= tail["cross_entropy"] + 10
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
