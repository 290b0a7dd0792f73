"""Files of labels, scores and class numbers in unusual types, and damaged ones."""

import zipfile

import numpy as np
import pytest

from longtail.lab.data.formats.labels import read_labels
from longtail.lab.data.formats.tables import read_class_numbers, read_scores

TYPES = [">i8", ">u2", ">f8", ">f4", ">f2", np.longdouble, np.dtype(np.longdouble).newbyteorder()]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_numbers_of_other_machines_and_of_more_bits(tmp_path, dtype, suffix):
    def save(name, values):
        path = tmp_path / (name + suffix)
        array = np.array(values).astype(dtype)
        np.save(path, array) if suffix == ".npy" else np.savez(path, array)
        return path

    found = read_labels(save("labels", [5, 9, 5, 7]))
    assert (found.classes, found.codes.tolist()) == ((5, 7, 9), [0, 2, 0, 1])
    counts = read_class_numbers(save("counts", [400, 20, 3])).values
    assert counts.tolist() == [400, 20, 3]
    assert counts.dtype.isnative
    scores = read_scores(save("scores", [[1, 2], [3, 4]])).values
    assert scores.tolist() == [[1, 2], [3, 4]]
    assert scores.dtype in (np.float32, np.float64)


def test_missing_labels_in_more_bits(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([1, np.nan, 0], dtype=np.longdouble))
    assert read_labels(tmp_path / "labels.npy").codes.tolist() == [1, -100, 0]
    np.save(tmp_path / "labels.npy", np.array([1.5], dtype=np.longdouble))
    with pytest.raises(ValueError, match=r"labels must be whole numbers or strings\. Got 1\.5"):
        read_labels(tmp_path / "labels.npy")


@pytest.mark.parametrize("damage", ["cut", "flipped", "encrypted", "other compression"])
def test_a_damaged_or_encrypted_npz_is_one_line(tmp_path, damage, one_line):
    path = tmp_path / "labels.npz"
    np.savez_compressed(path, label=np.arange(1000))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[200:220] = bytes(20)
    else:
        for signature, flags, method in ((b"PK\x03\x04", 6, 8), (b"PK\x01\x02", 8, 10)):
            start = content.find(signature)
            if damage == "encrypted":
                content[start + flags] |= 1
            else:
                content[start + method] = 97
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"labels\.npz: this is no readable \.npz file of plain arrays") as error:
        read_labels(path)
    assert one_line(error)


def test_an_npz_without_arrays_is_one_line(tmp_path, one_line):
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(ValueError, match=r"empty\.npz") as error:
        read_labels(tmp_path / "empty.npz")
    assert one_line(error)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order'",
        "(" * 300,
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}",
        "[1]",
        "L" * 9,
    ],
)
def test_headers_that_are_no_headers_are_one_line(tmp_path, header, one_line):
    content = header.encode()
    (tmp_path / "labels.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
    with pytest.raises(ValueError, match=r"labels\.npy: this is no readable \.npy file of plain arrays") as error:
        read_labels(tmp_path / "labels.npy")
    assert one_line(error)
