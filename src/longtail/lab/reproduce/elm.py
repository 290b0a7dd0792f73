"""Table 2 and Figures 2 to 5 and 7 of Jitkrittum et al., "ELM: embedding and logit margins for long-tail learning".

The methods of Table 2 that train one model, and weight normalization on top of plain cross-entropy, are trained on
one recipe with the same seeds, and ELM once more for each of several strengths. The paper uses CIFAR and larger sets;
any recipe with an encoder will do, and the default is the digits that ship with scikit-learn. ELM has the recipe's
own options, or the paper's where the recipe's name has one of its data sets in it, so that Tiny-ImageNet-LT gets
those of ImageNet-LT, or those of CIFAR-10-LT.

The paper draws margins and distances of three labels. Which samples the margins are of it does not say; here they are
test samples of one class of each group. Distances and maps are of training samples, as far as they were kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.lab.reproduce._elm_picture import draw_picture
from longtail.lab.reproduce._elm_results import (
    QUANTITIES,
    REFERENCE_ACCURACY,
    ROWS,
    Result,
    average,
    choose_options,
    find_strength,
    list_groups,
    reduce_run,
    sort_by_strength,
    sort_into_rows,
)
from longtail.lab.reproduce._rows import RowFile, RowFormat, conclude
from longtail.lab.reproduce._writing import json_text, write_files
from longtail.lab.reproduce.experiment import Experiment, MissingRow, Outcome, Say, Summary, add_option
from longtail.lab.training.comparison import Failure, Job, default_workers, plan_jobs, run_jobs
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe

__all__ = ["EXPERIMENT", "FORMAT", "STRENGTHS", "Options", "plan", "run", "tabulate_rows", "write_results"]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of Figure 7."""
KEPT = 2000
"""Embeddings that each run keeps of its training and of its test samples."""


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    recipe: str = add_option("digits", "What to train on; its model needs an encoder.")
    seeds: int = add_option(3, "How many runs of each method, with seeds 0, 1, ...", minimum=1, adds_rows=True)
    settings: tuple[str, ...] = add_option((), "A setting, such as train.epochs=5.", flag="--set")
    workers: int = add_option(0, "Runs at a time; 0: as many as there are cores.", minimum=0, adds_rows=True)


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Make the runs, some at a time, and summarize them."""
    recipe = load_recipe(find_recipe(options.recipe), options.settings)
    jobs = plan(recipe, range(options.seeds), folder)
    file = RowFile(folder, FORMAT, [_find_key(job.recipe) for job in jobs])
    found: dict[Path, Result] = {}
    missing = []
    for done, outcome in enumerate(run_jobs(jobs, options.workers or default_workers())):
        say(done, len(jobs), "")
        if isinstance(outcome, Failure):
            missing.append(MissingRow(outcome.job.name, outcome.reason))
            continue
        result = reduce_run(outcome)
        file.put((result.method, result.strength, result.digest.seed), result)
        found[outcome.path] = result
    say(len(jobs), len(jobs), "")
    return conclude(
        [found[job.folder] for job in jobs if job.folder in found],
        missing,
        folder,
        lambda results: [tabulate_rows(sort_into_rows(results, recipe))],
        lambda results: write_results(results, recipe, folder),
    )


def _find_key(recipe: Recipe) -> tuple[str, float | None, int]:
    method = recipe.method
    strength = find_strength(method.options) if method.name == "elm" else None
    return method.name, strength, recipe.train.seed


def tabulate_rows(rows: Mapping[str, Sequence[Result]]) -> Summary:
    """Table 2: accuracy, and how compact rare classes are on the test set."""
    found = {label: results for label, results in rows.items() if results}
    groups = list_groups(result for results in found.values() for result in results)
    rarest = groups[-1]
    distances = (f"{rarest}_distance_by_norm", f"{rarest}_distance_by_class_means")
    cells = []
    for label, results in found.items():
        balanced = average(results, "balanced_accuracy")
        spread = f" ± {100 * balanced.half_width:.1f}" if balanced.has_interval else ""
        shares = (f"{100 * average(results, name).mean:.1f}" for name in (*groups, "nearest_mean"))
        lengths = (f"{average(results, name).mean:.2f}" for name in distances)
        cells.append((label, f"{100 * balanced.mean:.1f}{spread}", *shares, *lengths))
    seeds = max(map(len, found.values()))
    note = (
        f"Accuracy on the test set in percent, of {seeds} seed{'s' * (seeds > 1)}; means: by the nearest class mean. "
        f"Then the largest distance within a class of the {rarest}, by the largest norm and by the distance of means."
    )
    return Summary(("method", "balanced", *groups, "means", "/ norm", "/ means"), cells, note)


def plan(recipe: Recipe, seeds: Sequence[int], folder: Path) -> list[Job]:
    """The runs to make: every row of the table, and ELM at every strength."""
    if recipe.model.name == "linear":
        raise ValueError("ELM moves embeddings, and the model 'linear' has none to train; set model.name=mlp.")
    options = dict(choose_options(recipe))
    kept = recipe.train.save_embeddings or KEPT
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, save_embeddings=kept))
    elm = recipe.with_method("elm", options)
    jobs = plan_jobs(elm, list(ROWS.values()), seeds, folder)
    for strength in STRENGTHS:
        if strength != find_strength(options):
            variant = recipe.with_method("elm", options | {"strength": strength})
            jobs += [Job(variant.with_seed(seed), folder / f"elm-{strength:g}" / f"seed-{seed}") for seed in seeds]
    return jobs


def write_results(results: Sequence[Result], recipe: Recipe, folder: Path) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    results_text = json_text(_collect_results(results, recipe))
    return write_files(folder, {"results.json": results_text, "picture.html": draw_picture(results, recipe)})


def _split_result(result: Result) -> list[dict[str, float]]:
    return [{name: result.quantity(name) for name in QUANTITIES}]


FORMAT = RowFormat(("method", "strength", "seed"), _split_result)


def _collect_results(results: Sequence[Result], recipe: Recipe) -> dict[str, Any]:
    def means(found: Sequence[Result]) -> dict[str, dict[str, float]]:
        estimates = {name: average(found, name) for name in QUANTITIES}
        return {
            name: {"mean": value.mean} | ({"half_width": value.half_width} if value.has_interval else {})
            for name, value in estimates.items()
            if math.isfinite(value.mean)
        }

    return {
        "recipe": recipe.name,
        "seeds": sorted({result.digest.seed for result in results}),
        "rows": {label: means(found) for label, found in sort_into_rows(results, recipe).items()},
        "balanced_accuracy_on_cifar10_lt_in_the_paper": REFERENCE_ACCURACY,
        "by_strength": {f"{strength:g}": means(found) for strength, found in sort_by_strength(results).items()},
    }


EXPERIMENT = Experiment(
    "elm",
    "Embedding and logit margins: ELM and the methods it is compared with.",
    'Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Table 2, Figures 2-5, 7.',
    Options,
    run,
)
