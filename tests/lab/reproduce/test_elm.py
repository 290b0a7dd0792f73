"""Table 2 and the figures of ELM, on less training."""

import csv
import dataclasses
import io
import json
import math

import pytest
from typer.testing import CliRunner

from longtail import ClassPrior
from longtail.lab.cli.app import app
from longtail.lab.cli.reproduce import print_outcome
from longtail.lab.reproduce import elm
from longtail.lab.reproduce._elm_results import (
    QUANTITIES,
    REFERENCE_ACCURACY,
    ROWS,
    list_groups,
    reduce_run,
    sort_by_strength,
    sort_into_rows,
)
from longtail.lab.reproduce._rows import RowFile
from longtail.lab.reproduce.experiment import Outcome
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import find_recipe, load_recipe, with_settings

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = ["train.epochs=12", "model.options.hidden=[32]", "train.save_embeddings=150"]


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(find_recipe("digits"), SETTINGS)


@pytest.fixture(scope="module")
def results(recipe, tmp_path_factory):
    jobs = elm.plan(recipe, [0], tmp_path_factory.mktemp("runs"))
    return [reduce_run(train(job.recipe, job.folder, show_progress=False)) for job in jobs]


def test_the_plan_has_every_row_and_strength(recipe, tmp_path):
    jobs = elm.plan(recipe, [0, 1], tmp_path)
    assert {job.recipe.method.name for job in jobs} == set(ROWS.values())
    assert len(jobs) == 2 * (len(ROWS) + len(elm.STRENGTHS) - 1)
    assert len({job.folder for job in jobs}) == len(jobs)
    strengths = [job.recipe.method.options.get("strength", 0.01) for job in jobs if job.recipe.method.name == "elm"]
    assert sorted(set(strengths)) == sorted(elm.STRENGTHS)
    assert all(job.recipe.train.save_embeddings == 150 for job in jobs)


def test_settings_are_the_paper_s_or_the_recipe_s(recipe, tmp_path):
    def options_of(chosen):
        return next(job for job in elm.plan(chosen, [0], tmp_path) if job.folder.parent.name == "elm").recipe.method

    cifar = with_settings(recipe, ["name=cifar100_lt_fast"])
    assert options_of(cifar).options["by_count"] is True
    tiny = with_settings(recipe, ["name=tiny_imagenet_lt_features"])
    assert options_of(tiny).options["strength"] == 0.001
    own = recipe.with_method("elm", {"strength": 0.5, "memory_size": 4})
    assert options_of(own).options == {"strength": 0.5, "memory_size": 4}
    assert options_of(recipe).options == {}


def test_rows_hold_their_method_and_elm_its_own_strength(results, recipe):
    rows = sort_into_rows(results, recipe)
    assert list(rows) == list(REFERENCE_ACCURACY)
    assert all(len(found) == 1 for found in rows.values())
    assert rows["ELM"][0].strength == 0.01
    assert list(sort_by_strength(results)) == sorted(elm.STRENGTHS)


def test_quantities_are_those_of_the_runs(results, recipe):
    for (result,) in sort_into_rows(results, recipe).values():
        embeddings = result.digest.embeddings
        assert result.quantity("tail") == result.digest.metrics["tail"]
        assert result.quantity("nearest_mean") == embeddings.accuracy["nearest_mean"]
        assert result.quantity("head_distance_by_norm") == embeddings.distances["by_norm"]["head"]
        assert all(math.isfinite(result.quantity(name)) for name in QUANTITIES)


def test_a_strong_pull_shrinks_classes_and_no_pull_is_logit_adjustment(results, recipe, tmp_path):
    by_strength = sort_by_strength(results)
    weak, strong = (by_strength[strength][0].quantity("tail_distance_raw") for strength in (1e-4, 1.0))
    assert strong < 0.5 * weak
    none = train(recipe.with_method("elm", {"strength": 0.0}), tmp_path, show_progress=False)
    adjusted = sort_into_rows(results, recipe)["LogAdj"][0]
    assert none.metrics["balanced_accuracy"] == pytest.approx(adjusted.quantity("balanced_accuracy"))


def test_results_are_written(results, recipe, tmp_path):
    written = elm.write_results(results, recipe, tmp_path / "new")
    assert [path.name for path in written] == ["results.json", "picture.html"]
    summary = json.loads(written[0].read_text())
    assert summary["rows"].keys() == ROWS.keys()
    assert summary["by_strength"].keys() == {"0.0001", "0.001", "0.01", "0.1", "1"}
    page = written[1].read_text()
    assert page.count("plotly-graph-div") >= 5
    assert all(label in page for label in ROWS)
    assert "http://" not in page.split("<script")[0]


def test_rows_are_in_order_whatever_is_done_first(results, tmp_path):
    keys = [(result.method, result.strength, result.digest.seed) for result in results]
    file = RowFile(tmp_path, elm.FORMAT, keys)
    for key, result in reversed(list(zip(keys, results, strict=True))):
        file.put(key, result)
    with (tmp_path / "rows.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["method"] for row in rows] == [result.method for result in results]
    assert rows[0]["strength"] == ""
    assert float(rows[0]["balanced_accuracy"]) == results[0].quantity("balanced_accuracy")


def test_the_screen_has_a_line_per_row(results, recipe):
    from rich.console import Console

    shown = io.StringIO()
    outcome = Outcome([elm.tabulate_rows(sort_into_rows(results, recipe))], [])
    print_outcome(outcome, Console(width=80, file=shown))
    lines = shown.getvalue().splitlines()
    assert sum(line.strip().startswith(tuple(ROWS)) for line in lines) == len(ROWS)


def test_groups_are_listed_as_far_as_they_have_classes(results):
    assert list_groups(results) == ["head", "torso", "tail"]
    without_tail = dataclasses.replace(results[0], prior=ClassPrior.from_counts([5000, 500, 50]))
    assert list_groups([without_tail]) == ["head", "torso"]


def test_a_run_without_embeddings_is_named(recipe, tmp_path):
    run = train(with_settings(recipe, ["train.save_embeddings=0", "train.epochs=1"]), tmp_path, show_progress=False)
    with pytest.raises(ValueError, match="kept no embeddings"):
        reduce_run(run)


def test_a_model_without_an_encoder_is_refused(tmp_path):
    output = tmp_path / "elm"
    done = CliRunner().invoke(
        app, ["reproduce", "elm", "--recipe", "tiny_imagenet_lt_features", "--output", str(output)]
    )
    assert done.exit_code == 2
    assert "model.name=mlp" in done.stderr
    assert not output.exists()
