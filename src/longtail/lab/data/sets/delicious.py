"""Delicious: bookmarks and their tags."""

from __future__ import annotations

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.sparse_text import SparseSamples, sparse_dataset
from longtail.lab.data.locate import PathLike
from longtail.lab.data.sets.extreme_repository import read_repository_set

__all__ = ["load_delicious", "read_delicious"]


def load_delicious(root: str | None = None) -> Dataset:
    """Delicious, bookmarks with some of 983 tags each, as sparse features."""
    return sparse_dataset("Delicious", *read_delicious(root))


def read_delicious(
    root: PathLike | None = None, cache: PathLike | None = None
) -> tuple[SparseSamples, SparseSamples]:
    """Delicious: bookmarks with 983 tags, 19 of them on average, and 500 features.

    Args:
        root: folder with ``delicious/train.txt[.gz]`` and ``delicious/test.txt[.gz]``; None is the variable
            LONGTAIL_DATA.
        cache: folder for the parsed arrays, as of ``read_sparse_file``.

    Returns:
        The 12,920 samples to train on, and the 3,185 to test on.

    Reference:
        Bhatia et al. (2016), "The extreme classification repository"; Tsoumakas et al. (2008), "Effective and
        efficient multilabel classification in domains with large number of labels".
    """
    return read_repository_set("delicious", root, cache)
