"""Folders and lists of images."""

import numpy as np
import pytest
import torch

from longtail.lab.data.formats import image_files


@pytest.fixture
def image_module():
    return pytest.importorskip("PIL.Image", reason="images in files need Pillow")


def save_image(image_module, path, color, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image_module.new("RGB", size, color).save(path)


def test_a_folder_a_class_with_train_and_val(tmp_path, image_module):
    for part in ("train", "val"):
        save_image(image_module, tmp_path / part / "dog" / "a.png", (255, 0, 0))
        save_image(image_module, tmp_path / part / "cat" / "deep" / "b.JPG", (0, 255, 0))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    data = image_files.load_image_folder(tmp_path, size=4)
    assert data.class_names == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 1]
    batch = data.train.batch(torch.tensor([1, 0]))
    assert (batch.dtype, batch.shape) == (torch.uint8, (2, 3, 4, 4))
    assert batch[0, :, 0, 0].tolist() == [255, 0, 0]
    assert data.train.batch(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 4, 4)


def test_a_folder_a_class_without_a_test_set(tmp_path, image_module):
    for c in ("a", "b"):
        for i in range(5):
            save_image(image_module, tmp_path / c / f"{i}.png", (i, i, i))
    data = image_files.load_image_folder(tmp_path, size=2, test_fraction=0.4)
    assert data.train.labels.bincount().tolist() == [3, 3]
    assert data.test.labels.bincount().tolist() == [2, 2]
    assert not set(data.train.inputs.paths) & set(data.test.inputs.paths)


def test_the_middle_of_a_wide_image_is_taken(tmp_path, image_module):
    pixels = np.zeros((4, 12, 3), dtype=np.uint8)
    pixels[:, 4:8] = 200
    image_module.fromarray(pixels).save(tmp_path / "wide.png")
    batch = image_files.ImageFiles((str(tmp_path / "wide.png"),), size=4).batch(torch.tensor([0]))
    assert (batch == 200).all()


def test_bad_image_folders(tmp_path, image_module, one_line):
    with pytest.raises(FileNotFoundError, match="put one folder per class"):
        image_files.load_image_folder(tmp_path / "nowhere", size=4)
    with pytest.raises(ValueError, match="Got no image"):
        image_files.load_image_folder(tmp_path, size=4)
    save_image(image_module, tmp_path / "train" / "a" / "0.png", (0, 0, 0))
    with pytest.raises(FileNotFoundError, match="it needs test or val too"):
        image_files.load_image_folder(tmp_path, size=4)
    save_image(image_module, tmp_path / "test" / "b" / "0.png", (0, 0, 0))
    with pytest.raises(ValueError, match="Got 'b' besides"):
        image_files.load_image_folder(tmp_path, size=4)
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(ValueError, match="must have images, for it is a class") as error:
        image_files.load_image_folder(tmp_path, size=4)
    assert one_line(error)


def test_a_corrupt_image_is_named(tmp_path, image_module, one_line):
    save_image(image_module, tmp_path / "a" / "good.png", (0, 0, 0), size=(64, 64))
    (tmp_path / "a" / "text.png").write_text("this is no image")
    whole = (tmp_path / "a" / "good.png").read_bytes()
    (tmp_path / "a" / "cut.png").write_bytes(whole[: len(whole) // 2])
    for name in ("text.png", "cut.png"):
        files = image_files.ImageFiles((str(tmp_path / "a" / name),), size=4)
        with pytest.raises(ValueError, match=f"{name} must be a readable image") as error:
            files.batch(torch.tensor([0]))
        assert one_line(error)


def test_list_files(tmp_path, image_module):
    save_image(image_module, tmp_path / "images" / "one two.png", (1, 2, 3))
    save_image(image_module, tmp_path / "images" / "b.png", (4, 5, 6))
    (tmp_path / "train.txt").write_text("images/one two.png 2\nimages/b.png 0\n\n")
    (tmp_path / "test.txt").write_text("images/b.png 1\n")
    data = image_files.load_image_lists(tmp_path / "train.txt", tmp_path / "test.txt", tmp_path, size=2)
    assert data.class_names == ("0", "1", "2")
    assert data.train.labels.tolist() == [2, 0]
    assert data.train.batch(torch.tensor([0]))[0, :, 0, 0].tolist() == [1, 2, 3]
    assert data.train.take(torch.tensor([1])).inputs.paths[0].endswith("b.png")


@pytest.mark.parametrize(
    ("line", "error_type", "message"),
    [
        ("images/b.png", ValueError, "line 2: must be 'path label'"),
        ("images/b.png cat", ValueError, "line 2: must be 'path label'"),
        ("images/b.png 1.5", ValueError, "line 2: must be 'path label'"),
        ("images/b.png -1", ValueError, r"line 2: the label must be in 0\.\.1. Got -1"),
        ("images/b.png 2", ValueError, r"line 2: the label must be in 0\.\.1. Got 2"),
        ("images/nowhere.png 1", FileNotFoundError, r"line 2: there is no image .*nowhere\.png"),
    ],
)
def test_every_line_of_a_list_is_checked(tmp_path, line, error_type, message, one_line):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.png").write_bytes(b"not decoded here")
    (tmp_path / "good.txt").write_text("images/b.png 0\nimages/b.png 1\n")
    (tmp_path / "bad.txt").write_text(f"images/b.png 0\n{line}\n")
    for first, second in (("bad.txt", "good.txt"), ("good.txt", "bad.txt")):
        with pytest.raises(error_type, match=message) as error:
            image_files.load_image_lists(tmp_path / first, tmp_path / second, tmp_path, 4, class_names=("a", "b"))
        assert "bad.txt" in one_line(error)


def test_missing_and_empty_lists(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"must have lines 'path label'. Got none"):
        image_files.load_image_lists(tmp_path / "empty.txt", tmp_path / "empty.txt", tmp_path, 4)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.txt"):
        image_files.load_image_lists(tmp_path / "nowhere.txt", tmp_path / "empty.txt", tmp_path, 4)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        image_files.load_image_lists(tmp_path / "empty.txt", tmp_path / "empty.txt", tmp_path / "nowhere", 4)
