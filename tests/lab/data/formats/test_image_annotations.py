"""Annotation files of COCO and LVIS: label matrices, and files with other content."""

import copy
import gzip
import json

import pytest
import torch

from longtail.lab.data.formats.image_annotations import load_annotated_images, read_annotations

CONTENT = {
    "images": [
        {"id": 42, "file_name": "b.png"},
        {"id": 7, "coco_url": "http://images.cocodataset.org/train2017/a.png"},
        {"id": 8, "file_name": "c.png"},
    ],
    "annotations": [
        {"image_id": 7, "category_id": 90, "bbox": [0, 0, 1, 1]},
        {"image_id": 42, "category_id": 3},
        {"image_id": 7, "category_id": 3},
        {"image_id": 7, "category_id": 90},
    ],
    "categories": [{"id": 90, "name": "toothbrush"}, {"id": 3, "name": "car"}, {"id": 5, "name": "bus"}],
}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def test_labels_are_by_image_and_category(tmp_path):
    found = read_annotations(write(tmp_path / "instances.json", CONTENT))
    assert found.file_names == ("b.png", "a.png", "c.png")
    assert found.class_names == ("car", "bus", "toothbrush")
    assert found.labels.is_sparse
    assert found.labels.to_dense().int().tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_packed_files_are_read(tmp_path):
    path = tmp_path / "instances.json.gz"
    path.write_bytes(gzip.compress(json.dumps(CONTENT).encode()))
    assert len(read_annotations(path).file_names) == 3


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("images",), [], "must have 'images', a list of objects"),
        (("annotations",), None, "must have 'annotations'"),
        (("categories", 0), 5, "categories 0: must be an object. Got 5"),
        (("images", 1, "id"), 42, "images 1: must have an id of its own, a whole number. Got 42"),
        (("images", 1, "id"), True, "images 1: must have an id of its own"),
        (("annotations", 2, "category_id"), 4, "annotations 2: category_id must be an id that the file has. Got 4"),
        (("annotations", 0, "image_id"), [7], "annotations 0: image_id must be an id"),
        (("categories", 1, "name"), "", "category 3: name must be a text. Got ''"),
        (("images", 0, "file_name"), 5, "image 42: file_name must be a text. Got 5"),
    ],
)
def test_files_with_other_content_are_refused(tmp_path, where, value, message):
    content = copy.deepcopy(CONTENT)
    place = content
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(ValueError, match=message) as error:
        read_annotations(write(tmp_path / "instances.json", content))
    assert "\n" not in str(error.value)


def test_what_is_no_json_object_is_refused(tmp_path):
    for text in ("[1]", "{", "[" * 100_000):
        (tmp_path / "instances.json").write_text(text)
        with pytest.raises(ValueError, match="must be"):
            read_annotations(tmp_path / "instances.json")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_annotations(tmp_path / "missing.json")


def test_images_and_labels_become_a_data_set(tmp_path):
    image_module = pytest.importorskip("PIL.Image", reason="images in files need Pillow")
    path = write(tmp_path / "instances.json", CONTENT)
    arguments = (path, path, tmp_path, tmp_path, 8)
    with pytest.raises(FileNotFoundError, match=r"there is no image .*b\.png"):
        load_annotated_images(*arguments)
    for name in ("a", "b", "c"):
        image_module.new("RGB", (10, 10), (200, 0, 0)).save(tmp_path / f"{name}.png")
    data = load_annotated_images(*arguments)
    assert data.is_multilabel
    assert data.prior.counts.tolist() == [2, 0, 1]
    assert data.train.batch(torch.tensor([1])).shape == (1, 3, 8, 8)
    other = copy.deepcopy(CONTENT)
    other["categories"][2]["name"] = "tram"
    with pytest.raises(ValueError, match="must have the categories of"):
        load_annotated_images(path, write(tmp_path / "other.json", other), tmp_path, tmp_path, 8)
