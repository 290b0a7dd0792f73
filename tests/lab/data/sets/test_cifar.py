"""CIFAR in both of its layouts, on small files written here, and damaged files."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

from longtail.lab.data import dataset
from longtail.lab.data.sets import cifar

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
LABELS = np.arange(12) % 10


def write_cifar10_binary(root):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    records = np.concatenate([LABELS[:, None].astype(np.uint8), PIXELS], axis=1)
    for i, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        records[2 * i : 2 * i + 2].tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(f"name {c}" for c in range(10)) + "\n\n")
    return folder


def python2_string(value):
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def python2_batch(pixels, labels, labels_key=b"labels"):
    """The instructions that Python 2's cPickle wrote into the published files, protocol 2."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07("
        + b"K\x01"
        + b"M" + struct.pack("<H", len(pixels)) + b"M\x00\x0c\x86"
        + b"cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89" + python2_string(pixels.tobytes()) + b"tb"
    )  # fmt: skip
    numbers = b"".join(b"K" + bytes([label]) for label in labels.tolist())
    return (
        b"\x80\x02}q\x01("
        + python2_string(b"batch_label") + b"q\x02" + python2_string(b"one of six") + b"q\x03"
        + python2_string(labels_key) + b"]q\x04(" + numbers + b"e"
        + python2_string(b"data") + array
        + b"u."
    )  # fmt: skip


def write_cifar10_python(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        part = slice(2 * i, 2 * i + 2)
        (folder / name).write_bytes(python2_batch(PIXELS[part], LABELS[part]))
    names = [f"name {c}".encode() for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return folder


@pytest.mark.parametrize("write", [write_cifar10_binary, write_cifar10_python])
def test_cifar10_in_both_layouts(tmp_path, write):
    write(tmp_path)
    data = cifar.load_cifar10(tmp_path)
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert data.train.inputs.dtype == torch.uint8
    assert np.array_equal(data.train.inputs.numpy().reshape(10, -1), PIXELS[:10])
    assert np.array_equal(data.test.inputs.numpy().reshape(2, -1), PIXELS[10:])
    assert data.train.labels.tolist() == LABELS[:10].tolist()
    assert data.test.labels.tolist() == LABELS[10:].tolist()
    assert data.class_names == tuple(f"name {c}" for c in range(10))


def write_cifar100_binary(root):
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    coarse = np.full((12, 1), 77, dtype=np.uint8)
    records = np.concatenate([coarse, LABELS[:, None].astype(np.uint8) + 50, PIXELS], axis=1)
    records[:9].tofile(folder / "train.bin")
    records[9:].tofile(folder / "test.bin")
    (folder / "fine_label_names.txt").write_text("".join(f"name {c}\n" for c in range(100)))


def write_cifar100_python(root):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    # As Python 3 writes them, which is how people repack the published files.
    for name, part, protocol in (("train", slice(9), 2), ("test", slice(9, 12), 4)):
        content = {"fine_labels": (LABELS[part] + 50).tolist(), "coarse_labels": [77], "data": PIXELS[part]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    names = {"fine_label_names": [f"name {c}" for c in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


@pytest.mark.parametrize("write", [write_cifar100_binary, write_cifar100_python])
def test_cifar100_in_both_layouts(tmp_path, write):
    write(tmp_path)
    data = cifar.load_cifar100(tmp_path)
    assert data.num_classes == 100
    assert data.train.labels.tolist() == (LABELS[:9] + 50).tolist()
    assert np.array_equal(data.test.inputs.numpy().reshape(3, -1), PIXELS[9:])


def test_the_variable_names_the_folder(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path)
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    assert len(cifar.load_cifar10().train) == 10


def test_missing_cifar_says_where_to_put_it(tmp_path, one_line):
    with pytest.raises(FileNotFoundError, match="CIFAR-100 was not found: put its folder cifar-100-binary") as error:
        cifar.load_cifar100(tmp_path)
    assert str(tmp_path) in one_line(error)
    assert "LONGTAIL_DATA" in one_line(error)


def test_a_missing_part_is_named(tmp_path, one_line):
    (write_cifar10_binary(tmp_path) / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


@pytest.mark.parametrize("size", [0, 100, 3073, 2 * 3073 - 1])
def test_a_cut_off_binary_file_is_refused(tmp_path, size, one_line):
    path = write_cifar10_binary(tmp_path) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin must have whole records") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


def test_a_label_out_of_range_is_refused(tmp_path):
    path = write_cifar10_binary(tmp_path) / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"in 0\.\.9, the 10 classes of the data\. Got 10 in row 0"):
        cifar.load_cifar10(tmp_path)


def test_a_cut_off_python_file_is_refused_at_every_length(tmp_path):
    path = write_cifar10_python(tmp_path) / "test_batch"
    whole = path.read_bytes()
    for size in [0, 1, 2, *range(3, len(whole), 211), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="test_batch"):
            cifar.load_cifar10(tmp_path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_is_never_run(tmp_path, protocol, one_line):
    path = write_cifar10_python(tmp_path) / "test_batch"
    path.write_bytes(pickle.dumps({"data": Malicious(str(tmp_path / "made"))}, protocol=protocol))
    with pytest.raises(ValueError, match="plain data and byte arrays only") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.zeros((2, 3072), dtype=np.float32), "labels": [0, 1]},
        {"data": np.zeros((2, 7), dtype=np.uint8), "labels": [0, 1]},
        {"data": [1, 2], "labels": [0, 1]},
        {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": ["cat", "dog"]},
        {"data": np.zeros((2, 3072), dtype=np.uint8)},
        [1, 2, 3],
    ],
)
def test_python_files_with_other_content_are_refused(tmp_path, content, one_line):
    path = write_cifar10_python(tmp_path) / "test_batch"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match="test_batch") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


def test_real_cifar10(real_file):
    real_file("cifar-10-batches-bin")
    data = cifar.load_cifar10()
    assert data.prior.counts.tolist() == [5000] * 10
    assert len(data.test) == 10_000
    assert len(dataset.long_tailed(data, ratio=100).train) == 12_406
