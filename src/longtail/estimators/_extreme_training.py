"""How ExtremeClassifier trains: Adam on a falling learning rate, until P@1 on held-out samples stops rising."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail.estimators._extreme_data import Samples, precision_at_1
from longtail.estimators._extreme_losses import DrawnNegatives, FullSoftmax
from longtail.estimators._extreme_network import Network, is_sparse, rank_labels
from longtail.negatives.rowwise import RowwiseAdam

__all__ = ["Generators", "TrainingSettings", "train"]


ROW_SPARSE_FROM = 2**14
"""With as many features or more, a step updates the vectors of the features in the batch, and no others."""


class Generators(NamedTuple):
    """Where random numbers come from: one for the order of samples, one for starts, dropout and negatives."""

    order: torch.Generator
    noise: torch.Generator


class TrainingSettings(NamedTuple):
    """The parameters of ExtremeClassifier that its training loop uses, under their names there."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    dropout: float
    uses_bfloat16: bool
    n_iter_no_change: int | None
    verbose: bool
    device: str


def train(
    network: Network,
    criterion: FullSoftmax | DrawnNegatives,
    samples: Samples,
    held_out: Samples,
    settings: TrainingSettings,
    generators: Generators,
) -> list[dict[str, float]]:
    """Train the network in place, and say what each epoch's loss and P@1 were."""
    if isinstance(criterion, DrawnNegatives):
        criterion.share(network)
    network.uses_bfloat16 = settings.uses_bfloat16
    network.is_row_sparse = is_sparse(samples.features) and samples.features.shape[1] >= ROW_SPARSE_FROM
    optimizers = _make_optimizers(network, isinstance(criterion, DrawnNegatives), settings)
    best = _BestModel()
    history: list[dict[str, float]] = []
    for epoch in range(settings.epochs):
        loss = _train_epoch(network, criterion, samples, settings, generators, optimizers, epoch, history)
        history.append({"loss": loss})
        if settings.n_iter_no_change is not None:
            ranked = rank_labels(network, held_out.features[held_out.chosen], 1)
            precision = precision_at_1(ranked, held_out.labels[held_out.chosen])
            history[-1]["validation_precision"] = precision
            best.compare(precision, network)
            if best.num_worse >= settings.n_iter_no_change:
                break
    network.is_row_sparse = network.uses_bfloat16 = False
    best.restore(network)
    if settings.verbose:
        sys.stderr.write("\n")
    return history


def _train_epoch(
    network: Network,
    criterion: FullSoftmax | DrawnNegatives,
    samples: Samples,
    settings: TrainingSettings,
    generators: Generators,
    optimizers: list[torch.optim.Optimizer],
    epoch: int,
    history: list[dict[str, float]],
) -> float:
    """One pass over the samples: its mean loss."""
    losses = []
    num_batches = samples.num_batches(settings.batch_size)
    for number, batch in enumerate(samples.batches(settings.batch_size, generators.order, settings.device)):
        done = (epoch * num_batches + number) / (settings.epochs * num_batches)
        _set_learning_rate(optimizers, settings.learning_rate * (1 - done))
        embeddings = network.embed(batch.rows, settings.dropout, generators.noise)
        loss = criterion(network, embeddings, batch, generators.noise)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
        if settings.verbose:
            _show_progress(epoch, settings.epochs, (number + 1) / num_batches, history)
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise ValueError(f"training must have a finite loss. Got {mean}; lower learning_rate, or scale the features.")
    return mean


def _show_progress(epoch: int, epochs: int, done: float, history: list[dict[str, float]]) -> None:
    last = f"  loss {history[-1]['loss']:.4f}" if history else ""
    sys.stderr.write(f"\repoch {epoch + 1}/{epochs} [{'#' * round(30 * done):30}]{last}")
    sys.stderr.flush()


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
    """Row-wise Adam for what has row-sparse gradients, and PyTorch's for the rest."""
    rowwise = [network.vectors] * network.is_row_sparse + [network.weight] * is_drawn
    others = [parameter for parameter in network.parameters() if all(parameter is not row for row in rowwise)]
    rate, decay = settings.learning_rate, settings.weight_decay
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=rate, weight_decay=decay, fused=True)]
    if rowwise:
        found.append(RowwiseAdam(rowwise, lr=rate, weight_decay=decay))
    return found


def _set_learning_rate(optimizers: list[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
