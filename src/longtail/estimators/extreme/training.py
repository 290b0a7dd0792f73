"""How ExtremeClassifier trains: Adam on a falling learning rate, until P@1 on held-out samples stops rising."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from longtail._core.labels import IntArray
from longtail._core.threads import limit_threads
from longtail.estimators.extreme.data import LabelBatch, Samples, precision_at_1
from longtail.estimators.extreme.losses import Criterion, DrawnNegatives
from longtail.estimators.extreme.network import Network, rank_labels
from longtail.estimators.extreme.optimizers import LayerwiseAdam
from longtail.negatives.rowwise import RowwiseAdam

__all__ = ["Generators", "Place", "Source", "Trainer", "TrainingSettings", "train"]


ROW_SPARSE_FROM = 2**13
"""With as many features or more, a step updates the vectors of the features in the batch, and no others."""


class Generators(NamedTuple):
    """Where random numbers come from: one for the order of samples, one for starts, dropout and negatives."""

    order: torch.Generator
    noise: torch.Generator

    def order_of(self, indices: IntArray) -> IntArray:
        """These indices in random order."""
        order: IntArray = torch.randperm(len(indices), generator=self.order).numpy()
        return indices[order]


class TrainingSettings(NamedTuple):
    """What the training loop needs to know, under the names of ExtremeClassifier, with what is left open chosen."""

    epochs: int
    batch_size: int
    learning_rate: float
    feature_rate: float | None
    """How many times as fast vectors of features learn, by LayerwiseAdam; None: by Adam, as the rest."""
    weight_decay: float
    dropout: float
    uses_bfloat16: bool
    n_iter_no_change: int | None
    verbose: bool
    device: str


class Source(Protocol):
    """Where batches come from."""

    def num_batches(self, size: int) -> int:
        """Steps per epoch."""

    def batches(self, size: int, generator: torch.Generator, device: str) -> Iterator[LabelBatch]:
        """One pass over the samples, in random order."""


class Trainer:
    """A network and its optimizers, which may go on later."""

    def __init__(self, network: Network, is_drawn: bool, is_sparse: bool, settings: TrainingSettings) -> None:
        self.network, self.settings = network, settings
        self.is_row_sparse = network.is_row_sparse = is_sparse and len(network.vectors) >= ROW_SPARSE_FROM
        self.optimizers = _make_optimizers(network, is_drawn, settings)
        network.is_row_sparse = False
        numbers = network.weight.numel() + (0 if is_sparse else network.vectors.numel())
        self.operations = 2.0 * settings.batch_size * numbers

    def train_epoch(
        self, criterion: Criterion, source: Source, generators: Generators, progress: Progress, decays: bool = True
    ) -> float:
        """One pass over the samples: its mean loss. ``decays``: whether rates fall to 0 over all epochs."""
        network, settings = self.network, self.settings
        if isinstance(criterion, DrawnNegatives):
            criterion.share(network)
        network.is_row_sparse, network.uses_bfloat16 = self.is_row_sparse, settings.uses_bfloat16
        with limit_threads(self.operations):
            losses = self._run_steps(criterion, source, generators, progress, decays)
        network.is_row_sparse = network.uses_bfloat16 = False
        mean = float(torch.stack(losses).mean())
        if not math.isfinite(mean):
            raise ValueError(
                f"training must have a finite loss. Got {mean}; lower learning_rate, or scale the features."
            )
        return mean

    def _run_steps(
        self, criterion: Criterion, source: Source, generators: Generators, progress: Progress, decays: bool
    ) -> list[Tensor]:
        """Every step of an epoch: its loss."""
        network, settings, losses = self.network, self.settings, []
        for batch in source.batches(settings.batch_size, generators.order, settings.device):
            self._set_learning_rate(settings.learning_rate * (1 - progress.done if decays else 1))
            embeddings = network.embed(batch.rows, settings.dropout, generators.noise)
            loss = criterion(network, embeddings, batch, generators.noise)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                optimizer.step()
            losses.append(loss.detach())
            progress.step(losses)
        return losses

    def _set_learning_rate(self, learning_rate: float) -> None:
        for optimizer in self.optimizers:
            is_layerwise = isinstance(optimizer, LayerwiseAdam)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * ((self.settings.feature_rate or 1.0) if is_layerwise else 1.0)


class Place(NamedTuple):
    """Which network is trained, of how many."""

    number: int = 1
    total: int = 1


ONLY = Place()
"""The one network that there is."""


class Progress:
    """How far training is, and a line on standard error that says so, with the time that is left."""

    def __init__(self, num_epochs: int, num_batches: int, is_shown: bool, place: Place = ONLY) -> None:
        self.num_epochs, self.num_batches, self.is_shown, self.place = num_epochs, num_batches, is_shown, place
        self.num_steps, self.started, self.shown = 0, time.monotonic(), 0.0

    @property
    def done(self) -> float:
        """Share of all steps; below 1 also where a file has grown since it was counted."""
        return min(self.num_steps / (self.num_epochs * self.num_batches), 0.999)

    def step(self, losses: Sequence[Tensor]) -> None:
        """Count one more step; the line is written ten times a second at most, and at the end of an epoch."""
        self.num_steps += 1
        is_last = self.num_steps % self.num_batches == 0
        now = time.monotonic()
        if self.is_shown and (is_last or now - self.shown > SECONDS_BETWEEN_LINES):
            self.shown = now
            self._write_line(float(torch.stack(list(losses[-SHOWN_LOSSES:])).mean()), now - self.started)

    def end(self) -> None:
        """End the line."""
        if self.is_shown:
            sys.stderr.write("\n")

    def _write_line(self, loss: float, seconds: float) -> None:
        total = self.num_epochs * self.num_batches
        epoch, within = divmod(self.num_steps - 1, self.num_batches)
        bar = "#" * round(30 * (within + 1) / self.num_batches)
        steps_left = max(0, total - self.num_steps) + total * (self.place.total - self.place.number)
        left = round(seconds * steps_left / self.num_steps)
        network = f"network {self.place.number}/{self.place.total}, " if self.place.total > 1 else ""
        text = f"{network}epoch {epoch + 1}/{self.num_epochs} [{bar:30}]  loss {loss:.4f}"
        text += f"  {left // 60}:{left % 60:02} left"
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()


def train(
    trainer: Trainer,
    criterion: Criterion,
    source: Source,
    held_out: Samples | None,
    generators: Generators,
    place: Place,
) -> list[dict[str, float]]:
    """Train the network in place, and say what each epoch's loss and P@1 were."""
    settings, network = trainer.settings, trainer.network
    progress = Progress(settings.epochs, source.num_batches(settings.batch_size), settings.verbose, place)
    best = _BestModel()
    history: list[dict[str, float]] = []
    for _ in range(settings.epochs):
        history.append({"loss": trainer.train_epoch(criterion, source, generators, progress)})
        if settings.n_iter_no_change is not None and held_out is not None:
            ranked = rank_labels(network, held_out.features[held_out.chosen], 1)
            precision = precision_at_1(ranked, held_out.labels[held_out.chosen])
            history[-1]["validation_precision"] = precision
            best.compare(precision, network)
            if best.num_worse >= settings.n_iter_no_change:
                break
    best.restore(network)
    progress.end()
    return history


