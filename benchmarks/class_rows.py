"""Accuracy of every class before and after a correction: what the picture in the README is drawn from.

python benchmarks/class_rows.py            # a minute; writes results/quality/classes/tiny_imagenet_lt_features.csv
python benchmarks/class_rows.py cifar100_lt_fast runs/cifar100_lt_fast    # from runs that are there already
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness import write_rows

from longtail.lab.report import read_runs
from longtail.lab.runs.folder import Run
from longtail.lab.training.comparison import Failure, plan_jobs, run_jobs
from longtail.lab.training.recipe import find_recipe, load_recipe
from longtail.metrics import count_hits

RECIPE = "tiny_imagenet_lt_features"
METHODS = ("cross_entropy", "posthoc_adjusted", "logit_adjusted")
SEEDS = 5


def count_rows(recipe: str, runs: Iterable[Run]) -> list[dict[str, object]]:
    """A row per method and class: its training samples, and how many test samples are right, over all seeds."""
    rows: dict[tuple[str, int], dict[str, object]] = {}
    for run in runs:
        found = run.predictions
        hits, counts = count_hits(found.scores.argmax(axis=1), found.labels, len(found.class_names))
        for label, (hit, count) in enumerate(zip(hits.tolist(), counts.tolist(), strict=True)):
            start = {"recipe": recipe, "method": run.method, "class": label}
            start |= {"train_samples": int(found.train_counts[label]), "test_samples": 0, "hits": 0, "seeds": 0}
            row = rows.setdefault((run.method, label), start)
            for name, value in (("test_samples", count), ("hits", hit), ("seeds", 1)):
                row[name] += value
    return list(rows.values())


def train_runs(folder: Path) -> Iterable[Run]:
    """The runs of the recipe, one at a time."""
    jobs = plan_jobs(load_recipe(find_recipe(RECIPE)), METHODS, range(SEEDS), folder)
    for outcome in run_jobs(jobs, workers=1):
        if isinstance(outcome, Failure):
            sys.exit(f"{outcome.job.name}: {outcome.reason}")
        yield outcome


def main() -> None:
    """Train, or read runs, and write the rows."""
    if len(sys.argv) > 2:
        print(
            write_rows(f"quality/classes/{sys.argv[1]}", count_rows(sys.argv[1], read_runs(map(Path, sys.argv[2:]))))
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        print(write_rows(f"quality/classes/{RECIPE}", count_rows(RECIPE, train_runs(Path(folder)))))


if __name__ == "__main__":
    main()
