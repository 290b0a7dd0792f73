"""Training with learned class rates: runs, resuming, processes, and the report."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from longtail import ClassPrior, margins
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.registry import load_data
from longtail.lab.report import write_report
from longtail.lab.training import batches
from longtail.lab.training import loop as training
from longtail.lab.training.batches import prepare_for
from longtail.lab.training.loop import train
from longtail.lab.training.models import Classifier
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    to_toml,
    with_settings,
)
from longtail.losses import margin_cross_entropy
from longtail.methods import Phase, RateLearner, WeightLearner, decoupled, get_method
from longtail.sampling import (
    ClassBalancedSampler,
    InstanceSampler,
    MetaSampler,
    hold_out_samples,
)

PRIOR = ClassPrior.from_counts([60, 20, 5, 2])
MARGINS = {
    "cross_entropy": None,
    "logit_adjusted": margins.logit_adjusted(PRIOR),
    "adaptive": margins.adaptive(PRIOR),
    "logit_adjusted_adaptive": margins.logit_adjusted_adaptive(PRIOR),
}
RECIPE = Recipe(
    "tiny",
    DataRecipe("digits", "exponential", 20.0, options={"test_per_class": 10}),
    ModelRecipe("mlp", {"hidden": [16]}),
    TrainRecipe(epochs=4, batch_size=32, learning_rate=0.1),
    MethodRecipe("balanced_meta_softmax", {"share": 1.5, "meta_size": 64}),
)


def quick(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


def stop_after(patch, epochs):
    """Interrupt training when the checkpoint of this many epochs is written."""
    write = training.save_state

    def write_and_stop(folder, state, *about):
        write(folder, state, *about)
        if state.epoch == epochs:
            raise KeyboardInterrupt

    patch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    patch.setattr(training, "save_state", write_and_stop)


def test_a_run_learns_rates_and_resumes_in_the_middle_of_it(tmp_path, monkeypatch):
    whole = quick(RECIPE, tmp_path / "whole")
    rates = [row.get("sample_rates") for row in whole.history]
    assert rates[:4] == [None] * 4
    assert all(len(each) == 10 for each in rates[4:])
    assert np.std(rates[-1]) > np.std(rates[4]) > 0
    assert whole.history[-1]["skipped_updates"] == 0

    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            quick(RECIPE, tmp_path / "parts")
    resumed = quick(RECIPE, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row.get("sample_rates") for row in resumed.history] == rates


@pytest.mark.parametrize(
    "setting", ["train.optimizer=adamw", "train.accumulate=2", "train.clip_norm=1.0", "train.mixing=mixup"]
)
def test_steps_that_are_not_linear_are_refused_before_anything_is_written(setting, tmp_path):
    recipe = with_settings(RECIPE, [setting])
    with pytest.raises(ValueError, match=rf"learns from plain steps of SGD: {setting.partition('=')[0]} must be"):
        quick(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


METHODS = {
    "balanced_meta_softmax": {"share": 0.5, "meta_size": 64},
    "meta_reweighted": {"share": 0.5, "meta_size": 64},
}
every_learner = pytest.mark.parametrize("method", METHODS)


def make_variant(method, **options):
    return RECIPE.with_method(method, METHODS[method] | options)


@pytest.fixture
def seen_samples(monkeypatch):
    """Indices of the training set that batches, and meta batches, were made of."""
    seen = {"batches": set(), "meta": set()}
    index_batches = batches.index_batches

    def keep_indices(indices, batch_size):
        for chosen in index_batches(indices, batch_size):
            seen["batches"] |= set(chosen.tolist())
            yield chosen

    def keep_meta(cls):
        draw = cls.draw_meta

        def draw_meta(self):
            chosen = draw(self)
            seen["meta"] |= set(chosen.tolist())
            return chosen

        monkeypatch.setattr(cls, "draw_meta", draw_meta)

    monkeypatch.setattr(batches, "index_batches", keep_indices)
    keep_meta(RateLearner)
    keep_meta(WeightLearner)
    return seen


@every_learner
def test_samples_held_out_are_in_no_batch_and_alone_judge(method, seen_samples, tmp_path):
    data = load_data(RECIPE.data)
    kept, held_out = hold_out_samples(data.train.labels, 0.2, data.num_classes, seed=RECIPE.train.seed)
    quick(make_variant(method, meta_share=0.2), tmp_path / "run")
    assert seen_samples["batches"] == set(kept.tolist())
    assert seen_samples["meta"] == set(held_out.tolist())
    assert set(data.train.labels[held_out].tolist()) == set(range(10))


@every_learner
def test_by_default_all_samples_train_and_judge(method, seen_samples, tmp_path):
    quick(make_variant(method), tmp_path / "run")
    everyone = set(range(len(load_data(RECIPE.data).train)))
    assert seen_samples["batches"] == everyone
    assert len(seen_samples["meta"]) > 0.8 * len(everyone)


@every_learner
def test_margins_are_those_of_the_samples_that_are_left(method):
    prior = ClassPrior.from_counts([60, 20, 5, 2])
    left = ClassPrior.from_counts([48, 16, 4, 1])
    options = METHODS[method]
    logits, target = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    loss = get_method(method).plan(prior, meta_share=0.2, **options).phases[1].loss
    assert torch.equal(loss(logits, target), get_method(method).plan(left, **options).phases[1].loss(logits, target))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
@every_learner
def test_a_share_that_can_not_be_is_refused_before_anything_is_written(method, share, tmp_path):
    with pytest.raises(ValueError, match=r"meta_share must be (at least 0 and below 1|a finite number)"):
        quick(make_variant(method, meta_share=share), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def image_data(monkeypatch):
    images = (torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    split = Split(images, torch.arange(60) % 3)
    data = Dataset("images", split, split, ("a", "b", "c"))
    monkeypatch.setattr(training, "load_data", lambda recipe: data)
    return data


@every_learner
@pytest.mark.parametrize("augment_meta", [True, False])
def test_the_meta_set_is_augmented_where_it_should_be(method, augment_meta, image_data, tmp_path, monkeypatch):
    recipe = with_settings(
        make_variant(method, augment_meta=augment_meta, meta_size=6),
        ["train.pad_crop=1", "train.flip=true", "train.cutout=2", "train.epochs=2", "train.batch_size=20"],
    )
    recipe = dataclasses.replace(recipe, model=ModelRecipe("resnet20"))
    seen, forward = [], Classifier.forward

    def keep_inputs(self, inputs, *rest):
        seen.append((len(inputs), inputs))
        return forward(self, inputs, *rest)

    monkeypatch.setattr(Classifier, "forward", keep_inputs)
    quick(recipe, tmp_path / "run")
    plain = prepare_for(image_data, False)(image_data.train.inputs)
    meta = [image for size, images in seen if size == 6 for image in images]
    assert len(meta) == 3 * 6
    is_plain = [any(torch.equal(image, other) for other in plain) for image in meta]
    assert not any(is_plain) if augment_meta else all(is_plain)


@every_learner
def test_a_run_with_an_augmented_held_out_meta_set_resumes(method, image_data, tmp_path, monkeypatch):
    recipe = with_settings(
        make_variant(method, meta_share=0.2, meta_size=6, share=1.5),
        ["train.pad_crop=1", "train.flip=true", "train.epochs=2", "train.batch_size=20"],
    )
    recipe = dataclasses.replace(recipe, model=ModelRecipe("resnet20"))
    whole = quick(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            quick(recipe, tmp_path / "parts")
    resumed = quick(recipe, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)


def test_a_learning_sampler_needs_a_head_of_its_own():
    with pytest.raises(ValueError, match="must have a new_head to learn from"):
        Phase(nn.Identity(), learner=MetaSampler)


PROGRAM = """
import sys, tomllib
from pathlib import Path
import torch
from longtail.lab.training import loop as training
from longtail.lab.training.recipe import parse_recipe
learn, seen = training._step_and_learn, []
def learn_and_keep(fabric, settings, data, prepare, state, *rest):
    loss = learn(fabric, settings, data, prepare, state, *rest)
    seen.append(torch.cat([state.learner.sampler.rates, state.model.head.weight.detach().flatten().double()]))
    return loss
