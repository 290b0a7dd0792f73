"""``longtail train``: what a recipe describes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.lab.cli._console import print_screen, say_written
from longtail.lab.cli._options import Accelerator, RecipeName, Settings, Timeout, TrustCode
from longtail.lab.cli.compare import render_comparison

if TYPE_CHECKING:
    from longtail.lab.training.recipe import Recipe

__all__ = ["train"]


def train(
    recipe: RecipeName,
    output: Annotated[Path | None, typer.Option(help="The run folder; default: runs/RECIPE/METHOD/seed-N.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Another method than the recipe's: NAME or NAME(option=value).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="A seed other than the recipe's.")] = None,
    settings: Settings = None,
    devices: Annotated[str, typer.Option(help="How many processes or GPUs, or auto.")] = "1",
    accelerator: Accelerator = "auto",
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what the run folder holds, and train anew.")
    ] = False,
    timeout: Timeout = 1800.0,
    trust_code: TrustCode = False,
) -> None:
    """Train what a recipe describes; resume where an earlier call was interrupted."""
    from longtail.lab.training.comparison import name_folder
    from longtail.lab.training.loop import train as train_recipe

    chosen = _choose_recipe(recipe, method, seed, settings or [])
    folder = output or Path("runs", chosen.name, name_folder(chosen.method.name), f"seed-{chosen.train.seed}")
    if devices != "auto" and not devices.isdecimal():
        raise ValueError(f"--devices must be a whole number or auto. Got {devices!r}.")
    number = int(devices) if devices.isdecimal() else devices
    run = train_recipe(
        chosen,
        folder,
        accelerator=accelerator,
        devices=number,
        restart=restart,
        trust_code=trust_code,
        timeout=timeout,
    )
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        print_screen(render_comparison([run]))
        say_written([folder])


def _choose_recipe(name: str, method: str | None, seed: int | None, settings: list[str]) -> Recipe:
    """The recipe with another method, then other settings, then another seed."""
    from longtail.lab.training.recipe import find_recipe, load_recipe, parse_method, with_settings
    from longtail.methods.custom import is_reference
    from longtail.methods.table import get_method

    recipe = load_recipe(find_recipe(name))
    if method is not None:
        wanted = parse_method(method)
        known = wanted.name if is_reference(wanted.name) else get_method(wanted.name).name
        recipe = recipe.with_method(known, {**recipe.options_for(known), **wanted.options})
    recipe = with_settings(recipe, settings)
    return recipe if seed is None else recipe.with_seed(seed)
