"""The moons of ELM: what the command writes, and that a pull makes classes compact."""

import csv
import json
import re

import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.data.dataset import Split
from longtail.lab.reproduce import moons


def test_largest_distances_are_those_of_the_formula():
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0], [3.0, 1.0]])
    found = moons.measure_distances(Split(points, torch.tensor([0, 0, 1, 1])))
    between_means = ((3 - 1.5) ** 2 + (0.5 - 2.0) ** 2) ** 0.5
    assert found == pytest.approx(
        {
            ("head", "raw"): 5.0,
            ("head", "by_norm"): 1.0,
            ("head", "by_class_means"): 5 / between_means,
            ("tail", "raw"): 1.0,
            ("tail", "by_norm"): 0.2,
            ("tail", "by_class_means"): 1 / between_means,
        }
    )


def test_ratios_are_medians_over_seeds():
    key = ("train", "tail", "raw")

    def trial(variant, seed, distance):
        return moons.Trial(variant, seed, 0.9, {key: distance}, Split(torch.zeros(0, 2), torch.zeros(0).long()))

    pairs = zip((1.0, 2.0, 8.0), (2.0, 8.0, 4.0), strict=True)
    trials = [
        trial(name, seed, value)
        for seed, (mine, base) in enumerate(pairs)
        for name, value in (("ELM", mine), (moons.BASELINE, base))
    ]
    assert moons.compare_distances(trials, "ELM", key) == 0.5
    assert moons.compare_distances(trials, moons.BASELINE, key) == 1.0


def test_the_command_writes_results_and_a_pull_makes_classes_compact(tmp_path):
    command = ["reproduce", "moons", "--seeds", "1", "--output", str(tmp_path)]
    settings = ["train.epochs=25", "train.learning_rate=0.1", "data.options.num_train=1000"]
    result = CliRunner().invoke(app, [*command, *(part for setting in settings for part in ("--set", setting))])
    assert result.exit_code == 0, result.output
    assert "ELM, balanced" in result.output
    assert "…" not in result.output
    results = json.loads((tmp_path / "results.json").read_text())
    ratios = results["median_ratio_to_logit_adjustment"]
    assert set(ratios) == set(moons.VARIANTS)
    assert all(value == 1 for value in ratios[moons.BASELINE].values())
    assert ratios["ELM"]["train_head_raw"] < 0.8
    assert ratios["ELM, balanced"]["train_tail_raw"] < 0.8
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(moons.VARIANTS)
    page = (tmp_path / "picture.html").read_text()
    assert "Two moons" in page
    assert not re.search(r"<(?:script|link|img)\b[^>]*(?:src|href)=\"?http", page)  # plotly's code has such words too
