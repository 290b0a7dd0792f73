"""Next-item recommendation on Amazon Toys: negatives and weightings, and optimizers of the item vectors.

    python benchmarks/sequences.py trade-off                # each way to sample beside the softmax over all items
    python benchmarks/sequences.py optimizers               # on the validation items, to choose by
    python benchmarks/sequences.py steps                    # what a step of both costs; adds rows at each call
    python benchmarks/sequences.py trade-off --only tail    # those alone whose name has this in it

Needs sequences/toys.txt.gz below LONGTAIL_DATA. The first part trains the recipe amazon_toys with other methods, and
tests on the last item of each user; the second has a loop of its own, in which the item vectors have row-sparse
gradients and an optimizer of their own, and looks at the item before the last. Rows are added to results/sequences as
they are made, and made once: processor seconds are those of loading, training and testing, on one thread.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, environment

from longtail import negatives
from longtail.lab.data.dataset import Dataset
from longtail.lab.data.registry import DataRecipe, load_data
from longtail.lab.runs.rankings import Rankings
from longtail.lab.training.loop import train
from longtail.lab.training.models import build_model
from longtail.lab.training.optimizers import learning_rate, make_optimizer
from longtail.lab.training.ranking import rank_items, ranking_metrics
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe, with_settings
from longtail.lab.training.sequence_models import transformer
from longtail.methods import get_method, takes_embeddings

DISTRIBUTIONS = ("uniform", "within_batch", "prior")
WEIGHTINGS = ("importance", "constant", "unit", "relative", "tail")
OPTIMIZERS = {
    "adamw": (0.003, 0.01, 0.03),
    "rowwise_adam": (0.003, 0.01, 0.03),
    "rowwise_adagrad": (0.03, 0.1, 0.3),
}
"""Of the item vectors, and their learning rates; all else has AdamW."""
REST_RATE = 0.01
"""Of all that is no item vector, while their optimizers are compared."""
FOLDER = RESULTS / "sequences"
ALL_ITEMS = "all items"


def list_methods(num_negatives: int) -> dict[str, list[str]]:
    """Names of rows, and the settings that make them."""
    methods = {ALL_ITEMS: ["method={name='cross_entropy'}"]}
    for distribution in DISTRIBUTIONS:
        for weighting in WEIGHTINGS:
            options = f"distribution='{distribution}', weighting='{weighting}', num_negatives={num_negatives}"
            name = f"{distribution.replace('_', '-')}, {weighting}"
            methods[name] = [f"method={{name='sampled_softmax', options={{{options}}}}}"]
    return methods


def measure_method(recipe: Recipe) -> dict[str, Any]:
    """Train and test a recipe."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder), accelerator="cpu", show_progress=False)
    return {**run.metrics, "processor_seconds": round(time.process_time() - start, 1)}