class _BestModel:
    """The best model so far, and how many epochs ago it was."""

    def __init__(self) -> None:
        self.precision, self.num_worse = -math.inf, 0
        self.state: dict[str, Tensor] = {}

    def compare(self, precision: float, network: nn.Module) -> None:
        if precision > self.precision:
            self.precision, self.num_worse = precision, 0
            self.state = {name: value.detach().clone() for name, value in network.state_dict().items()}
        else:
            self.num_worse += 1

    def restore(self, network: nn.Module) -> None:
        if self.state:
            network.load_state_dict(self.state)


def _make_optimizers(network: Network, is_drawn: bool, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Layer-wise Adam for vectors of features, row-wise Adam for what has row-sparse gradients, Adam for the rest."""
    is_layerwise = settings.feature_rate is not None
    layerwise = [network.vectors] * is_layerwise + [network.direct] * (is_layerwise and network.direct is not None)
    rowwise = [network.vectors] * (network.is_row_sparse and not is_layerwise) + [network.weight] * is_drawn
    others = [own for own in network.parameters() if all(own is not other for other in (*layerwise, *rowwise))]
    rate, decay = settings.learning_rate, settings.weight_decay
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=rate, weight_decay=decay, fused=True)]
    if layerwise:
        found.append(LayerwiseAdam(layerwise, lr=rate, weight_decay=decay))
    if rowwise:
        found.append(RowwiseAdam(rowwise, lr=rate, weight_decay=decay))
    return found


SECONDS_BETWEEN_LINES = 0.1
"""Between two lines of progress."""


SHOWN_LOSSES = 50
"""The loss in the line is the mean of so many steps."""
