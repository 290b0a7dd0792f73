"""SOURCES and PROFILES: the tables by whose names a recipe chooses its data."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longtail.lab.data import (
    arrays,
    builtin,
    cifar,
    digit_pairs,
    image_annotations,
    image_files,
    mnist,
    profiles,
    sparse_files,
    text,
)
from longtail.lab.data._files import data_root
from longtail.lab.data.dataset import Dataset, Split, sparse_indicator
from longtail.lab.data.sparse import SparseRows
from longtail.lab.optimizing import OPTIMIZERS, SCHEDULES
from longtail.lab.recipe import DataRecipe, Recipe
from longtail.methods import get_method

__all__ = ["PROFILES", "SOURCES", "check_recipe", "load_data"]


def clinc150(root: str | None = None, max_words: int = 2) -> Dataset:
    """CLINC-150 intents as TF-IDF of words and pairs of words."""
    return text.tfidf_ngrams(text.read_clinc150(root), max_words=max_words)


def reuters90(root: str | None = None, max_words: int = 1, max_features: int | None = None) -> Dataset:
    """Reuters-90 news, one or more topics each, as TF-IDF of words and runs of words."""
    return text.tfidf_ngrams(text.read_reuters90(root), max_features=max_features, max_words=max_words)


def delicious(root: str | None = None) -> Dataset:
    """Delicious, bookmarks with some of 983 tags each, as sparse features."""
    train, test = sparse_files.read_delicious(root)
    return _sparse_data("Delicious", train, test)


def sparse_table(train: str, test: str) -> Dataset:
    """Two files of the extreme-classification repository's text format: sparse features, several labels a sample."""
    name = Path(train).name.partition(".")[0]
    return _sparse_data(name, sparse_files.read_sparse_file(train), sparse_files.read_sparse_file(test))


def _sparse_data(name: str, train: sparse_files.SparseSamples, test: sparse_files.SparseSamples) -> Dataset:
    if train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(
            f"{name}: training and test files must have the same labels. "
            f"Got {train.labels.shape[1]} and {test.labels.shape[1]}."
        )
    splits = [Split(SparseRows.from_scipy(part.features), sparse_indicator(part.labels)) for part in (train, test)]
    return Dataset(name, splits[0], splits[1], tuple(str(label) for label in range(train.labels.shape[1])))


def text_table(
    train: str,
    test: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    max_words: int = 2,
) -> Dataset:
    """A CSV or Parquet table with a text column, as TF-IDF of words and runs of words."""
    texts = text.read_text_table(train, test, text_column, label_column)
    return text.tfidf_ngrams(texts, max_words=max_words)


def tiny_imagenet_lt_features(root: str | None = None) -> Dataset:
    """Features of Tiny-ImageNet-LT images from a network trained on ImageNet; long-tailed as published."""
    path = data_root(root) / "tiny_imagenet_lt" / "features_pca256.npz"
    return arrays.load_arrays(
        path, train_inputs="f_train", train_labels="y_train", test_inputs="f_val", test_labels="y_val"
    )


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
        "tiny_imagenet_lt_features": tiny_imagenet_lt_features,
        "image_folder": image_files.load_image_folder,
        "image_lists": image_files.load_image_lists,
        "annotated_images": image_annotations.load_annotated_images,
        "clinc150": clinc150,
        "reuters90": reuters90,
        "delicious": delicious,
        "sparse_table": sparse_table,
        "text_table": text_table,
    }
)
"""Name -> a function that loads the data set; a recipe's [data.options] are its arguments."""

PROFILES: Mapping[str, Callable[[int, int, float], Sequence[int]]] = MappingProxyType(
    {
        "exponential": profiles.exponential_counts,
        "step": profiles.step_counts,
        "pareto": profiles.pareto_counts,
    }
)
"""Name -> a function of the largest class count, the number of classes and the ratio, to counts."""


def check_recipe(recipe: Recipe) -> None:
    """Raise, before anything is loaded, for names and options that no table knows and numbers that can't be."""
    source = _named(SOURCES, recipe.data.source, "data.source")
    _check_options(source, recipe.data.options, "data.options")
    if recipe.data.profile != "none":
        _named(PROFILES, recipe.data.profile, "data.profile")
    method = get_method(recipe.method.name)
    known = method.options
    for name in recipe.method.options:
        if name not in known:
            raise ValueError(f"method.options has no setting {name!r}; {_hint(name, known)}")
    settings = recipe.train
    _named(OPTIMIZERS, settings.optimizer, "train.optimizer")
    _named(SCHEDULES, settings.schedule, "train.schedule")
    for name in ("epochs", "batch_size", "accumulate"):
        if getattr(settings, name) < 1:
            raise ValueError(f"train.{name} must be at least 1. Got {getattr(settings, name)}.")
    if settings.save_embeddings < 0:
        raise ValueError(f"train.save_embeddings must be at least 0. Got {settings.save_embeddings}.")
    if not (settings.learning_rate > 0 and settings.learning_rate != float("inf")):
        raise ValueError(f"train.learning_rate must be above 0. Got {settings.learning_rate}.")


def load_data(recipe: DataRecipe) -> Dataset:
    """The data set that a recipe names, made long-tailed as it says."""
    source = _named(SOURCES, recipe.source, "data.source")
    _check_options(source, recipe.options, "data.options")
    data: Dataset = source(**recipe.options)
    if recipe.profile == "none":
        return data
    profile = _named(PROFILES, recipe.profile, "data.profile")
    largest = int(data.prior.counts.min())  # every class of the source can give as many as its rarest one has
    counts = profile(largest, data.num_classes, recipe.ratio)
    if recipe.shuffle_classes:
        counts = profiles.shuffled(counts, recipe.seed)
    return profiles.long_tailed(data, counts, recipe.seed)


def _check_options(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    parameters = inspect.signature(function).parameters
    for name in options:
        if name not in parameters:
            raise ValueError(f"{where} has no setting {name!r}; {_hint(name, parameters)}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"{where} must set {name!r}.")


def _named(table: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in table:
        raise ValueError(f"{where}: there is no {name!r}; {_hint(name, table)}")
    return table[name]


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}."
