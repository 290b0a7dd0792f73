"""MNIST, Fashion-MNIST and whatever else comes as idx files, packed with gzip or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from longtail._core.memory import check_memory
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.locate import GZIP_EXPANSION, PathLike, data_root, first_folder, not_found

__all__ = ["load_fashion_mnist", "load_mnist", "read_idx"]

_FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_UNSIGNED_BYTE = 8


def load_mnist(root: PathLike | None = None) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of digits, uint8 [N, 1, 28, 28].

    Args:
        root: folder with ``mnist`` (or ``MNIST/raw``), in it the four idx files; None is the variable LONGTAIL_DATA.

    Reference:
        LeCun et al. (1998), "Gradient-based learning applied to document recognition".
    """
    return _load("MNIST", data_root(root), ("mnist", "MNIST/raw"), tuple("0123456789"))


def load_fashion_mnist(root: PathLike | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes, uint8 [N, 1, 28, 28].

    Args:
        root: folder with ``fashion-mnist`` (or ``FashionMNIST/raw``), in it the four idx files; None is the variable
            LONGTAIL_DATA.

    Reference:
        Xiao et al. (2017), "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms".
    """
    return _load("Fashion-MNIST", data_root(root), ("fashion-mnist", "FashionMNIST/raw"), _FASHION)


def read_idx(path: PathLike) -> npt.NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes.

    The header's shape is held against the size of the file before anything is allocated.

    Args:
        path: the file; packed with gzip if its name ends in ``.gz``.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            shape = _idx_shape(file, path)
            wanted = math.prod(shape)
            largest = path.stat().st_size * (GZIP_EXPANSION if path.suffix == ".gz" else 1)
            check_memory(min(wanted, largest), str(path))
            content = file.read(wanted + 1) if wanted <= largest else b""
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a complete gzip file. Got: {error}.") from error
    if len(content) != wanted:
        raise ValueError(f"{path} must have the {wanted} bytes that its header says. It is cut off; get it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _idx_shape(file: BufferedIOBase, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path} must be an idx file of unsigned bytes. Got {magic!r} at its start.")
    lengths = file.read(4 * magic[3])
    if len(lengths) < 4 * magic[3]:
        raise ValueError(f"{path} must have a whole idx header. It is cut off; get it again.")
    return struct.unpack(f">{magic[3]}I", lengths)


def _load(name: str, root: Path, folders: tuple[str, ...], class_names: tuple[str, ...]) -> Dataset:
    folder = first_folder(root, folders)
    if folder is None:
        raise not_found(
            name, root, f"a folder {folders[0]} with {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte[.gz]"
        )
    return Dataset(name, _read_split(name, folder, "train"), _read_split(name, folder, "t10k"), class_names)


def _read_split(name: str, folder: Path, prefix: str) -> Split:
    images = read_idx(_idx_file(name, folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(_idx_file(name, folder, f"{prefix}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {prefix} images must be [N, H, W] with N labels. Got {images.shape} and {labels.shape}."
        )
    return Split(torch.from_numpy(images.copy())[:, None], torch.from_numpy(labels.astype(np.int64)))


def _idx_file(name: str, folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    raise not_found(name, folder, f"its file {stem} or {stem}.gz")
