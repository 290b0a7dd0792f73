"""One meta step of a sampler that learns its class rates: this library against the formulation in public use.

    pip install higher                     # for the other side; the library itself does not need it
    python benchmarks/meta.py              # some minutes on 2 cores; writes results/meta.csv and meta_memory.csv

A meta step draws a batch of 512, takes one step of SGD with momentum on a linear head, measures a class-balanced set
of 512 after it, and moves the rates. The public formulation is written here from the description in the supplement of
"Balanced Meta-Softmax": a one-hot matrix [N, C] takes rates from classes to samples, a straight-through Gumbel
softmax [512, N] draws samples, and ``higher`` keeps the graph of the step. It then draws and steps again; that second
half is left out here, in its favor. The library's step is the real one, and there is nothing more to do.

Features are rows of a small table, so memory is that of the method.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, interleaved_times, paired_ratios, peak_extra_mebibytes, quantiles, write_rows
from torch import Tensor, nn

from longtail import ClassPrior, MarginCrossEntropy, margins
from longtail.datasets import exponential_counts, pareto_counts
from longtail.sampling import MetaSampler, recording, sgd_step_size

BATCH = META = 512
SIZES = {"CIFAR-100-LT": 10_847, "ImageNet-LT": 115_846}
FEATURES = (64, 512)
TABLE_ROWS = 4096
OURS, PUBLIC = "longtail", "public formulation"
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}


def class_counts(size: str) -> Tensor:
    """Counts with the size's shape and exactly its number of samples."""
    profile = exponential_counts(500, 100, 100) if size == "CIFAR-100-LT" else pareto_counts(1280, 1000, 256)
    counts = torch.tensor(profile)
    missing, num_classes = SIZES[size] - int(counts.sum()), len(counts)
    counts += missing // num_classes
    counts[: missing % num_classes] += 1
    return counts


def feature_table(num_features: int) -> Tensor:
    """Rows to take features from: sample i has row i modulo their number."""
    return torch.randn(TABLE_ROWS, num_features, generator=torch.Generator().manual_seed(0))


def our_step(counts: Tensor, num_features: int) -> Callable[[], None]:
    """A meta step of ``MetaSampler``."""
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    loss_function = MarginCrossEntropy(margins.logit_adjusted(ClassPrior.from_counts(counts)))
    table, sampler, head = feature_table(num_features), MetaSampler(labels), nn.Linear(num_features, len(counts))
    optimizer = torch.optim.SGD(head.parameters(), **SGD)

    def run() -> None:
        chosen = sampler.draw(BATCH)
        with recording(head) as record:
            loss_function(head(table[chosen % TABLE_ROWS]), labels[chosen]).backward()
        step_size = sgd_step_size(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        judged = sampler.draw_meta()
        meta_loss = F.cross_entropy(head(table[judged % TABLE_ROWS]), labels[judged])
        sampler.update(record.hyper_gradients(head, meta_loss, step_size))

    return run


def public_step(counts: Tensor, num_features: int) -> Callable[[], None]:
    """The same by a matrix of N x C, another of batch x N, and a second-order graph."""
    import higher

    labels = torch.arange(len(counts)).repeat_interleave(counts)
    log_prior = ClassPrior.from_counts(counts).log_probs.float()
    table, head = feature_table(num_features), nn.Linear(num_features, len(counts))
    optimizer = torch.optim.SGD(head.parameters(), **SGD)
    class_of = F.one_hot(labels, len(counts)).float()
    parameter = torch.zeros(len(counts), requires_grad=True)
    adam = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.99))
    balanced = (1.0 / counts)[labels]

    def run() -> None:
        rates = class_of @ parameter.sigmoid()
        log_rates = (rates / rates.sum()).log().expand(BATCH, -1)
        draws = F.gumbel_softmax(log_rates, tau=1.0, hard=True)
        chosen = draws.argmax(1)
        weights = draws.gather(1, chosen[:, None]).squeeze(1)
        with higher.innerloop_ctx(head, optimizer) as (lookahead, stepper):
            logits = lookahead(table[chosen % TABLE_ROWS]) + log_prior
            stepper.step((weights * F.cross_entropy(logits, labels[chosen], reduction="none")).mean())
            judged = torch.multinomial(balanced, META, replacement=True)
            meta_loss = F.cross_entropy(lookahead(table[judged % TABLE_ROWS]), labels[judged])
            (parameter.grad,) = torch.autograd.grad(meta_loss, parameter)
        adam.step()

    return run


STEPS = {PUBLIC: public_step, OURS: our_step}


def available_steps() -> dict[str, Callable[[Tensor, int], Callable[[], None]]]:
    """Both sides, or ours alone where ``higher`` is not installed."""
    if importlib.util.find_spec("higher") is not None:
        return STEPS
    print("higher is not installed: only this library is measured (pip install higher).")
    return {OURS: our_step}


def time_rows(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of both at every size, and how many times ours goes into the other's."""
    rows = []
    for size in SIZES:
        for num_features in FEATURES:
            counts = class_counts(size)
            times = interleaved_times(
                {name: build(counts, num_features) for name, build in available_steps().items()}, rounds
            )
            ratios = paired_ratios(times, OURS)
            for name, values in times.items():
                row = {"size": size, "samples": SIZES[size], "classes": len(counts), "features": num_features}
                measured = {"method": name, "times_ours": round(ratios[name], 1), "rounds": rounds}
                rows.append(row | measured | quantiles(values) | environment())
                print(f"{size:13} {num_features:4} features  {name:18} {quantiles(values)['ms_p50']:9.1f} ms", end="")
                print(f"  {ratios[name]:6.1f} x ours")
    return rows


def memory_rows() -> list[dict[str, Any]]:
    """Peak memory of building the sampler, and of one step above that; each in a process of its own."""
    rows = []
    for name in available_steps():
        for size, factor in (("CIFAR-100-LT", 1), ("ImageNet-LT", 1), ("ImageNet-LT", 10)):
            if name == PUBLIC and factor > 1:
                continue  # 512 x 1,158,460 in several copies does not fit in most machines
            command = [sys.executable, __file__, "--memory-of", name, size, str(factor)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            samples = SIZES[size] * factor
            rows.append({"size": size, "samples": samples, "method": name, **found, **environment()})
            print(f"{size:13} {samples:9,} samples  {name:18} {found['step_mib']:8.1f} MiB per step, ", end="")
            print(f"{found['setup_mib']:.1f} MiB to set up")
    return rows


def print_memory(name: str, size: str, factor: int) -> None:
    """Memory of one way at one size, as JSON on standard output."""
    steps: list[Callable[[], None]] = []
    STEPS[OURS](torch.ones(4, dtype=torch.int64), 8)()  # loads what PyTorch loads on first use
    setup = peak_extra_mebibytes(lambda: steps.append(STEPS[name](class_counts(size) * factor, FEATURES[0])))
    step = peak_extra_mebibytes(steps[0])
    print(json.dumps({"step_mib": round(step, 1), "setup_mib": round(setup, 1)}))


def main() -> None:
    """Run everything and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-of", nargs=3, metavar=("NAME", "SIZE", "FACTOR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        name, size, factor = arguments.memory_of
        print_memory(name, size, int(factor))
        return
    print(write_rows("meta", time_rows(arguments.rounds)))
    print(write_rows("meta_memory", memory_rows()))


if __name__ == "__main__":
    main()
