"""Checks of a recipe before anything is loaded or trained."""

from __future__ import annotations

from longtail._core.suggestions import check_options, look_up, suggest
from longtail.lab.data.registry import PROFILES, SOURCES
from longtail.lab.training.optimizers import OPTIMIZERS, SCHEDULES
from longtail.lab.training.recipe import Recipe
from longtail.methods.table import get_method

__all__ = ["check_recipe"]


def check_recipe(recipe: Recipe) -> None:
    """Raise, before anything is loaded, for names and options that no table knows and numbers that can't be."""
    source = look_up(SOURCES, recipe.data.source, "data.source")
    check_options(source, recipe.data.options, "data.options")
    if recipe.data.profile != "none":
        look_up(PROFILES, recipe.data.profile, "data.profile")
    method = get_method(recipe.method.name)
    known = method.options
    for name in recipe.method.options:
        if name not in known:
            raise ValueError(f"method.options has no setting {name!r}; {suggest(name, known)}")
    settings = recipe.train
    look_up(OPTIMIZERS, settings.optimizer, "train.optimizer")
    look_up(SCHEDULES, settings.schedule, "train.schedule")
    for name in ("epochs", "batch_size", "accumulate"):
        if getattr(settings, name) < 1:
            raise ValueError(f"train.{name} must be at least 1. Got {getattr(settings, name)}.")
    if settings.save_embeddings < 0:
        raise ValueError(f"train.save_embeddings must be at least 0. Got {settings.save_embeddings}.")
    if not (settings.learning_rate > 0 and settings.learning_rate != float("inf")):
        raise ValueError(f"train.learning_rate must be above 0. Got {settings.learning_rate}.")
