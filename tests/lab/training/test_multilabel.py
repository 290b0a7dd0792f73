"""Multi-label data in the training loop: losses, metrics, state of the masking, resumption, processes."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.data.dataset import Dataset, Split, sparse_indicator
from longtail.lab.data.registry import load_data
from longtail.lab.training.comparison import default_methods, plan_jobs, run_jobs
from longtail.lab.training.label_metrics import multilabel_metrics
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    to_toml,
    with_settings,
)
from longtail.methods import METHODS
from longtail.prior import ClassPrior

RECIPE = Recipe(
    "pairs",
    DataRecipe("two_digits", options={"pairs_per_image": 1, "test_per_class": 5}),
    ModelRecipe("mlp", {"hidden": [16]}),
    TrainRecipe(epochs=4, batch_size=64, learning_rate=0.05),
    MethodRecipe("partial_label_masking", {"rate": 0.2}),
)
SEVERAL = [method.name for method in METHODS.values() if method.accepts_multilabel]


def quick(recipe, folder, **options):
    return train(recipe, folder, accelerator="cpu", show_progress=False, **options)


def test_a_run_measures_labels_and_keeps_the_ratios(tmp_path):
    run = quick(RECIPE, tmp_path)
    assert run.predictions.labels.shape == run.predictions.logits.shape == (450, 10)
    assert run.predictions.is_multilabel
    data = load_data(RECIPE.data)
    assert run.predictions.prior == data.prior
    recall = ((run.predictions.logits >= 0) & run.predictions.labels).sum(0) / run.predictions.labels.sum(0)
    assert run.metrics["recall"] == pytest.approx(recall.mean())
    assert run.metrics["recall_rarest_3"] == pytest.approx(recall[data.prior.rarest(3)].mean())
    ratios = np.array([row["positive_ratios"] for row in run.history])
    assert ratios.shape == (4, 10)
    assert (ratios[1:] != ratios[:-1]).any()


@pytest.mark.parametrize("method", SEVERAL)
def test_every_method_for_several_labels_trains(method, tmp_path):
    recipe = with_settings(RECIPE.with_method(method), ["train.epochs=2", "train.learning_rate=0.01"])
    assert np.isfinite(quick(recipe, tmp_path).predictions.logits).all()


@pytest.mark.parametrize("settings", [[], ["model.options.dropout=0.5", "train.ema_decay=0.9"]])
def test_a_resumed_run_ends_with_the_same_numbers(settings, tmp_path, monkeypatch):
    recipe = with_settings(RECIPE, settings)
    whole = quick(recipe, tmp_path / "whole")
    monkeypatch.setattr("longtail.lab.training.loop.CHECKPOINT_SECONDS", 0.0)
    stopped = []

    def stop(path, row):
        if row["epoch"] == 2:
            stopped.append(path)
            raise KeyboardInterrupt
        append(path, row)

    from longtail.lab.runs.folder import append_metrics as append

    with monkeypatch.context() as patch:
        patch.setattr("longtail.lab.training.loop.append_metrics", stop)
        with pytest.raises(KeyboardInterrupt):
            quick(recipe, tmp_path / "parts")
    assert stopped
    resumed = quick(recipe, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row["positive_ratios"] for row in whole.history] == [row["positive_ratios"] for row in resumed.history]


@pytest.mark.parametrize("method", ["cross_entropy", "logit_adjusted", "posthoc_adjusted", "class_balanced_sampling"])
def test_a_method_for_one_label_is_refused(method, tmp_path):
    with pytest.raises(
        ValueError, match=f"two digits is multi-label, and {method} needs one label per sample"
    ) as error:
        quick(RECIPE.with_method(method), tmp_path / "run")
    assert "partial_label_masking" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_mixup_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train\.mixing must be 'none'"):
        quick(with_settings(RECIPE, ["train.mixing=mixup"]), tmp_path)


def test_more_scores_than_memory_has_are_refused_before_anything_is_written(tmp_path, monkeypatch, one_line):
    monkeypatch.setattr("longtail.lab.training.checks.MOST_SCORES", 4499)
    with pytest.raises(ValueError, match=r"here 450 x 10 \(0 GB\); take longtail\.ExtremeClassifier") as caught:
        quick(RECIPE, tmp_path / "run")
    one_line(caught)
    assert not (tmp_path / "run").exists()


def test_masking_trains_with_one_label_a_sample_too(tmp_path):
    recipe = with_settings(RECIPE, ["data.source=digits"])
    recipe = Recipe("digits", DataRecipe("digits", "exponential", 10.0), recipe.model, recipe.train, recipe.method)
    run = quick(recipe, tmp_path)
    assert "balanced_accuracy" in run.metrics
    assert len(run.history[-1]["positive_ratios"]) == 10


def test_sparse_labels_train_like_dense_ones(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(60, 4, generator=generator), torch.rand(60, 5, generator=generator) < 0.3
    from scipy.sparse import csr_array

    predictions = []
    for name, kept in (("dense", labels), ("sparse", sparse_indicator(csr_array(labels.numpy())))):
        data = Dataset(name, Split(inputs, kept), Split(inputs, kept), tuple("abcde"))
        monkeypatch.setattr("longtail.lab.training.loop.load_data", lambda recipe, data=data: data)
        predictions.append(quick(RECIPE, tmp_path / name).predictions)
    assert np.array_equal(predictions[0].logits, predictions[1].logits)
    assert np.array_equal(predictions[0].labels, predictions[1].labels)


def test_files_of_the_extreme_classification_repository(tmp_path):
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("3 4 3\n0,2 1:0.5 3:2\n1 0:1\n 2:1\n")
    options = {"train": str(tmp_path / "train.txt"), "test": str(tmp_path / "test.txt")}
    data = load_data(DataRecipe("sparse_table", options=options))
    assert data.class_names == ("0", "1", "2")
    assert data.train.targets(torch.tensor([2, 0])).tolist() == [[0, 0, 0], [1, 0, 1]]
    (tmp_path / "test.txt").write_text("1 4 2\n0 1:0.5\n")
    with pytest.raises(ValueError, match=r"must have the same labels\. Got 3 and 2"):
        load_data(DataRecipe("sparse_table", options=options))


def test_classes_without_test_samples_are_left_out():
    logits = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    labels = torch.tensor([[True, False, False], [True, True, False]])
    metrics = multilabel_metrics(logits, labels, ClassPrior.from_indicator(labels))
    assert metrics["recall"] == metrics["precision"] == 1.0
    assert metrics["micro_f1"] == pytest.approx(2 * 3 / (4 + 3))
    assert metrics["exact_match"] == 0.5


def test_compare_and_its_defaults(tmp_path):
    assert default_methods(RECIPE) == ["binary_cross_entropy", "partial_label_masking"]
    assert default_methods(RECIPE.with_method("focal"))[0] == "cross_entropy"
    jobs = plan_jobs(RECIPE, default_methods(RECIPE), range(1), tmp_path)
    runs = list(run_jobs(jobs, workers=1))
    assert {run.method for run in runs} == {"binary_cross_entropy", "partial_label_masking"}


def test_the_commands(tmp_path):
    path = tmp_path / "pairs.toml"
    path.write_text(to_toml(RECIPE))
    output = str(tmp_path / "run")
    result = CliRunner().invoke(app, ["train", str(path), "--output", output, "--accelerator", "cpu"])
    assert result.exit_code == 0
    assert "F1" in result.output
    assert "rare recall" in result.output
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert shown.exit_code == 0
    wrong = CliRunner().invoke(app, ["train", str(path), "--method", "focal", "--output", str(tmp_path / "other")])
    assert wrong.exit_code == 2
    assert "needs one" in wrong.stderr
