"""Training: what a run leaves behind, resuming, and everything that can go wrong on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from longtail import METHODS
from longtail.errors import DamagedFileError
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.digest import DataChanged
from longtail.lab.report import read_runs
from longtail.lab.runs.folder import find_runs, load_run, read_checkpoint
from longtail.lab.training.comparison import Failure, plan_jobs, run_jobs
from longtail.lab.training.embedding import embed_run
from longtail.lab.training.loop import plan_epochs, train
from longtail.lab.training.models import SmallResNet
from longtail.lab.training.recipe import (
    DataRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    find_recipe,
    load_recipe,
    to_toml,
    with_settings,
)

RECIPE = Recipe(
    "tiny",
    DataRecipe("digits", "exponential", 10.0, options={"test_per_class": 10}),
    ModelRecipe("mlp", {"hidden": [16]}),
    TrainRecipe(epochs=4, batch_size=64, learning_rate=0.1, evaluate_every=2),
)


def quick(recipe, folder, **options):
    return train(recipe, folder, accelerator="cpu", show_progress=False, **options)


@pytest.mark.parametrize("method", ["balanced_meta_softmax", "meta_reweighted"])
def test_an_empty_meta_set_is_refused_before_anything_is_loaded(tmp_path, monkeypatch, method):
    monkeypatch.setattr("longtail.lab.training.loop.load_data", lambda recipe: pytest.fail("data were loaded"))
    with pytest.raises(ValueError, match=r"^meta_size must be a whole number of at least 1\. Got 0\.$"):
        quick(RECIPE.with_method(method, {"meta_size": 0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_leaves_everything_behind(tmp_path):
    run = quick(RECIPE, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        ".lock",
        "recipe.toml",
        "environment.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "predictions.safetensors",
        "summary.json",
    }
    assert [row["epoch"] for row in run.history] == [0, 1, 2, 3]
    assert "balanced_accuracy" in run.history[1]
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]
    hits = run.predictions.scores.argmax(1) == run.predictions.labels
    assert run.metrics["accuracy"] == pytest.approx(hits.mean())
    assert run.predictions.weight_norms.shape == (10,)
    assert find_runs(tmp_path) == [tmp_path / "run"]


def test_the_same_recipe_gives_the_same_numbers_and_another_seed_others(tmp_path):
    first = quick(RECIPE, tmp_path / "a")
    again = quick(RECIPE, tmp_path / "b")
    other = quick(RECIPE.with_seed(1), tmp_path / "c")
    assert np.array_equal(first.predictions.logits, again.predictions.logits)
    assert not np.array_equal(first.predictions.logits, other.predictions.logits)


def test_a_complete_run_is_not_trained_again(tmp_path):
    quick(RECIPE, tmp_path)
    written = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
    quick(RECIPE, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, tmp_path):
    recipe = with_settings(RECIPE.with_method(method), ["train.epochs=2", "train.learning_rate=0.01"])
    recipe = Recipe(recipe.name, recipe.data, ModelRecipe("mlp", {"hidden": [16]}), recipe.train, recipe.method)
    run = quick(recipe, tmp_path)
    assert np.isfinite(run.predictions.scores).all()
    assert run.method == method


def test_posthoc_methods_predict_with_other_scores_than_the_logits(tmp_path):
    plain = quick(RECIPE, tmp_path / "plain")
    adjusted = quick(RECIPE.with_method("posthoc_adjusted"), tmp_path / "adjusted")
    assert np.array_equal(plain.predictions.logits, adjusted.predictions.logits)
    log_prior = adjusted.predictions.prior.log_probs.numpy()
    moved = adjusted.predictions.logits - adjusted.predictions.scores
    np.testing.assert_allclose(
        moved - moved[:, :1], np.broadcast_to(log_prior - log_prior[0], moved.shape), atol=1e-4
    )


FEATURES = [
    ["train.ema_decay=0.9"],
    ["train.accumulate=2", "train.clip_norm=1.0"],
    ["train.mixing=mixup", "train.mixing_alpha=0.4"],
    ["train.optimizer=adamw", "train.learning_rate=0.003", "train.warmup_epochs=1"],
    ["train.precision=bf16-mixed"],
    ["method.name=classifier_retraining", "train.ema_decay=0.5"],
    ["method.name=elm", "method.options.memory_size=4", "train.precision=bf16-mixed"],
    ["method.name=dro_lt"],
]


@pytest.mark.parametrize("settings", FEATURES, ids=lambda settings: settings[0])
def test_features_of_the_loop_and_their_resumption(settings, tmp_path, monkeypatch):
    recipe = with_settings(RECIPE, settings)
    whole = quick(recipe, tmp_path / "whole")
    interrupted_after(2, recipe, tmp_path / "parts", monkeypatch)
    resumed = quick(recipe, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row["train_loss"] for row in whole.history] == [row["train_loss"] for row in resumed.history]


def test_a_regularizer_of_strength_0_changes_nothing_and_a_strong_one_pulls_classes_together(tmp_path):
    def spread(strength):
        options = {"strength": strength, "memory_size": 4}
        run = quick(RECIPE.with_method("elm", options), tmp_path / str(strength))
        logits = torch.from_numpy(run.predictions.logits)
        rows = [logits[run.predictions.labels == c] for c in range(10)]
        return run, sum(float((part - part.mean(dim=0)).norm(dim=1).mean()) for part in rows)

    plain = quick(RECIPE.with_method("logit_adjusted"), tmp_path / "plain")
    without, loose = spread(0.0)
    _, tight = spread(1.0)
    assert np.array_equal(plain.predictions.logits, without.predictions.logits)
    assert tight < 0.8 * loose


def test_mixed_samples_are_not_pulled_to_a_class(tmp_path):
    with pytest.raises(ValueError, match=r"elm needs one label per sample: train.mixing must be 'none'. Got 'mixup'"):
        quick(with_settings(RECIPE.with_method("elm"), ["train.mixing=mixup"]), tmp_path)
    assert not list(tmp_path.iterdir())


def interrupted_after(epochs, recipe, folder, monkeypatch):
    """Stop a run from inside, right after it wrote the checkpoint of an epoch."""
    from longtail.lab.training import loop as module

    write = module.save_state

    def write_and_stop(folder, state, *about):
        write(folder, state, *about)
        if state.epoch == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(module, "save_state", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            quick(recipe, folder)


PROGRAM = """
import sys, tomllib
from pathlib import Path
from longtail.lab.training import loop as module
from longtail.lab.training.recipe import parse_recipe
module.CHECKPOINT_SECONDS = 0.0
recipe = parse_recipe(tomllib.loads(Path(sys.argv[1]).read_text()))
module.train(recipe, Path(sys.argv[2]), accelerator="cpu", devices=int(sys.argv[3]), show_progress=False)
"""


def start_program(tmp_path, recipe, folder, devices=1):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    arguments = [tmp_path / "program.py", tmp_path / "recipe.toml", folder, devices]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_kill_9_then_resume_gives_the_uninterrupted_result(tmp_path):
    recipe = with_settings(RECIPE, ["train.epochs=150"])
    killed = start_program(tmp_path, recipe, tmp_path / "killed")
    history = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not history.is_file() or len(history.read_text().splitlines()) < 5:
        assert killed.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert start_program(tmp_path, recipe, tmp_path / "killed").wait() == 0
    assert start_program(tmp_path, recipe, tmp_path / "whole").wait() == 0
    resumed, whole = load_run(tmp_path / "killed"), load_run(tmp_path / "whole")
    assert resumed.metrics == whole.metrics
    assert np.array_equal(resumed.predictions.logits, whole.predictions.logits)


@pytest.mark.slow
def test_two_processes_measure_like_one(tmp_path):
    settings = ["train.epochs=3", "method.name=elm", "method.options.memory_size=2"]
    recipe = with_settings(RECIPE, settings)
    assert start_program(tmp_path, recipe, tmp_path / "two", devices=2).wait() == 0
    run = load_run(tmp_path / "two")
    assert run.predictions.logits.shape == (100, 10)
    hits = run.predictions.scores.argmax(1) == run.predictions.labels
    assert run.metrics["accuracy"] == pytest.approx(hits.mean())
    assert run.metrics["accuracy"] > 0.3


def test_another_recipe_in_the_folder_is_named_and_restart_gives_it_up(tmp_path):
    quick(RECIPE, tmp_path)
    changed = with_settings(RECIPE, ["train.epochs=2"])
    with pytest.raises(ValueError, match=r"another recipe .train.epochs: 4 -> 2"):
        quick(changed, tmp_path)
    assert len(quick(changed, tmp_path, restart=True).history) == 2


def test_a_checkpoint_of_another_model_is_named(tmp_path, monkeypatch):
    interrupted_after(1, RECIPE, tmp_path / "a", monkeypatch)
    wider = with_settings(RECIPE, ["model.options.hidden=[32]"])
    interrupted_after(1, wider, tmp_path / "b", monkeypatch)
    (tmp_path / "b" / "checkpoint.safetensors").replace(tmp_path / "a" / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="checkpoint of another model"):
        quick(RECIPE, tmp_path / "a")


@pytest.mark.slow
def test_no_flipped_bit_of_a_run_is_taken(tmp_path, monkeypatch):
    interrupted_after(3, RECIPE, tmp_path / "run", monkeypatch)
    draw = random.Random(0)
    for name in ("checkpoint.safetensors", "metrics.jsonl"):
        path = tmp_path / "run" / name
        content = path.read_bytes()
        for _ in range(30):
            damaged = bytearray(content)
            damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(DamagedFileError, match=rf"{name}.*--restart"):
                quick(RECIPE, tmp_path / "run")
        path.write_bytes(content)
    quick(RECIPE, tmp_path / "run")


def test_no_flipped_bit_of_a_complete_run_is_shown(tmp_path):
    quick(RECIPE, tmp_path)
    draw = random.Random(0)
    for name in ("predictions.safetensors", "metrics.jsonl", "recipe.toml", "summary.json"):
        path = tmp_path / name
        content = path.read_bytes()
        for _ in range(30):
            damaged = bytearray(content)
            place = draw.randrange(len(content))
            damaged[place] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            if name == "summary.json" and json_equal(damaged, content):
                continue  # spaces between values
            with pytest.raises(ValueError, match=rf"{tmp_path}: this run can't be read: .*--restart"):
                load_run(tmp_path)
        path.write_bytes(content)
    load_run(tmp_path)


def json_equal(damaged, content):
    try:
        return json.loads(damaged) == json.loads(content)
    except ValueError:
        return False


def arrays_recipe(path):
    data = DataRecipe("arrays", options={"path": str(path)})
    return Recipe("own", data, ModelRecipe("linear"), RECIPE.train)


def write_arrays(path, seed):
    draw = np.random.default_rng(seed)
    labels = np.arange(40) % 4
    features = draw.standard_normal((40, 5))
    np.savez(path, train_images=features, train_labels=labels, test_images=features, test_labels=labels)


def test_other_data_are_refused_where_a_run_resumes_and_where_it_is_complete(tmp_path, monkeypatch, one_line):
    recipe, folder = arrays_recipe(tmp_path / "data.npz"), tmp_path / "run"
    write_arrays(tmp_path / "data.npz", seed=0)
    interrupted_after(2, recipe, folder, monkeypatch)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_arrays(tmp_path / "data.npz", seed=1)
    with pytest.raises(DataChanged) as caught:
        quick(recipe, folder)
    assert one_line(caught).startswith(f"{folder}: the data have changed since this run was made")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    write_arrays(tmp_path / "data.npz", seed=0)
    done = quick(recipe, folder)
    write_arrays(tmp_path / "data.npz", seed=1)
    with pytest.raises(DataChanged):
        quick(recipe, folder)
    with pytest.raises(DataChanged):
        embed_run(folder, "cpu")
    assert quick(recipe, folder, restart=True).metrics != done.metrics
    (tmp_path / "data.npz").unlink()
    assert quick(recipe, folder).metrics  # shown, for nothing else could be meant


def test_one_report_has_one_kind_of_data(tmp_path):
    recipe = arrays_recipe(tmp_path / "data.npz")
    for seed in (0, 1):
        write_arrays(tmp_path / "data.npz", seed)
        quick(recipe, tmp_path / "runs" / str(seed))
    with pytest.raises(DataChanged, match=r"runs/0 and .*runs/1 were made on different data"):
        list(read_runs([tmp_path / "runs"]))
    assert len(list(read_runs([tmp_path / "runs" / "0"]))) == 1


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    interrupted_after(1, RECIPE, tmp_path, monkeypatch)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    from longtail.lab.training import loop as module

    write = module.save_state

    def spoil(folder, state, *about):
        with torch.no_grad():
            state.model.head.bias[0] = float("nan")
        write(folder, state, *about)

    monkeypatch.setattr(module, "save_state", spoil)
    with pytest.raises(ValueError, match=r"'model\.head\.bias' must be finite"):
        quick(RECIPE, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    interrupted_after(1, RECIPE, tmp_path, monkeypatch)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"can't be read.*--restart"):
        quick(RECIPE, tmp_path)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    interrupted_after(1, RECIPE, tmp_path, monkeypatch)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr(
        "longtail.losses.softmax._margin_losses", lambda logits, *_, **__: logits.sum() * float("nan")
    )
    with pytest.raises(FloatingPointError, match=r"nan at step 0 of epoch 1, learning rate"):
        quick(RECIPE, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    interrupted_after(1, RECIPE, tmp_path, monkeypatch)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    import safetensors.torch

    def write_a_part(tensors, path, metadata):
        path.write_bytes(before[:100])
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", write_a_part)
    with pytest.raises(OSError, match="No space left"):
        quick(RECIPE, tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*.partial"))
    quick(RECIPE, tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        quick(RECIPE, tmp_path / "file" / "run")


def test_every_phase_has_an_epoch_and_new_heads_begin_stages():
    from longtail import ClassPrior

    prior = ClassPrior.from_counts([9, 1])
    plan = plan_epochs(METHODS["adaptive_deferred"].plan(prior).phases, 2)
    assert [p.phase_number for p in plan] == [0, 1]
    plan = plan_epochs(METHODS["classifier_retraining"].plan(prior, share=0.1).phases, 20)
    assert [(p.stage, p.epoch_in_stage, p.stage_epochs) for p in plan[18:]] == [
        (0, 18, 20),
        (0, 19, 20),
        (1, 0, 2),
        (1, 1, 2),
    ]


def test_a_frozen_encoder_stays_as_it_was(tmp_path):
    recipe = RECIPE.with_method("classifier_retraining")
    quick(RECIPE, tmp_path / "plain")
    quick(recipe, tmp_path / "crt")
    plain, retrained = (
        read_checkpoint(tmp_path / name / "checkpoint.safetensors")[0]["model"] for name in ("plain", "crt")
    )
    for name, value in plain.items():
        same = torch.equal(value, retrained[name])
        assert same == name.startswith("encoder")


def test_a_comparison_does_not_take_over_another_recipes_model(tmp_path):
    recipe = with_settings(RECIPE, ["train.epochs=1"])
    list(run_jobs(plan_jobs(recipe, ["cross_entropy"], [0], tmp_path), workers=1))
    other = with_settings(recipe, ["train.learning_rate=0.001"])
    outcomes = list(run_jobs(plan_jobs(other, ["posthoc_adjusted"], [0], tmp_path), workers=1))
    assert [type(outcome) for outcome in outcomes] == [Failure, Failure]
    assert not (tmp_path / "posthoc_adjusted").exists()


@pytest.mark.slow
def test_a_comparison_shares_training_survives_failures_and_resumes(tmp_path):
    recipe = with_settings(RECIPE, ["train.epochs=2"])
    jobs = plan_jobs(recipe, ["posthoc_adjusted", "logit-adjusted"], [0, 1], tmp_path)
    assert [job.name for job in jobs] == [
        "cross_entropy, seed 0",
        "posthoc_adjusted, seed 0",
        "cross_entropy, seed 1",
        "posthoc_adjusted, seed 1",
        "logit_adjusted, seed 0",
        "logit_adjusted, seed 1",
    ]
    blocked = tmp_path / "logit_adjusted" / "seed-1"
    blocked.parent.mkdir()
    blocked.write_text("a file where the folder should be")
    outcomes = list(run_jobs(jobs, workers=2))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [failure.job.name for failure in failures] == ["logit_adjusted, seed 1"]
    blocked.unlink()
    again = list(run_jobs(jobs, workers=2))
    assert len(find_runs(tmp_path)) == len(again) == 6
    base, adjusted = (load_run(tmp_path / name / "seed-0") for name in ("cross_entropy", "posthoc_adjusted"))
    assert np.array_equal(base.predictions.logits, adjusted.predictions.logits)


def test_metrics_are_plain_json(tmp_path):
    quick(RECIPE, tmp_path)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_images_are_augmented_and_normalized(tmp_path, monkeypatch):
    images = (torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    split = Split(images, torch.arange(60) % 3)
    data = Dataset("images", split, split, ("a", "b", "c"))
    monkeypatch.setattr("longtail.lab.training.loop.load_data", lambda recipe: data)
    settings = ["train.pad_crop=1", "train.flip=true", "train.cutout=2", "train.channels_last=true"]
    recipe = with_settings(
        Recipe("images", DataRecipe("digits"), ModelRecipe("resnet20"), TrainRecipe(epochs=2, batch_size=20)),
        settings,
    )
    run = quick(recipe, tmp_path)
    assert run.predictions.logits.shape == (60, 3)


def test_images_grow_as_training_goes_on(tmp_path, monkeypatch):
    images = (torch.rand(60, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    split = Split(images, torch.arange(60) % 3)
    data = Dataset("images", split, split, ("a", "b", "c"))
    monkeypatch.setattr("longtail.lab.training.loop.load_data", lambda recipe: data)
    sides = []
    forward = SmallResNet.forward

    def watch(self, inputs):
        if self.training:
            sides.append(inputs.shape[-1])
        return forward(self, inputs)

    monkeypatch.setattr(SmallResNet, "forward", watch)
    train_settings = TrainRecipe(epochs=4, batch_size=60, start_size=8, growth=0.5)
    quick(Recipe("images", DataRecipe("digits"), ModelRecipe("resnet20"), train_settings), tmp_path)
    assert sides == [8, 8, 16, 16]


BUILT_IN = ("digits", "digits_balms", "digits_elm", "gaussians", "moons", "two_digits")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_recipe_on_built_in_data_trains(name, tmp_path):
    recipe = load_recipe(find_recipe(name), ["train.epochs=2"])
    metrics = quick(recipe, tmp_path).metrics
    assert metrics.get("balanced_accuracy", metrics.get("mean_average_precision")) > 0.1


def test_recipes_on_built_in_data_are_all_trained_above():
    sources = {path.stem: load_recipe(path).data.source for path in find_recipe("digits").parent.glob("*.toml")}
    built_in = ("digits", "gaussians", "moons", "two_digits")
    assert {name for name, source in sources.items() if source in built_in} == set(BUILT_IN)


def test_a_second_stage_has_settings_of_its_own(tmp_path):
    recipe = with_settings(
        load_recipe(find_recipe("digits")),
        ["train.epochs=2", "train.batch_size=64", "train.schedule=constant", "model.options.hidden=[8]"],
    ).with_method("retrained_balanced_softmax", {"share": 0.5})
    changed = with_settings(recipe, ["train.head_learning_rate=0.003", "train.head_batch_size=16"])
    run = train(changed, tmp_path / "run", show_progress=False)
    assert [row["learning_rate"] for row in run.history] == [recipe.train.learning_rate] * 2 + [0.003]
    plain = train(recipe, tmp_path / "plain", show_progress=False)
    assert [row["train_loss"] for row in plain.history[:2]] == [row["train_loss"] for row in run.history[:2]]
    assert plain.history[2]["learning_rate"] == recipe.train.learning_rate
    assert recipe.train.for_stage(1) == recipe.train
    assert changed.train.for_stage(1).batch_size == 16
    assert changed.train.for_stage(0).batch_size == 64
