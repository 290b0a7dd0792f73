"""Sampled against implied losses on fewer draws: Table 2 and Theorem 3."""

import csv
import json

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce import sampling_bias as experiment
from longtail.lab.reproduce._rows import Row, make_rows
from longtail.lab.reproduce._schemes import SCHEMES

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def schemes():
    places = range(len(SCHEMES))
    return [experiment.measure_scheme(place, num_samples=3, num_draws=60, seed=1) for place in places]


def test_all_rows_of_table_2_are_measured(schemes):
    rows = [(scheme.explanation.sampling, scheme.explanation.weighting) for scheme in schemes]
    weightings = ("constant", "importance", "relative", "tail")
    assert rows == [(sampling, weighting) for sampling in ("uniform", "within-batch") for weighting in weightings]


def test_sampled_losses_approach_the_implied_ones_from_below(schemes):
    for scheme in schemes:
        gaps = [part.implied - part.sampled for part in scheme.measurements]
        assert gaps[0] > gaps[-1]
        assert abs(gaps[-1]) < 0.03 * scheme.measurements[-1].implied


def test_squared_errors_fall_as_one_over_m_at_the_rate_of_theorem_3(schemes):
    for scheme in schemes:
        assert scheme.slope == pytest.approx(-1, abs=0.3)
        last = scheme.measurements[-1]
        assert last.squared_error == pytest.approx(last.expected_error, rel=0.4)


def test_importance_and_tail_imply_the_same_loss_whatever_is_drawn(schemes):
    implied = {(s.explanation.sampling, s.explanation.weighting): s.measurements[0].implied for s in schemes}
    for weighting in ("importance", "tail"):
        assert implied["uniform", weighting] == pytest.approx(implied["within-batch", weighting])


def test_rows_are_written_and_read_again(schemes, tmp_path):
    made = [Row(key, lambda scheme=scheme: scheme) for key, scheme in zip(SCHEMES, schemes, strict=True)]
    make_rows(made, experiment.FORMAT, tmp_path, lambda done, total: None)
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * len(experiment.NUM_NEGATIVES)
    assert float(rows[0]["implied"]) == schemes[0].measurements[0].implied
    again, _ = make_rows([Row(key, None) for key in SCHEMES], experiment.FORMAT, tmp_path, lambda done, total: None)
    assert [scheme.measurements for scheme in again] == [scheme.measurements for scheme in schemes]


def test_results_are_written_and_the_page_needs_no_network(schemes, tmp_path):
    paths = experiment.write_results(schemes, tmp_path / "new", {"samples": 6})
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    page = (tmp_path / "new" / "picture.html").read_text()
    assert "<script src=" not in page
    assert "Plotly.newPlot" in page


def test_the_command_prints_every_row(tmp_path):
    command = ["reproduce", "sampling-bias", "--samples", "2", "--draws", "10", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["schemes"]) == 8
    for scheme in results["schemes"]:
        row = next(
            r for r in done.stdout.splitlines() if r.startswith(f"{scheme['sampling']}, {scheme['weighting']}")
        )
        assert f"m^{scheme['slope']:.2f}" in row
