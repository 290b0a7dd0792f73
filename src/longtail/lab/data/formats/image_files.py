"""Images in files: one folder per class, or list files of ``path label`` lines. Decoded per batch, with Pillow."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail.datasets import stratified_holdout
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.locate import PathLike, locate_path

__all__ = ["ImageFiles", "load_image_folder", "load_image_lists"]

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, eq=False, slots=True)
class ImageFiles:
    """Paths of images that are decoded when a batch asks for them.

    An image is scaled so that it covers a square, and the middle of it is taken.
    """

    paths: tuple[str, ...]
    size: int
    """Height and width of the square in pixels."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Tensor) -> Tensor:
        """uint8 [n, 3, size, size]. Decoding runs in threads, for Pillow lets them work side by side."""
        paths = [self.paths[i] for i in indices.tolist()]
        with ThreadPoolExecutor() as pool:
            images = list(pool.map(functools.partial(_decode, size=self.size), paths))
        shape = (len(images), self.size, self.size, 3)
        stacked = np.stack(images) if images else np.empty(shape, dtype=np.uint8)
        return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()

    def take(self, indices: Tensor) -> ImageFiles:
        """The files at ``indices`` alone; nothing is decoded."""
        return ImageFiles(tuple(self.paths[i] for i in indices.tolist()), self.size)


def load_image_folder(path: PathLike, size: int, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """A folder of images for each class, whose name is the folder's.

    Args:
        path: a folder with ``train`` and ``test`` (or ``val``), in each of them one folder per class; or with one
            folder per class right away, and then part of every class is held out to test on.
        size: images become squares of this many pixels a side.
        test_fraction: share of each class to hold out where there is no test folder.
        seed: chooses what is held out.
    """
    path = locate_path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"Images were not found: put one folder per class, with its images, into {path}.")
    if not (path / "train").is_dir():
        class_names = _subfolders(path)
        everything = _folder_split(path, class_names, size)
        kept, held = stratified_holdout(everything.labels, test_fraction, seed)
        return Dataset(path.name, everything.take(kept), everything.take(held), class_names)
    test = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if test is None:
        raise FileNotFoundError(
            f"Test images were not found: {path} has a folder train, so it needs test or val too."
        )
    class_names = _subfolders(path / "train")
    unknown = set(_subfolders(test)) - set(class_names)
    if unknown:
        raise ValueError(f"{test} must have the classes of {path / 'train'}. Got {min(unknown)!r} besides.")
    return Dataset(
        path.name,
        _folder_split(path / "train", class_names, size),
        _folder_split(test, class_names, size),
        class_names,
    )


def load_image_lists(
    train_list: PathLike,
    test_list: PathLike,
    image_root: PathLike,
    size: int,
    class_names: Sequence[str] | None = None,
) -> Dataset:
    """Images named by list files with a line ``path label`` each, as ImageNet-LT, Places-LT and iNaturalist use.

    Every line is checked: its form, that the image is there, and that the label is in range.

    Args:
        train_list: the list to train on.
        test_list: the list to test on.
        image_root: folder that the paths start from.
        size: images become squares of this many pixels a side.
        class_names: a name for every label; None: labels go up to the largest of the training list, and a class is
            named by its label.
    """
    root = locate_path(image_root)
    if not root.is_dir():
        raise FileNotFoundError(f"Images were not found: there is no folder {root}.")
    num_classes = None if class_names is None else len(class_names)
    train = _list_split(locate_path(train_list), root, size, num_classes)
    if class_names is None:
        class_names = [str(c) for c in range(int(train.labels.max()) + 1)]
    test = _list_split(locate_path(test_list), root, size, len(class_names))
    return Dataset(Path(train_list).stem, train, test, tuple(class_names))


def _folder_split(folder: Path, class_names: Iterable[str], size: int) -> Split:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        members = _images_below(folder / name)
        paths.extend(members)
        labels.extend([label] * len(members))
    if not paths:
        raise ValueError(f"{folder} must have one folder per class with images in it. Got no image.")
    return Split(ImageFiles(tuple(paths), size), torch.tensor(labels, dtype=torch.int64))


def _subfolders(path: Path) -> tuple[str, ...]:
    return tuple(
        sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    )


def _images_below(folder: Path) -> list[str]:
    if not folder.is_dir():  # a class may lack test images
        return []
    members = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not members:
        raise ValueError(f"{folder} must have images, for it is a class. Got none; remove it or fill it.")
    return members


def _list_split(path: Path, root: Path, size: int, num_classes: int | None) -> Split:
    if not path.is_file():
        raise FileNotFoundError(f"List file was not found: there is no file {path}.")
    paths: list[str] = []
    labels: list[int] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                image, label = _parse_line(line, f"{path}, line {number}", num_classes)
                paths.append(_find_image(root, image, f"{path}, line {number}"))
                labels.append(label)
    if not paths:
        raise ValueError(f"{path} must have lines 'path label'. Got none.")
    return Split(ImageFiles(tuple(paths), size), torch.tensor(labels, dtype=torch.int64))


def _parse_line(line: str, where: str, num_classes: int | None) -> tuple[str, int]:
    image, _, label = line.strip().rpartition(" ")
    if not image or not label.isascii() or not label.removeprefix("-").isdigit():
        raise ValueError(f"{where}: must be 'path label' with a whole number as label. Got {line.strip()!r:.200}.")
    if int(label) < 0 or (num_classes is not None and int(label) >= num_classes):
        wanted = "at least 0" if num_classes is None else f"in 0..{num_classes - 1}"
        raise ValueError(f"{where}: the label must be {wanted}. Got {label}.")
    return image.strip(), int(label)


def _find_image(root: Path, image: str, where: str) -> str:
    path = os.path.join(root, image)  # noqa: PTH118  (ten times faster than Path, for lists of 10^6 lines)
    if not os.path.isfile(path):  # noqa: PTH113
        raise FileNotFoundError(f"{where}: there is no image {path}.")
    return path


def _decode(path: str, size: int) -> npt.NDArray[np.uint8]:
    """uint8 [size, size, 3]."""
    image_module, image_operations = _pillow()
    try:
        with image_module.open(path) as image:
            image.draft("RGB", (size, size))  # lets a JPEG be decoded at a fraction of its size
            square = image_operations.fit(image.convert("RGB"), (size, size), image_module.Resampling.BILINEAR)
            return np.asarray(square)
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise ValueError(f"{path} must be a readable image. Got: {error}.") from error


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("Images in files need Pillow, which is not installed: pip install pillow.") from error
    return Image, ImageOps
