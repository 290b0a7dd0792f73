"""One training loop: a recipe in, a run folder out. Devices, precision and processes are Lightning Fabric's.

Read :func:`train` from top to bottom. Every random choice is a function of the recipe's seed and the epoch, so a run
that is killed and resumed ends with the same numbers as one that was not.
"""

from __future__ import annotations

import atexit
import gc
import math
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from longtail._core.checks import check_positive
from longtail._core.files import replacing
from longtail._core.random import epoch_seed, mix_seed
from longtail._core.threads import limit_threads
from longtail.lab.data.dataset import Dataset
from longtail.lab.data.digest import check_same_data, digest_data
from longtail.lab.data.registry import load_data
from longtail.lab.runs.folder import (
    CHECKPOINT,
    EMBEDDINGS,
    PREDICTIONS,
    Predictions,
    Run,
    append_metrics,
    environment,
    load_run,
    save_embeddings,
    write_json,
    write_summary,
)
from longtail.lab.runs.lock import FolderInUse, lock_folder, show_life
from longtail.lab.runs.rankings import RANKINGS, Rankings
from longtail.lab.training.augment import growing_size
from longtail.lab.training.batches import (
    Batch,
    Preparation,
    augment_inputs,
    ordered_batches,
    prepare_for,
    train_batches,
)
from longtail.lab.training.checks import check_data, check_labels, check_recipe
from longtail.lab.training.devices import (
    TIMEOUT_SECONDS,
    end_lost_processes,
    join_again,
    open_fabric,
)
from longtail.lab.training.embedding import embed_data, limited, start_from_means
from longtail.lab.training.epochs import PlannedEpoch, build_plan, draw_indices, plan_epochs
from longtail.lab.training.evaluation import (
    measure_test,
    outputs_of_split,
    predictions_of,
    rank_test,
    score_metrics,
    test_batch_size,
)
from longtail.lab.training.models import keep_embeddings
from longtail.lab.training.optimizers import climb, learning_rate, limit_norms
from longtail.lab.training.progress import TrainingProgress
from longtail.lab.training.ranking import ranking_metrics
from longtail.lab.training.recipe import Recipe, TrainRecipe, differences, parse_recipe, to_toml
from longtail.lab.training.state import State, begin_stage, save_state, start_state
from longtail.methods import Phase, Plan, takes_embeddings, takes_label_lists
from longtail.sampling import recording, sgd_step_size

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
    trust_code: bool = False,
    timeout: float = TIMEOUT_SECONDS,
    show_progress: bool = True,
) -> Run:
    """Train what a recipe describes, or resume where an earlier call stopped, and leave a run folder.

    Args:
        recipe: what to train, on what, and how.
        folder: the run folder. If it holds a complete run of this recipe, that is returned; if it holds a part of
            one, it is resumed; if it holds another recipe's run, that is an error.
        accelerator: Lightning Fabric's name; "auto" takes a GPU if there is one.
        devices: how many processes and devices; ``torchrun`` overrides it.
        restart: forget what the folder holds.
        trust_code: whether a model or method that the recipe names as ``module:function`` may be run.
        timeout: seconds after which processes take one that does not answer for lost, and end.
        show_progress: say on the terminal how far it is.

    Returns:
        The complete run.
    """
    check_recipe(recipe, trust_code)
    check_positive(timeout, "timeout")
    fabric = open_fabric(accelerator, devices, recipe.train.precision, timeout)
    with end_lost_processes(fabric, timeout):
        join_again(fabric, timeout)
        fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_process_group)
    if recipe.train.batch_size % fabric.world_size:
        raise ValueError(
            f"train.batch_size must be a multiple of {fabric.world_size} processes. Got {recipe.train.batch_size}."
        )
    _check_folder(recipe, folder, restart)
    is_complete = (folder / "summary.json").is_file() and not restart
    try:
        data = load_data(recipe.data)
    except FileNotFoundError:
        if is_complete:  # data that are gone can't be taken for others
            return load_run(folder)
        raise
    digest = digest_data(data)
    if is_complete:
        return _load_same_run(folder, digest)
    check_labels(recipe, data)
    plan = build_plan(recipe, data.prior)
    check_data(recipe, data, plan)
    epochs = plan_epochs(plan.phases, recipe.train.epochs)
    prepare = prepare_for(data, recipe.train.channels_last)
    with end_lost_processes(fabric, timeout), _hold_folder(fabric, folder):
        if (folder / "summary.json").is_file() and not restart:  # another process has made it since
            return _load_same_run(folder, digest)
        state = start_state(fabric, recipe, data, plan, epochs, folder, restart, digest)
        if recipe.train.class_means and state.epoch == 0:
            start_from_means(fabric, state.model, data.train, prepare, test_batch_size(recipe))
        operations = _try_inputs(fabric, recipe, state.wrapped, data, prepare) * recipe.train.batch_size
        if fabric.is_global_zero:  # not before the recipe is known to work: a wrong one leaves nothing
            _claim_folder(recipe, folder, restart)
        fabric.barrier()
        is_shown = show_progress and fabric.is_global_zero
        name = f"{recipe.method.name} · seed {recipe.train.seed}"
        shown = TrainingProgress(name, len(epochs), state.epoch, enabled=is_shown)
        with limit_threads(operations), shown as progress:
            while state.epoch < len(epochs):
                planned = epochs[state.epoch]
                begin_stage(fabric, recipe, data.train.labels, planned, state)
                row = _train_one_epoch(fabric, recipe, data, planned, prepare, state, folder, progress)
                if _is_measured(recipe, state.epoch, len(epochs)):
                    row |= measure_test(fabric, recipe, state.tested_model, state.best_model, data, prepare)
                state.epoch += 1
                _save_progress(fabric, recipe, folder, state, row, digest, is_last=state.epoch == len(epochs))
        _finish(fabric, recipe, data, plan, prepare, state, folder, digest)
        fabric.barrier()
    return load_run(folder)


