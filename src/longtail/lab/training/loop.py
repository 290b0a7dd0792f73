"""One training loop: a recipe in, a run folder out. Devices, precision and processes are Lightning Fabric's.

Read :func:`train` from top to bottom. Every random choice is a function of the recipe's seed and the epoch, so a run
that is killed and resumed ends with the same numbers as one that was not.
"""

from __future__ import annotations

import atexit
import io
import math
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from longtail._core.files import replacing
from longtail._core.random import epoch_seed
from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.arrays import save_arrays
from longtail.lab.data.registry import load_data
from longtail.lab.runs.folder import (
    Run,
    append_metrics,
    drop_metrics_from,
    environment,
    load_run,
    read_checkpoint,
    write_json,
)
from longtail.lab.training.batches import Batch, Preparation, ordered_batches, prepare_for, train_batches
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.devices import open_fabric
from longtail.lab.training.embedding import embed_data, limited
from longtail.lab.training.evaluation import outputs_of_split, predictions_of, score_metrics, test_batch_size
from longtail.lab.training.models import Classifier, build_model, kept_embeddings
from longtail.lab.training.optimizers import learning_rate, make_optimizer
from longtail.lab.training.progress import TrainingProgress
from longtail.lab.training.recipe import Recipe, TrainRecipe, differences, parse_recipe, to_toml
from longtail.masking import MaskedLoss
from longtail.methods.plan import Phase
from longtail.methods.table import METHODS, Method, get_method
from longtail.prior import ClassPrior
from longtail.sampling.base import EpochSampler
from longtail.sampling.hyper_gradients import recording, sgd_step_size
from longtail.sampling.meta_sampler import MetaSampler

__all__ = ["train"]

CHECKPOINT_SECONDS = 10.0
"""A killed run loses about this much work, or one epoch if that takes longer."""

LOSS_CHECK_STEPS = 16
"""Losses are looked at this often: looking waits for the device."""


def train(
    recipe: Recipe,
    folder: Path,
    *,
    accelerator: str = "auto",
    devices: int | str = 1,
    restart: bool = False,
    show_progress: bool = True,
) -> Run:
    """Train what a recipe describes, or go on where an earlier call stopped, and leave a run folder.

    Args:
        recipe: what to train, on what, and how.
        folder: the run folder. If it holds a complete run of this recipe, that is returned; if it holds a part of
            one, it is resumed; if it holds another recipe's run, that is an error.
        accelerator: Lightning Fabric's name; "auto" takes a GPU if there is one.
        devices: how many processes and devices; ``torchrun`` overrides it.
        restart: forget what the folder holds.
        show_progress: draw a progress bar.

    Returns:
        The complete run.
    """
    check_recipe(recipe)
    _check_learning(recipe)
    fabric = open_fabric(accelerator, devices, recipe.train.precision)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_process_group)
    _check_folder(recipe, folder, restart)
    if (folder / "summary.json").is_file() and not restart:
        return load_run(folder)
    data = load_data(recipe.data)
    _check_embeddings(recipe, data)
    _check_labels(recipe, data)
    method = get_method(recipe.method.name)
    options = {} if method.is_posthoc else recipe.method.options
    plan = plan_epochs(method.phases(data.prior, **options), recipe.train.epochs)
    prepare = prepare_for(data, recipe.train.channels_last)
    state = _start(fabric, recipe, data, plan, folder, restart)
    _check_inputs(fabric, recipe, state.wrapped, data, prepare)
    if fabric.is_global_zero:  # not before the recipe is known to work: a wrong one leaves nothing
        _claim_folder(recipe, folder, restart)
    fabric.barrier()
    with TrainingProgress(len(plan), state.epoch, enabled=show_progress and fabric.is_global_zero) as progress:
        while state.epoch < len(plan):
            _begin_stage_if_new(fabric, recipe, data, plan, state)
            row = _train_one_epoch(fabric, recipe, data, plan, prepare, state, progress)
            if _is_measured(recipe, state.epoch, len(plan)):
                logits = outputs_of_split(fabric, state.tested_model, data.test, prepare, test_batch_size(recipe))
                row |= score_metrics(logits, data.test.labels, data.prior)
            state.epoch += 1
            _save_progress(fabric, recipe, folder, state, row, is_last=state.epoch == len(plan))
    _finish(fabric, recipe, data, method, prepare, state, folder)
    fabric.barrier()
    return load_run(folder)


