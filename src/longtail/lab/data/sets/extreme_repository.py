"""Sets of the extreme-classification repository, in its text format: sparse features, many labels per sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.sparse_text import SparseSamples, read_sparse_file, sparse_dataset
from longtail.lab.data.locate import PathLike, data_root, published_file
from longtail.metrics.propensity import PROPENSITY_CONSTANTS

__all__ = [
    "REPOSITORY_SETS",
    "RepositorySet",
    "load_amazoncat13k",
    "load_wikilshtc325k",
    "read_repository_set",
]


@dataclass(frozen=True)
class RepositorySet:
    """Where a set is, and how it is scored."""

    title: str
    folder: str
    propensity: tuple[float, float] = PROPENSITY_CONSTANTS["other"]
    """A and B of ``inverse_propensities``."""


REPOSITORY_SETS: Mapping[str, RepositorySet] = MappingProxyType(
    {
        "delicious": RepositorySet("Delicious", "delicious"),
        "amazoncat13k": RepositorySet("AmazonCat-13K", "amazoncat-13k"),
        "wikilshtc325k": RepositorySet("WikiLSHTC-325K", "wikilshtc-325k", PROPENSITY_CONSTANTS["wikipedia"]),
    }
)
"""Sets by name. The constants for Amazon are of Amazon-670K and its like; AmazonCat-13K has the general ones."""


def read_repository_set(
    name: str, root: PathLike | None = None, cache: PathLike | None = None
) -> tuple[SparseSamples, SparseSamples]:
    """The samples to train on and to test on of one of ``REPOSITORY_SETS``.

    Args:
        name: of the set.
        root: folder with ``FOLDER/train.txt[.gz]`` and ``FOLDER/test.txt[.gz]``; None is the variable LONGTAIL_DATA.
        cache: folder for the parsed arrays, as of ``read_sparse_file``.

    Reference:
        Bhatia et al. (2016), "The extreme classification repository".
    """
    known, folder = REPOSITORY_SETS[name], data_root(root)
    train, test = (
        read_sparse_file(published_file(known.title, folder, f"{known.folder}/{part}.txt"), cache)
        for part in ("train", "test")
    )
    return train, test


def load_amazoncat13k(root: str | None = None) -> Dataset:
    """AmazonCat-13K: 1,186,239 products to train on with some of 13,330 categories, 203,882 sparse features."""
    return _load("amazoncat13k", root)


def load_wikilshtc325k(root: str | None = None) -> Dataset:
    """WikiLSHTC-325K: 1,778,351 pages to train on with some of 325,056 categories, 1,617,899 sparse features."""
    return _load("wikilshtc325k", root)


def _load(name: str, root: PathLike | None) -> Dataset:
    known = REPOSITORY_SETS[name]
    return sparse_dataset(known.title, *read_repository_set(name, root), known.propensity)
