"""Checks of a recipe before anything is loaded or trained, and of what it means for its data."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from longtail._core.bounds import check_bounds
from longtail._core.suggestions import check_option_types, check_options, look_up, suggest
from longtail.lab.data.dataset import VERY_MANY_LABELS, Dataset
from longtail.lab.data.registry import PROFILES, SOURCES
from longtail.lab.training.mixing import MIXINGS
from longtail.lab.training.optimizers import OPTIMIZERS, SCHEDULES
from longtail.lab.training.policies import POLICIES
from longtail.lab.training.recipe import Recipe, TrainRecipe
from longtail.methods import METHODS, Method, Phase, Plan, get_method, takes_embeddings
from longtail.methods.plan import instance_sampler
from longtail.prior import ClassPrior

__all__ = ["check_data", "check_labels", "check_recipe"]

MOST_SCORES = 2**31
"""Scores that a run may keep: 8.6 GB, twice where a method adjusts them."""

IMAGE_SETTINGS = ("pad_crop", "resized_crop", "flip", "cutout", "start_size", "augmentation")
PLAIN_STEPS = {"optimizer": "sgd", "accumulate": 1, "clip_norm": 0.0, "mixing": "none", "sharpness": 0.0}
"""What a learner needs: steps of SGD on one batch, linear in its samples."""


def check_recipe(recipe: Recipe, trust_code: bool = False) -> None:
    """Raise, before anything is loaded, for names and options that no table knows and numbers that can't be.

    A model or a method may be code of its own, ``module:function``: it runs only where ``trust_code`` is set.
    """
    for part, name in {"model.name": recipe.model.name, "method.name": recipe.method.name}.items():
        if ":" in name and not name.startswith("torchvision:") and not trust_code:
            raise ValueError(
                f"{part} = {name!r} names code of its own, which can do anything you can; "
                "pass --trust-code (in Python trust_code=True) if you trust it."
            )
    if not re.fullmatch(r"\w[\w.+-]*", recipe.name):
        raise ValueError(f"name must be letters, digits and . _ + -, for it names a folder. Got {recipe.name!r}.")
    if recipe.train.optimizer == "rowwise_adam" and recipe.model.name != "bag_of_features":
        raise ValueError(
            "train.optimizer = 'rowwise_adam' is for bag_of_features, a step of which touches few features. "
            f"Got model.name = {recipe.model.name!r}; set 'adamw'."
        )
    source = look_up(SOURCES, recipe.data.source, "data.source")
    check_options(source, recipe.data.options, "data.options")
    check_bounds(recipe.data, "data")
    if recipe.data.profile != "none":
        look_up(PROFILES, recipe.data.profile, "data.profile")
    _check_train(recipe.train)
    method = get_method(recipe.method.name)
    _check_method_options(method, recipe.method.options)
    plan = _try_plan(method, recipe.method.options)
    _check_plan(method, plan, recipe.train)
    if plan.head is not None and {"head", "head_options"} & recipe.model.options.keys():
        raise ValueError(f"{method.name} brings the head that it needs; leave model.options.head out.")


def check_labels(recipe: Recipe, data: Dataset) -> None:
    """Raise where the method is not for labels of this kind, or needs samples of a class that has none."""
    method = get_method(recipe.method.name)
    if data.is_multilabel and not _takes_labels(method, data):
        known = ", ".join(method.name for method in METHODS.values() if _takes_labels(method, data))
        needs = (
            f"is for {VERY_MANY_LABELS:,} labels or more"
            if method.accepts_label_lists
            else "needs one label per sample"
        )
        raise ValueError(
            f"{data.name} is multi-label, and {recipe.method.name} {needs}; set method.name to one of: {known}."
        )
    empty = torch.nonzero(data.prior.counts == 0)[:, 0].tolist()
    if empty and not data.is_multilabel:
        try:
            method.plan(data.prior, **recipe.method.options)
        except ValueError as error:
            if "has no samples" not in str(error):
                raise
            name = data.class_names[empty[0]]
            others = f" and {len(empty) - 1} more have" if len(empty) > 1 else " has"
            raise ValueError(
                f"{data.name}: class {name!r}{others} no training samples; drop it from the data, or take a method "
                f"that needs none, such as cross_entropy. Got {method.name}."
            ) from error


def _takes_labels(method: Method, data: Dataset) -> bool:
    """Whether a method is for multi-label data as these; where labels are ranked, losses of lists are."""
    return method.accepts_multilabel or (method.accepts_label_lists and data.is_ranked)


def check_data(recipe: Recipe, data: Dataset, plan: Plan) -> None:
    """Raise for what has no meaning with these data, and for options that fail in a later phase."""
    _check_scores(data)
    for phase in plan.phases:
        if phase.learner is not None:
            phase.learner(data.train.labels, recipe.train.seed)
    used = [name for name in IMAGE_SETTINGS if getattr(recipe.train, name) != getattr(TrainRecipe, name)]
    if used and len(data.input_shape) != 3:
        raise ValueError(f"train.{used[0]} is for images, and {data.name} has none; leave it out.")
    if recipe.train.augmentation != "none":
        first = data.train.batch(torch.arange(1))
        if not isinstance(first, torch.Tensor) or first.dtype != torch.uint8:
            kind = first.dtype if isinstance(first, torch.Tensor) else type(first).__name__
            raise ValueError(f"train.augmentation is for images of bytes, uint8. Got {kind}; leave it out.")
    if recipe.train.mixing in ("cutmix", "cmo") and len(data.input_shape) != 3:
        raise ValueError(f"train.mixing = {recipe.train.mixing!r} is for images, and {data.name} has none.")
    if recipe.train.class_means and data.train.labels.ndim != 1:
        raise ValueError("train.class_means is for data with one label per sample; set it to false.")
    if recipe.train.save_embeddings and data.train.labels.ndim != 1:
        raise ValueError("train.save_embeddings is for data with one label per sample; set it to 0.")
    if recipe.train.compile and not isinstance(data.train.batch(torch.arange(1)), torch.Tensor):
        raise ValueError(f"train.compile is for inputs in tensors, and {data.name} has others; leave it out.")
    if recipe.train.exclude_history and not data.is_sequential:
        raise ValueError(f"train.exclude_history is for sequences of items, and {data.name} has none; leave it out.")
    if data.is_sequential:
        _check_sequences(recipe, data, plan)
    if data.is_multilabel and recipe.train.mixing != "none":
        raise ValueError(f"{data.name} is multi-label: train.mixing must be 'none'. Got {recipe.train.mixing!r}.")


def _check_scores(data: Dataset) -> None:
    """Raise where the scores of all test samples would not fit into memory."""
    size = len(data.test) * data.num_classes
    if size > MOST_SCORES and not data.is_ranked:
        raise ValueError(
            f"{data.name}: a run keeps the scores of all test samples for all labels, here {len(data.test):,} x "
            f"{data.num_classes:,} ({4 * size / 1e9:.0f} GB); take longtail.ExtremeClassifier, which ranks labels, "
            "or fewer test samples."
        )


def _check_sequences(recipe: Recipe, data: Dataset, plan: Plan) -> None:
    """Raise for what needs samples that have one label each."""
    name = recipe.method.name
    if get_method(name).family == "multi-label":
        raise ValueError(f"{data.name} has one label at each place of a sequence, and {name} is for several at once.")
    if any(phase.sampler is not instance_sampler or phase.learner is not None for phase in plan.phases):
        raise ValueError(f"{name} draws samples by their label, and a sequence has many; use a method that does not.")
    if any(phase.views > 1 for phase in plan.phases) or recipe.train.mixing != "none":
        raise ValueError(
            f"{data.name}: sequences are neither mixed nor augmented; use another method or train.mixing."
        )


def _check_train(settings: TrainRecipe) -> None:
    look_up(OPTIMIZERS, settings.optimizer, "train.optimizer")
    look_up(SCHEDULES, settings.schedule, "train.schedule")
    look_up(POLICIES, settings.augmentation, "train.augmentation")
    look_up(MIXINGS, settings.mixing, "train.mixing")
    for name in ("sharpness", "clip_norm", "ema_decay"):
        if settings.optimizer == "rowwise_adam" and getattr(settings, name):
            raise ValueError(
                f"train.optimizer = 'rowwise_adam' touches few rows, and train.{name} all of them: it must be 0. "
                f"Got {getattr(settings, name)}."
            )
    if settings.sharpness > 0 and (settings.accumulate > 1 or settings.precision.startswith("16")):
        raise ValueError(
            "train.sharpness takes both passes of a step on one batch, with gradients as they are: it needs "
            f"train.accumulate = 1 and no float16. Got {settings.accumulate} and {settings.precision!r}."
        )
    check_bounds(settings, "train")


def _check_method_options(method: Method, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in method.options:
            raise ValueError(f"method.options: {method.name} has no option {name!r}; {suggest(name, method.options)}")
        default = method.options[name]
        if isinstance(default, bool | int | float | str) and not _is_like(value, default):
            wanted = "a number" if isinstance(default, float) else f"of type {type(default).__name__}"
            raise ValueError(f"method.options.{name} must be {wanted}. Got {value!r}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"method.options.{name} must be a finite number. Got {value!r}.")
    check_option_types(method.build, options, "method.options")


def _try_plan(method: Method, options: Mapping[str, Any]) -> Plan:
    """The method's plan for a tiny example; raise for options that its losses and samplers refuse."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # What an option means for the data is not known yet.
        try:
            plan = method.plan(ClassPrior.from_counts([2, 1]), **options)
            if method.name in METHODS:
                for phase in plan.phases:
                    _try_phase(phase)
        except ValueError as error:
            # The part that refused knows an option by its own name: the user knows the method's.
            said = str(error).partition(": ")[2]
            if any(said.startswith(f"{name} ") for name in options):
                raise ValueError(f"{method.name}: {said}") from error
            raise
    return plan


