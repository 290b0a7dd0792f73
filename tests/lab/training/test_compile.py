"""Compiled training: the same numbers, its first step told apart, and what can't be compiled."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from longtail.lab.training import models
from longtail.lab.training.loop import train
from longtail.lab.training.models import Classifier
from longtail.lab.training.recipe import DataRecipe, MethodRecipe, ModelRecipe, Recipe, TrainRecipe, with_settings

RECIPE = Recipe(
    "compiled",
    DataRecipe("digits", "exponential", 10.0),
    ModelRecipe("mlp", {"hidden": [16]}),
    TrainRecipe(epochs=2, batch_size=64, compile=True, ema_decay=0.9),
    MethodRecipe("elm"),  # it regularizes embeddings
)


def quick(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler of C++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of its own code
def test_a_compiled_run_has_the_numbers_of_a_plain_one(tmp_path, monkeypatch):
    calls = []
    compile_encoder = Classifier.compile_encoder

    def count(model, batch_size):
        compile_encoder(model, batch_size)
        compiled = model._compiled
        model._compiled = lambda encoder, inputs: calls.append(len(inputs)) or compiled(encoder, inputs)

    monkeypatch.setattr(Classifier, "compile_encoder", count)
    compiled = quick(RECIPE, tmp_path / "compiled")
    plain = quick(with_settings(RECIPE, ["train.compile=false"]), tmp_path / "plain")
    assert set(calls) == {64}  # the rest of an epoch and the test are not compiled
    np.testing.assert_allclose(compiled.predictions.logits, plain.predictions.logits, atol=1e-3)
    seconds = [row["first_step_seconds"] for row in compiled.history]
    assert seconds[0] > seconds[1] > 0
    assert "first_step_seconds" not in plain.history[0]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler of C++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_layers_in_a_row_are_compiled():
    """``nn.Sequential`` has its code in PyTorch, of which nothing is compiled unless it is called from ours."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(5, 3)
    torch.testing.assert_close(torch.compile(models._encode, backend=keep)(encoder, x), encoder(x))
    assert len(graphs) == 1


def test_what_fails_to_compile_is_one_line(tmp_path, monkeypatch, one_line):
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(encoder, inputs):
        raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler\nmore"), None)

    def compile_wrongly(model, size):
        model._compiled, model._compiled_size = fail, size

    monkeypatch.setattr(Classifier, "compile_encoder", compile_wrongly)
    with pytest.raises(ValueError, match=r"the model can't be compiled here \(.*\); leave it out") as error:
        quick(RECIPE, tmp_path)
    one_line(error)
