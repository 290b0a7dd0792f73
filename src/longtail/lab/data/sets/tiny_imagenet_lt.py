"""Tiny-ImageNet-LT: features of its images."""

from __future__ import annotations

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.arrays import load_arrays
from longtail.lab.data.locate import data_root

__all__ = ["load_tiny_imagenet_lt_features"]


def load_tiny_imagenet_lt_features(root: str | None = None) -> Dataset:
    """Features of Tiny-ImageNet-LT images from a network trained on ImageNet; long-tailed as published."""
    path = data_root(root) / "tiny_imagenet_lt" / "features_pca256.npz"
    return load_arrays(path, train_inputs="f_train", train_labels="y_train", test_inputs="f_val", test_labels="y_val")
