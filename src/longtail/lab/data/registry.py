"""SOURCES and PROFILES: the tables by whose names a recipe chooses its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from longtail import datasets
from longtail._core.suggestions import check_options, look_up
from longtail.lab.data.dataset import Dataset, Split, long_tailed, sparse_indicator
from longtail.lab.data.formats import arrays, image_annotations, image_files, sparse_text, text
from longtail.lab.data.locate import data_root
from longtail.lab.data.sets import builtin, cifar, digit_pairs, mnist
from longtail.lab.data.sets.text import read_clinc150, read_reuters90
from longtail.lab.data.sparse_rows import SparseRows
from longtail.lab.training.recipe import DataRecipe

__all__ = ["SOURCES", "PROFILES", "load_data"]


def clinc150(root: str | None = None, max_words: int = 2) -> Dataset:
    """CLINC-150 intents as TF-IDF of words and pairs of words."""
    return text.tfidf_ngrams(read_clinc150(root), max_words=max_words)


def reuters90(root: str | None = None, max_words: int = 1, max_features: int | None = None) -> Dataset:
    """Reuters-90 news, one or more topics each, as TF-IDF of words and runs of words."""
    return text.tfidf_ngrams(read_reuters90(root), max_features=max_features, max_words=max_words)


def delicious(root: str | None = None) -> Dataset:
    """Delicious, bookmarks with some of 983 tags each, as sparse features."""
    train, test = sparse_text.read_delicious(root)
    return _sparse_data("Delicious", train, test)


def sparse_table(train: str, test: str) -> Dataset:
    """Two files of the extreme-classification repository's text format: sparse features, several labels a sample."""
    name = Path(train).name.partition(".")[0]
    return _sparse_data(name, sparse_text.read_sparse_file(train), sparse_text.read_sparse_file(test))


def _sparse_data(name: str, train: sparse_text.SparseSamples, test: sparse_text.SparseSamples) -> Dataset:
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
        "exponential": datasets.exponential_counts,
        "step": datasets.step_counts,
        "pareto": datasets.pareto_counts,
    }
)
"""Name -> a function of the largest class count, the number of classes and the ratio, to counts."""


def load_data(recipe: DataRecipe) -> Dataset:
    """The data set that a recipe names, made long-tailed as it says."""
    source = look_up(SOURCES, recipe.source, "data.source")
    check_options(source, recipe.options, "data.options")
    data: Dataset = source(**recipe.options)
    if recipe.profile == "none":
        return data
    profile = look_up(PROFILES, recipe.profile, "data.profile")
    largest = int(data.prior.counts.min())  # every class of the source can give as many as its rarest one has
    counts = profile(largest, data.num_classes, recipe.ratio)
    if recipe.shuffle_classes:
        counts = datasets.shuffled(counts, recipe.seed)
    return long_tailed(data, counts, recipe.seed)