def measure_trade_off(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per method and seed."""
    settings = [f"train.epochs={arguments.epochs}"] * (arguments.epochs is not None)
    settings += [f"method.options.num_negatives={arguments.negatives}"] * (arguments.negatives is not None)
    recipe = load_recipe(find_recipe(arguments.recipe), settings)
    num_negatives = int(recipe.method.options["num_negatives"])
    done = read_done("trade_off", ("recipe", "method", "num_negatives", "epochs", "learning_rate", "seed"))
    for seed in range(arguments.seeds):
        for name, settings in list_methods(num_negatives).items():
            drawn = "" if name == ALL_ITEMS else str(num_negatives)
            key = {"recipe": recipe.name, "method": name, "num_negatives": drawn, "epochs": str(recipe.train.epochs)}
            rate = recipe.train.learning_rate * recipe.train.head_rate  # of item vectors
            key |= {"learning_rate": f"{rate:g}", "seed": str(seed)}
            if arguments.only in name and tuple(key.values()) not in done:
                yield {**key, **measure_method(with_settings(recipe, settings).with_seed(seed))}


def make_head_optimizer(name: str, weight: torch.nn.Parameter, rate: float) -> torch.optim.Optimizer:
    """The optimizer of the item vectors."""
    if name == "rowwise_adam":
        return negatives.RowwiseAdam([weight], lr=rate)
    if name == "rowwise_adagrad":
        return negatives.RowwiseAdagrad([weight], lr=rate)
    return torch.optim.AdamW([weight], lr=rate, weight_decay=0.0, fused=True)


def train_with(recipe: Recipe, data: Dataset, optimizer: str, rate: float) -> dict[str, Any]:
    """Train with uniform negatives and importance weights, and look at the validation items."""
    start = time.process_time()
    settings = recipe.train
    torch.manual_seed(settings.seed)
    encoder = transformer(data.input_shape, **recipe.model.options)
    is_sparse = optimizer != "adamw"
    encoder.items.sparse = is_sparse
    weight = encoder.items.weight
    others = [parameter for parameter in encoder.parameters() if parameter is not weight]
    rest = torch.optim.AdamW(others, lr=REST_RATE, weight_decay=settings.weight_decay)
    optimizers = {rest: REST_RATE, make_head_optimizer(optimizer, weight, rate): rate}
    uniform = negatives.uniform(data.num_classes)
    num_negatives = int(recipe.method.options["num_negatives"])
    num_steps = -(-len(data.train) // settings.batch_size)
    for epoch in range(settings.epochs):
        for step, chosen in enumerate(torch.randperm(len(data.train)).split(settings.batch_size)):
            factor = learning_rate(epoch + step / num_steps, settings.epochs, settings) / settings.learning_rate
            losses = negatives.sampled_linear_losses(
                encoder(data.train.batch(chosen)),
                weight,
                data.train.targets(chosen),
                uniform,
                negatives.importance,
                num_negatives,
                sparse=is_sparse,
            )
            losses.mean().backward()
            for one, its_rate in optimizers.items():
                one.param_groups[0]["lr"] = factor * its_rate
                one.step()
                one.zero_grad()
    encoder.eval()
    with torch.no_grad():
        parts = torch.arange(len(data.test)).split(512)
        embeddings = torch.cat([encoder(data.test.batch(part)) for part in parts])
        scores, items = rank_items(embeddings, lambda x: x @ weight.T, k=20)
    found = Rankings(items, scores, data.test.labels, data.prior.counts, data.class_names)
    return {**ranking_metrics(found), "processor_seconds": round(time.process_time() - start, 1)}


def measure_optimizers(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per optimizer and learning rate."""
    recipe = load_recipe(find_recipe(arguments.recipe), [f"train.epochs={arguments.epochs or 8}"])
    data = load_data(DataRecipe(recipe.data.source, options={"evaluate_on": "validation"}))
    done = read_done("optimizers", ("recipe", "optimizer", "learning_rate", "epochs"))
    for optimizer, rates in OPTIMIZERS.items():
        for rate in rates:
            key = {"recipe": recipe.name, "optimizer": optimizer, "learning_rate": str(rate)}
            key["epochs"] = str(recipe.train.epochs)
            if arguments.only in optimizer and tuple(key.values()) not in done:
                yield {**key, **train_with(recipe, data, optimizer, rate)}


def make_step(recipe: Recipe, data: Dataset, settings: list[str]) -> Callable[[], None]:
    """A step of training on the same batch again and again."""
    chosen = with_settings(recipe, settings)
    torch.manual_seed(0)
    loss = get_method(chosen.method.name).plan(data.prior, **chosen.method.options).loss
    model = build_model(chosen.model.name, data.num_classes, data.input_shape, **chosen.model.options)
    optimizer = make_optimizer(model, chosen.train)
    indices = torch.randperm(len(data.train))[: chosen.train.batch_size]
    inputs, target = data.train.batch(indices), data.train.targets(indices)

    def step() -> None:
        value = model(inputs, loss, target) if takes_embeddings(loss) else loss(model(inputs), target)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_steps(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Processor time of a step over all items, and of one with drawn negatives: in turns, medians of ten."""
    recipe = load_recipe(find_recipe(arguments.recipe))
    data = load_data(recipe.data)
    methods = list_methods(int(recipe.method.options["num_negatives"]))
    steps = {name: make_step(recipe, data, methods[name]) for name in (ALL_ITEMS, "uniform, importance")}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(12):
        for name, step in steps.items():
            start = time.process_time()
            step()
            times[name].append(1000 * (time.process_time() - start))
    for name, found in times.items():
        key = {"recipe": recipe.name, "method": name, "batch_size": recipe.train.batch_size}
        yield {**key, "processor_ms": round(statistics.median(found[2:]), 2)}


def read_done(name: str, keys: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The rows that are there already."""
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        return set()
    with path.open(newline="") as file:
        return {tuple(row[key] for key in keys) for row in csv.DictReader(file)}


def add_row(name: str, row: Mapping[str, Any]) -> None:
    """Add a line to the file of rows, and a first one of names to a new file."""
    path = FOLDER / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.is_file()
    rounded = {key: f"{value:.5f}" if "_at_" in key else value for key, value in {**row, **environment()}.items()}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rounded))
        if is_new:
            writer.writeheader()
        writer.writerow(rounded)


PARTS = {"trade-off": measure_trade_off, "optimizers": measure_optimizers, "steps": measure_steps}


def main() -> None:
    """Make the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS, nargs="?", default="trade-off")
    parser.add_argument("--recipe", default="amazon_toys")
    parser.add_argument("--epochs", type=int, help="default: the recipe's; 8 for optimizers")
    parser.add_argument("--negatives", type=int, help="of the trade-off; default: the recipe's")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="make rows alone whose name has this in it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        load_data(load_recipe(find_recipe(arguments.recipe)).data)
    except FileNotFoundError as error:
        print(f"Nothing measured: {error}")
        return
    for row in PARTS[arguments.part](arguments):
        add_row(arguments.part.replace("-", "_"), row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
