"""``longtail train``, and what it has in common with the other commands that take recipes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch


def test_train_leaves_a_run_and_resumes_with_the_same_recipe_only(run, trained):
    again = ("train", "digits", "--method", "logit_adjusted", "--output", trained)
    assert run(*again, "--set", "train.epochs=2").exit_code == 0
    other = run(*again, "--set", "train.epochs=3")
    assert other.exit_code == 2
    assert "train.epochs: 2 -> 3" in other.stderr


def test_a_rejected_recipe_does_not_block_its_folder(run, tmp_path):
    wrong = run("train", "digits", "--output", tmp_path / "run", "--set", "model.options.hiden=[4]")
    assert wrong.exit_code == 2
    assert not (tmp_path / "run").exists()
    assert run("train", "digits", "--output", tmp_path / "run", "--set", "train.epochs=1").exit_code == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    again = ("train", "digits", "--output", tmp_path / "run", "--restart", "--set", "model.options.hiden=[4]")
    assert run(*again).exit_code == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(("seed", "code"), [("20240101", 0), ("-1", 2)])
def test_a_seed_may_be_a_date_and_not_negative(run, tmp_path, seed, code):
    done = run("train", "digits", "--output", tmp_path / "run", "--set", "train.epochs=1", f"--set=train.seed={seed}")
    assert done.exit_code == code, done.stderr


@pytest.mark.parametrize("size", [0, 0.5])
@pytest.mark.parametrize("name", ["predictions.safetensors", "checkpoint.safetensors"])
def test_a_damaged_run_is_one_line(run, trained, tmp_path, name, size):
    folder = shutil.copytree(trained, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(size * len(content))])
    if name == "checkpoint.safetensors":
        (folder / "summary.json").unlink()
    arguments = ("train", "digits", "--set", "train.epochs=2", "--method", "logit-adjusted", "--output", folder)
    done = run(*arguments)
    assert done.exit_code == 2
    assert "can't be read" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digit"), "did you mean 'digits'"),
        (("train", "digits", "--set", "train.epocs=1"), "did you mean 'epochs'"),
        (("train", "digits", "--method", "logit_ajusted"), "did you mean 'logit_adjusted'"),
        (("train", "digits", "--devices", "many"), "devices"),
        pytest.param(
            ("train", "digits", "--accelerator", "cuda"),
            "accelerator 'cuda' with devices 1 can't be had here; there is cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (("compare", "digits", "--methods", "cross_entropy,adaptve"), "did you mean 'adaptive'"),
        (("report", "nowhere"), "no complete run"),
        (("download", "cifar11"), "cifar10"),
    ],
)
def test_training_commands_name_what_is_wrong(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_a_model_that_cannot_take_the_data_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.array([0, 1, 0, 1])
    np.savez("d.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    recipe = ['name = "r"', "[data]", 'source = "arrays"', "[data.options]", 'path = "d.npz"']
    Path("r.toml").write_text("\n".join([*recipe, "[model]", 'name = "bag_of_features"']))
    done = run("train", "r.toml")
    assert done.exit_code == 2
    assert "model 'bag_of_features' can't take the inputs of d" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