training._step_and_learn = learn_and_keep
recipe, folder = parse_recipe(tomllib.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
training.train(recipe, folder / "run", accelerator="cpu", devices=2, show_progress=False)
torch.save(torch.stack(seen), folder / f"{torch.distributed.get_rank()}.pt")
"""


@pytest.mark.slow
def test_two_processes_train_one_head_and_one_set_of_rates(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE))
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [sys.executable, "program.py", "recipe.toml", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, timeout=300, capture_output=True)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first, second)
    assert (first[-1, :10] != 0.5).all()


def test_the_report_shows_learned_rates(tmp_path):
    learned, plain = quick(RECIPE, tmp_path / "a"), quick(RECIPE.with_method("cross_entropy"), tmp_path / "b")
    write_report([learned, plain], tmp_path / "with.html", title="rates")
    write_report([plain], tmp_path / "without.html", title="none")
    assert 'id="rates"' in (tmp_path / "with.html").read_text()
    assert 'id="rates"' not in (tmp_path / "without.html").read_text()
    learned.history[-1]["sample_rates"] = ["not", "a", "rate"]
    learned.history[:] = [{**row, "sample_rate_variance": None} for row in learned.history]
    write_report([learned], tmp_path / "broken.html", title="broken")
    assert 'id="rates"' not in (tmp_path / "broken.html").read_text()


def test_decoupled_training_covers_the_table_of_the_supplement():
    labels = torch.arange(4).repeat_interleave(PRIOR.counts)
    logits, target = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    losses = {0.0: MARGINS["cross_entropy"], 1.0: MARGINS["logit_adjusted"]}
    kinds = {"softmax": (0.0, 1.0), "softmax, class-balanced": (0.0, 0.0), "balanced softmax": (1.0, 1.0)}
    for feature_tau, feature_power in kinds.values():
        for tau, power in kinds.values():
            first, second = decoupled(PRIOR, feature_tau, feature_power, tau, power).phases
            assert first.new_head is None
            assert second.new_head is not None
            for phase, wanted_tau, wanted_power in ((first, feature_tau, feature_power), (second, tau, power)):
                expected = margin_cross_entropy(logits, target, losses[wanted_tau]).mean()
                torch.testing.assert_close(phase.loss(logits, target), expected)
                build = InstanceSampler if wanted_power == 1 else ClassBalancedSampler
                assert list(phase.sampler(labels, 7, 1)) == list(build(labels, seed=7))
