"""Regularizers of embeddings against the same losses written densely, and against pytorch-metric-learning.

    pip install pytorch-metric-learning        # for the third side; the library itself does not need it
    python benchmarks/regularizers.py          # two minutes; writes results/regularizers*.csv

Forward and backward on embeddings of width 64 with labels of 100 classes, drawn evenly and, for the pull, from a
long-tailed profile too. "Dense" is the usual way: all pairs of a batch in one matrix, by a matrix product, and a
mask; for triplets, all of them. Ratios are to this library's time in the same round. ``center`` has no pairs, so it
is the same in any way of writing it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import (
    environment,
    interleaved_times,
    keep_freed_memory,
    paired_ratios,
    peak_extra_mebibytes,
    quantiles,
    write_rows,
)
from torch import Tensor

from longtail import losses
from longtail.datasets import exponential_counts

CLASSES, WIDTH = 100, 64
SIZES = (128, 512, 1024, 4096)
OURS, DENSE, OTHER = "longtail", "dense", "pytorch-metric-learning"
MARGIN = torch.linspace(2.0, 0.1, CLASSES)
CENTROIDS = 0.3 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))

Function = Callable[[Tensor, Tensor], Tensor]


def squared_distances(x: Tensor, others: Tensor) -> Tensor:
    """[N, M] by a matrix product."""
    return x.square().sum(1)[:, None] + others.square().sum(1) - 2 * x @ others.T


def same_class(labels: Tensor) -> Tensor:
    """[N, N] pairs of different samples of a class."""
    return (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)


def dense_pull(x: Tensor, labels: Tensor) -> Tensor:
    """All pairs, those of different classes masked."""
    exponents = squared_distances(x, x) - MARGIN[labels][:, None]
    masked = exponents.masked_fill(~same_class(labels), -math.inf)
    return torch.logsumexp(torch.cat([masked.new_zeros(len(x), 1), masked], dim=1), dim=1)


def dense_dro_lt(x: Tensor, labels: Tensor) -> Tensor:
    """Every sample against every sample's centroid."""
    distances = squared_distances(CENTROIDS[labels], x)
    margins = MARGIN[labels][:, None] * (labels[:, None] != labels)
    return distances.diagonal() + torch.logsumexp(margins - distances, dim=1)


def dense_spread_out(x: Tensor, labels: Tensor) -> Tensor:
    """All cosines."""
    unit = F.normalize(x, dim=1)
    cosines = (unit @ unit.T)[~torch.eye(len(x), dtype=torch.bool)]
    return (cosines.mean().square() + F.relu(cosines.square().mean() - 1 / WIDTH)).expand(len(x))


def dense_range_loss(x: Tensor, labels: Tensor) -> Tensor:
    """All pairs of class means, from a one-hot matrix."""
    one_hot = F.one_hot(labels, CLASSES).to(x)
    counts = one_hot.sum(dim=0)
    means = (one_hot.T @ x)[counts > 0] / counts[counts > 0, None]
    gaps = squared_distances(means, means)[~torch.eye(len(means), dtype=torch.bool)]
    return F.relu(1 - gaps).max().expand(len(x))


def dense_supervised_contrastive(x: Tensor, labels: Tensor) -> Tensor:
    """Log-softmax of all cosines, masked."""
    unit = F.normalize(x, dim=1)
    itself = torch.eye(len(x), dtype=torch.bool)
    logs = torch.log_softmax((unit @ unit.T / 0.1).masked_fill(itself, -math.inf), dim=1)
    partners = same_class(labels)
    return -logs.masked_fill(~partners, 0).sum(dim=1) / partners.sum(dim=1).clamp_min(1)


def dense_triplet(x: Tensor, labels: Tensor) -> Tensor:
    """All triplets in one tensor."""
    products = x @ x.T
    hinges = F.relu(1 + products[:, None, :] - products[:, :, None])
    partners, negatives = same_class(labels), labels[:, None] != labels
    triplets = partners[:, :, None] & negatives[:, None, :]
    return (hinges * triplets).sum(dim=(1, 2)) / triplets.sum(dim=(1, 2)).clamp_min(1)


def other_supervised_contrastive() -> Function:
    """pytorch-metric-learning's; a mean over the samples that have partners."""
    from pytorch_metric_learning import losses

    return losses.SupConLoss(temperature=0.1)


def other_triplet() -> Function:
    """pytorch-metric-learning's, over all triplets, on inner products; a mean over triplets."""
    from pytorch_metric_learning import distances, losses, reducers

    inner_product = distances.DotProductSimilarity(normalize_embeddings=False)
    return losses.TripletMarginLoss(margin=1.0, distance=inner_product, reducer=reducers.MeanReducer())


