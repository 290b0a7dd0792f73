"""``longtail compare``: methods on one recipe, in a table and on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from longtail.lab.cli._console import make_table, print_screen, printable, say_written
from longtail.lab.cli._options import RecipeName, Settings, Timeout, TrustCode, Workers

if TYPE_CHECKING:
    from longtail.lab.runs.folder import Run
    from longtail.lab.runs.statistics import Estimate
    from longtail.lab.training.comparison import Job

__all__ = ["compare", "compare_runs", "finish_jobs", "render_comparison"]

SCREEN = 80
"""Columns that a table must fit."""
GAP = 3
"""Columns between two of a table's."""
LABEL_PLACES: Mapping[str, str] = {
    "precision_at_1": "P@1",
    "precision_at_3": "P@3",
    "precision_at_5": "P@5",
    "psp_at_1": "PSP@1",
    "psp_at_5": "PSP@5",
    "recall_at_10_tail": "tail",
}
"""What is shown of runs that rank very many labels."""
MOST_CLASSES, MOST_LETTERS = 4, 12
"""Classes that have a column each, and the letters of their names that it shows."""


def compare(
    recipe: RecipeName,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them, as longtail list has them, with options if you like: "
            "cross_entropy,elm(tau=0.5). Default: a plain loss, corrections, and the recipe's own."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each method, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path | None, typer.Option(help="Folder for the runs; default: runs/RECIPE.")] = None,
    settings: Settings = None,
    workers: Workers = 0,
    timeout: Timeout = 3600.0,
    cluster: Annotated[
        str | None, typer.Option(help="Run on a cluster: a scheduler of Dask, tcp://HOST:PORT, or ray://HOST:PORT.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Compare methods on one recipe: same data, initial weights and batches. Resumes after an interruption."""
    from longtail.lab.training.comparison import default_methods, plan_jobs
    from longtail.lab.training.recipe import find_recipe, load_recipe, split_methods, split_settings

    others, options = split_settings(settings or ())
    chosen = load_recipe(find_recipe(recipe), others)
    folder = output or Path("runs", chosen.name)
    names = default_methods(chosen) if methods is None else split_methods(methods)
    if not names:
        raise ValueError(f"--methods must name at least one method, as longtail list has them. Got {methods!r}.")
    jobs = plan_jobs(chosen, names, range(seeds), folder, options, trust_code)
    compare_runs(jobs, chosen.name, folder, workers, timeout, cluster)


def compare_runs(
    jobs: Sequence[Job], name: str, folder: Path, workers: int, timeout: float = 3600.0, cluster: str | None = None
) -> None:
    """Make the runs, print their table, write their page.

    Args:
        jobs: the runs.
        name: of the recipe, for the title.
        folder: where the runs and the page go.
        workers: runs at a time; 0: as many as there are cores.
        timeout: seconds after which a run that shows no sign of life is ended.
        cluster: the address of a cluster, to run there instead.
    """
    from longtail.lab.report import write_report
    from longtail.lab.training.comparison import write_rows

    runs, failed = finish_jobs(jobs, workers, timeout, cluster)
    if runs:
        print_screen(render_comparison(runs))
        write_rows(runs, folder / "comparison.csv")
        if any(run.is_ranked for run in runs):  # they keep no scores of all labels, of which a page could tell
            say_written([folder / "comparison.csv"])
        else:
            page = folder / "report.html"
            headline = write_report(runs, page)
            print_screen(Text(headline.text, "bold"))
            say_written([page])
    if failed:
        raise ValueError(failed)


def finish_jobs(
    jobs: Sequence[Job], workers: int, timeout: float = 3600.0, cluster: str | None = None
) -> tuple[list[Run], str]:
    """The runs that came to their end, in order, and in words which did not."""
    from longtail.lab.training.cluster import connect_cluster, run_on_cluster
    from longtail.lab.training.comparison import Failure, default_workers, run_jobs
    from longtail.lab.training.progress import ComparisonProgress

    outcomes: list[Run | Failure] = []
    with ComparisonProgress(len(jobs)) as progress, ExitStack() as stack:

        def watch(running: Sequence[Job]) -> None:
            progress.show(len(outcomes), [(job.folder, job.title, job.recipe.train.epochs) for job in running])

        if cluster is None:
            made = run_jobs(jobs, workers or default_workers(), watch, timeout)
        else:
            stack.enter_context(connect_cluster(cluster))
            made = run_on_cluster(jobs)
        for outcome in made:
            outcomes.append(outcome)
            if cluster is not None:
                watch([])  # which ones run, the cluster alone knows
    order = [job.folder for job in jobs]
    runs = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    runs.sort(key=lambda run: order.index(run.path))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if not failures:
        return runs, ""
    names = {failure.reason: failure.job.name for failure in reversed(failures)}
    reasons = "; ".join(f"{name}: {reason}" for reason, name in reversed(names.items()))
    return runs, f"{len(failures)} of {len(jobs)} runs failed; call again to resume. {reasons}"


def render_comparison(runs: Sequence[Run]) -> RenderableType:
    """One row per method, the best first: means over seeds with 95% intervals, of the first number alone where there
    is no room for more. Accuracy over all samples only where it differs; of each class, where classes are few."""
    from longtail.lab.runs.folder import label_runs
    from longtail.lab.runs.statistics import estimate

    by_method: dict[str, list[Run]] = {}
    for run, label in zip(runs, label_runs(runs), strict=True):
        by_method.setdefault(label, []).append(run)
    headings, measured, digits = _name_metrics(runs)
    measured_of = {run.path: run.metrics | _measure_classes(run) for run in runs}
    shown = [name for name in headings if any(name in metrics for metrics in measured_of.values())]
    found = {
        method: [estimate(measured_of[run.path].get(name, math.nan) for run in members) for name in shown]
        for method, members in by_method.items()
    }
    ranked = sorted(by_method, key=lambda method: -found[method][0].mean)
    titles = ["method", *(headings[name] for name in shown), "s"]
    write_rows = partial(_write_rows, ranked, found, by_method, digits)
    rows = write_rows(num_intervals=len(shown))
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) > SCREEN:
        rows = write_rows(num_intervals=1)
    table = make_table(*titles)
    for row in rows:
        table.add_row(*row)
    seeds = sorted({len(members) for members in by_method.values()})
    over = "one seed" if seeds == [1] else f"means over {seeds[-1]} seeds with 95% intervals"
    return Group(table, Text(f"{measured}: {over}.", "dim"))


def _write_rows(
    methods: Sequence[str],
    found: Mapping[str, Sequence[Estimate]],
    by_method: Mapping[str, Sequence[Run]],
    digits: int,
    num_intervals: int,
) -> list[list[str]]:
    """A row of cells for each method; only the first columns have intervals."""
    rows = []
    for method in methods:
        cells = [_write_cell(value, digits, place < num_intervals) for place, value in enumerate(found[method])]
        members = by_method[method]
        seconds = sum(float(run.summary["seconds"]) for run in members) / len(members)
        rows.append([printable(method), *cells, f"{seconds:.1f}"])
    return rows


def _write_cell(value: Estimate, digits: int, has_interval: bool) -> str:
    interval = f" ±{100 * value.half_width:.{digits}f}" if has_interval and value.has_interval else ""
    return f"{100 * value.mean:.{digits}f}{interval}"


def _name_metrics(runs: Sequence[Run]) -> tuple[Mapping[str, str], str, int]:
    """Metrics with their headings, what they are measured as, and digits after the point."""
    if any(run.is_ranked and run.results.is_multilabel for run in runs):
        return LABEL_PLACES, "In percent; PSP: propensity-scored; tail: R@10 of the rarest third of the labels", 2
    if any(run.is_ranked for run in runs):
        return _name_places(runs), "In percent, over all items; head, torso and tail: thirds of the items by count", 2
    if any(run.predictions.is_multilabel for run in runs):
        rare = "".join(f"; rare: the {size} rarest classes" for size in _list_rarest_sizes(runs))
        return _name_label_scores(runs), f"In percent, at a probability of 0.5{rare}", 1
    return _name_accuracies(runs), "Accuracy on the test set in percent", 1


def _name_places(runs: Sequence[Run]) -> dict[str, str]:
    """R@k and nDCG@k, and R@k of the thirds, whatever k is."""
    recall = min((name for name in runs[0].metrics if name.startswith("recall_at_")), key=len)
    k = recall.rpartition("_")[2]
    thirds = {f"{recall}_{part}": part for part in ("head", "torso", "tail")}
    return {recall: f"R@{k}", f"ndcg_at_{k}": f"nDCG@{k}", **thirds}


def _measure_classes(run: Run) -> dict[str, float]:
    """The accuracy on each class, by the class's key."""
    import torch

    from longtail.metrics.classes import per_class_accuracy

    if run.is_ranked:
        return {}
    predictions = run.predictions
    if predictions.is_multilabel or len(predictions.class_names) > MOST_CLASSES:
        return {}
    shares = per_class_accuracy(torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels))
    return {_key_class(index): float(share) for index, share in enumerate(shares)}


