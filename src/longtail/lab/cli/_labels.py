"""Labels from any file that ``inspect`` and ``explain`` take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longtail._core.memory import memory_budget
from longtail.lab.cli._console import show_progress
from longtail.lab.data.formats.labels import LabelCounts, find_labels
from longtail.lab.data.formats.sparse_text import count_sparse_labels
from longtail.lab.data.registry import load_data
from longtail.lab.training.recipe import load_recipe
from longtail.prior import ClassPrior

__all__ = ["count_any_labels", "make_prior"]


def count_any_labels(files: Sequence[str], column: str | None, memory: float | None = None) -> LabelCounts:
    """Labels of tables, of arrays, of sparse samples, or of the training samples that a recipe names.

    Args:
        files: their suffix says which; only tables may be several.
        column: the label column or array, where there are several.
        memory: gigabytes that data may take.
    """
    budget = memory_budget(memory)
    if len(files) == 1 and files[0].endswith(".toml"):
        data = load_data(load_recipe(Path(files[0])).data)
        return LabelCounts(data.class_names, data.prior.counts.numpy(), num_missing=0)
    if len(files) == 1 and files[0].endswith((".txt", ".txt.gz")):
        classes, counts = count_sparse_labels(files[0], budget)
        return LabelCounts(tuple(classes.tolist()), counts, num_missing=0)
    found = find_labels(files, column, budget)
    with show_progress("Counting labels", found.num_bytes) as progress:
        return found.count(budget, progress)


def make_prior(labels: LabelCounts) -> ClassPrior:
    """The prior of the labels that there are."""
    return ClassPrior.from_counts(labels.counts if len(labels.counts) else np.zeros(1))
