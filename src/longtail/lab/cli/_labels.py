"""Labels from any file that ``inspect`` and ``explain`` take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longtail._core.memory import memory_budget
from longtail.lab.cli._console import show_progress
from longtail.lab.data.formats.labels import LabelCounts, count_indicator, find_labels
from longtail.lab.data.formats.sparse_text import count_sparse_labels
from longtail.lab.data.formats.tables import read_class_numbers
from longtail.lab.data.registry import load_data
from longtail.lab.training.recipe import find_recipe, load_recipe
from longtail.prior import ClassPrior

__all__ = ["count_any_labels", "is_recipe", "make_prior"]


def count_any_labels(
    files: Sequence[str], column: str | None, memory: float | None = None, are_counts: bool = False
) -> LabelCounts:
    """Labels of tables, of arrays, of sparse samples, or of the training samples that a recipe names.

    Args:
        files: their suffix says which; one without is the name of a recipe. Only tables may be several.
        column: the label column or array, where there are several.
        memory: gigabytes that data may take.
        are_counts: whether the file has the number of samples of each class instead.
    """
    budget = memory_budget(memory)
    if are_counts:
        return _read_counts(files, budget)
    if len(files) == 1:
        found = _count_samples(files[0], column, budget)
        if found is not None:
            return found
    labels = find_labels(files, column, budget)
    with show_progress("Counting labels", labels.num_bytes) as progress:
        counted = labels.count(budget, progress)
    if not len(counted.counts):
        raise ValueError(f"{labels.where}: there must be at least one labeled sample. Got none.")
    return counted


def is_recipe(file: str) -> bool:
    """Whether a file, or a name without a suffix where there is no such file or folder, is that of a recipe."""
    return file.endswith(".toml") or ("." not in file and "/" not in file and not Path(file).exists())


def _count_samples(file: str, column: str | None, budget: int) -> LabelCounts | None:
    """What holds samples, which may have any number of labels; None for a column of labels."""
    if is_recipe(file):
        data = load_data(load_recipe(find_recipe(file)).data)
        num_samples = data.prior.num_samples if data.is_multilabel else None
        return LabelCounts(data.class_names, data.prior.counts.numpy(), num_missing=0, num_samples=num_samples)
    if file.endswith((".txt", ".txt.gz")):
        classes, counts, num_samples = count_sparse_labels(file, budget)
        is_single = int(counts.sum()) == num_samples
        return LabelCounts(tuple(classes.tolist()), counts, 0, None if is_single else num_samples)
    return count_indicator(file, column, budget)


def _read_counts(files: Sequence[str], budget: int) -> LabelCounts:
    if len(files) != 1:
        raise ValueError(f"--counts takes one file. Got {len(files)}.")
    numbers = read_class_numbers(files[0], budget)
    prior = ClassPrior.from_counts(numbers.values)
    classes = tuple(range(prior.num_classes)) if numbers.classes is None else numbers.classes
    return LabelCounts(classes, prior.counts.numpy(), num_missing=0)


def make_prior(labels: LabelCounts) -> ClassPrior:
    """The prior of the labels that there are."""
    return ClassPrior.from_counts(labels.counts if len(labels.counts) else np.zeros(1))
