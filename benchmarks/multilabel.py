"""What partial label masking costs a training step with binary cross-entropy, side by side in one run.

    python benchmarks/multilabel.py        # about 2 minutes on 2 quiet cores; writes results/multilabel.csv

A step is forward, loss, backward and SGD with momentum of a linear head on 2,048 features, the width of a ResNet-50's
embeddings, at batch 256: the least that a model with these classes does. "loss alone" leaves the head out and starts
at ready logits: the worst case. Masks are drawn at ratios that leave out labels of every class.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, interleaved_times, keep_freed_memory, paired_ratios, quantiles, write_rows
from torch import Tensor, nn

from longtail import ClassPrior, MaskedLoss, MultilabelLoss, PartialLabelMasking

NUM_CLASSES = (80, 1_000, 13_330)
BATCH, FEATURES, LABELS_A_SAMPLE = 256, 2_048, 5
PLAIN = "binary cross-entropy"


def plain_loss(logits: Tensor, target: Tensor) -> Tensor:
    """PyTorch's own, summed over classes."""
    return F.binary_cross_entropy_with_logits(logits, target) * logits.shape[1]


def losses(target: Tensor) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The plain loss, this library's, and the masked one with all ratios away from the data's."""
    prior = ClassPrior.from_indicator(target)
    masking = PartialLabelMasking(prior, rate=0.01, initial="mean")
    return {
        PLAIN: plain_loss,
        "MultilabelLoss": MultilabelLoss(),
        "MaskedLoss": MaskedLoss(MultilabelLoss(), masking),
    }


def skewed_targets(num_classes: int, generator: torch.Generator) -> Tensor:
    """[BATCH, C] of 0 and 1; every class has a positive and a negative, frequent ones have many."""
    rates = 1 / torch.arange(1, num_classes + 1)
    rates = (LABELS_A_SAMPLE * rates / rates.sum()).clamp_max(0.9)
    target = (torch.rand(BATCH, num_classes, generator=generator) < rates).float()
    target[torch.arange(num_classes) % BATCH, torch.arange(num_classes)] = 1
    return target


def head_step(loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, target: Tensor) -> Callable[[], None]:
    """One step of a linear head."""
    head = nn.Linear(inputs.shape[1], target.shape[1])
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        loss(head(inputs), target).backward()
        optimizer.step()

    return run


def loss_step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Callable[[], None]:
    """Forward and backward of the loss alone."""

    def run() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return run


def measure(
    question: str, steps: dict[str, Callable[[], None]], rounds: int, num_classes: int
) -> list[dict[str, Any]]:
    """Rows of one interleaved run."""
    times = interleaved_times(steps, rounds)
    ratios = paired_ratios(times, PLAIN)
    rows = []
    for name, values in times.items():
        size = f"{BATCH} x {num_classes}"
        row = {"question": question, "size": size, "method": name, "baseline": PLAIN, "ratio": round(ratios[name], 3)}
        rows.append(row | {"rounds": rounds} | quantiles(values) | environment())
        print(f"{question:12} {size:>12} {name:22} {ratios[name]:5.3f} x  {quantiles(values)['ms_p50']:8.2f} ms")
    return rows


def main() -> None:
    """Run everything and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    keep_freed_memory()
    rows = []
    for num_classes in NUM_CLASSES:
        generator = torch.Generator().manual_seed(0)
        target = skewed_targets(num_classes, generator)
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        logits = torch.randn(BATCH, num_classes, generator=generator).requires_grad_()
        rounds = arguments.rounds * 4 if num_classes <= 1_000 else max(3, arguments.rounds // 4)
        steps = {name: head_step(loss, inputs, target) for name, loss in losses(target).items()}
        rows += measure("linear head", steps, rounds, num_classes)
        steps = {name: loss_step(loss, logits, target) for name, loss in losses(target).items()}
        rows += measure("loss alone", steps, rounds, num_classes)
    print(write_rows("multilabel", rows))


if __name__ == "__main__":
    main()
