"""Every example runs, where what it needs is installed."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longtail import ClassPrior, MarginCrossEntropy, margins

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
NEEDS = {"with_lightning": "lightning", "with_hugging_face": "transformers"}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    package = NEEDS.get(path.stem)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{path.name} needs {package}, which is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


PRIOR = ClassPrior.from_counts([30, 20, 8, 4, 2])
MARGIN = margins.logit_adjusted(PRIOR)


@pytest.fixture(scope="module")
def trainer_loss():
    """The loss of the example for Hugging Face's Trainer; it needs no transformers."""
    path = next(path for path in EXAMPLES if path.stem == "with_hugging_face")
    return runpy.run_path(str(path))["make_loss"](MARGIN)


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat_interleave(PRIOR.counts)[torch.randperm(64, generator=generator)]
    labels[5] = -100
    return torch.randn(64, 7, generator=generator, dtype=torch.float64), labels


def accumulate(loss, inputs, labels, batch_size):
    """The gradient of a step, as Trainer takes it: it counts the labels of all batches, and divides by nothing."""
    weight = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5).requires_grad_()
    num_items = (labels != -100).sum()
    for rows in torch.arange(64).split(batch_size):
        loss(SimpleNamespace(logits=inputs[rows] @ weight), labels[rows], num_items_in_batch=num_items).backward()
    return weight.grad


@pytest.mark.parametrize("batch_size", [64, 16, 8])
def test_the_loss_for_trainer_has_one_gradient_however_it_accumulates(trainer_loss, samples, batch_size):
    inputs, labels = samples
    weight = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5).requires_grad_()
    MarginCrossEntropy(MARGIN)(inputs @ weight, labels).backward()
    found = accumulate(trainer_loss, inputs, labels, batch_size)
    torch.testing.assert_close(found, weight.grad, rtol=0, atol=1e-6)


def test_the_loss_for_trainer_is_the_mean_in_evaluation(trainer_loss, samples):
    inputs, labels = samples
    logits = inputs[:, :5]
    expected = MarginCrossEntropy(MARGIN)(logits, labels)
    torch.testing.assert_close(trainer_loss(SimpleNamespace(logits=logits), labels), expected)
