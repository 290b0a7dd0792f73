"""Ingredients of strong recipes: each changes training, resumes to the same numbers, and runs in processes."""

import os
import subprocess
import sys

import numpy as np
import pytest

from longtail.lab.runs.folder import load_run
from longtail.lab.training import loop
from longtail.lab.training.recipe import parse_recipe, to_toml, with_settings

INGREDIENTS = [
    ["train.augmentation=autoaugment", "train.cutout=2"],
    ["train.augmentation=randaugment"],
    ["train.augmentation=trivialaugment"],
    ["train.mixing=mixup", "method.name=experts"],
    ["method.name=experts", "method.options.scale=20.0", "method.options.taus=[0.0, 2.0]"],
    ["method.name=skill_diverse_experts", "train.ema_decay=0.9", "train.precision=bf16-mixed"],
    ["train.mixing=cutmix"],
    ["train.sharpness=0.1"],
    ["train.max_norm=0.2"],
    ["method.name=seesaw"],
    ["method.name=lade"],
    ["method.name=probabilistic_contrastive"],
    ["model.options.head=cosine", "train.class_means=true", "method.name=logit_adjusted"],
    ["method.name=equalization_v2"],
    ["method.name=vector_scaling", "train.accumulate=2"],
    ["train.head_weight_decay=0.5"],
    ["train.decay_biases=false", "train.weight_decay=0.5"],
    ["method.name=view_consistency", "train.augmentation=randaugment"],
    ["method.name=balanced_contrastive", "method.options.views=2", "train.sharpness=0.1"],
    ["train.mixing=remix", "method.name=logit_adjusted"],
    ["train.mixing=balanced_mixup", "train.mixing_alpha=0.3", "method.name=logit_adjusted"],
    ["train.mixing=cmo", "train.augmentation=randaugment", "method.name=logit_adjusted"],
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """60 images of three classes, with 36, 16 and 8 of them; classes differ in brightness."""
    folder = tmp_path_factory.mktemp("images")
    labels = np.repeat([0, 1, 2], [36, 16, 8])
    noise = np.random.default_rng(0).uniform(0, 100, (60, 8, 8, 3))
    images = (noise + 70 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(folder / "i.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return parse_recipe(
        {
            "name": "images",
            "data": {"source": "arrays", "options": {"path": str(folder / "i.npz")}},
            "model": {"name": "mlp", "options": {"hidden": [16]}},
            "train": {"epochs": 3, "batch_size": 16, "learning_rate": 0.02},
        }
    )


@pytest.fixture(scope="module")
def plain_logits(recipe, tmp_path_factory):
    return quick(recipe, tmp_path_factory.mktemp("plain") / "run").predictions.logits


def quick(recipe, folder):
    return loop.train(recipe, folder, accelerator="cpu", show_progress=False)


@pytest.mark.parametrize("settings", INGREDIENTS, ids=lambda settings: settings[0])
def test_an_ingredient_changes_training_and_resumes(settings, recipe, plain_logits, tmp_path, monkeypatch):
    recipe = with_settings(recipe, settings)
    whole = quick(recipe, tmp_path / "whole")
    assert not np.array_equal(whole.predictions.logits, plain_logits)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    begin_stage = loop.begin_stage

    def stop_in_the_second_epoch(fabric, recipe, labels, planned, state):
        if state.epoch == 1:
            raise KeyboardInterrupt
        begin_stage(fabric, recipe, labels, planned, state)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "begin_stage", stop_in_the_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            quick(recipe, tmp_path / "parts")
    resumed = quick(recipe, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row["train_loss"] for row in whole.history] == [row["train_loss"] for row in resumed.history]


def test_experts_are_measured_one_by_one_and_shown(recipe, tmp_path):
    from longtail.lab.report import write_report

    settings = ["train.evaluate_every=3", "method.name=experts", "model.name=resnet20", "train.epochs=3"]
    branched = ["model.options={branches=3, width=2}", "method.options.has_own_part=true"]
    run = quick(with_settings(recipe, settings + branched), tmp_path / "run")
    measured = run.history[-1]["experts"]
    assert len(measured) == 3
    assert all({"balanced_accuracy", "calibration_error"} <= expert.keys() for expert in measured)
    assert len({expert["calibration_error"] for expert in measured}) == 3
    assert "experts" not in run.history[0]
    write_report([load_run(tmp_path / "run")], tmp_path / "page.html")
    assert "Each expert alone after the last epoch" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_two_processes_train_the_same_model_again(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(with_settings(recipe, INGREDIENTS[0] + INGREDIENTS[-1][:1])))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    (tmp_path / "program.py").write_text("from longtail.lab.cli import main\nmain()")
    command = [sys.executable, "program.py", "train", "recipe.toml", "--accelerator", "cpu", "--devices", "2"]
    for name in ("first", "again"):
        subprocess.run(
            [*command, "--output", name], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=600
        )
    first, again = load_run(tmp_path / "first"), load_run(tmp_path / "again")
    assert first.summary["processes"] == 2
    assert np.array_equal(first.predictions.logits, again.predictions.logits)


def test_a_policy_needs_bytes(tmp_path):
    labels = np.repeat([0, 1], 8)
    images = np.zeros((16, 3, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "f.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    recipe = parse_recipe(
        {
            "name": "floats",
            "data": {"source": "arrays", "options": {"path": str(tmp_path / "f.npz")}},
            "model": {"name": "mlp"},
            "train": {"augmentation": "randaugment"},
        }
    )
    with pytest.raises(ValueError, match=r"train.augmentation is for images of bytes, uint8. Got torch.float32"):
        quick(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
