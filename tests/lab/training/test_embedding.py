"""Embeddings of a trained model: that they are its own, that recipes read them back, and what can go wrong."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.formats.arrays import load_arrays, save_arrays
from longtail.lab.data.registry import load_data
from longtail.lab.runs.folder import load_run, read_checkpoint, write_checkpoint, write_summary
from longtail.lab.training.embedding import embed_run, limited
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import (
    DataRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    load_recipe,
    to_toml,
    with_settings,
)

RECIPE = Recipe(
    "tiny",
    DataRecipe("digits", "exponential", 10.0, options={"test_per_class": 10}),
    ModelRecipe("mlp", {"hidden": [16, 8]}),
    TrainRecipe(epochs=2, batch_size=64, learning_rate=0.1),
)


def quick(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


def embed(*arguments):
    return CliRunner().invoke(app, ["embed", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain"
    quick(RECIPE, folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [[], ["train.ema_decay=0.9"], ["method.name=classifier_retraining"], ["train.precision=bf16-mixed"]],
    ids=["plain", "average", "new head", "bfloat16"],
)
def test_the_run_s_head_makes_its_logits_of_the_embeddings(settings, tmp_path):
    run = quick(with_settings(RECIPE, settings), tmp_path)
    saved, _ = read_checkpoint(tmp_path / "checkpoint.safetensors")
    weights = saved["model"] if saved["average"] is None else saved["average"]
    prefix = "head." if saved["average"] is None else "module.head."
    embeddings = embed_run(tmp_path, "cpu").test.inputs
    assert embeddings.dtype == torch.float32
    logits = embeddings @ weights[f"{prefix}weight"].T + weights[f"{prefix}bias"]
    tolerance = 0.3 if "train.precision=bf16-mixed" in settings else 1e-4
    np.testing.assert_allclose(logits.numpy(), run.predictions.logits, atol=tolerance)


def test_without_an_encoder_the_embeddings_are_the_inputs(tmp_path):
    recipe = Recipe("tiny", RECIPE.data, ModelRecipe("linear"), RECIPE.train)
    quick(recipe, tmp_path)
    found, data = embed_run(tmp_path, "cpu"), load_data(recipe.data)
    for part, original in ((found.train, data.train), (found.test, data.test)):
        assert torch.equal(part.inputs, original.inputs.flatten(1).float())
        assert torch.equal(part.labels, original.labels)


def test_the_file_is_what_recipes_read(run_folder, tmp_path):
    output = tmp_path / "features.npz"
    done = embed(run_folder, "--output", output)
    assert done.exit_code == 0, done.stderr
    found, read = embed_run(run_folder, "cpu"), load_arrays(output)
    assert f"{len(found.train):,} training and {len(found.test):,} test embeddings of length 8" in done.stdout
    assert torch.equal(found.train.inputs, read.train.inputs)
    assert torch.equal(found.test.labels, read.test.labels)
    assert read.class_names == found.class_names
    features = Recipe(
        "features", DataRecipe("arrays", options={"path": str(output)}), ModelRecipe("linear"), RECIPE.train
    )
    assert quick(features, tmp_path / "head").metrics["accuracy"] > 0.2


def test_a_run_keeps_embeddings_if_asked_to(run_folder, tmp_path):
    assert train_with(tmp_path / "none").load_embeddings() is None
    kept = train_with(tmp_path / "all", "train.save_embeddings=1000").load_embeddings()
    everything = embed_run(run_folder, "cpu")
    assert torch.equal(kept.train.inputs, everything.train.inputs)
    assert torch.equal(kept.test.labels, everything.test.labels)
    few = train_with(tmp_path / "few", "train.save_embeddings=60").load_embeddings()
    assert (len(few.train), len(few.test)) == (60, 60)
    rows = {tuple(row) for row in everything.train.inputs.tolist()}
    assert all(tuple(row) in rows for row in few.train.inputs.tolist())


def train_with(folder, *settings):
    return quick(with_settings(RECIPE, settings), folder)


def test_rare_classes_are_kept_whole():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 20)
    split = Split(torch.arange(73.0)[:, None], labels)
    data = Dataset("skewed", split, split, ("a", "b", "c"))
    kept = limited(data, 23).train
    assert torch.bincount(kept.labels).tolist() == [10, 3, 10]
    assert torch.equal(kept.labels, labels[kept.inputs[:, 0].long()])
    assert torch.equal(kept.inputs, limited(data, 23).train.inputs)
    assert torch.bincount(limited(data, 2).train.labels, minlength=3).max() == 1
    assert torch.equal(limited(data, 100).train.inputs, split.inputs)


@pytest.mark.parametrize(
    ("setting", "message"),
    [("train.save_embeddings=-1", "at least 0"), ("train.save_embeddings=true", "must be a whole number")],
)
def test_the_number_of_embeddings_is_checked(setting, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train_with(tmp_path / "run", setting)
    assert not (tmp_path / "run").exists()


def test_embeddings_are_of_data_with_one_label_a_sample(run_folder, tmp_path):
    pairs = Recipe("pairs", DataRecipe("two_digits"), RECIPE.model, TrainRecipe(epochs=1, save_embeddings=10))
    pairs = pairs.with_method("binary_cross_entropy", {})
    with pytest.raises(ValueError, match="save_embeddings is for data with one label per sample"):
        quick(pairs, tmp_path / "pairs")
    assert not (tmp_path / "pairs").exists()
    folder = copied(run_folder, tmp_path)
    sealed(folder, to_toml(pairs))
    with pytest.raises(ValueError, match="one label per sample"):
        embed_run(folder, "cpu")


def test_embed_overwrites_only_if_told_to(run_folder, tmp_path):
    output = tmp_path / "features.npz"
    output.write_bytes(b"mine")
    refused = embed(run_folder, "--output", output)
    assert refused.exit_code == 2
    assert output.read_bytes() == b"mine"
    assert embed(run_folder, "--output", output, "--force").exit_code == 0
    assert len(load_arrays(output).test) == 100


def copied(run_folder, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in run_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def without_summary(folder):
    (folder / "summary.json").unlink()


def without_checkpoint(folder):
    (folder / "checkpoint.safetensors").unlink()


def with_damaged_checkpoint(folder):
    (folder / "checkpoint.safetensors").write_bytes(b"not a checkpoint")


def with_empty_checkpoint(folder):
    write_checkpoint(folder / "checkpoint.safetensors", {"average": None}, {})


def sealed(folder, recipe):
    """The run with another recipe, as if it had been made with it."""
    summary = load_run(folder).summary
    (folder / "recipe.toml").write_text(recipe)
    write_summary(folder, summary)


def of_another_model(folder):
    recipe = folder / "recipe.toml"
    sealed(folder, to_toml(with_settings(load_recipe(recipe), ["model.options.hidden=[12, 8]"])))


def of_other_data(folder):
    recipe = folder / "recipe.toml"
    sealed(folder, recipe.read_text().replace("ratio = 10.0", "ratio = 20.0"))


def with_another_recipe(folder):
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("ratio = 10.0", "ratio = 20.0"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_summary, "no complete run"),
        (without_checkpoint, "can't be read"),
        (with_damaged_checkpoint, "can't be read"),
        (with_empty_checkpoint, "another model"),
        (of_another_model, "another model"),
        (of_other_data, "the data have changed"),
        (with_another_recipe, "recipe.toml does not fit its checksum"),
    ],
)
def test_what_is_wrong_with_a_run_is_one_line_and_writes_nothing(run_folder, tmp_path, spoil, message):
    folder = copied(run_folder, tmp_path)
    spoil(folder)
    done = embed(folder, "--output", tmp_path / "features.npz")
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("name", "message"), [("features.csv", "must be an .npz"), ("nowhere/features.npz", "must exist")]
)
def test_the_output_is_checked_first(name, message, tmp_path):
    done = embed(tmp_path / "no run", "--output", tmp_path / name)
    assert done.exit_code == 2
    assert message in done.stderr


def test_several_labels_a_sample_are_not_written(tmp_path):
    split = Split(torch.zeros(2, 3), torch.tensor([[True, False], [True, True]]))
    with (tmp_path / "file.npz").open("wb") as file, pytest.raises(ValueError, match="one label per sample"):
        save_arrays(Dataset("several", split, split, ("a", "b")), file)
