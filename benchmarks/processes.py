"""What two processes compute differently from one: weights, masking ratios and learned rates after the same steps.

    python benchmarks/processes.py    # writes results/processes/steps.csv

One process takes five steps of SGD on batches of 64; two processes take them on the halves, and average gradients as
data-parallel training does. All in float64, so that a difference above 1e-12 is one of the formula, not of rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from harness import write_rows
from torch import Tensor, nn

from longtail import ClassPrior, get_method
from longtail.sampling import ClassRates, MetaSampler, score_function_gradient

STEPS, BATCH, WIDTH, CLASSES = 5, 64, 16, 10
COUNTS = torch.tensor([500 // 2**c + 1 for c in range(CLASSES)])
SAME_STEP = "the step of one process with the whole batch"
GUARANTEES: dict[str, tuple[str, dict[str, Any]]] = {
    "cross_entropy": (SAME_STEP, {}),
    "logit_adjusted": (SAME_STEP, {}),
    "elm": (SAME_STEP + ": partners of all processes", {"strength": 0.1}),
    "elm, memory_size=4": (SAME_STEP + ": partners and memory of all processes", {"strength": 0.1, "memory_size": 4}),
    "dro_lt": (SAME_STEP + ": samples and centroids of all processes", {"strength": 0.1}),
    "center_loss": (SAME_STEP + ": centroids of all processes", {"strength": 0.1}),
    "spread_out": (SAME_STEP + ": pairs of all processes", {}),
    "range_loss": (SAME_STEP + ": pairs of all processes", {}),
    "supervised_contrastive": (SAME_STEP + ": pairs of all processes", {}),
    "triplet": (SAME_STEP + ": pairs of all processes", {}),
    "hybrid": (SAME_STEP + ": pairs of all processes", {"strength": 0.1}),
    "partial_label_masking, first epoch": (SAME_STEP + ", while nothing is masked", {}),
}
MASKING = "partial_label_masking, ratios"
MASKED = "partial_label_masking, later epochs"
META = "balanced_meta_softmax, rates"
OTHERS = {
    MASKING: "the same ratios in all processes, from what all of them saw",
    MASKED: "the same expected step; each process draws masks of its own",
    META: "the rates that one process learns from the draws of both; they are other draws than one process makes",
}


def make_batches(is_multilabel: bool) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(STEPS):
        labels = torch.multinomial(COUNTS.double(), BATCH, replacement=True, generator=generator)
        indicator = torch.rand(BATCH, CLASSES, generator=generator) < 0.5 * COUNTS / COUNTS.max() + 0.05
        target = indicator.double() if is_multilabel else labels
        batches.append((torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64), target))
    return batches


def take_steps(method: str, options: dict[str, Any], rank: int | None) -> dict[str, Tensor]:
    """The weights after training, and what the loss says at the end of two epochs."""
    is_multilabel = method.startswith("partial")
    batches = make_batches(is_multilabel)
    indicator = torch.cat([target for _, target in batches]).bool()
    prior = ClassPrior.from_indicator(indicator) if is_multilabel else ClassPrior.from_counts(COUNTS)
    phase = get_method(method).plan(prior, **options).phases[0]
    torch.manual_seed(0)
    encoder, head = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, CLASSES).double()
    modules = [module.double() for module in (phase.loss, phase.regularizer) if module is not None]
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    found = {}
    for epoch in range(2):
        for x, target in batches:
            mine = slice(None) if rank is None else slice(rank, None, 2)
            embeddings = encoder(x[mine]).tanh()
            loss = phase.loss(head(embeddings), target[mine])
            if phase.regularizer is not None:
                loss = loss + phase.strength * phase.regularizer(embeddings, target[mine])
            optimizer.zero_grad()
            loss.backward()
            if rank is not None:
                average_gradients([*encoder.parameters(), *head.parameters()])
            optimizer.step()
        found[f"weights {epoch}"] = torch.cat([encoder.weight.flatten(), head.weight.flatten()]).detach().clone()
        for module in modules:
            if hasattr(module, "end_epoch"):
                module.end_epoch()
                found[f"ratios {epoch}"] = module.masking.ratio.clone()
    return found


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """What data-parallel training does."""
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def learn_rates() -> tuple[Tensor, list[Tensor]]:
    """The meta sampler's rates after steps whose slopes depend on the classes, and the classes that were drawn."""
    labels = torch.repeat_interleave(torch.arange(CLASSES), COUNTS)
    sampler, drawn = MetaSampler(labels), []
    for _ in range(STEPS):
        drawn.append(labels[sampler.draw(BATCH // 2)])
        sampler.update(slopes_of(drawn[-1]) * 2 / BATCH)
    return sampler.rates, drawn


def slopes_of(classes: Tensor) -> Tensor:
    """Made-up slopes of the meta loss, times the batch size."""
    return (classes.double() - 4).sin()


def measure_in_process(rank: int, rendezvous: str, folder: str) -> None:
    """One of two processes; leaves what it found in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    found: dict[str, Any] = {
        name: take_steps(name.partition(",")[0], options, rank) for name, (_, options) in GUARANTEES.items()
    }
    found[META] = learn_rates()
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def largest_difference(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((first - second).abs().max() / second.abs().max())


def main() -> None:
    """Measure, and write one row per method."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        run: Callable[..., Any] = torch.multiprocessing.spawn
        run(measure_in_process, (rendezvous, folder), nprocs=2)
        both = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    rows = []
    for name, (guarantee, options) in GUARANTEES.items():
        one = take_steps(name.partition(",")[0], options, None)
        last = "weights 0" if name.startswith("partial") else "weights 1"
        found = max(largest_difference(two[name][last], one[last]) for two in both)
        rows.append({"method": name, "guarantee": guarantee, "difference": f"{found:.1e}"})
        if name.startswith("partial"):
            ratios = max(largest_difference(two[name]["ratios 0"], one["ratios 0"]) for two in both)
            masked = max(largest_difference(two[name]["weights 1"], one["weights 1"]) for two in both)
            later = ((MASKING, ratios), (MASKED, masked))
            rows += [{"method": n, "guarantee": OTHERS[n], "difference": f"{found:.1e}"} for n, found in later]
    alone = ClassRates(CLASSES, learning_rate=0.01)
    for draws in zip(both[0][META][1], both[1][META][1], strict=True):
        classes = torch.cat(draws)
        alone.descend(score_function_gradient(classes, slopes_of(classes) / BATCH, CLASSES) / alone.values)
    found = max(largest_difference(two[META][0], alone.values) for two in both)
    rows.append({"method": META, "guarantee": OTHERS[META], "difference": f"{found:.1e}"})
    write_rows("processes/steps", rows)
    for row in rows:
        print(f"{row['method']:40} {row['difference']:>9}  {row['guarantee']}")


if __name__ == "__main__":
    main()