def _key_class(index: int) -> str:
    return f"class-{index}"


def _name_accuracies(runs: Sequence[Run]) -> dict[str, str]:
    predictions = runs[0].predictions
    headings = {"balanced_accuracy": "balanced"}
    if predictions.prior.has_useful_groups:
        headings |= {"head": "head", "torso": "torso", "tail": "tail"}
    else:
        by_frequency = predictions.prior.counts.argsort(descending=True, stable=True).tolist()
        headings |= {
            _key_class(index): printable(predictions.class_names[index])[:MOST_LETTERS] for index in by_frequency
        }
    if any(abs(run.metrics["accuracy"] - run.metrics["balanced_accuracy"]) > 1e-6 for run in runs):
        headings["accuracy"] = "all"
    return headings


def _name_label_scores(runs: Sequence[Run]) -> dict[str, str]:
    """Averages over all classes, and over the fewest of the rarest ones that are measured."""
    sizes = _list_rarest_sizes(runs)
    rare = {
        f"{name}_rarest_{size}": f"rare {word}"
        for size in sizes
        for name, word in (("f1", "F1"), ("recall", "recall"))
    }
    return {"f1": "F1", "recall": "recall", **rare, "mean_average_precision": "mAP"}


def _list_rarest_sizes(runs: Sequence[Run]) -> list[int]:
    """The smallest number of rare classes that is measured, if any is."""
    return sorted({int(name.rpartition("_")[2]) for name in runs[0].metrics if "_rarest_" in name})[:1]
