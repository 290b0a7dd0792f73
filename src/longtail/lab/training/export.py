"""A run folder's trained model, as something that runs elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from longtail.correction import Correction, read_correction, record_correction
from longtail.lab.data.dataset import Dataset
from longtail.lab.data.digest import check_same_data, digest_data
from longtail.lab.data.registry import load_data
from longtail.lab.runs.folder import CHECKPOINT, load_run
from longtail.lab.training.batches import Preparation, prepare_for
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.embedding import load_trained_model
from longtail.lab.training.epochs import build_plan
from longtail.lab.training.models import Classifier
from longtail.lab.training.recipe import parse_recipe
from longtail.methods import Plan, get_method
from longtail.posthoc.fold import fold_adjustment

__all__ = ["ServedModel", "serve_run"]


class ServedModel(nn.Module):
    """Inputs as the data have them -> logits: images are normalized in here, as in training."""

    def __init__(self, model: nn.Module, prepare: Preparation) -> None:
        super().__init__()
        self.model = model
        for name, value in (("mean", prepare.mean), ("std", prepare.std)):
            self.register_buffer(name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, C] logits."""
        prepared = Preparation(self._buffers["mean"], self._buffers["std"], channels_last=False)(inputs)
        logits: Tensor = self.model(prepared)
        return logits


def serve_run(folder: Path, tau: float | None = None, trust_code: bool = False) -> tuple[ServedModel, Tensor]:
    """The trained model of a complete run, corrected as its method says, and two inputs to try it with.

    Args:
        folder: the run folder; the data that its recipe names must still be there.
        tau: adjust the model of a run that was trained plainly by this strength; a corrected one is refused.
        trust_code: whether a model or method that the run's recipe names as ``module:function`` may be run.
    """
    run = load_run(folder)
    recipe = parse_recipe(run.recipe)
    check_recipe(recipe, trust_code)
    data = load_data(recipe.data)
    check_same_data(digest_data(data), run.summary.get("data"), folder)
    plan = build_plan(recipe, data.prior)
    model = load_trained_model(folder / CHECKPOINT, recipe, data, plan)
    prepare = prepare_for(data, channels_last=False)
    inputs = _first_inputs(data)
    strength = (get_method(recipe.method.name).options | dict(recipe.method.options)).get("tau")
    number = float(strength) if isinstance(strength, int | float) else None
    record = Correction(data.prior, run.method, number, plan.corrects_prior)
    corrected = _correct(model, plan, record, tau)
    served = ServedModel(corrected, prepare).eval()
    found = read_correction(corrected)
    assert found is not None
    record_correction(served, found)
    return served, inputs


def _correct(model: Classifier, plan: Plan, record: Correction, tau: float | None) -> nn.Module:
    """The model with what its method does after training, or else with the adjustment that was asked for."""
    if plan.adjust_head is not None:
        plan.adjust_head(model.head)
    if plan.adjust_logits is None or tau is not None:
        record_correction(model, record)
        return model if tau is None else fold_adjustment(model, record.prior, tau, layer="head")
    if record.method != "posthoc_adjusted" or record.tau is None:
        raise ValueError(f"{record.method} changes logits in a way of its own, which can't be exported.")
    return fold_adjustment(model, record.prior, record.tau, layer="head")


def _first_inputs(data: Dataset) -> Tensor:
    inputs = data.test.batch(torch.arange(min(2, len(data.test))))
    if not isinstance(inputs, Tensor):
        raise ValueError("a model of sparse rows can't be exported yet; use ExtremeClassifier and LabelRanking.")
    return torch.cat([inputs, inputs])[:2]
