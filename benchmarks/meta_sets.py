"""Which samples should judge a meta sampler's steps: those the encoder was trained on, or new ones?

    longtail train cifar10_lt_fast --method cross_entropy --output runs/erm
    longtail embed runs/erm --output cifar10_lt_features.npz
    python benchmarks/meta_sets.py cifar10_lt_features.npz      # some minutes; writes results/meta_sets.csv

A linear head learns on frozen features by balanced softmax, in three ways that share everything else: batches as the
data are ("no meta set"), rates learned from a class-balanced set of training samples ("training samples", which is
BALMS), and rates learned from a class-balanced set of samples that the encoder has never seen ("held-out samples").
The test set is cut in two at random: the first half is there to be held out, the second half tests all three.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from harness import environment, write_rows
from torch import Tensor, nn

from longtail import ClassPrior, MarginCrossEntropy, margins
from longtail.lab.data.formats.arrays import load_arrays
from longtail.metrics import balanced_accuracy
from longtail.sampling import MetaSampler, recording, sgd_step_size

BATCH = 512


class Samples(NamedTuple):
    """Features [N, D] and their classes [N]."""

    features: Tensor
    labels: Tensor

    def of(self, chosen: Tensor) -> Samples:
        """Some of them."""
        return Samples(self.features[chosen], self.labels[chosen])


class Learned(NamedTuple):
    """A head, and the rates that its sampler ended with."""

    head: nn.Linear
    rates: Tensor


def learn(train: Samples, judges: Samples | None, steps: int, learning_rate: float, seed: int) -> Learned:
    """A head trained by balanced softmax; ``judges`` are what the meta loss is taken of, None for constant rates."""
    torch.manual_seed(seed)
    prior = ClassPrior.from_labels(train.labels)
    head = nn.Linear(train.features.shape[1], prior.num_classes)
    optimizer = torch.optim.SGD(head.parameters(), learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_function = MarginCrossEntropy(margins.logit_adjusted(prior))
    sampler = MetaSampler(train.labels, meta_labels=None if judges is None else judges.labels, seed=seed)
    for _ in range(steps):
        batch = train.of(sampler.draw(BATCH))
        optimizer.zero_grad()
        with recording(head) as record:
            loss_function(head(batch.features), batch.labels).backward()
        step_size = sgd_step_size(optimizer)
        optimizer.step()
        schedule.step()
        if judges is None:
            sampler.update(torch.zeros(BATCH))
            continue
        meta = judges.of(sampler.draw_meta())
        meta_loss = F.cross_entropy(head(meta.features), meta.labels)
        sampler.update(record.hyper_gradients(head, meta_loss, step_size))
    return Learned(head, sampler.rates)


def balanced_error(head: nn.Linear, test: Samples) -> float:
    """Percent."""
    with torch.no_grad():
        return 100 * (1 - balanced_accuracy(head(test.features), test.labels).item())


def main() -> None:
    """Measure every way with every seed, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="?", type=Path, help="what longtail embed writes; none: nothing to do")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    arguments = parser.parse_args()
    if arguments.features is None:
        print("No features given: nothing measured.")
        return
    data = load_arrays(arguments.features.resolve())
    train, rest = (Samples(split.batch(torch.arange(len(split))), split.labels) for split in (data.train, data.test))
    order = torch.randperm(len(rest.labels), generator=torch.Generator().manual_seed(0))
    held_out, test = rest.of(order[: len(order) // 2]), rest.of(order[len(order) // 2 :])
    ways = {"no meta set": None, "training samples": train, "held-out samples": held_out}
    steps = arguments.epochs * math.ceil(len(train.labels) / BATCH)
    rows = []
    for seed in range(arguments.seeds):
        for name, judges in ways.items():
            head, rates = learn(train, judges, steps, arguments.learning_rate, seed)
            counts = torch.bincount(train.labels)
            found = {
                "features": data.name,
                "meta_set": name,
                "seed": seed,
                "balanced_error": round(balanced_error(head, test), 2),
                "rate_of_most_frequent_class": round(rates[counts.argmax()].item(), 3),
                "rate_of_rarest_class": round(rates[counts.argmin()].item(), 3),
                "variance_of_rates": round(rates.var(correction=0).item(), 4),
            }
            print("  ".join(map(str, found.values())), flush=True)
            rows.append(found | {"steps": steps, "learning_rate": arguments.learning_rate} | environment())
    print(write_rows("meta_sets", rows))


if __name__ == "__main__":
    main()
