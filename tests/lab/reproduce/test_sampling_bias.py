"""Sampled against implied losses on fewer draws: Table 2 and Theorem 3."""

import csv
import json

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce import sampling_bias as experiment
from longtail.lab.reproduce._rows import Row, make_rows
from longtail.lab.reproduce._schemes import SCHEMES
from longtail.lab.reproduce.sampled_training import build_study, check_findings
from longtail.lab.reproduce.trials import run_study

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
    make_rows(made, experiment.FORMAT, tmp_path, lambda *words: None)
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * len(experiment.NUM_NEGATIVES)
    assert float(rows[0]["implied"]) == schemes[0].measurements[0].implied
    again, _ = make_rows([Row(key, None) for key in SCHEMES], experiment.FORMAT, tmp_path, lambda *words: None)
    assert [scheme.measurements for scheme in again] == [scheme.measurements for scheme in schemes]


def test_results_are_written_and_the_page_needs_no_network(schemes, tmp_path):
    paths = experiment.write_results(schemes, tmp_path / "new", {"samples": 6})
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    page = (tmp_path / "new" / "picture.html").read_text()
    assert "<script src=" not in page
    assert 'data-figure="figure-0-0"' in page


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


def test_section_5_1_has_both_losses_and_eight_schemes_each():
    study = build_study(experiment.Options(data="cifar100", fast=True))
    names = [entry.name for entry in study.entries]
    assert len(names) == 2 + 8 + 1 + 8
    methods = {entry.training.method for entry in study.entries}
    assert "sampled_softmax(distribution=within_batch,weighting=constant,num_negatives=32)" in methods
    assert "sampled_contrastive(distribution=uniform,weighting=tail,num_negatives=32)" in methods
    assert "num_negatives=512" in build_study(experiment.Options(data="imagenet_lt")).entries[2].training.method
    several = build_study(experiment.Options(data="cifar100"), "32,64")
    assert len(several.entries) == len(names) + 16


@pytest.mark.parametrize("data", ["delicious", "amazoncat13k", "wikilshtc325k"])
def test_sets_of_very_many_labels_are_sent_to_their_experiment(data, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "sampling-bias", "--data", data, "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert f"--data {data} has very many labels: longtail reproduce delicious takes it." in result.output


def test_images_are_trained_with_drawn_negatives(tmp_path, run_here):
    options = experiment.Options(
        data="digits",
        epochs=1,
        rows="cross-entropy,within-batch constant,uniform tail",
        runs=str(tmp_path / "runs"),
        settings=("model.options.hidden=[8]",),
    )
    outcome = run_study(build_study(options, "4"), options, tmp_path / "out", lambda *words: None, run_here)
    assert not outcome.missing
    tables = [summary for summary in outcome.summaries if "paper" in summary.headings]
    assert [len(table.rows) for table in tables] == [3, 2]
    assert "finding" in outcome.summaries[-1].headings


def test_findings_compare_the_same_seeds():
    def line(row, value, seed):
        return {"table": "Figures 1 and 4", "row": row, "quantity": "tail_error", "value": str(value), "seed": seed}

    lines = [line("within-batch constant", 40 + seed, str(seed)) for seed in (0, 1, 2)]
    lines += [line("cross-entropy", 50 + seed, str(seed)) for seed in (0, 1)]
    (summary,) = check_findings(lines)
    assert summary.rows == [
        ("Within-batch, constant helps the tail", "tail error", "-10.00 ± 0.00", "2 of 2", "yes"),
    ]
    worse = [*lines[:3], line("cross-entropy", 30, "0")]
    assert check_findings(worse)[0].rows[0][-1] == "no"
    unsure = [line("within-batch constant", value, seed) for seed, value in (("0", 40), ("1", 60))]
    unsure += [line("cross-entropy", 51, seed) for seed in ("0", "1")]
    assert check_findings(unsure)[0].rows[0][-1] == "not sure"