def _leave_process_group() -> None:
    """End the threads of a group that is still there: gloo's can abort an interpreter that shuts down under them."""
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class PlannedEpoch:
    """One epoch of the plan: its phase, and where it is in the stage that shares one learning-rate schedule."""

    phase: Phase
    phase_number: int
    phase_epochs: int
    stage: int
    epoch_in_stage: int
    stage_epochs: int


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
    learner: MetaSampler | None = None
    """The sampler that learns in this stage, if the method has one."""
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


def plan_epochs(phases: Sequence[Phase], num_epochs: int) -> list[PlannedEpoch]:
    """Every epoch of all phases in order. A phase with a new head begins a stage.

    >>> phases = Phase(nn.Identity(), share=0.8), Phase(nn.Identity(), share=0.2)
    >>> [planned.phase_number for planned in plan_epochs(phases, 5)]
    [0, 0, 0, 0, 1]
    """
    stages: list[list[tuple[int, Phase]]] = []
    for number, phase in enumerate(phases):
        if phase.new_head is not None or not stages:
            stages.append([])
        stages[-1].append((number, phase))
    plan = []
    for stage_number, stage in enumerate(stages):
        ends = _phase_ends([phase.share for _, phase in stage], num_epochs)
        starts = [0, *ends[:-1]]
        for (number, phase), start, end in zip(stage, starts, ends, strict=True):
            plan += [
                PlannedEpoch(phase, number, end - start, stage_number, epoch, ends[-1]) for epoch in range(start, end)
            ]
    return plan


def _phase_ends(shares: Sequence[float], num_epochs: int) -> list[int]:
    """Where each phase ends; every phase has at least one epoch."""
    whole = max(len(shares), round(sum(shares) * num_epochs))
    ends: list[int] = []
    for number in range(len(shares)):
        earliest = (ends[-1] if ends else 0) + 1
        latest = whole - (len(shares) - number - 1)
        ends.append(min(latest, max(earliest, round(sum(shares[: number + 1]) * num_epochs))))
    return ends


def _check_folder(recipe: Recipe, folder: Path, restart: bool) -> None:
    """Raise if the folder is another recipe's."""
    stored = folder / "recipe.toml"
    if restart or not stored.is_file():
        return
    changed = differences(parse_recipe(tomllib.loads(stored.read_text(encoding="utf-8"))), recipe)
    if changed:
        raise ValueError(
            f"{folder} holds a run of another recipe ({'; '.join(changed[:3])}); use another folder, "
            "or --restart to give up that run."
        )


def _claim_folder(recipe: Recipe, folder: Path, restart: bool) -> None:
    """Make the folder this recipe's."""
    folder.mkdir(parents=True, exist_ok=True)
    if restart:
        for name in ("summary.json", "checkpoint.pt", "metrics.jsonl", "predictions.npz", "embeddings.npz"):
            (folder / name).unlink(missing_ok=True)
    with replacing(folder / "recipe.toml") as file:
        file.write(to_toml(recipe).encode())
    write_json(folder / "environment.json", environment())


def _check_inputs(fabric: Fabric, recipe: Recipe, model: nn.Module, data: Dataset, prepare: Preparation) -> None:
    """Raise, before anything is trained, if the model can't take the first sample."""
    try:
        with torch.no_grad():
            model.eval()
            for inputs in ordered_batches(data.train, 0, 1, 1, prepare):
                model(fabric.to_device(inputs))
    except (AttributeError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"model {recipe.model.name!r} can't take the inputs of {data.name}: {reason}") from error
    finally:
        model.train()


def _start(
    fabric: Fabric, recipe: Recipe, data: Dataset, plan: list[PlannedEpoch], folder: Path, restart: bool
) -> State:
    """A new model, or the one of the last checkpoint."""
    torch.manual_seed(recipe.train.seed)
    options = dict(recipe.model.options)
    model = build_model(recipe.model.name, data.num_classes, data.input_shape, **options)
    checkpoint = folder / "checkpoint.pt"
    if restart or not checkpoint.is_file():
        if fabric.is_global_zero and not restart:
            drop_metrics_from(folder / "metrics.jsonl", 0)
        return _set_up(fabric, recipe, model, plan[0].phase.loss)
    saved = read_checkpoint(checkpoint)
    for planned in plan[: saved["epoch"]]:
        if planned.epoch_in_stage == 0:
            _replace_head(model, planned.phase, recipe.train.seed, planned.stage)
    state = _set_up(fabric, recipe, model, plan[saved["epoch"] - 1].phase.loss)
    try:
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        if state.average is not None:
            state.average.load_state_dict(saved["average"])
        state.learner = _new_learner(recipe, data, plan[saved["epoch"] - 1])
        if state.learner is not None:
            state.learner.load_state_dict(saved["learner"])
        state.regularizer = plan[saved["epoch"] - 1].phase.regularizer
        if state.regularizer is not None:
            state.regularizer.load_state_dict(saved["regularizer"])
        state.loss.load_state_dict(saved["loss"])
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{checkpoint} is the checkpoint of another model ({reason}); use --restart.") from None
    state.epoch, state.stage, state.seconds = saved["epoch"], saved["stage"], saved["seconds"]
    if fabric.is_global_zero:
        drop_metrics_from(folder / "metrics.jsonl", state.epoch)
    return state


