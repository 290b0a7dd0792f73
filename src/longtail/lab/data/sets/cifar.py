"""CIFAR-10 and CIFAR-100 as their publisher lays them out: the binary version, or the python version.

The python version is a set of pickles. They are read, not run: see ``_plain_pickle``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.formats.plain_pickle import PlainArray, read_plain_pickle
from longtail.lab.data.locate import PathLike, data_root, first_folder, not_found

__all__ = ["load_cifar10", "load_cifar100"]

_PIXELS = 3 * 32 * 32
_LARGEST_FILE = 2**30
"""Bytes. The largest published file has 150 million."""


@dataclass(frozen=True)
class _Layout:
    name: str
    num_classes: int
    binary_folder: str
    python_folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_bytes: int
    """Labels before the pixels of a binary record; the last one counts."""
    binary_names: str
    python_names: tuple[str, str]
    """File, and key in it, of the class names."""
    python_labels: str


_CIFAR10 = _Layout(
    name="CIFAR-10",
    num_classes=10,
    binary_folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test_files=("test_batch",),
    label_bytes=1,
    binary_names="batches.meta.txt",
    python_names=("batches.meta", "label_names"),
    python_labels="labels",
)
_CIFAR100 = _Layout(
    name="CIFAR-100",
    num_classes=100,
    binary_folder="cifar-100-binary",
    python_folder="cifar-100-python",
    train_files=("train",),
    test_files=("test",),
    label_bytes=2,
    binary_names="fine_label_names.txt",
    python_names=("meta", "fine_label_names"),
    python_labels="fine_labels",
)


def load_cifar10(root: PathLike | None = None) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images, uint8 [N, 3, 32, 32], of 10 classes.

    Args:
        root: folder with ``cifar-10-batches-bin`` or ``cifar-10-batches-py``; None is the variable LONGTAIL_DATA.

    Reference:
        Krizhevsky (2009), "Learning multiple layers of features from tiny images".
    """
    return _load(_CIFAR10, data_root(root))


def load_cifar100(root: PathLike | None = None) -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test images, uint8 [N, 3, 32, 32], of 100 fine classes.

    Args:
        root: folder with ``cifar-100-binary`` or ``cifar-100-python``; None is the variable LONGTAIL_DATA.

    Reference:
        Krizhevsky (2009), "Learning multiple layers of features from tiny images".
    """
    return _load(_CIFAR100, data_root(root))


def _load(layout: _Layout, root: Path) -> Dataset:
    folder = first_folder(root, (layout.binary_folder, layout.python_folder))
    if folder is None:
        raise not_found(
            layout.name, root, f"its folder {layout.binary_folder} (or {layout.python_folder}, the python version)"
        )
    is_binary = folder.name == layout.binary_folder
    read_split = _binary_split if is_binary else _python_split
    class_names = _binary_class_names(layout, folder) if is_binary else _python_class_names(layout, folder)
    if len(class_names) != layout.num_classes:
        raise ValueError(f"{folder} must name {layout.num_classes} classes. Got {len(class_names)}.")
    return Dataset(
        name=layout.name,
        train=read_split(layout, folder, layout.train_files),
        test=read_split(layout, folder, layout.test_files),
        class_names=class_names,
    )


def _binary_split(layout: _Layout, folder: Path, names: tuple[str, ...]) -> Split:
    record = layout.label_bytes + _PIXELS
    paths = [_find_file(layout, folder / f"{name}.bin") for name in names]
    sizes = [path.stat().st_size for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if size == 0 or size % record or size != sizes[0] or size > _LARGEST_FILE:
            raise ValueError(
                f"{path} must have whole records of {record} bytes, as many as the other parts. "
                f"Got {size} bytes; the file may be cut off, get it again."
            )
    records = np.concatenate([np.fromfile(path, dtype=np.uint8).reshape(-1, record) for path in paths])
    return _split(records[:, layout.label_bytes :], records[:, layout.label_bytes - 1])


def _python_split(layout: _Layout, folder: Path, names: tuple[str, ...]) -> Split:
    images, labels = [], []
    for name in names:
        path = _find_file(layout, folder / name)
        content = _read_dictionary(path)
        images.append(_check_images(path, content.get("data")))
        labels.append(np.asarray(content.get(layout.python_labels)))
        if labels[-1].shape != (len(images[-1]),) or labels[-1].dtype.kind != "i":
            raise ValueError(f"{path} must have {layout.python_labels!r}, one whole number for each of its images.")
    return _split(np.concatenate(images), np.concatenate(labels))


def _split(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any]) -> Split:
    images = torch.from_numpy(np.ascontiguousarray(pixels).reshape(-1, 3, 32, 32))
    return Split(images, torch.from_numpy(labels.astype(np.int64)))


def _binary_class_names(layout: _Layout, folder: Path) -> tuple[str, ...]:
    text = _find_file(layout, folder / layout.binary_names).read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _python_class_names(layout: _Layout, folder: Path) -> tuple[str, ...]:
    file, key = layout.python_names
    path = _find_file(layout, folder / file)
    names = _read_dictionary(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path} must have {key!r}, a list of class names.")
    return tuple(_text(name) for name in names)


def _read_dictionary(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"{path} must have at most {_LARGEST_FILE} bytes. Got {path.stat().st_size}.")
    try:
        content = read_plain_pickle(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no file of the python version of CIFAR, or cut off: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a dictionary. Got {type(content).__name__}.")
    return {_text(key): value for key, value in content.items()}


def _check_images(path: Path, value: Any) -> npt.NDArray[np.uint8]:
    if not isinstance(value, PlainArray) or len(value.shape) != 2 or value.shape[1] != _PIXELS:
        raise ValueError(f"{path} must have 'data', an array of bytes [N, {_PIXELS}].")
    try:
        return value.array()
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}.") from error


def _find_file(layout: _Layout, path: Path) -> Path:
    if not path.is_file():
        raise not_found(layout.name, path.parent, f"its file {path.name}")
    return path


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
