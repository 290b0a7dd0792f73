"""Annotation files in the JSON of COCO and LVIS: which categories occur in which image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Split, indicator_of_pairs
from longtail.lab.data.formats.image_files import ImageFiles
from longtail.lab.data.locate import PathLike, locate_path, read_bytes

__all__ = ["ImageAnnotations", "load_annotated_images", "read_annotations"]


@dataclass(frozen=True, eq=False, slots=True)
class ImageAnnotations:
    """The images of an annotation file and the categories that occur in each."""

    file_names: tuple[str, ...]
    """[N], in the order of the file."""
    labels: Tensor
    """[N, C] sparse bool: whether an image has an object of a category. An image without objects is an empty row."""
    class_names: tuple[str, ...]
    """[C], in the order of their ids."""


def read_annotations(path: PathLike) -> ImageAnnotations:
    """The labels of a COCO or LVIS annotation file, where boxes and outlines are left aside.

    Args:
        path: JSON, packed if it ends in ``.gz``, with ``images`` (``id``, and ``file_name`` or LVIS's ``coco_url``),
            ``annotations`` (``image_id``, ``category_id``) and ``categories`` (``id``, ``name``). Ids may have gaps.

    Returns:
        Several objects of one category in an image count once.

    >>> import tempfile
    >>> content = {
    ...     "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg"}],
    ...     "annotations": [{"image_id": 7, "category_id": 3}, {"image_id": 7, "category_id": 3}],
    ...     "categories": [{"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "instances.json").write_text(json.dumps(content))
    ...     found = read_annotations(Path(folder, "instances.json"))
    >>> found.class_names, found.labels.to_dense().tolist()
    (('dog', 'cat'), [[False, True], [False, False]])

    Reference:
        Lin et al. (2014), "Microsoft COCO: common objects in context"; Gupta et al. (2019), "LVIS: a dataset for
        large vocabulary instance segmentation".
    """
    path = locate_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Annotations were not found: there is no file {path}.")
    content = _parse_file(path)
    images = _by_id(content, "images", path)
    categories = dict(sorted(_by_id(content, "categories", path).items()))
    row_of = {image: row for row, image in enumerate(images)}
    column_of = {category: column for column, category in enumerate(categories)}
    rows, columns = [], []
    for number, annotation in enumerate(_records(content, "annotations", path)):
        where = f"{path}, annotations {number}"
        rows.append(_find_place(annotation, "image_id", row_of, where))
        columns.append(_find_place(annotation, "category_id", column_of, where))
    return ImageAnnotations(
        tuple(_file_name(image, f"{path}, image {key}") for key, image in images.items()),
        indicator_of_pairs(torch.tensor(rows), torch.tensor(columns), (len(images), len(categories))),
        tuple(_text(category, "name", f"{path}, category {key}") for key, category in categories.items()),
    )


def load_annotated_images(
    train: PathLike,
    test: PathLike,
    train_images: PathLike,
    test_images: PathLike,
    size: int,
) -> Dataset:
    """Images with COCO or LVIS annotations, as multi-label data.

    Args:
        train: annotation file of the images to train on.
        test: annotation file of the images to test on, with the same categories.
        train_images: folder of the training images.
        test_images: folder of the test images; may be the same one.
        size: images become squares of this many pixels a side.
    """
    parts = []
    for path, folder in ((train, train_images), (test, test_images)):
        found = read_annotations(path)
        root = locate_path(folder)
        missing = next((name for name in found.file_names if not (root / name).is_file()), None)
        if missing is not None:
            raise FileNotFoundError(f"{path}: there is no image {root / missing}.")
        images = ImageFiles(tuple(str(root / name) for name in found.file_names), size)
        parts.append((Split(images, found.labels), found.class_names))
    if parts[0][1] != parts[1][1]:
        raise ValueError(f"{test} must have the categories of {train}. Got other ones, or in another order.")
    return Dataset(Path(train).name.partition(".")[0], parts[0][0], parts[1][0], parts[0][1])


def _parse_file(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON. Got: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a JSON object with images, annotations and categories.")
    return content


def _records(content: Mapping[str, Any], key: str, path: Path) -> list[Mapping[str, Any]]:
    records = content.get(key)
    if not isinstance(records, list) or not records:
        raise ValueError(f"{path} must have {key!r}, a list of objects.")
    wrong = next((number for number, record in enumerate(records) if not isinstance(record, dict)), None)
    if wrong is not None:
        raise ValueError(f"{path}, {key} {wrong}: must be an object. Got {records[wrong]!r:.100}.")
    return records


def _by_id(content: Mapping[str, Any], key: str, path: Path) -> dict[int, Mapping[str, Any]]:
    """The records in their order, by their ids."""
    found: dict[int, Mapping[str, Any]] = {}
    for number, record in enumerate(_records(content, key, path)):
        identity = record.get("id")
        if type(identity) is not int or identity in found:
            raise ValueError(f"{path}, {key} {number}: must have an id of its own, a whole number. Got {identity!r}.")
        found[identity] = record
    return found


def _find_place(annotation: Mapping[str, Any], key: str, places: Mapping[int, int], where: str) -> int:
    value = annotation.get(key)
    if type(value) is not int or value not in places:
        raise ValueError(f"{where}: {key} must be an id that the file has. Got {value!r:.100}.")
    return places[value]


def _file_name(image: Mapping[str, Any], where: str) -> str:
    """COCO names the file; LVIS gives the address in COCO, which ends in it."""
    if "file_name" in image:
        return _text(image, "file_name", where)
    return _text(image, "coco_url", where).rpartition("/")[2]


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {key} must be a text. Got {value!r:.100}.")
    return value