@torch.no_grad()
def _try_phase(phase: Phase) -> None:
    labels, x, weight = torch.tensor([0, 0, 1, 1]), torch.eye(4), torch.eye(2, 4)
    phase.sampler(labels, 0, 1)
    if phase.learner is not None:
        phase.learner(labels, 0)
    if phase.regularizer is not None:
        phase.regularizer(x, labels)
    if takes_embeddings(phase.loss):
        phase.loss(x, weight, labels, None)
    else:
        phase.loss(x @ weight.T, labels)


def _is_like(value: object, default: object) -> bool:
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)


def _check_plan(method: Method, plan: Plan, settings: TrainRecipe) -> None:
    """Raise for settings in which a learner or a regularizer has no meaning."""
    if settings.mixing != "none" and any(p.regularizer is not None or p.views > 1 for p in plan.phases):
        raise ValueError(
            f"{method.name} needs one label per sample: train.mixing must be 'none'. Got {settings.mixing!r}."
        )
    if all(phase.learner is None for phase in plan.phases):
        return
    for name, wanted in PLAIN_STEPS.items():
        if getattr(settings, name) != wanted:
            raise ValueError(
                f"{method.name} learns from plain steps of SGD: train.{name} must be {wanted!r}. "
                f"Got {getattr(settings, name)!r}."
            )
