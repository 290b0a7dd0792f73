"""What changes during training: made anew, or read from the last checkpoint, and written to the next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.digest import check_same_data
from longtail.lab.runs.folder import (
    CHECKPOINT,
    check_metrics,
    drop_metrics_from,
    read_checkpoint,
    seal_metrics,
    write_checkpoint,
)
from longtail.lab.training.epochs import PlannedEpoch
from longtail.lab.training.models import Classifier, build_model
from longtail.lab.training.optimizers import make_optimizer, make_row_sparse
from longtail.lab.training.recipe import Recipe
from longtail.methods import Learner, Phase, Plan

__all__ = ["State", "begin_stage", "save_state", "start_state"]


@dataclass
class State:
    """What changes during training."""

    model: Classifier
    """The bare model: encoder and head."""
    wrapped: Any
    """The model as Fabric runs it."""
    optimizer: Any
    average: AveragedModel | None
    """Moving average of the weights, if the recipe wants one."""
    loss: nn.Module
    """The loss of the last epoch; one that adapts has a state."""
    learner: Learner | None = None
    """What learns beside the model in this stage, if the method has it."""
    regularizer: nn.Module | None = None
    """What regularizes embeddings in this phase, if the method has it; it may remember."""
    epoch: int = 0
    stage: int = 0
    seconds: float = 0.0
    saved_at: float = 0.0

    @property
    def best_model(self) -> Classifier:
        """The bare model with the weights to keep: their moving average if there is one."""
        if self.average is None:
            return self.model
        assert isinstance(self.average.module, Classifier)
        return self.average.module

    @property
    def tested_model(self) -> nn.Module:
        """The model that is tested: the moving average if there is one."""
        return self.wrapped if self.average is None else self.average


def start_state(
    fabric: Fabric,
    recipe: Recipe,
    data: Dataset,
    plan: Plan,
    epochs: Sequence[PlannedEpoch],
    folder: Path,
    restart: bool,
    digest: str,
) -> State:
    """A new model, or the one of the last checkpoint, if it was trained on data of this digest."""
    torch.manual_seed(recipe.train.seed)
    model = build_model(
        recipe.model.name, data.num_classes, data.input_shape, default_head=plan.head, **recipe.model.options
    )
    checkpoint = folder / CHECKPOINT
    if restart or not checkpoint.is_file():
        if fabric.is_global_zero and not restart:
            drop_metrics_from(folder / "metrics.jsonl", 0)
        return _set_up(fabric, recipe, model, epochs[0].phase.loss)
    saved, about = read_checkpoint(checkpoint)
    check_same_data(digest, about.get("data"), folder)
    state = _resume(fabric, recipe, data, model, epochs, checkpoint, saved)
    check_metrics(folder / "metrics.jsonl", state.epoch, about.get("metrics"))
    if fabric.is_global_zero:
        drop_metrics_from(folder / "metrics.jsonl", state.epoch)
    return state


def begin_stage(fabric: Fabric, recipe: Recipe, labels: Tensor, planned: PlannedEpoch, state: State) -> None:
    """At the first epoch of a stage with a new head: freeze the encoder, and start the optimizer anew."""
    if planned.stage == state.stage:
        return
    if state.average is not None:
        state.model.load_state_dict(state.best_model.state_dict())
    _replace_head(state.model, planned.phase, recipe.train.seed, planned.stage)
    fresh = _set_up(fabric, recipe, state.model, planned.phase.loss)
    state.wrapped, state.optimizer, state.average = fresh.wrapped, fresh.optimizer, fresh.average
    state.learner = _make_learner(recipe, labels, planned.phase)
    state.stage = planned.stage


def save_state(folder: Path, state: State, recipe: Recipe, digest: str) -> None:
    """Write all that is needed to resume, whole or not at all, with what it is a state of.

    Args:
        folder: the run folder, whose ``metrics.jsonl`` ends with this state's epoch.
        state: what has changed in training.
        recipe: of the run.
        digest: of the data.
    """
    values = {
        "epoch": state.epoch,
        "stage": state.stage,
        "seconds": state.seconds,
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "average": None if state.average is None else state.average.state_dict(),
        "loss": state.loss.state_dict(),
        "learner": None if state.learner is None else state.learner.state_dict(),
        "regularizer": None if state.regularizer is None else state.regularizer.state_dict(),
    }
    about = {
        "method": recipe.method.name,
        "options": dict(recipe.method.options),
        "data": digest,
        "metrics": seal_metrics(folder / "metrics.jsonl"),
    }
    write_checkpoint(folder / CHECKPOINT, values, about)


def _resume(
    fabric: Fabric,
    recipe: Recipe,
    data: Dataset,
    model: Classifier,
    epochs: Sequence[PlannedEpoch],
    checkpoint: Path,
    saved: Mapping[str, Any],
) -> State:
    try:
        for planned in epochs[: saved["epoch"]]:
            if planned.epoch_in_stage == 0:
                _replace_head(model, planned.phase, recipe.train.seed, planned.stage)
        phase = epochs[saved["epoch"] - 1].phase
        state = _set_up(fabric, recipe, model, phase.loss)
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        if state.average is not None:
            state.average.load_state_dict(saved["average"])
        state.loss.load_state_dict(saved["loss"])
        state.learner = _make_learner(recipe, data.train.labels, phase)
        if state.learner is not None:
            state.learner.load_state_dict(saved["learner"])
        state.regularizer = phase.regularizer
        if state.regularizer is not None:
            state.regularizer.load_state_dict(saved["regularizer"])
        state.epoch, state.stage, state.seconds = saved["epoch"], saved["stage"], saved["seconds"]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{checkpoint} is the checkpoint of another model ({reason}); use --restart.") from None
    return state


def _set_up(fabric: Fabric, recipe: Recipe, model: Classifier, loss: nn.Module) -> State:
    if recipe.train.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    row_sparse = make_row_sparse(model, loss) if recipe.train.optimizer == "rowwise_adam" else []
    optimizer = make_optimizer(model, recipe.train, row_sparse)
    if recipe.train.compile:
        model.compile_encoder(recipe.train.batch_size // fabric.world_size)
    wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
    average = None
    if recipe.train.ema_decay > 0:
        average_function = get_ema_multi_avg_fn(recipe.train.ema_decay)  # type: ignore[no-untyped-call]
        average = AveragedModel(model, multi_avg_fn=average_function, use_buffers=True)
    return State(model, wrapped, wrapped_optimizer, average, loss, saved_at=time.monotonic())


def _make_learner(recipe: Recipe, labels: Tensor, phase: Phase) -> Learner | None:
    return None if phase.learner is None else phase.learner(labels, recipe.train.seed)


def _replace_head(model: Classifier, phase: Phase, seed: int, stage: int) -> None:
    if phase.new_head is None:
        return
    torch.manual_seed(seed + 1000 * stage)
    model.encoder.requires_grad_(False)
    model.head = phase.new_head(model.head)
