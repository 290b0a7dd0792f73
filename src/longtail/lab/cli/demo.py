"""``longtail demo``: a comparison that needs no files and takes a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail.lab.cli.compare import compare_runs

__all__ = ["demo"]

METHODS = ("cross_entropy", "posthoc_adjusted", "logit_adjusted", "adaptive_deferred", "class_balanced_sampling")


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
) -> None:
    """See it work, in a minute: digits made long-tailed, five methods, three seeds, a table and a page."""
    from longtail.lab.training.comparison import plan_jobs
    from longtail.lab.training.recipe import find_recipe, load_recipe

    recipe = load_recipe(find_recipe("digits"))
    compare_runs(plan_jobs(recipe, METHODS, range(3), output), recipe.name, output, workers=0)
