"""Margin losses against plain cross-entropy, forward and backward, side by side in one run.

    python benchmarks/losses.py            # about 4 minutes on 2 quiet cores; writes losses.csv and losses_large.csv

Three questions, each a ratio to PyTorch's own way in the same round:

- ready logits: ``MarginCrossEntropy`` for every margin of METHODS against ``F.cross_entropy``;
- from embeddings: ``LinearMarginCrossEntropy`` against ``F.linear`` and ``F.cross_entropy``;
- very many classes: time and peak memory of both at 256 samples x 200,000 classes x 256 features.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import (
    environment,
    free_a_large_block,
    interleaved_times,
    keep_freed_memory,
    paired_ratios,
    peak_extra_mebibytes,
    quantiles,
    write_rows,
)

import longtail

SIZES = ((512, 1_000), (512, 10_000), (128, 100_000))
ALLOCATORS = {"fresh": SIZES[:1], "default": SIZES, "kept": SIZES}
"""State of the C library's allocator -> sizes. Those after the first end the fresh state by themselves."""
FEATURES = 256
LARGE = (256, 200_000, 256)


def skewed_prior(num_classes: int) -> longtail.ClassPrior:
    """Counts that fall as a power of the rank, from 100,000 to at least 1."""
    ranks = torch.arange(1, num_classes + 1, dtype=torch.float64)
    return longtail.ClassPrior.from_counts((1e5 / ranks).ceil().long())


def margin_losses(prior: longtail.ClassPrior) -> dict[str, torch.nn.Module]:
    """Every named margin, and the weighted ones."""
    rows = longtail.METHODS.values()
    return {row.name: row.plan(prior).loss for row in rows if row.family in ("margin", "weight")}


def step(loss: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> Callable[[], None]:
    """One forward and backward pass with fresh gradients."""

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        loss().backward()

    return run


def on_ready_logits(batch: int, num_classes: int) -> dict[str, Callable[[], None]]:
    """Name -> step, from a leaf of logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, num_classes, generator=generator).requires_grad_()
    target = torch.randint(num_classes, (batch,), generator=generator)
    prior = skewed_prior(num_classes)
    steps = {"F.cross_entropy": step(lambda: F.cross_entropy(logits, target), logits)}
    for name, module in margin_losses(prior).items():
        steps[name] = step(lambda module=module: module(logits, target), logits)
    return steps


def compiled_on_ready_logits(batch: int, num_classes: int) -> dict[str, Callable[[], None]]:
    """Name -> step, with ``torch.compile`` and without."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, num_classes, generator=generator).requires_grad_()
    target = torch.randint(num_classes, (batch,), generator=generator)
    prior = skewed_prior(num_classes)
    functions: dict[str, Callable[..., torch.Tensor]] = {"F.cross_entropy": F.cross_entropy}
    functions |= {name: longtail.get_method(name).plan(prior).loss for name in ("logit_adjusted", "adaptive")}
    functions |= {f"{name}, compiled": torch.compile(function) for name, function in functions.items()}
    return {name: step(lambda f=function: f(logits, target), logits) for name, function in functions.items()}


def from_embeddings(batch: int, num_classes: int, features: int) -> dict[str, Callable[[], None]]:
    """Name -> step, from leaves of embeddings, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, features, generator=generator).requires_grad_()
    weight = (0.05 * torch.randn(num_classes, features, generator=generator)).requires_grad_()
    bias = torch.zeros(num_classes, requires_grad=True)
    target = torch.randint(num_classes, (batch,), generator=generator)
    prior = skewed_prior(num_classes)
    leaves = (x, weight, bias)
    steps = {"F.linear + F.cross_entropy": step(lambda: F.cross_entropy(F.linear(x, weight, bias), target), *leaves)}
    for name in ("logit_adjusted", "logit_adjusted_adaptive"):
        module = longtail.LinearMarginCrossEntropy(longtail.get_method(name).plan(prior).margins)
        steps[name] = step(lambda module=module: module(x, weight, target, bias), *leaves)
    return steps


def measure(question: str, steps: dict[str, Callable[[], None]], rounds: int, size: str, memory: str) -> list[Any]:
    """Rows of one interleaved run; the first step is the baseline."""
    baseline = next(iter(steps))
    times = interleaved_times(steps, rounds)
    ratios = paired_ratios(times, baseline)
    rows = []
    for name, values in times.items():
        row = {"question": question, "size": size, "allocator": memory, "method": name, "baseline": baseline}
        rows.append(row | {"ratio": round(ratios[name], 3), "rounds": rounds} | quantiles(values) | environment())
        print(f"{question:16} {size:>16} {name:28} {ratios[name]:5.2f} x  {quantiles(values)['ms_p50']:9.2f} ms")
    return rows


def enough_rounds(rounds: int, num_classes: int) -> int:
    """Ten times as many for short steps, which are the noisy ones."""
    return rounds * (10 if num_classes < 10_000 else 1)


def large_in_this_process(name: str) -> None:
    """Time and peak memory of one way at 200,000 classes, as JSON on standard output."""
    batch, num_classes, features = LARGE
    run = from_embeddings(batch, num_classes, features)[name]
    run()
    gradients = (num_classes * (features + 1) + batch * features) * 4 / 2**20
    times = interleaved_times({name: run}, rounds=5)[name]
    peak = peak_extra_mebibytes(run)  # the last step's gradients are still there, and stay the same size
    print(json.dumps({"seconds": times, "peak": peak, "gradients": gradients}))


def large(rounds: int) -> list[dict[str, Any]]:
    """Rows for 200,000 classes: each way in a process of its own for memory, all in one run for time."""
    size = " x ".join(map(str, LARGE))
    steps = from_embeddings(*LARGE)
    times = interleaved_times(steps, rounds)
    ratios = paired_ratios(times, next(iter(steps)))
    rows = []
    for name in steps:
        command = [sys.executable, __file__, "--large-one", name]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row = {"size": size, "method": name, "ratio": round(ratios[name], 3), "rounds": rounds}
        memory = {"peak_extra_mib": round(result["peak"], 1), "gradients_mib": round(result["gradients"], 1)}
        rows.append(row | memory | quantiles(times[name]) | environment())
        print(f"{size}  {name:28} {ratios[name]:5.2f} x  extra memory {result['peak']:.0f} MiB")
    return rows


def main() -> None:
    """Run everything and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compiled", action="store_true", help="only what torch.compile makes of it (needs g++)")
    parser.add_argument("--large-one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.large_one:
        large_in_this_process(arguments.large_one)
        return
    if arguments.compiled:
        rows = []
        free_a_large_block()
        for batch, num_classes in SIZES:
            steps = compiled_on_ready_logits(batch, num_classes)
            rounds = enough_rounds(arguments.rounds, num_classes)
            rows += measure("compiled", steps, rounds, f"{batch} x {num_classes}", "default")
        print(write_rows("losses_compiled", rows))
        return
    rows = []
    for memory, sizes in ALLOCATORS.items():
        if memory == "default":
            free_a_large_block()
        if memory == "kept":
            keep_freed_memory()
        print(f"--- allocator: {memory}")
        for batch, num_classes in sizes:
            size = f"{batch} x {num_classes}"
            steps = on_ready_logits(batch, num_classes)
            rows += measure("ready logits", steps, enough_rounds(arguments.rounds, num_classes), size, memory)
            steps = from_embeddings(batch, num_classes, FEATURES)
            rows += measure("from embeddings", steps, arguments.rounds, size, memory)
    print(write_rows("losses", rows))
    print(write_rows("losses_large", large(rounds=8)))


if __name__ == "__main__":
    main()
