"""Arrays in ``.npz`` files: images or features with their labels."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.locate import DAMAGES, GZIP_EXPANSION, PathLike, locate_path

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
    try:
        with zipfile.ZipFile(path) as archive:
            train = Split(_inputs(archive, path, train_inputs), _labels(archive, path, train_labels))
            test = Split(_inputs(archive, path, test_inputs), _labels(archive, path, test_labels))
            names = _class_names(archive, path, class_names, train.labels)
    except DAMAGES as error:
        raise ValueError(f"{path} must be a complete .npz file. Got: {error}.") from error
    return Dataset(path.stem, train, test, names)


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


def _inputs(archive: zipfile.ZipFile, path: Path, key: str) -> Tensor:
    array = _read(archive, path, key)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return _images(torch.from_numpy(array))
    if array.dtype.kind not in "fiub" or array.ndim < 2:
        raise ValueError(f"{path}: {key} must be numbers [N, ...]. Got {array.dtype} {array.shape}.")
    return torch.from_numpy(array.astype(np.float32))


def _images(array: Tensor) -> Tensor:
    """[N, channels, H, W] from that, or from channels last, or from gray images without channels."""
    if array.ndim == 3:
        return array[:, None]
    is_channels_last = array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4)
    return array.permute(0, 3, 1, 2).contiguous() if is_channels_last else array


def _labels(archive: zipfile.ZipFile, path: Path, key: str) -> Tensor:
    array = _read(archive, path, key)
    is_whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array % 1 == 0).all()))
    if not is_whole or array.ndim != 1:
        raise ValueError(f"{path}: {key} must be whole numbers [N]. Got {array.dtype} {array.shape}.")
    return torch.from_numpy(array.astype(np.int64))


def _class_names(archive: zipfile.ZipFile, path: Path, key: str, labels: Tensor) -> tuple[str, ...]:
    if f"{key}.npy" in archive.namelist():
        return tuple(str(name) for name in _read(archive, path, key))
    return tuple(str(c) for c in range(int(labels.max()) + 1 if len(labels) else 0))


def _read(archive: zipfile.ZipFile, path: Path, key: str) -> npt.NDArray[Any]:
    """One array, once its header agrees with the size of its file and that with the size of the archive."""
    if f"{key}.npy" not in archive.namelist():
        known = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
        raise ValueError(f"{path}: there is no array {key!r}. It has: {known}.")
    member = archive.getinfo(f"{key}.npy")
    if member.file_size > (member.compress_size + 1) * GZIP_EXPANSION:
        raise ValueError(f"{path}: {key} can't have the {member.file_size} bytes that it claims.")
    with archive.open(member) as file:
        _check_header(file, member.file_size, f"{path}: {key}")
    with archive.open(member) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _check_header(file: Any, file_size: int, where: str) -> None:
    try:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
    except ValueError as error:
        raise ValueError(f"{where} must be a NumPy array. Got: {error}") from error
    if dtype.hasobject:
        raise ValueError(f"{where} must be numbers or text. Got Python objects, which are not read.")
    if file.tell() + math.prod(shape) * dtype.itemsize != file_size:
        raise ValueError(f"{where} must have the size its header says, {shape} of {dtype}. It has {file_size} bytes.")
