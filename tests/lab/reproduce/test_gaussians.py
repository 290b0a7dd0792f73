"""The Gaussian experiment on fewer samples: the order of the methods, and the facts behind each number."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.data.sets.builtin import digits, gaussians, moons
from longtail.lab.reproduce import gaussians as experiment
from longtail.lab.reproduce._rows import Row, make_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def normal_cdf(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


@pytest.fixture(scope="module")
def trials():
    return list(experiment.run_trials(6, num_samples=3000, seed=1))


@pytest.fixture(scope="module")
def fits():
    return [experiment.fit_losses(seed, num_samples=3000) for seed in experiment.choose_seeds(6, 1)]


@pytest.fixture(scope="module")
def mean_errors(trials):
    return {name: mean for name, (mean, _) in experiment.summarize(trials).errors.items()}


def test_the_order_is_that_of_the_paper(mean_errors):
    assert mean_errors["ERM"] > mean_errors["Adaptive"] + 0.01
    assert mean_errors["Adaptive"] > mean_errors["Equalized"] + 0.04
    assert mean_errors["Equalized"] > mean_errors["Logit-adjusted loss"] + 0.003


def test_consistent_methods_come_near_the_bayes_rule(mean_errors):
    for name in ("Logit-adjusted loss", "Post-hoc adjustment"):
        assert abs(mean_errors[name] - mean_errors["Bayes rule"]) < 0.004
    assert math.isclose(experiment.BAYES_ERROR, normal_cdf(-math.sqrt(2)))
    assert mean_errors["Bayes rule"] == pytest.approx(experiment.BAYES_ERROR, abs=0.01)


def test_erm_has_the_error_that_theory_gives_it(mean_errors):
    # It predicts positive where 2 (x1 + x2) > log(0.95 / 0.05); x1 + x2 has mean +-2 and variance 2.
    threshold = math.log(19) / 2
    missed = normal_cdf((threshold - 2) / math.sqrt(2))
    false_alarms = 1 - normal_cdf((threshold + 2) / math.sqrt(2))
    assert mean_errors["ERM"] == pytest.approx((missed + false_alarms) / 2, abs=0.015)


def test_the_logit_adjusted_loss_learns_what_post_hoc_adjustment_gives(fits):
    for fit in fits:
        log_odds = fit.data.train.labels.double().mean().logit()
        erm, adjusted = (fit.heads[name][1] - fit.heads[name][0] for name in ("ERM", "Logit-adjusted loss"))
        torch.testing.assert_close(adjusted, erm - torch.tensor([0, 0, log_odds]), rtol=0, atol=1e-5)


def test_every_weight_normalization_is_worse_than_post_hoc_adjustment(trials, mean_errors):
    for name in ("Weight normalization, by norm", "Weight normalization, by prior"):
        for trial in trials:
            assert trial.curves[name] == pytest.approx([trial.errors["ERM"]] * len(experiment.TAUS), abs=1e-3)
            assert min(trial.curves[name]) > trial.errors["Post-hoc adjustment"] + 0.05


def test_post_hoc_adjustment_is_erm_at_0_and_best_near_1(trials):
    curve = [mean for mean, _ in experiment.summarize(trials).curves["Post-hoc adjustment"]]
    assert [trial.curves["Post-hoc adjustment"][0] for trial in trials] == [trial.errors["ERM"] for trial in trials]
    assert 0.75 <= experiment.TAUS[int(np.argmin(curve))] <= 1.25


def test_summary_is_mean_and_standard_error(trials):
    values = np.array([trial.errors["ERM"] for trial in trials])
    mean, error = experiment.summarize(trials).errors["ERM"]
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(6))


def test_trials_depend_on_the_seed_and_not_on_how_many_follow(trials):
    again = next(experiment.run_trials(1, num_samples=3000, seed=1))
    other = next(experiment.run_trials(6, num_samples=3000, seed=2))
    assert again.errors == trials[0].errors
    assert other.errors != trials[0].errors


def test_training_that_stops_short_is_an_error():
    inputs = torch.full((2, 3), math.nan, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="short of the minimum"):
        experiment.fit_affine(inputs, torch.tensor([0, 1]), experiment.LOSSES["ERM"](gaussians(100).prior))


def test_rows_are_written_and_read_again(trials, tmp_path):
    rows = [Row((index,), lambda trial=trial: trial) for index, trial in enumerate(trials)]
    made, failures = make_rows(rows, experiment.FORMAT, tmp_path, lambda *words: None)
    assert (made, failures) == (trials, [])
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(trials)
    again, _ = make_rows([Row(row.key, None) for row in rows], experiment.FORMAT, tmp_path, lambda *words: None)
    assert again == trials


def test_results_are_written_and_the_page_needs_no_network(trials, fits, tmp_path):
    paths = experiment.write_results(trials, fits[0], tmp_path / "new" / "folder", {"trials": 6})
    assert sorted(path.name for path in paths) == ["picture.html", "results.json"]
    assert sorted(paths) == sorted((tmp_path / "new" / "folder").iterdir())
    results = json.loads((tmp_path / "new" / "folder" / "results.json").read_text())
    errors = [trial.errors["Adaptive"] for trial in trials]
    assert results["balanced_error"]["Adaptive"]["mean"] == pytest.approx(np.mean(errors))
    page = (tmp_path / "new" / "folder" / "picture.html").read_text()
    assert "<script src=" not in page
    assert 'data-figure="figure-0-0"' in page


def test_the_command_prints_every_method(tmp_path):
    command = ["reproduce", "gaussians", "--trials", "2", "--samples", "500", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    for name, values in results["balanced_error"].items():
        row = next(line for line in done.stdout.splitlines() if line.startswith(name))
        assert f"{values['mean']:.2%}" in row
    assert results["settings"] == {"trials": 2, "samples": 500, "seed": 0}


# The data


def test_gaussians_have_the_means_and_rates_they_should():
    data = gaussians(num_train=20_000, num_test=20_000, positive_rate=0.1, seed=3)
    assert float(data.prior.probs[1]) == pytest.approx(0.1, abs=0.01)
    assert float(data.test.labels.double().mean()) == pytest.approx(0.5, abs=0.02)
    for label, mean in ((0, -1.0), (1, 1.0)):
        points = data.test.inputs[data.test.labels == label]
        torch.testing.assert_close(points.mean(dim=0), torch.full((2,), mean), atol=0.05, rtol=0)
        torch.testing.assert_close(points.T.cov(), torch.eye(2), atol=0.05, rtol=0)


def test_moons_are_half_circles_without_noise():
    data = moons(noise=0.0, positive_rate=0.5)
    x, y = data.train.inputs.T
    upper = data.train.labels == 0
    torch.testing.assert_close(x[upper] ** 2 + y[upper] ** 2, torch.ones(int(upper.sum())))
    torch.testing.assert_close((x[~upper] - 1) ** 2 + (y[~upper] - 0.5) ** 2, torch.ones(int((~upper).sum())))
    assert y[upper].min() >= 0
    assert y[~upper].max() <= 0.5


def test_digits_are_split_without_overlap():
    data = digits(test_per_class=20, seed=5)
    assert data.test.labels.bincount().tolist() == [20] * 10
    assert len(data.train) + len(data.test) == 1797
    train = {row.numpy().tobytes() for row in data.train.inputs}
    assert not any(row.numpy().tobytes() in train for row in data.test.inputs)
    assert not torch.equal(data.test.inputs, digits(test_per_class=20, seed=6).test.inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussians(positive_rate=0.0), r"positive_rate must be in \(0, 1\). Got 0.0"),
        (lambda: gaussians(num_train=0), "Got 0"),
        (lambda: moons(num_test=-1), "Got -1"),
        (lambda: moons(noise=math.nan), "Got nan"),
        (lambda: digits(test_per_class=0), r"in 1..173. Got 0"),
        (lambda: digits(test_per_class=174), r"in 1..173. Got 174"),
    ],
)
def test_bad_arguments_of_data(make, message):
    with pytest.raises(ValueError, match=message):
        make()
