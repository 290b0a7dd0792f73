"""Ways to sample negatives on small data: what is run, measured, written and printed."""

import csv
import gzip
import json
import re

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from typer.testing import CliRunner

from longtail import ClassPrior
from longtail.lab.cli.app import app
from longtail.lab.reproduce import delicious as experiment
from longtail.lab.reproduce._rows import Row, make_rows
from longtail.metrics import recall_at_k

NUM_LABELS = 60


def make_part(seed, num_samples=150):
    """Every label turns some of the features on; labels follow Zipf's law."""
    generator = np.random.default_rng(seed)
    labels = generator.random((num_samples, NUM_LABELS)) < 1.5 / (1 + np.arange(NUM_LABELS))
    labels[np.arange(num_samples), generator.integers(NUM_LABELS, size=num_samples)] = True
    features = labels @ np.random.default_rng(9).normal(size=(NUM_LABELS, 20)) + generator.normal(
        size=(num_samples, 20)
    )
    return csr_array(features.astype(np.float32)), csr_array(labels)


@pytest.fixture(scope="module")
def problem():
    return experiment.Problem(*make_part(0), *make_part(1))


@pytest.fixture(scope="module")
def rows(problem):
    settings = {"hidden_size": 16, "epochs": 3, "batch_size": 32, "learning_rate": 0.02}
    return experiment.plan_rows(problem, seeds=[0, 1], num_negatives=20, settings=settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("delicious")


@pytest.fixture(scope="module")
def outcomes(rows, folder):
    results, failures = make_rows(rows, experiment.FORMAT, folder, lambda *words: None)
    assert failures == []
    return results


def test_every_scheme_runs_with_every_seed(outcomes):
    runs = {(outcome.scheme, outcome.seed) for outcome in outcomes}
    assert len(runs) == len(outcomes) == 18
    assert experiment.ALL_LABELS in {scheme for scheme, _ in runs}
    for outcome in outcomes:
        assert len(outcome.values) == 4 * 3 + 2 * 3
        assert all(0 <= value <= 100 for value in outcome.values.values()), outcome


def test_slices_of_one_label_per_sample_are_recalls():
    truth = csr_array(np.eye(NUM_LABELS, dtype=bool))
    best = torch.stack([(torch.arange(50) + row // 2) % NUM_LABELS for row in range(NUM_LABELS)])
    values = experiment.measure(best, truth, ClassPrior.from_counts(range(NUM_LABELS, 0, -1)))
    expected = 100 * recall_at_k(best, truth, 50)
    for k in experiment.RECALL_PLACES:
        assert values[f"full R@{k}"] == pytest.approx(float(expected[k - 1]))
    prior = ClassPrior.from_counts(range(NUM_LABELS, 0, -1))
    pooled = sum(len(labels) * values[f"{name} R@10"] for name, labels in prior.quantile_groups().items())
    assert pooled / NUM_LABELS == pytest.approx(values["full R@10"])
    assert values["P@1"] == pytest.approx(values["full R@1"])


def test_means_over_seeds(outcomes):
    scheme = outcomes[3].scheme
    mean = np.mean([outcome.values["P@1"] for outcome in outcomes if outcome.scheme == scheme])
    assert experiment.summarize(outcomes)[scheme]["P@1"].mean == pytest.approx(mean)


def test_rows_are_written_and_read_again(outcomes, rows, folder):
    with (folder / "rows.csv").open() as file:
        written = list(csv.DictReader(file))
    assert list(written[0])[:4] == ["sampling", "weighting", "seed", "seconds"]
    assert float(written[5]["tail R@10"]) == outcomes[5].values["tail R@10"]

    def refuse():
        raise AssertionError

    again, failures = make_rows(
        [Row(row.key, refuse) for row in rows], experiment.FORMAT, folder, lambda *words: None
    )
    assert failures == []
    assert again == outcomes


def test_results_are_written_and_the_page_needs_no_network(outcomes, tmp_path):
    paths = experiment.write_results(outcomes, tmp_path / "new", {"seeds": 2})
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    assert len(json.loads((tmp_path / "new" / "results.json").read_text())["percent"]) == 9
    page = (tmp_path / "new" / "picture.html").read_text()
    assert "<script src=" not in page
    assert 'data-figure="figure-0-0"' in page


def test_whiskers_stay_within_what_a_share_can_be(outcomes):
    low, high = (dict.fromkeys(outcomes[0].values, value) for value in (0.0, 99.0))
    results = [experiment.Result(experiment.ALL_LABELS, seed, values, 1.0) for seed, values in enumerate((low, high))]
    text = experiment.draw_picture(results, {"seeds": 2})
    figures = [json.loads(part) for part in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    bars = [bar for part in figures for figure in part.values() for bar in figure["data"]]
    assert bars
    for bar in bars:
        assert all(below <= mean for below, mean in zip(bar["error_y"]["arrayminus"], bar["y"], strict=True))
        assert all(above <= 100 - mean for above, mean in zip(bar["error_y"]["array"], bar["y"], strict=True))


def test_the_command_runs_on_files(tmp_path, monkeypatch):
    (tmp_path / "delicious").mkdir()
    for name, seed in (("train", 0), ("test", 1)):
        features, labels = make_part(seed, num_samples=40)
        lines = [f"40 20 {NUM_LABELS}"]
        for row in range(40):
            pairs = (f"{column}:{features[row, column]:.4f}" for column in range(20))
            lines.append(" ".join([",".join(map(str, labels[[row]].indices)), *pairs]))
        with gzip.open(tmp_path / "delicious" / f"{name}.txt.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    options = ["--seeds", "1", "--epochs", "1", "--num-negatives", "5", "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["reproduce", "delicious", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "within-batch, tail" in done.stdout
    assert (tmp_path / "out" / "picture.html").exists()


def test_unknown_data_is_named(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "delicious", "--data", "nothing", "--output", str(tmp_path / "out")])
    assert done.exit_code != 0
    assert not (tmp_path / "out").exists()


def test_a_set_is_scored_by_its_own_propensities(problem):
    prior = ClassPrior.from_indicator(problem.labels)
    best = torch.arange(NUM_LABELS).flip(0).expand(150, NUM_LABELS)
    plain, other = (experiment.measure(best, problem.test_labels, prior, ab) for ab in ((0.55, 1.5), (0.5, 0.4)))
    assert experiment.measure(best, problem.test_labels, prior) == plain
    assert plain["PSP@1"] != other["PSP@1"]
    assert plain["P@1"] == other["P@1"]
    assert set(experiment.PROBLEMS) == {"delicious", "amazoncat13k", "wikilshtc325k", "tiny_imagenet_lt_features"}


def test_the_contrastive_loss_is_trained_with_and_without_drawn_negatives(problem):
    settings = {
        "hidden_size": 8,
        "epochs": 1,
        "batch_size": 64,
        "learning_rate": 0.02,
        **experiment.LOSSES["contrastive"],
    }
    every, drawn, *_ = experiment.plan_rows(problem, seeds=[0], num_negatives=20, settings=settings)
    assert every.make().values["P@5"] > 0
    assert drawn.make().values != every.make().values
    assert drawn.key[:2] == ("uniform", "constant")
