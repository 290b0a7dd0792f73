"""The tables of Balanced Meta-Softmax, learned rates, and decision surfaces, on less training."""

import numpy as np
import pytest
import torch

from longtail.lab.reproduce import balms
from longtail.lab.reproduce.study import choose_recipe
from longtail.lab.reproduce.trials import plan_trials, run_study

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def heads():
    return balms.descend((10, 1_000, 30_000))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_here):
    """The runs of Figure 1 and of one cell, and what they take over."""
    folder = tmp_path_factory.mktemp("runs")
    options = balms.Options(
        epochs=40,
        seeds=1,
        runs=str(folder / "runs"),
        settings=("train.batch_size=16",),
        rows="Softmax with learned rates,Balanced softmax with learned rates,Balanced softmax features; softmax head",
    )
    made = {}

    def keep(jobs, workers, watch):
        for run in run_here(jobs, workers, watch):
            made[run.path.parent.name] = run
            yield run

    outcome = run_study(balms.build_study(options), options, folder / "out", lambda *words: None, keep)
    return made, outcome, folder


def test_balanced_softmax_leaves_the_sampler_less_to_do(runs):
    made, outcome, _ = runs
    assert not outcome.missing
    learned = {name: run for name, run in made.items() if "balanced_meta" in name}
    variances = {name: balms.measure_accuracy(run)["rate_variance"] for name, run in learned.items()}
    balanced, softmax = (variances[name] for name in sorted(variances, key=lambda name: "tau=0" in name))
    assert softmax > 2 * balanced > 0


def test_softmax_asks_for_rare_classes(runs):
    made, *_ = runs
    run = next(run for name, run in made.items() if "tau=0.0" in name and "balanced_meta" in name)
    rates = [point.y for point in balms.locate_rates(run)]
    assert np.mean(rates[:3]) < 0.25 < 0.5 < np.mean(rates[-2:])


def test_heads_take_over_the_features_that_they_name(runs):
    made, *_ = runs
    cell = next(run for name, run in made.items() if "decoupled" in name)
    base = made["logit_adjusted"]
    assert cell.path.parent.name.startswith("logit_adjusted+decoupled(feature_tau=1.0")
    assert cell.history[: len(base.history)] == base.history
    assert cell.history[-1]["phase"] == 1
    assert len(cell.history) == 2 * len(base.history)
    assert set(made) >= {"cross_entropy", "logit_adjusted"}
    assert "class_balanced_sampling" not in made


def test_nine_cells_come_from_three_trainings(tmp_path):
    options = balms.Options(data="cifar10", ratio=200)
    study = balms.build_study(options)
    cells = [entry for entry in study.entries if entry.table == "Table 3"]
    assert [entry.reported["accuracy"] for entry in cells] == [
        69.53,
        57.06,
        65.75,
        76.59,
        63.96,
        75.35,
        78.53,
        68.24,
        77.04,
    ]
    trials = plan_trials(cells, choose_recipe(options), [0], tmp_path)
    assert sum(trial.job.needs is None for trial in trials) == 3
    assert len(trials) == 12
    head = next(trial.job.recipe.train for trial in trials if trial.job.needs is not None)
    assert (head.head_learning_rate, head.head_batch_size) == (0.1, 512)
    assert head.batch_size == 128


def test_a_short_schedule_leaves_the_head_enough_steps():
    options = balms.Options(data="cifar100", fast=True)
    chosen = choose_recipe(options)
    cell = next(entry for entry in balms.build_study(options).entries if entry.table == "Table 3")
    head = cell.training.build(chosen)
    share = float(head.method.options["share"])
    steps = share * head.train.epochs * 10_847 / head.train.head_batch_size
    assert 1500 < steps < 2500


def test_published_numbers_are_of_their_data_and_ratio():
    def reported(**options):
        entries = balms.build_study(balms.Options(**options)).entries
        return {entry.name: entry.reported for entry in entries if entry.reported}

    assert reported(data="cifar100", ratio=10)["BALMS"] == {"accuracy": 63.0}
    assert reported(data="cifar100", ratio=200)["Softmax with learned rates"] == {"rate_variance": 0.13}
    assert "LDAM-DRW" not in reported(data="cifar10", ratio=200)
    assert reported(data="cifar10", profile="step") == {}


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


def test_surfaces_are_a_page_without_a_network(heads, tmp_path):
    (page,) = balms.write_surfaces(heads, tmp_path)
    assert [len(row) for row in balms.tabulate_areas(heads).rows] == [4] * 4
    assert "<script src=" not in page.read_text()
    assert page.read_text().count('data-figure="') == sum(map(len, heads.values()))
