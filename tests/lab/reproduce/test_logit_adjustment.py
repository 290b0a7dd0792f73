"""Table 2 of logit adjustment: post-hoc rows from one training, and tau from a sweep."""

import pytest
import torch

from longtail.lab.reproduce import logit_adjustment
from longtail.lab.reproduce.logit_adjustment import (
    REPORTED,
    TAUS,
    Options,
    build_study,
    locate_norms,
    measure_best,
    measure_chosen,
    measure_fixed,
    read_head,
    rescore_adjusted,
    rescore_normalized,
    sweep_tau,
)
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import find_recipe, load_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

RESCORERS = {"posthoc_adjusted": rescore_adjusted, "weight_normalized": rescore_normalized}


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(find_recipe("digits"), ["train.epochs=12", "model.options.hidden=[32]"])


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    return train(recipe.with_method("cross_entropy", {}), tmp_path_factory.mktemp("run"), show_progress=False)


@pytest.mark.parametrize("method", RESCORERS)
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_rescored_logits_are_those_of_the_method(recipe, run, tmp_path, method, tau):
    trained = train(recipe.with_method(method, {"tau": tau}), tmp_path, show_progress=False)
    scores = RESCORERS[method](run)(tau)
    torch.testing.assert_close(scores, torch.from_numpy(trained.predictions.scores), atol=1e-4, rtol=1e-4)
    found = measure_fixed(run, RESCORERS[method], tau)
    assert found["balanced_error"] == pytest.approx(100 * (1 - trained.metrics["balanced_accuracy"]))
    assert found["tail_error"] == pytest.approx(100 * (1 - trained.metrics["tail"]))


@pytest.mark.parametrize("rescorer", RESCORERS.values(), ids=RESCORERS)
def test_the_best_tau_is_the_lowest_point_of_the_curve(run, rescorer):
    errors = sweep_tau(rescorer(run), torch.from_numpy(run.predictions.labels))
    best = measure_best(run, rescorer)
    assert tuple(errors) == TAUS
    assert best["balanced_error"] == pytest.approx(min(errors.values()))
    assert errors[best["tau"]] == min(errors.values())


def test_no_adjustment_is_plain_training(run):
    errors = sweep_tau(rescore_adjusted(run), torch.from_numpy(run.predictions.labels))
    assert errors[0.0] == pytest.approx(100 * (1 - run.metrics["balanced_accuracy"]))


def test_a_chosen_tau_is_measured_on_samples_that_did_not_choose_it(run):
    """Scores that are right for one tau on one half, and for another tau on the other."""
    labels = torch.from_numpy(run.predictions.labels)
    first, second = logit_adjustment._split_halves(labels)
    assert len(first) == len(second) == len(labels) / 2
    assert torch.equal(labels[first].bincount(), labels[second].bincount())
    right = torch.nn.functional.one_hot(labels, 10).float()

    def rescorer(run):
        def rescore(tau):
            scores = torch.zeros_like(right)
            half = {0.5: first, 2.0: second}.get(tau)
            scores[:, 0] = 0.5
            if half is not None:
                scores[half] = right[half]
            return scores

        return rescore

    assert measure_best(run, rescorer)["balanced_error"] == pytest.approx(45.0)
    assert measure_chosen(run, rescorer)["balanced_error"] == pytest.approx(90.0)
    assert measure_chosen(run, rescorer)["tau"] == 1.25


def test_norms_are_those_of_the_head_most_frequent_class_first(run):
    points = locate_norms(run)
    assert [point.x for point in points] == list(range(10))
    assert [point.y for point in points] == pytest.approx(run.predictions.weight_norms.tolist(), rel=1e-5)
    assert read_head(run)[0].shape == (10, 32)


def test_all_ten_rows_have_the_paper_s_numbers():
    entries = {entry.name: entry for entry in build_study(Options(data="cifar100")).entries}
    assert len(REPORTED) == 10
    assert [entries[name].reported["balanced_error"] for name in REPORTED] == [
        61.64,
        58.76,
        60.40,
        60.40,
        57.96,
        57.26,
        58.24,
        57.90,
        56.11,
        55.92,
    ]
    assert entries["Adaptive + DRW"].training.method == "adaptive_deferred"
    assert len({entry.training for entry in entries.values()}) == 8


@pytest.mark.parametrize("options", [Options(profile="step"), Options(ratio=10), Options(data="digits")])
def test_other_data_have_no_published_numbers(options):
    assert not any(entry.reported for entry in build_study(options).entries)


def test_missing_cells_stay_empty():
    entries = {entry.name: entry for entry in build_study(Options(data="imagenet_lt")).entries}
    assert entries["Class-balanced"].reported == {}
    assert entries["ERM"].reported == {"balanced_error": 53.11}
