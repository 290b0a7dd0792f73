"""Training with learned class rates: runs, resuming, processes, and the report."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from longtail import ClassPrior, margins
from longtail.lab.report import write_report
from longtail.lab.training import loop as training
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
from longtail.losses import margin_cross_entropy
from longtail.methods import Phase, decoupled
from longtail.sampling import (
    ClassBalancedSampler,
    InstanceSampler,
    MetaSampler,
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


def test_a_run_learns_rates_and_resumes_in_the_middle_of_it(tmp_path, monkeypatch):
    whole = quick(RECIPE, tmp_path / "whole")
    rates = [row.get("sample_rates") for row in whole.history]
    assert rates[:4] == [None] * 4
    assert all(len(each) == 10 for each in rates[4:])
    assert np.std(rates[-1]) > np.std(rates[4]) > 0
    assert whole.history[-1]["skipped_updates"] == 0

    write = training.write_checkpoint

    def write_and_stop(path, state):
        write(path, state)
        if state.epoch == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(training, "write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            quick(RECIPE, tmp_path / "parts")
    resumed = quick(RECIPE, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row.get("sample_rates") for row in resumed.history] == rates


@pytest.mark.parametrize(
    "setting", ["train.optimizer=adamw", "train.accumulate=2", "train.clip_norm=1.0", "train.mixup=0.2"]
)
def test_steps_that_are_not_linear_are_refused_before_anything_is_written(setting, tmp_path):
    recipe = with_settings(RECIPE, [setting])
    with pytest.raises(ValueError, match=rf"learns from plain steps of SGD: {setting.partition('=')[0]} must be"):
        quick(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