def sides(question: str, size: int) -> dict[str, Function]:
    """The ways to compute a regularizer at a batch size; what would not fit is left out."""
    ours: dict[str, Function] = {
        "pull": lambda x, y: losses.pull(x, y, MARGIN),
        "dro_lt": lambda x, y: losses.dro_lt(x, y, MARGIN, CENTROIDS),
        "spread_out": lambda x, y: losses.spread_out(x),
        "range_loss": losses.range_loss,
        "supervised_contrastive": losses.supervised_contrastive,
        "triplet": losses.triplet,
    }
    dense: dict[str, Function] = {
        "pull": dense_pull,
        "dro_lt": dense_dro_lt,
        "spread_out": dense_spread_out,
        "range_loss": dense_range_loss,
        "supervised_contrastive": dense_supervised_contrastive,
        "triplet": dense_triplet,
    }
    name = question.partition(",")[0]
    found = {OURS: ours[name]}
    if name != "triplet" or size <= 128:
        found[DENSE] = dense[name]
    if importlib.util.find_spec("pytorch_metric_learning") is not None:
        if name == "supervised_contrastive":
            found[OTHER] = other_supervised_contrastive()
        if name == "triplet" and size <= 512:
            found[OTHER] = other_triplet()
    return found


QUESTIONS = (
    "pull",
    "pull, long-tailed",
    "dro_lt",
    "spread_out",
    "range_loss",
    "supervised_contrastive",
    "triplet",
)


def make_batch(size: int, is_skewed: bool) -> tuple[Tensor, Tensor]:
    """Embeddings and labels, of equally frequent or of long-tailed classes."""
    generator = torch.Generator().manual_seed(size)
    counts = torch.tensor(exponential_counts(500, CLASSES, 100), dtype=torch.float64)
    rates = counts if is_skewed else torch.ones(CLASSES, dtype=torch.float64)
    labels = torch.multinomial(rates, size, replacement=True, generator=generator)
    return 0.3 * torch.randn(size, WIDTH, generator=generator), labels


def step(function: Function, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """Forward and backward."""
    leaf = x.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        function(leaf, labels).mean().backward()

    return run


def time_rows(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of every side at every size, and how many times ours they are."""
    if importlib.util.find_spec("pytorch_metric_learning") is None:
        print(f"{OTHER} is not installed: it is left out (pip install {OTHER}).")
    rows = []
    for question in QUESTIONS:
        for size in SIZES:
            if question in ("supervised_contrastive", "triplet") and size > 1024:
                continue
            x, labels = make_batch(size, question.endswith("long-tailed"))
            functions = {name: step(side, x, labels) for name, side in sides(question, size).items()}
            times = interleaved_times(functions, rounds)
            for name, value in paired_ratios(times, OURS).items():
                row = {"question": question, "method": name, "size": f"N={size}", "ratio": round(value, 3)}
                rows.append(row | {"rounds": rounds} | quantiles(times[name]) | environment())
                print(f"{question:24} N={size:<5} {name:24} {rows[-1]['ms_p50']:9.2f} ms  {value:6.2f} x ours")
    return rows


def memory_rows(size: int = 4096) -> list[dict[str, Any]]:
    """Peak memory of one step above what is there before; each in a process of its own."""
    rows = []
    for question in QUESTIONS:
        at = 1024 if question in ("supervised_contrastive", "triplet") else size
        for name in sides(question, at):
            command = [sys.executable, __file__, "--memory-of", question, name, str(at)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"question": question, "method": name, "size": f"N={at}", "mib": found, **environment()})
            print(f"{question:24} N={at:<5} {name:24} {found:8.1f} MiB")
    return rows


def print_memory(question: str, name: str, size: int) -> None:
    """Peak memory of one side, as JSON on standard output."""
    step(sides(question, 128)[name], *make_batch(128, is_skewed=False))()  # loads what PyTorch loads on first use
    run = step(sides(question, size)[name], *make_batch(size, question.endswith("long-tailed")))
    print(json.dumps(round(peak_extra_mebibytes(run), 1)))


def main() -> None:
    """Run everything and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--memory-of", nargs=3, metavar=("QUESTION", "NAME", "SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        question, name, size = arguments.memory_of
        print_memory(question, name, int(size))
        return
    keep_freed_memory()
    print(write_rows("regularizers", time_rows(arguments.rounds)))
    print(write_rows("regularizers_memory", memory_rows()))


if __name__ == "__main__":
    main()