def _set_up(fabric: Fabric, recipe: Recipe, model: Classifier, loss: nn.Module) -> State:
    if recipe.train.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model.parameters(), recipe.train)
    wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
    average = None
    if recipe.train.ema_decay > 0:
        average_function = get_ema_multi_avg_fn(recipe.train.ema_decay)  # type: ignore[no-untyped-call]
        average = AveragedModel(model, multi_avg_fn=average_function, use_buffers=True)
    return State(model, wrapped, wrapped_optimizer, average, loss, saved_at=time.monotonic())


def _begin_stage_if_new(
    fabric: Fabric, recipe: Recipe, data: Dataset, plan: list[PlannedEpoch], state: State
) -> None:
    """At the first epoch of a stage with a new head: freeze the encoder, and start the optimizer anew."""
    planned = plan[state.epoch]
    if planned.stage == state.stage:
        return
    if state.average is not None:
        state.model.load_state_dict(state.best_model.state_dict())
    _replace_head(state.model, planned.phase, recipe.train.seed, planned.stage)
    fresh = _set_up(fabric, recipe, state.model, planned.phase.loss)
    state.wrapped, state.optimizer, state.average = fresh.wrapped, fresh.optimizer, fresh.average
    state.learner = _new_learner(recipe, data, planned)
    state.stage = planned.stage


def _new_learner(recipe: Recipe, data: Dataset, planned: PlannedEpoch) -> MetaSampler | None:
    build = planned.phase.learning_sampler
    return None if build is None else build(data.train.labels, recipe.train.seed)


def _replace_head(model: Classifier, phase: Phase, seed: int, stage: int) -> None:
    if phase.new_head is None:
        return
    torch.manual_seed(seed + 1000 * stage)
    model.encoder.requires_grad_(False)
    model.head = phase.new_head(model.head)


