"""Learned rates and decision surfaces of the Balanced Meta-Softmax supplement, on less training."""

import csv
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce import balms
from longtail.lab.training.recipe import find_recipe, load_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = ["train.epochs=40", "train.batch_size=16"]


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(find_recipe("digits_balms"), SETTINGS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(recipe, folder, make_all):
    return make_all(balms.plan_rows(recipe, folder, [0]))


@pytest.fixture(scope="module")
def heads():
    return balms.descend((10, 1_000, 30_000))


def test_balanced_softmax_leaves_the_sampler_less_to_do(runs):
    softmax, balanced = (balms.average_variance(runs, loss) for loss in ("Softmax", "Balanced softmax"))
    assert softmax > 2 * balanced > 0


def test_softmax_asks_for_rare_classes(runs):
    rates = np.array(runs[0].rates[-1])
    assert runs[0].counts == tuple(sorted(runs[0].counts, reverse=True))
    assert rates[:3].max() < 0.25 < 0.5 < rates[-2:].min()
    assert runs[0].variance == pytest.approx(rates.var())


def gradient_descent(setup, iterations):
    """The same by autograd on explicit weights of the three points."""
    prior = balms.PRIOR
    inputs = torch.cat([torch.from_numpy(balms.POINTS), torch.ones(3, 1, dtype=torch.float64)], dim=1)
    head = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([head], lr=1.0)
    shares = torch.full((3,), 1 / 3, dtype=torch.float64) if setup.is_class_balanced else prior.probs
    for _ in range(iterations):
        logits = inputs @ head.T + (prior.log_probs if setup.is_adjusted else 0)
        optimizer.zero_grad()
        (shares * torch.nn.functional.cross_entropy(logits, torch.arange(3), reduction="none")).sum().backward()
        optimizer.step()
    return head.detach()


@pytest.mark.parametrize("name", balms.SETUPS)
def test_descent_is_gradient_descent(name, heads):
    torch.testing.assert_close(heads[name][10], gradient_descent(balms.SETUPS[name], 10))


def test_surfaces_are_those_of_the_paper(heads):
    areas = {name: [balms.measure_areas(head) for head in found.values()] for name, found in heads.items()}
    assert areas["Softmax + CBS"][0] == pytest.approx([1 / 3] * 3, abs=0.02)
    assert areas["Softmax + CBS"][-1] == pytest.approx([1 / 3] * 3, abs=0.02)
    rarest = {name: [shares[2] for shares in found] for name, found in areas.items()}
    # Softmax moves to the same solution, but slowly.
    assert 0 == rarest["Softmax"][0] < rarest["Softmax"][-1] < 1 / 3
    # Balanced softmax ends with more for the rarest class than for the most frequent one.
    assert areas["Balanced softmax"][-1][2] > areas["Balanced softmax"][-1][0] + 0.1
    # With class-balanced sampling the rarest class dominates from the start: over-balance.
    assert rarest["Balanced softmax + CBS"][0] > 0.6 > 0.05 > rarest["Balanced softmax"][0]


def test_every_point_is_classified_right_in_the_end(heads):
    inputs = torch.cat([torch.from_numpy(balms.POINTS), torch.ones(3, 1, dtype=torch.float64)], dim=1)
    for found in heads.values():
        assert (inputs @ list(found.values())[-1].T).argmax(1).tolist() == [0, 1, 2]


def test_results_are_written(runs, heads, recipe, tmp_path):
    written = balms.write_results(runs, heads, recipe, tmp_path)
    assert [path.name for path in written] == ["results.json", "picture.html"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rate_variance"]["Softmax"] == runs[0].variance
    page = (tmp_path / "picture.html").read_text()
    assert "<script src=" not in page
    assert "<link" not in page
    assert page.count('class="plotly-graph-div"') == 3


def test_rows_are_those_of_the_runs(recipe, folder, runs):
    """Also that complete runs are not trained again: the folder is that of the runs."""
    options = balms.Options(seeds=1, settings=tuple(SETTINGS))
    outcome = balms.run(options, folder, lambda done, total: None)
    assert [path.name for path in outcome.written] == ["rows.csv", "results.json", "picture.html"]
    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 40 * 10
    assert float(rows[-1]["rate"]) == runs[1].rates[-1][-1]


def test_the_command(tmp_path):
    settings = ["--set", "train.epochs=1", "--set", "train.batch_size=256"]
    result = CliRunner().invoke(app, ["reproduce", "balms", "--seeds", "1", "--output", str(tmp_path), *settings])
    assert result.exit_code == 0, result.output
    assert "Balanced softmax + CBS" in result.output
    assert (tmp_path / "picture.html").is_file()


def test_a_recipe_that_does_not_exist_is_one_line(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "balms", "--recipe", "no_such", "--output", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert "no_such" in result.output
    assert not (tmp_path / "x").exists()
