"""SOURCES and PROFILES: the tables by whose names a recipe chooses its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Annotated, Any

from longtail._core.bounds import Bounds
from longtail._core.suggestions import check_options, look_up
from longtail.datasets import PROFILES
from longtail.lab.data.dataset import Dataset, long_tailed
from longtail.lab.data.formats import arrays, events, image_annotations, image_files, sparse_text, text
from longtail.lab.data.formats.events import Events
from longtail.lab.data.sets import (
    amazon,
    builtin,
    cifar,
    clinc150,
    delicious,
    digit_pairs,
    extreme_repository,
    mnist,
    reuters90,
    tiny_imagenet_lt,
)

__all__ = ["EVENTS", "SOURCES", "PROFILES", "DataRecipe", "load_data", "load_events"]


@dataclass(frozen=True)
class DataRecipe:
    """What to train and test on."""

    source: str
    """A name in ``registry.SOURCES``."""
    profile: str = "none"
    """How to make it long-tailed: a name in ``registry.PROFILES``; "none" takes it as it is."""
    ratio: Annotated[float, Bounds(1)] = 100.0
    """Largest over smallest class count, for a profile."""
    shuffle_classes: bool = False
    """Whether a class's place in the profile is drawn at random; else class 0 is the most frequent."""
    seed: Annotated[int, Bounds(0, 2**63 - 1)] = 0
    """Which samples a profile keeps, the same in all runs; a source that splits has a seed in its options."""
    options: Mapping[str, Any] = field(default_factory=dict)


SOURCES: Mapping[str, Callable[..., Dataset]] = MappingProxyType(
    {
        "digits": builtin.digits,
        "gaussians": builtin.gaussians,
        "moons": builtin.moons,
        "two_digits": digit_pairs.two_digits,
        "cifar10": cifar.load_cifar10,
        "cifar100": cifar.load_cifar100,
        "mnist": mnist.load_mnist,
        "fashion_mnist": mnist.load_fashion_mnist,
        "multimnist": digit_pairs.load_multimnist,
        "arrays": arrays.load_arrays,
        "tiny_imagenet_lt_features": tiny_imagenet_lt.load_tiny_imagenet_lt_features,
        "image_folder": image_files.load_image_folder,
        "image_lists": image_files.load_image_lists,
        "annotated_images": image_annotations.load_annotated_images,
        "clinc150": clinc150.load_clinc150,
        "reuters90": reuters90.load_reuters90,
        "delicious": delicious.load_delicious,
        "amazoncat13k": extreme_repository.load_amazoncat13k,
        "wikilshtc325k": extreme_repository.load_wikilshtc325k,
        "amazon_sports": amazon.load_amazon_sports,
        "amazon_toys": amazon.load_amazon_toys,
        "events": events.load_events,
        "sparse_table": sparse_text.load_sparse_table,
        "text_table": text.load_text_table,
    }
)
"""Name -> a function that loads the data set; a recipe's [data.options] are its arguments."""


EVENTS: Mapping[str, Callable[..., Events]] = MappingProxyType(
    {
        "amazon_sports": amazon.read_amazon_sports,
        "amazon_toys": amazon.read_amazon_toys,
        "events": events.read_events,
    }
)
"""Of sources that are sequences: name -> a function that reads all events, with those of the options that it has."""


def load_data(recipe: DataRecipe) -> Dataset:
    """The data set that a recipe names, made long-tailed as it says."""
    source = look_up(SOURCES, recipe.source, "data.source")
    check_options(source, recipe.options, "data.options")
    try:
        data: Dataset = source(**recipe.options)
    except (RuntimeError, TypeError, ArithmeticError, LookupError) as error:  # they don't say of what they speak
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"data.source {recipe.source!r} can't be loaded with data.options {dict(recipe.options)}: {reason}"
        ) from error
    if recipe.profile == "none":
        return data
    profile = look_up(PROFILES, recipe.profile, "data.profile")
    return long_tailed(
        data, ratio=recipe.ratio, profile=profile, shuffle_classes=recipe.shuffle_classes, seed=recipe.seed
    )


def load_events(recipe: DataRecipe) -> Events:
    """All events of the users that a recipe's data are made of, those that training holds out too."""
    if recipe.source not in EVENTS:
        raise ValueError(f"data.source must be events of users: {', '.join(EVENTS)}. Got {recipe.source!r}.")
    read = EVENTS[recipe.source]
    return read(**{name: value for name, value in recipe.options.items() if name in signature(read).parameters})