@contextmanager
def _hold_folder(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Hold the run folder for all processes of this training; if another one has it, all of them stop."""
    with ExitStack() as stack:
        problem = ""
        if fabric.is_global_zero:
            try:
                stack.enter_context(lock_folder(folder))
            except OSError as error:
                problem = str(error)
        problem = fabric.broadcast(problem)
        if problem:
            raise FolderInUse(problem)
        yield


def _load_same_run(folder: Path, digest: str) -> Run:
    """The complete run, if it was made on data of this digest."""
    run = load_run(folder)
    check_same_data(digest, run.summary.get("data"), folder)
    return run


def _leave_process_group() -> None:
    """End the threads of a group that is still there: gloo's can abort an interpreter that shuts down under them.

    A model that holds the group and goes after it could wait for them forever; see docs/sharding.md.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


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
        for name in ("summary.json", CHECKPOINT, "metrics.jsonl", PREDICTIONS, RANKINGS, EMBEDDINGS):
            (folder / name).unlink(missing_ok=True)
    with replacing(folder / "recipe.toml") as file:
        file.write(to_toml(recipe).encode())
    write_json(folder / "environment.json", environment())


def _try_inputs(fabric: Fabric, recipe: Recipe, model: nn.Module, data: Dataset, prepare: Preparation) -> int:
    """Raise, before anything is trained, if the model can't take the first sample, and count its operations."""
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()
            for inputs in ordered_batches(data.train, 0, 1, 1, prepare):
                model(fabric.to_device(inputs))
    except (AttributeError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"model {recipe.model.name!r} can't take the inputs of {data.name}: {reason}") from error
    finally:
        model.train()
    return int(counter.get_total_flops())


def _train_one_epoch(
    fabric: Fabric,
    recipe: Recipe,
    data: Dataset,
    planned: PlannedEpoch,
    prepare: Preparation,
    state: State,
    folder: Path,
    progress: TrainingProgress,
) -> dict[str, Any]:
    """All batches of one epoch; returns its line for metrics.jsonl."""
    settings = recipe.train.for_stage(planned.stage)
    batch_size = settings.batch_size // fabric.world_size
    indices, num_indices = draw_indices(planned, data.train.labels, settings.seed, state.learner, batch_size)
    num_batches = -(-num_indices // batch_size)
    seed = epoch_seed(settings.seed, state.epoch, fabric.global_rank)
    generator = torch.Generator().manual_seed(seed)
    meta_generator = torch.Generator().manual_seed(mix_seed(settings.seed, state.epoch, fabric.global_rank, 2))
    torch.manual_seed(seed)  # for dropout, and for losses that draw
    size = _image_size(settings, data, planned)
    views = planned.phase.views
    listed = data.is_multilabel and takes_label_lists(planned.phase.loss)
    batches = train_batches(
        data.train, indices, batch_size, data.num_classes, prepare, settings, generator, size, views, listed
    )
    state.loss, state.regularizer = planned.phase.loss, planned.phase.regularizer
    for module in (state.loss, state.regularizer):
        fabric.to_device(module)
    state.wrapped.train()
    if planned.phase.new_head is not None:
        state.model.encoder.eval()  # a frozen encoder keeps its batch statistics
    losses: list[Tensor] = []
    progress.begin_epoch()
    start = time.monotonic()
    first_step = 0.0
    rate = settings.learning_rate
    for step, batch in enumerate(batches):
        rate = learning_rate(planned.epoch_in_stage + step / num_batches, planned.stage_epochs, settings)
        if state.learner is None:
            losses.append(_step(fabric, settings, state, planned.phase, batch, rate, step, num_batches))
        else:
            loss = _step_and_learn(fabric, settings, data, prepare, state, planned.phase, batch, rate, meta_generator)
            losses.append(loss)
        if step == 0:
            first_step = time.monotonic() - start
        if len(losses) % LOSS_CHECK_STEPS == 0 or step + 1 == num_batches:
            _check_losses(losses, state.epoch, step, rate)
            show_life(folder)
            progress.show(state.epoch, (step + 1) / num_batches, (step + 1) * batch_size)
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
    if settings.compile:
        row["first_step_seconds"] = round(first_step, 3)
    row |= _end_epoch(state)
    return row | (state.learner.summary() if state.learner is not None else {})


def _image_size(settings: TrainRecipe, data: Dataset, planned: PlannedEpoch) -> int:
    """The side of this epoch's training images, 0 for what they are; a frozen encoder sees images of full size."""
    if not settings.start_size or planned.phase.new_head is not None:
        return 0
    progress = planned.epoch_in_stage / planned.stage_epochs
    return growing_size(progress, settings.start_size, data.input_shape[-1], settings.growth)


def _end_epoch(state: State) -> dict[str, Any]:
    """Tell the loss and the regularizer that an epoch is over, if they want to know; what they say of it is kept."""
    row: dict[str, Any] = {}
    for module in (state.loss, state.regularizer):
        end_epoch: Callable[[], dict[str, Any] | None] | None = getattr(module, "end_epoch", None)
        if end_epoch is not None:
            row |= end_epoch() or {}
    return row


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
        group["lr"] = rate * group.get("rate_factor", 1.0)
    is_update = (step + 1) % settings.accumulate == 0 or step + 1 == num_batches
    with fabric.no_backward_sync(state.wrapped, enabled=not is_update):
        loss = _loss_of(fabric, state, phase, batch)
        fabric.backward(loss / settings.accumulate)
    if is_update:
        if settings.sharpness > 0:
            with climb(state.model, settings.sharpness):
                state.optimizer.zero_grad()
                fabric.backward(_loss_of(fabric, state, phase, batch))
        if settings.clip_norm > 0:
            fabric.clip_gradients(state.wrapped, state.optimizer, max_norm=settings.clip_norm)
        state.optimizer.step()
        state.optimizer.zero_grad()
        for module in (state.loss, state.regularizer):
            getattr(module, "end_step", lambda: None)()
        if settings.max_norm > 0:
            limit_norms(state.model.head, settings.max_norm)
        if state.average is not None:
            state.average.update_parameters(state.model)
    return loss.detach()


def _loss_of(fabric: Fabric, state: State, phase: Phase, batch: Batch) -> Tensor:
    """The phase's loss on a batch, with what its regularizer adds for the embeddings."""
    inputs, target = fabric.to_device(batch.inputs), fabric.to_device(batch.target)
    if phase.regularizer is None:
        return _plain_loss_of(state, phase, inputs, target)
    with keep_embeddings(state.model) as embeddings:
        loss = _plain_loss_of(state, phase, inputs, target)
    added: Tensor = phase.regularizer(embeddings[-1], target)
    return loss + phase.strength * added


def _plain_loss_of(state: State, phase: Phase, inputs: Any, target: Tensor) -> Tensor:
    if takes_embeddings(phase.loss):
        loss: Tensor = state.wrapped(inputs, phase.loss, target)
        return loss
    of_logits: Tensor = phase.loss(state.wrapped(inputs), target)
    return of_logits


def _step_and_learn(
    fabric: Fabric,
    settings: TrainRecipe,
    data: Dataset,
    prepare: Preparation,
    state: State,
    phase: Phase,
    batch: Batch,
    rate: float,
    meta_generator: torch.Generator,
) -> Tensor:
    """A step of the head, after which the learner learns how it should have drawn, or weighted, the batch."""
    learner, head = state.learner, state.model.head
    assert learner is not None
    assert isinstance(head, nn.Linear)
    with recording(head) as record:
        loss = _step(fabric, settings, state, phase, batch, rate, step=0, num_batches=1)
    chosen = learner.draw_meta()
    raw = data.train.batch(chosen)
    prepared = augment_inputs(raw, prepare, settings, meta_generator) if learner.augment_meta else prepare(raw)
    inputs, target = fabric.to_device((prepared, data.train.labels[chosen]))
    with fabric.autocast():
        meta_loss = F.cross_entropy(state.model(inputs).float(), target)
    # Only dampening would tell a first step from the others, and recipes have none: after the step will do.
    hyper_gradients = record.hyper_gradients(head, meta_loss, sgd_step_size(state.optimizer))
    learner.learn(hyper_gradients, fabric.to_device(batch.target))
    return loss


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


def _save_progress(
    fabric: Fabric, recipe: Recipe, folder: Path, state: State, row: dict[str, Any], digest: str, is_last: bool
) -> None:
    """Write the epoch's line, and a checkpoint if the last one is old enough."""
    is_due = is_last or time.monotonic() - state.saved_at > CHECKPOINT_SECONDS
    if fabric.is_global_zero:
        append_metrics(folder / "metrics.jsonl", row)
        if is_due:
            save_state(folder, state, recipe, digest)
    if is_due:
        state.saved_at = time.monotonic()


def _finish(
    fabric: Fabric,
    recipe: Recipe,
    data: Dataset,
    plan: Plan,
    prepare: Preparation,
    state: State,
    folder: Path,
    digest: str,
) -> None:
    """Measure on the test set, and write predictions and summary."""
    model = state.best_model
    if plan.adjust_head is not None:
        model.head = deepcopy(model.head)  # its class vectors may be what the encoder reads, too
        plan.adjust_head(model.head)
    results: Predictions | Rankings
    if data.is_ranked:
        results = rank_test(fabric, recipe, model, data, prepare, plan)
        metrics = ranking_metrics(results)
    else:
        logits = outputs_of_split(fabric, state.tested_model, data.test, prepare, test_batch_size(recipe))
        results = predictions_of(logits, model, data, plan)
        metrics = score_metrics(torch.from_numpy(results.scores), data.test.labels, data.prior)
    embeddings = None
    if recipe.train.save_embeddings:
        kept = limited(data, recipe.train.save_embeddings)
        embeddings = embed_data(fabric, model.encoder, kept, prepare, test_batch_size(recipe))
    if not fabric.is_global_zero:
        return
    if not all(map(math.isfinite, metrics.values())):
        raise FloatingPointError("the model's test logits are not finite; lower train.learning_rate.")
    if embeddings is not None:
        save_embeddings(embeddings, folder / EMBEDDINGS)
    results.save(folder / (RANKINGS if data.is_ranked else PREDICTIONS))
    write_summary(
        folder,
        {
            "method": recipe.method.name,
            "options": dict(recipe.method.options),
            "seed": recipe.train.seed,
            "seconds": round(state.seconds, 3),
            "processes": fabric.world_size,
            "data": digest,
            "metrics": metrics,
        },
    )
