"""Arrays in ``.npz`` files: images or features with their labels."""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from longtail._core.memory import BYTES_PER_CLASS, check_memory
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.formats.array_files import ArrayFile, open_arrays
from longtail.lab.data.locate import PathLike, locate_path

__all__ = ["load_arrays", "save_arrays"]


def load_arrays(
    path: PathLike,
    train_inputs: str = "train_images",
    train_labels: str = "train_labels",
    test_inputs: str = "test_images",
    test_labels: str = "test_labels",
    class_names: str = "class_names",
) -> Dataset:
    """Training and test arrays of one ``.npz`` file, by their keys.

    Args:
        path: the file.
        train_inputs: key of the inputs to train on. Bytes [N, H, W, channels] or [N, H, W] are images and become
            uint8 [N, channels, H, W]; other numbers become float32.
        train_labels: key of their class indices [N].
        test_inputs: key of the inputs to test on.
        test_labels: key of their class indices [N].
        class_names: key of the class names; where the file lacks it, classes are named by their index.

    Returns:
        The data set, named as the file.
    """
    path = locate_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Arrays were not found: there is no file {path}.")
    arrays = open_arrays(path)
    for key in (train_inputs, train_labels, test_inputs, test_labels):
        if key not in arrays.headers:
            raise ValueError(f"{path}: there is no array {key!r}. It has: {', '.join(arrays.headers)}.")
    train, test = (
        Split(_inputs(arrays, inputs), _labels(arrays, labels))
        for inputs, labels in ((train_inputs, train_labels), (test_inputs, test_labels))
    )
    return Dataset(path.stem, train, test, _class_names(arrays, class_names, train.labels))


def save_arrays(data: Dataset, file: BinaryIO) -> None:
    """Write inputs [N, ...] and class indices as the ``.npz`` that :func:`load_arrays` reads without more arguments.

    Args:
        data: inputs in memory and one label per sample.
        file: where to write to, open for bytes.
    """
    arrays: dict[str, Any] = {"class_names": np.array(data.class_names, dtype=np.str_)}
    for part, split in (("train", data.train), ("test", data.test)):
        if not isinstance(split.inputs, Tensor) or split.labels.ndim != 1:
            raise ValueError(f"{data.name}: only inputs in memory with one label per sample can be written.")
        arrays |= {f"{part}_images": split.inputs.numpy(), f"{part}_labels": split.labels.numpy()}
    np.savez_compressed(file, **arrays)


def _inputs(arrays: ArrayFile, key: str) -> Tensor:
    shape, _, dtype, _ = arrays.header(key)
    if dtype == np.uint8 and len(shape) in (3, 4):
        return _images(torch.from_numpy(arrays.read(key)))
    if dtype.kind not in "fiub" or len(shape) < 2:
        raise ValueError(f"{arrays.name}: {key} must be numbers [N, ...]. Got {dtype} {shape}.")
    check_memory(math.prod(shape) * 4, f"{arrays.name}: {key}")
    values = arrays.read(key).astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.nonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0][0])
        raise ValueError(f"{arrays.name}: {key} must be finite. Got NaN or an infinity in row {row}.")
    return torch.from_numpy(values)


def _images(array: Tensor) -> Tensor:
    """[N, channels, H, W] from that, or from channels last, or from gray images without channels."""
    if array.ndim == 3:
        return array[:, None]
    is_channels_last = array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4)
    return array.permute(0, 3, 1, 2).contiguous() if is_channels_last else array


def _labels(arrays: ArrayFile, key: str) -> Tensor:
    shape, _, dtype, _ = arrays.header(key)
    array = arrays.read(key) if len(shape) == 1 and dtype.kind in "iuf" else np.full(1, np.nan)
    if not (array % 1 == 0).all():
        raise ValueError(
            f"{arrays.name}: {key} must be whole numbers [N]. Got {dtype} {shape}; "
            "np.unique(names, return_inverse=True) makes them of names."
        )
    return torch.from_numpy(array.astype(np.int64))


def _class_names(arrays: ArrayFile, key: str, labels: Tensor) -> tuple[str, ...]:
    if key in arrays.headers:
        return tuple(str(name) for name in arrays.read(key))
    num_classes = int(labels.max()) + 1 if len(labels) else 0
    what = f"{arrays.name}: names of {num_classes:,} classes, by the largest label,"
    check_memory(num_classes * BYTES_PER_CLASS, what)
    return tuple(str(c) for c in range(num_classes))
