"""Ten million labels on two processes: trained, saved, resumed and served, with memory and seconds of each process.

    python benchmarks/sharded.py run                 # two processes, 10^7 labels of 128 numbers; some minutes, 8 GB
    python benchmarks/sharded.py run --labels 1000000 --processes 1

Rows go to ``results/sharded.csv``. Samples are synthetic: labels by Zipf's law, embeddings near a vector that belongs
to the label. Negatives are uniform, weights ``tail``, the optimizer ``RowwiseAdagrad``. All processes are on one
machine, with one thread each. Seconds are those of the process that took longest: of the clock, which other work on
the machine slows down, and of its processor.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import environment, update_rows

from longtail import ClassPrior, SampledLinear, negatives
from longtail.negatives import RowwiseAdagrad, ShardedCheckpoints

BATCH, NEGATIVES, STEPS, QUERIES, PLACES = 512, 1024, 300, 64, 10
"""Samples per step and queries of all processes together."""


def seconds_of(function: Callable[[], Any]) -> tuple[float, float]:
    """Of the clock, and of the processor of the process that needed most."""
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    function()
    spent = torch.tensor([time.perf_counter() - start, time.process_time() - cpu], dtype=torch.float64)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    return float(spent[0]), float(spent[1])


def make_samples(prior: ClassPrior, size: int, generator: torch.Generator, features: int) -> tuple[Any, Any]:
    """Embeddings near a vector that belongs to the label, which is made from its number and kept nowhere."""
    labels = torch.searchsorted(prior.probs.cumsum(0), torch.rand(size, generator=generator, dtype=torch.float64))
    labels.clamp_max_(prior.num_classes - 1)
    waves = torch.arange(1, features + 1, dtype=torch.float64)
    centers = torch.sin((labels[:, None].double() + 1) * waves.sqrt()).float()
    return centers + 0.5 * torch.randn(size, features, generator=generator), labels


def sum_rows(table: torch.Tensor) -> list[float]:
    """Of some rows at a time, so that the check takes no memory that would count."""
    return [float(part.double().sum()) for part in table.detach().split(2**14)]


def measure(num_labels: int, features: int, folder: Path) -> list[dict[str, Any]]:
    """Rows of one number of processes; every process measures, the first one's are written."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1 + rank)
    rows: list[dict[str, Any]] = []

    def note(what: str, seconds: tuple[float, float], count: int = 1, **more: Any) -> None:
        peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, dtype=torch.float64)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        row = {"what": what, "labels": num_labels, "size": features, "processes": size}
        row |= {"seconds": round(seconds[0] / count, 4), "cpu_seconds": round(seconds[1] / count, 4)}
        row |= {"peak_gib_per_process": round(float(peak), 2), "gigabytes": "", "value": ""} | more
        rows.append(row | environment())
        if rank == 0:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)

    made: dict[str, Any] = {}

    def make() -> None:
        prior = ClassPrior.from_counts((1e9 / torch.arange(1, num_labels + 1, dtype=torch.float64)).ceil())
        made["prior"] = prior
        made["head"] = SampledLinear(
            features,
            num_labels,
            negatives.uniform(num_labels),
            negatives.tail(prior),
            NEGATIVES,
            is_sharded=True,
        )
        made["optimizer"] = RowwiseAdagrad(made["head"].parameters(), lr=0.1)

    note("make head", seconds_of(make), gigabytes=round(4e-9 * num_labels * features, 3))
    prior, head, optimizer = made["prior"], made["head"], made["optimizer"]
    batches = [make_samples(prior, BATCH // size, generator, features) for _ in range(20)]
    losses: list[float] = []

    def train(steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            loss = head(*batches[step % len(batches)], generator)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    train(20)
    note("step", seconds_of(lambda: train(STEPS)), STEPS, value=f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    checkpoints = ShardedCheckpoints(folder)
    saving = seconds_of(
        lambda: checkpoints.save(STEPS, {"head": head.state_dict(), "optimizer": optimizer.state_dict()})
    )
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    note(
        "save", saving, gigabytes=round(num_bytes / 1e9, 3), value=f"{len(list(folder.rglob('*.safetensors')))} files"
    )
    before = sum_rows(head.weight)
    loading = seconds_of(lambda: made.update(state=checkpoints.load(into={"head": head.state_dict()})))
    assert sum_rows(head.weight) == before
    note("load", loading, gigabytes=round(num_bytes / 1e9, 3))
    x, labels = make_samples(prior, QUERIES // size, generator, features)
    serving = seconds_of(lambda: made.update(best=head.topk(x, PLACES)))
    hits = torch.stack([(made["best"].indices == labels[:, None]).any(dim=1).sum(), torch.tensor(len(labels))])
    dist.all_reduce(hits)
    note(f"topk, {QUERIES} queries", serving, value=f"R@10 {float(hits[0] / hits[1]):.3f}")
    return rows


def run_process(rank: int, size: int, rendezvous: str, num_labels: int, features: int) -> None:
    """One of the processes; the first one writes the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size)
    try:
        rows = measure(num_labels, features, Path(rendezvous.removeprefix("file://")).parent / "checkpoints")
    finally:
        dist.destroy_process_group()
    if rank == 0:
        update_rows("sharded", rows, ("labels", "size", "processes"))


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["run"])
    parser.add_argument("--labels", type=int, default=10**7)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", help="for the checkpoint; default: a temporary one")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is None:
        print(__doc__)
    elif options.rank is not None:
        run_process(options.rank, options.processes, options.rendezvous, options.labels, options.size)
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            command = [sys.executable, *sys.argv, "--rendezvous", (Path(folder) / "rendezvous").as_uri()]
            processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(options.processes)]
            codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"the processes ended with {codes}")


if __name__ == "__main__":
    main()
