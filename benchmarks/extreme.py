"""Many labels: what a training step costs, and the frontier between precision and rare labels on Delicious.

    python benchmarks/extreme.py steps              # about 4 minutes on 2 quiet cores, 14 GB; extreme_steps.csv
    python benchmarks/extreme.py frontier --data FOLDER     # about 3 minutes; extreme/frontier.csv

``steps``: forward, backward and optimizer, sampled against full softmax, with the peak memory of each.

``frontier``: precision against recall of rare labels, as the target goes from cross-entropy to logit adjustment.
FOLDER has ``delicious/train.txt.gz`` and ``test.txt.gz``. ``extreme_table.py`` has the peers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import (
    environment,
    interleaved_times,
    keep_freed_memory,
    peak_extra_mebibytes,
    quantiles,
    write_rows,
)

from longtail import ClassPrior, negatives
from longtail.estimators import ExtremeClassifier
from longtail.lab.data.formats.sparse_text import SparseSamples
from longtail.lab.data.sets.delicious import read_delicious
from longtail.margins import logit_adjusted
from longtail.metrics import (
    group_recall,
    inverse_propensities,
    precision_at_k,
    propensity_scored_precision_at_k,
)
from longtail.negatives import RowwiseAdagrad, RowwiseAdam, SampledLinear

FEATURES, BATCH, NEGATIVES, ROUNDS = 512, 256, 256, 100
LABELS = (1_000, 10_000, 100_000, 1_000_000)
LARGEST = {"full softmax, Adam": 100_000}
"""Labels beyond which a step is left out: a round would take seconds."""
NARROW, NARROW_LABELS = 128, (10_000, 10_000_000)
"""At ten million labels 512 features take 20 GB; with this many it is 5."""

WIDE = {"hidden_size": 1024, "dropout": 0.7, "epochs": 15, "learning_rate": 3e-3, "excludes_other_labels": True}
"""For the frontier, which has no limit of time."""
COMMON = {"activation": "relu", "uses_bfloat16": True, "uses_layerwise_rate": False, "n_estimators": 1}
TAUS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


# One training step


def sampled_step(
    num_labels: int, features: int, optimizer_class: Callable[..., torch.optim.Optimizer]
) -> Callable[[], None]:
    """A step of ``SampledLinear`` with uniform negatives and importance weights."""
    generator = torch.Generator().manual_seed(0)
    head = SampledLinear(features, num_labels, negatives.uniform(num_labels), negatives.importance, NEGATIVES)
    optimizer = optimizer_class(head.parameters(), lr=1e-3)
    x = torch.randn(BATCH, features, generator=generator).requires_grad_()

    def run() -> None:
        target = torch.randint(num_labels, (BATCH,), generator=generator)
        optimizer.zero_grad()
        head(x, target, generator).backward()
        optimizer.step()

    return run


def full_step(num_labels: int, features: int) -> Callable[[], None]:
    """A step of a linear layer, cross-entropy over all labels, and Adam."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(num_labels, features).normal_(0, features**-0.5).requires_grad_()
    optimizer = torch.optim.AdamW([weight], fused=True)
    x = torch.randn(BATCH, features, generator=generator).requires_grad_()

    def run() -> None:
        target = torch.randint(num_labels, (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(F.linear(x, weight), target).backward()
        optimizer.step()

    return run


STEPS: dict[str, Callable[[int, int], Callable[[], None]]] = {
    "sampled, row-wise Adagrad": partial(sampled_step, optimizer_class=RowwiseAdagrad),
    "sampled, row-wise Adam": partial(sampled_step, optimizer_class=RowwiseAdam),
    "full softmax, Adam": full_step,
}
Case = tuple[str, int, int]
"""Name of a step, labels, features."""


def measure_steps(rounds: int) -> None:
    """Time steps of each width in turn, and the peak memory of each in a process of its own."""
    keep_freed_memory()
    sizes = [(name, num_labels, FEATURES) for name in STEPS for num_labels in LABELS]
    wide = [case for case in sizes if case[1] <= LARGEST.get(case[0], LABELS[-1])]
    narrow = [("sampled, row-wise Adagrad", num_labels, NARROW) for num_labels in NARROW_LABELS]
    sampled = [case for case in wide if case[0].startswith("sampled")]
    full = [case for case in wide if case not in sampled]
    rows = []
    for cases, repeats in ((sampled, rounds), (full, max(3, rounds // 20)), (narrow, rounds)):
        rows += timed_steps(cases, repeats)
    print(write_rows("extreme_steps", [row | environment() for row in rows]))


def timed_steps(cases: list[Case], rounds: int) -> list[dict[str, Any]]:
    """Rows of one interleaved run, whose models are gone when it ends."""
    times = interleaved_times({str(case): STEPS[case[0]](*case[1:]) for case in cases}, rounds)
    rows = []
    for case in cases:
        name, num_labels, features = case
        row = {"step": name, "labels": num_labels, "features": features, "batch": BATCH, "negatives": NEGATIVES}
        row |= quantiles(times[str(case)]) | {"peak_extra_mib": round(memory_of(case), 1)}
        rows.append(row)
        size = f"{num_labels:10,} labels x {features}"
        print(f"{name:28} {size} {row['ms_p50']:9.2f} ms {row['peak_extra_mib']:8.1f} MiB", flush=True)
    return rows


def memory_of(case: Case) -> float:
    """Peak memory of a step beyond what the parameters and the optimizer's state take."""
    command = [sys.executable, __file__, "memory", *map(str, case)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_memory(case: Case) -> None:
    """What ``memory_of`` calls in a process of its own."""
    step = STEPS[case[0]](*case[1:])
    step()  # makes the optimizer's state
    print(peak_extra_mebibytes(step))


# Delicious


def measures(ranked: Any, truth: Any, prior: ClassPrior) -> dict[str, float]:
    """P@k, PSP@k, and R@10 of each slice: which share of the slice's positives is among the ten best, in percent."""
    ranked = torch.as_tensor(np.asarray(ranked), dtype=torch.int64)
    precision = 100 * precision_at_k(ranked, truth, 5)
    scored = 100 * propensity_scored_precision_at_k(ranked, truth, 5, inverse_propensities(prior))
    row = {f"P@{k}": float(precision[k - 1]) for k in (1, 3, 5)}
    row |= {f"PSP@{k}": float(scored[k - 1]) for k in (1, 3, 5)}
    recalls = group_recall(ranked, truth, prior.quantile_groups(), ks=[10])
    row |= {f"{name} R@10": 100 * float(recall[0]) for name, recall in recalls.items()}
    return {name: round(value, 2) for name, value in row.items()}


def own_run(settings: dict[str, Any], tau: float, train: SparseSamples, features: Any, seed: int) -> dict[str, Any]:
    """Train and predict with ExtremeClassifier."""
    margins = partial(logit_adjusted, tau=tau)
    start, start_cpu = time.perf_counter(), time.process_time()
    model = ExtremeClassifier(**COMMON, **settings, margins=margins, random_state=seed).fit(
        train.features, train.labels
    )
    trained, trained_cpu = time.perf_counter(), time.process_time()
    ranked = model.predict_topk(features, 50)
    times = {"train_s": trained - start, "train_cpu_s": trained_cpu - start_cpu}
    return {"ranked": ranked, **times, "predict_s": time.perf_counter() - trained}


def measure_frontier(data: Path, num_seeds: int) -> None:
    """What each strength of the target margin gives."""
    train, test = read_delicious(data)
    prior = ClassPrior.from_indicator(train.labels)
    rows = []
    for tau in TAUS:
        for seed in range(num_seeds):
            run = own_run(WIDE, tau, train, test.features, seed)
            rows.append(_row({"tau": tau, "seed": seed}, run, test.labels, prior))
    print(write_rows("extreme/frontier", rows))


def _row(first: dict[str, Any], run: dict[str, Any], truth: Any, prior: ClassPrior) -> dict[str, Any]:
    times = {name: round(run[name], 3) for name in ("train_s", "train_cpu_s", "predict_s")}
    row = first | times | measures(run["ranked"], truth, prior)
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row | environment()


def main() -> None:
    """Run the part asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", help="default: steps")
    parts.add_parser("steps").add_argument("--rounds", type=int, default=ROUNDS)
    frontier = parts.add_parser("frontier")
    frontier.add_argument("--data", type=Path, help="folder that has delicious/; default: LONGTAIL_DATA")
    frontier.add_argument("--seeds", type=int, default=3)
    memory = parts.add_parser("memory")
    memory.add_argument("name")
    memory.add_argument("num_labels", type=int)
    memory.add_argument("features", type=int)
    arguments = parser.parse_args()
    if arguments.part in (None, "steps"):
        measure_steps(getattr(arguments, "rounds", ROUNDS))
    elif arguments.part == "memory":
        print_memory((arguments.name, arguments.num_labels, arguments.features))
    else:
        measure_frontier(arguments.data, arguments.seeds)


if __name__ == "__main__":
    main()
