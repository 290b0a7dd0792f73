"""Labels from any file that ``inspect`` and ``explain`` take."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from longtail.lab.data.formats.sparse_text import read_sparse_file
from longtail.lab.data.formats.tables import Labels, read_labels
from longtail.lab.data.registry import load_data
from longtail.lab.training.recipe import load_recipe

__all__ = ["read_any_labels"]


def read_any_labels(file: Path, column: str | None) -> Labels:
    """Labels of a table, of arrays, of sparse samples, or of the training samples that a recipe names.

    Args:
        file: its suffix says which.
        column: the label column or array, where there are several.
    """
    if file.suffix == ".toml":
        return _read_recipe_labels(file)
    if file.name.endswith((".txt", ".txt.gz")):
        classes, codes = np.unique(read_sparse_file(file).labels.indices, return_inverse=True)
        return Labels(tuple(classes.tolist()), codes)
    return read_labels(file, column)


def _read_recipe_labels(file: Path) -> Labels:
    data = load_data(load_recipe(file).data)
    labels = data.train.labels
    codes = labels.to_dense().nonzero()[:, 1] if data.is_multilabel else labels
    return Labels(classes=data.class_names, codes=codes.numpy())
