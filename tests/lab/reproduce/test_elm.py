"""Table 2 and the figures of ELM, on less training."""

import math

import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce import elm
from longtail.lab.reproduce.study import choose_entries, choose_recipe
from longtail.lab.reproduce.trials import plan_trials, run_study
from longtail.lab.training.loop import train

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = "CE,LogAdj,ELM,CE + weight normalization (multi-stage),CE + DRO-LT (multi-stage),ELM at 1"


@pytest.fixture(scope="module")
def done(tmp_path_factory, run_here):
    """Some rows, made in this process: runs by folder, what came of it, and the options."""
    folder = tmp_path_factory.mktemp("elm")
    options = elm.Options(
        epochs=12,
        seeds=1,
        rows=ROWS,
        settings=("model.options.hidden=[32]", "train.save_embeddings=150"),
        runs=str(folder / "runs"),
    )
    made = {}

    def keep(jobs, workers, watch):
        for run in run_here(jobs, workers, watch):
            made[run.path.parent.name] = run
            yield run

    outcome = run_study(elm.build_study(options), options, folder / "out", lambda *words: None, keep)
    return made, outcome, options


def test_the_paper_s_rows_and_strengths_are_planned(tmp_path):
    options = elm.Options(data="cifar100", fast=True)
    study = elm.build_study(options)
    assert [entry.name for entry in study.entries if entry.table == "Table 2"] == list(elm.REPORTED)
    assert [entry.reported["balanced_accuracy"] for entry in study.entries[:8]] == [
        38.36,
        39.60,
        42.04,
        43.89,
        41.98,
        41.34,
        46.92,
        45.77,
    ]
    trials = plan_trials(study.entries, choose_recipe(options), [0], tmp_path)
    own = next(trial.job.recipe for trial in trials if trial.job.folder.parent.name == "elm")
    assert own.method.options == {"strength": 0.01, "scale": 1.0, "exponent": 0.5, "by_count": True}
    options_of = [trial.job.recipe.method.options for trial in trials if trial.job.recipe.method.name == "elm"]
    assert sorted(found["strength"] for found in options_of if found["exponent"] == 0.5) == sorted(elm.STRENGTHS)
    assert {"strength": 0.01, "scale": 1.0, "exponent": 1.0, "by_count": True} in options_of
    assert all(trial.job.recipe.train.save_embeddings for trial in trials)


def test_a_row_with_the_name_of_a_method_is_that_row_alone():
    entries = elm.build_study(elm.Options()).entries
    assert [entry.name for entry in choose_entries(entries, "ELM")] == ["ELM"]
    assert len(choose_entries(entries, "elm(strength=0.1)")) == 1


def test_rows_are_measured(done):
    made, outcome, _ = done
    assert not outcome.missing
    assert [row[0] for row in outcome.summaries[0].rows] == [
        "CE",
        "LogAdj",
        "CE + weight normalization (multi-stage)",
        "CE + DRO-LT (multi-stage)",
        "ELM",
    ]
    found = elm.measure_accuracy(made["elm"])
    assert found["tail_accuracy"] == 100 * made["elm"].metrics["tail"]
    assert all(math.isfinite(value) for value in found.values())


def test_a_second_stage_takes_over_dro_lt(done):
    made, *_ = done
    base, second = made["dro_lt"], made["dro_lt+classifier_retraining"]
    assert second.history[: len(base.history)] == base.history
    assert len(second.history) > len(base.history)


def test_a_strong_pull_shrinks_classes_and_no_pull_is_logit_adjustment(done, tmp_path):
    made, _, options = done
    weak, strong = (elm.measure_accuracy(made[name])["tail_distance_raw"] for name in ("elm", "elm(strength=1.0)"))
    assert strong < 0.5 * weak
    none = train(choose_recipe(options).with_method("elm", {"strength": 0.0}), tmp_path, show_progress=False)
    assert none.metrics["balanced_accuracy"] == pytest.approx(made["logit_adjusted"].metrics["balanced_accuracy"])


def test_points_are_of_all_figures(done):
    made, outcome, _ = done
    figures = {point.figure for point in elm._locate_all(made["elm"], "ELM")}
    assert figures == {"Figure 3", "Figure 4", "Figure 5", "Figure 6", "Proposition 1", "Proposition 2"}
    page = outcome.written[-1].read_text()
    assert all(f"{figure.name}: {figure.title}" in page for figure in elm.FIGURES)


def test_what_is_bounded_is_below_its_bound(done):
    made, *_ = done
    for point in elm.locate_bounds(made["elm"]):
        assert point.y <= point.x * (1 + 1e-6), point.figure


def test_cumulative_shares_rise_to_1(done):
    made, *_ = done
    shares = [point.y for point in elm.locate_margins(made["logit_adjusted"]) if point.figure == "Figure 6"]
    per_group = torch.tensor(shares).view(-1, len(elm.THRESHOLDS))
    assert (per_group.diff(dim=1) >= 0).all()
    assert len(per_group) == 3


def test_a_run_without_embeddings_is_named(tmp_path):
    recipe = choose_recipe(elm.Options(data="digits", epochs=1, settings=("train.save_embeddings=0",)))
    with pytest.raises(ValueError, match="kept no embeddings"):
        elm.measure_accuracy(train(recipe, tmp_path, show_progress=False))


def test_a_model_without_an_encoder_is_refused(tmp_path):
    output = tmp_path / "elm"
    done = CliRunner().invoke(
        app, ["reproduce", "elm", "--data", "tiny_imagenet_lt_features", "--output", str(output)]
    )
    assert done.exit_code == 2
    assert "model.name=mlp" in done.stderr
    assert not output.exists()