def _train_one_epoch(
    fabric: Fabric,
    recipe: Recipe,
    data: Dataset,
    plan: list[PlannedEpoch],
    prepare: Preparation,
    state: State,
    progress: TrainingProgress,
) -> dict[str, Any]:
    """All batches of one epoch; returns its line for metrics.jsonl."""
    planned, settings = plan[state.epoch], recipe.train
    batch_size = max(1, settings.batch_size // fabric.world_size)
    indices, num_indices = _epoch_indices(planned, data, settings.seed, state.learner, batch_size)
    num_batches = -(-num_indices // batch_size)
    seed = epoch_seed(settings.seed, state.epoch, fabric.global_rank)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for dropout, and for losses that draw
    batches = train_batches(data.train, indices, batch_size, data.num_classes, prepare, settings, generator)
    state.loss, state.regularizer = planned.phase.loss, planned.phase.regularizer
    for module in (state.loss, state.regularizer):
        fabric.to_device(module)
    state.wrapped.train()
    if planned.phase.new_head is not None:
        state.model.encoder.eval()  # a frozen encoder keeps its batch statistics
    losses: list[Tensor] = []
    progress.begin_epoch()
    start = time.monotonic()
    rate = settings.learning_rate
    for step, batch in enumerate(batches):
        rate = learning_rate(planned.epoch_in_stage + step / num_batches, planned.stage_epochs, settings)
        if state.learner is None:
            losses.append(_step(fabric, settings, state, planned.phase, batch, rate, step, num_batches))
        else:
            losses.append(_step_and_learn(fabric, settings, data, prepare, state, planned.phase, batch, rate))
        if len(losses) % LOSS_CHECK_STEPS == 0 or step + 1 == num_batches:
            _check_losses(losses, state.epoch, step, rate)
            progress.show(state.epoch, (step + 1) / num_batches, float(losses[-1]), (step + 1) * batch_size)
    seconds = time.monotonic() - start
    state.seconds += seconds
    mean_loss = fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
    row: dict[str, Any] = {
        "epoch": state.epoch,
        "phase": planned.phase_number,
        "learning_rate": rate,
        "train_loss": float(torch.as_tensor(mean_loss)),
        "seconds": round(seconds, 3),
        "samples_per_second": round(num_indices * fabric.world_size / seconds, 1),
    }
    if isinstance(state.loss, MaskedLoss):
        state.loss.end_epoch()
        row["positive_ratios"] = [round(r, 6) if r == r else None for r in state.loss.masking.ratio.tolist()]
    if state.learner is not None:
        row["sample_rates"] = [round(value, 4) for value in state.learner.rates.tolist()]
        row["sample_rate_variance"] = float(state.learner.rates.var(correction=0))
        row["skipped_updates"] = state.learner.num_skipped
    return row


def _epoch_indices(
    planned: PlannedEpoch, data: Dataset, seed: int, learner: MetaSampler | None, batch_size: int
) -> tuple[Iterable[int], int]:
    """What this process trains on in an epoch, in order, and how many that is."""
    if learner is not None:
        return _learned_draws(learner, batch_size), len(learner)
    sampler = planned.phase.sampler(data.train.labels, seed, planned.phase_epochs)
    if isinstance(sampler, EpochSampler):
        sampler.set_epoch(planned.epoch_in_stage)
    return sampler, len(sampler)  # type: ignore[arg-type]


def _learned_draws(learner: MetaSampler, batch_size: int) -> Iterator[int]:
    """Batch after batch, each drawn only when the step on the one before it was learned from."""
    for start in range(0, len(learner), batch_size):
        yield from learner.draw(min(batch_size, len(learner) - start)).tolist()


def _step(
    fabric: Fabric,
    settings: Any,
    state: State,
    phase: Phase,
    batch: Batch,
    rate: float,
    step: int,
    num_batches: int,
) -> Tensor:
    """Forward, backward, and at the end of an accumulated batch an update. Returns the loss, still on its device."""
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    is_update = (step + 1) % settings.accumulate == 0 or step + 1 == num_batches
    with fabric.no_backward_sync(state.wrapped, enabled=not is_update):
        loss = _loss_of(fabric, state, phase, batch)
        fabric.backward(loss / settings.accumulate)
    if is_update:
        if settings.clip_norm > 0:
            fabric.clip_gradients(state.wrapped, state.optimizer, max_norm=settings.clip_norm)
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.average is not None:
            state.average.update_parameters(state.model)
    return loss.detach()


def _loss_of(fabric: Fabric, state: State, phase: Phase, batch: Batch) -> Tensor:
    """The phase's loss on a batch, with what its regularizer adds for the embeddings."""
    inputs, target = fabric.to_device(batch.inputs), fabric.to_device(batch.target)
    with kept_embeddings(state.model) as embeddings:
        logits = state.wrapped(inputs)
    loss: Tensor = phase.loss(logits, target)
    if phase.regularizer is not None:
        loss = loss + phase.strength * phase.regularizer(embeddings[-1], target)
    return loss


def _step_and_learn(
    fabric: Fabric,
    settings: TrainRecipe,
    data: Dataset,
    prepare: Preparation,
    state: State,
    phase: Phase,
    batch: Batch,
    rate: float,
) -> Tensor:
    """A step of the head, after which the sampler learns how it should have drawn."""
    learner, head = state.learner, state.model.head
    assert learner is not None
    assert isinstance(head, nn.Linear)
    with recording(head) as record:
        loss = _step(fabric, settings, state, phase, batch, rate, step=0, num_batches=1)
    chosen = learner.draw_meta()
    inputs, target = fabric.to_device((prepare(data.train.batch(chosen)), data.train.labels[chosen]))
    with fabric.autocast():
        meta_loss = F.cross_entropy(state.model(inputs).float(), target)
    # Only dampening would tell a first step from the others, and recipes have none: after the step will do.
    learner.update(record.hyper_gradients(head, meta_loss, sgd_step_size(state.optimizer)))
    return loss


def _check_learning(recipe: Recipe) -> None:
    """Raise for settings in which a seed, a learning sampler or a regularizer has no meaning."""
    method, settings = get_method(recipe.method.name), recipe.train
    if settings.seed < 0:
        raise ValueError(f"train.seed must be at least 0. Got {settings.seed}.")
    if method.is_posthoc:
        return
    phases = method.phases(ClassPrior.from_counts([1, 1]), **recipe.method.options)
    if settings.mixup > 0 and any(phase.regularizer is not None for phase in phases):
        raise ValueError(f"{method.name} needs one label a sample: train.mixup must be 0.0. Got {settings.mixup!r}.")
    if all(phase.learning_sampler is None for phase in phases):
        return
    for name, wanted in {"optimizer": "sgd", "accumulate": 1, "clip_norm": 0.0, "mixup": 0.0}.items():
        if getattr(settings, name) != wanted:
            raise ValueError(
                f"{method.name} learns from plain steps of SGD: train.{name} must be {wanted!r}. "
                f"Got {getattr(settings, name)!r}."
            )


def _check_embeddings(recipe: Recipe, data: Dataset) -> None:
    if recipe.train.save_embeddings and data.train.labels.ndim != 1:
        raise ValueError("train.save_embeddings is for data with one label a sample; set it to 0.")


def _check_labels(recipe: Recipe, data: Dataset) -> None:
    """Raise for what has no meaning where a sample may have several labels."""
    if not data.has_several_labels:
        return
    if not get_method(recipe.method.name).takes_indicators:
        known = ", ".join(method.name for method in METHODS.values() if method.takes_indicators)
        raise ValueError(
            f"{data.name} has several labels a sample, and {recipe.method.name} needs one; "
            f"set method.name to one of: {known}."
        )
    if recipe.train.mixup > 0:
        raise ValueError(
            f"{data.name} has several labels a sample: train.mixup must be 0.0. Got {recipe.train.mixup!r}."
        )


def _check_losses(losses: list[Tensor], epoch: int, step: int, rate: float) -> None:
    recent = torch.stack(losses[-LOSS_CHECK_STEPS:]).float().cpu()
    bad = torch.nonzero(~torch.isfinite(recent))
    if len(bad):
        first = step + 1 - len(recent) + int(bad[0])
        raise FloatingPointError(
            f"the loss is {float(recent[bad[0]])} at step {first} of epoch {epoch}, learning rate {rate:.4g}; "
            "lower train.learning_rate or set train.clip_norm, in another folder or with --restart. "
            "What was saved before is kept."
        )


def _is_measured(recipe: Recipe, epoch: int, num_epochs: int) -> bool:
    every = recipe.train.evaluate_every
    return every > 0 and ((epoch + 1) % every == 0 or epoch + 1 == num_epochs)


def _test_batch_size(recipe: Recipe) -> int:
    return max(recipe.train.batch_size, 512)


def _save_progress(
    fabric: Fabric, recipe: Recipe, folder: Path, state: State, row: dict[str, Any], is_last: bool
) -> None:
    """Write the epoch's line, and a checkpoint if the last one is old enough."""
    is_due = is_last or time.monotonic() - state.saved_at > CHECKPOINT_SECONDS
    if fabric.is_global_zero:
        append_metrics(folder / "metrics.jsonl", row)
        if is_due:
            _write_checkpoint(folder / "checkpoint.pt", state)
    if is_due:
        state.saved_at = time.monotonic()


def _write_checkpoint(path: Path, state: State) -> None:
    buffer = io.BytesIO()
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
    torch.save(values, buffer)
    with replacing(path) as file:
        file.write(buffer.getbuffer())


def _finish(
    fabric: Fabric, recipe: Recipe, data: Dataset, method: Method, prepare: Preparation, state: State, folder: Path
) -> None:
    """Measure on the test set, and write predictions and summary."""
    model = state.best_model
    options = recipe.method.options if method.is_posthoc else {}
    if method.adjust_head is not None:
        with torch.no_grad():
            weight = model.get_parameter("head.weight")
            weight.copy_(method.adjust_head(weight, data.prior, **options))
    logits = outputs_of_split(fabric, state.tested_model, data.test, prepare, test_batch_size(recipe))
    embeddings = None
    if recipe.train.save_embeddings:
        kept = limited(data, recipe.train.save_embeddings)
        embeddings = embed_data(fabric, model.encoder, kept, prepare, test_batch_size(recipe))
    if not fabric.is_global_zero:
        return
    if embeddings is not None:
        with replacing(folder / "embeddings.npz") as file:
            save_arrays(embeddings, file)
    predictions = predictions_of(logits, model, data, method, options)
    predictions.save(folder / "predictions.npz")
    metrics = score_metrics(torch.from_numpy(predictions.scores), data.test.labels, data.prior)
    if not all(map(math.isfinite, metrics.values())):
        raise FloatingPointError("the model's test logits are not finite; lower train.learning_rate.")
    write_json(
        folder / "summary.json",
        {
            "method": method.name,
            "options": dict(recipe.method.options),
            "seed": recipe.train.seed,
            "seconds": round(state.seconds, 3),
            "metrics": metrics,
        },
    )
