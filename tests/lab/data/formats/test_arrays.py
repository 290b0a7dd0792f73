"""Arrays in .npz files, and damaged ones."""

import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.data.formats import arrays


def save_arrays(path, **changes):
    content = {
        "train_images": np.arange(4 * 8 * 6 * 3, dtype=np.uint8).reshape(4, 8, 6, 3),
        "train_labels": np.array([0, 1, 1, 0], dtype=np.int16),
        "test_images": np.zeros((2, 8, 6, 3), dtype=np.uint8),
        "test_labels": np.array([0, 1]),
    }
    np.savez(path, **{**content, **changes})
    return content


def test_images_of_an_npz_file(tmp_path):
    content = save_arrays(tmp_path / "small.npz", class_names=np.array(["cat", "dog"]))
    data = arrays.load_arrays(tmp_path / "small.npz")
    assert (data.name, data.class_names, data.input_shape) == ("small", ("cat", "dog"), (3, 8, 6))
    assert np.array_equal(data.train.inputs.numpy(), content["train_images"].transpose(0, 3, 1, 2))
    assert data.train.inputs.is_contiguous()


def test_features_under_other_keys(tmp_path):
    features = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float16)
    np.savez_compressed(tmp_path / "f.npz", f_train=features, y=np.array([2, 0, 1], dtype=np.uint8))
    data = arrays.load_arrays(tmp_path / "f.npz", "f_train", "y", "f_train", "y")
    assert data.train.inputs.dtype == torch.float32
    assert np.array_equal(data.train.inputs.numpy(), features.astype(np.float32))
    assert data.class_names == ("0", "1", "2")


def test_gray_images_get_a_channel(tmp_path):
    gray = np.zeros((4, 8, 6), dtype=np.uint8)
    save_arrays(tmp_path / "gray.npz", train_images=gray, test_images=gray[:2])
    assert arrays.load_arrays(tmp_path / "gray.npz").input_shape == (1, 8, 6)


def test_bytes_of_no_image_are_features(tmp_path):
    features, labels = np.arange(12, dtype=np.uint8).reshape(3, 4), np.array([0, 1, 1])
    np.savez(
        tmp_path / "bytes.npz", train_images=features, train_labels=labels, test_images=features, test_labels=labels
    )
    inputs = arrays.load_arrays(tmp_path / "bytes.npz").train.inputs
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == features.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.array([0.5] * 4)}, "train_labels must be whole numbers"),
        ({"train_labels": np.array([0, 1])}, "one length"),
        ({"test_labels": np.array([0, 9])}, r"test labels must be in 0\.\.1, .* Got 9 in row 1"),
        ({"test_labels": np.array([0, -1])}, r"test labels must be in 0\.\.1, .* Got -1"),
        ({"train_images": np.array([{}] * 4)}, "has Python objects"),
        ({"train_images": np.array(["a"] * 4)}, "must be numbers"),
        ({"test_images": np.zeros((2, 9, 9, 3), dtype=np.uint8)}, "one shape"),
    ],
)
def test_npz_files_with_other_content_are_refused(tmp_path, changes, message, one_line):
    save_arrays(tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=message) as error:
        arrays.load_arrays(tmp_path / "bad.npz")
    assert one_line(error)


def test_a_missing_key_lists_those_there_are(tmp_path):
    save_arrays(tmp_path / "small.npz")
    with pytest.raises(ValueError, match=r"no array 'x'. It has: train_images, train_labels"):
        arrays.load_arrays(tmp_path / "small.npz", train_inputs="x")


def test_damaged_npz_files_are_refused(tmp_path, one_line):
    path = tmp_path / "small.npz"
    save_arrays(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"this is no readable \.npz file") as error:
            arrays.load_arrays(path)
        assert one_line(error)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.npz"):
        arrays.load_arrays(tmp_path / "nowhere.npz")


def test_an_npz_header_that_claims_terabytes_allocates_nothing(tmp_path):
    path = tmp_path / "huge.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**42, 8)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", header.getvalue())
    with pytest.raises(ValueError, match="must have the size its header says"):
        arrays.load_arrays(path)


def test_real_features(real_file):
    path = real_file("tiny_imagenet_lt/features_pca256.npz")
    data = arrays.load_arrays(path, "f_train", "y_train", "f_val", "y_val")
    assert (data.num_classes, data.prior.imbalance, data.input_shape) == (200, 100.0, (256,))


def mark_as_encrypted(path):
    """Set the flag that says so in both headers of every member."""
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(signature)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(signature, start + 4)
    path.write_bytes(content)


def test_an_encrypted_npz_is_one_line(tmp_path, one_line):
    path = tmp_path / "secret.npz"
    save_arrays(path)
    mark_as_encrypted(path)
    with pytest.raises(ValueError, match=r"secret\.npz: this is no readable \.npz file.*encrypted") as error:
        arrays.load_arrays(path)
    assert one_line(error)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_changed_byte_gives_the_data_or_one_kind_of_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("changed") / "small.npz"
    save_arrays(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    messages = ["small"]
    try:
        arrays.load_arrays(path)
    except ValueError as error:
        messages.append(str(error))
    assert all(("small" in message or "Split" in message) and "\n" not in message for message in messages)


@pytest.mark.parametrize("dtype", [">i8", ">i2", "<u4", np.longdouble, ">f4", np.float16])
def test_labels_of_any_whole_numbers(tmp_path, dtype):
    labels = np.array([0, 1, 1, 0]).astype(dtype)
    save_arrays(tmp_path / "small.npz", train_labels=labels)
    assert arrays.load_arrays(tmp_path / "small.npz").train.labels.tolist() == [0, 1, 1, 0]
