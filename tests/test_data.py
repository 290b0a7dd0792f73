"""Readers of published layouts on small files written here, profiles against known counts, and damaged files."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from longtail import datasets
from longtail.lab.data import dataset, download
from longtail.lab.data.dataset import Dataset, Split, sparse_indicator
from longtail.lab.data.formats import arrays, image_files, text
from longtail.lab.data.formats.plain_pickle import read_plain_pickle
from longtail.lab.data.sets import cifar, mnist
from longtail.lab.data.sets import text as text_sets
from longtail.lab.data.sparse_rows import SparseRows


def real_file(relative):
    """A file of a real data set below LONGTAIL_DATA; the test is skipped where it is absent."""
    root = os.environ.get("LONGTAIL_DATA")
    if not root or not (Path(root) / relative).exists():
        pytest.skip(f"needs {relative} below the folder that the variable LONGTAIL_DATA names")
    return Path(root) / relative


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


# Profiles


@pytest.mark.parametrize(
    ("num_max", "num_classes", "ratio", "total", "smallest"),
    [(5000, 10, 100, 12406, 50), (500, 100, 100, 10847, 5), (5000, 10, 10, 20431, 500), (500, 100, 10, 19573, 50)],
)
def test_exponential_counts_are_the_published_ones(num_max, num_classes, ratio, total, smallest):
    counts = datasets.exponential_counts(num_max, num_classes, ratio)
    assert sum(counts) == total
    assert (counts[0], counts[-1]) == (num_max, smallest)


@settings(deadline=None, max_examples=50)
@given(
    profile=st.sampled_from([datasets.exponential_counts, datasets.step_counts, datasets.pareto_counts]),
    num_max=st.integers(1, 5000),
    num_classes=st.integers(1, 60),
    ratio=st.floats(1, 300),
)
def test_profiles_fall_from_the_largest_to_the_smallest_count(profile, num_max, num_classes, ratio):
    if ratio > num_max:
        num_max = int(ratio) + 1
    counts = profile(num_max, num_classes, ratio)
    assert len(counts) == num_classes
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == num_max
    if num_classes > 1:
        assert abs(counts[-1] - num_max / ratio) <= 1


def test_step_counts_of_an_odd_number_of_classes():
    assert datasets.step_counts(100, 5, 10) == [100, 100, 100, 10, 10]


def test_pareto_counts_resemble_imagenet_lt():
    counts = np.array(datasets.pareto_counts(1280, 1000, 256))
    # Published: 115,846 images; 385 classes with more than 100, 136 with fewer than 20.
    assert abs(counts.sum() / 115_846 - 1) < 0.04
    assert abs((counts > 100).sum() - 385) < 20
    assert abs((counts < 20).sum() - 136) < 20


def test_pareto_counts_follow_the_formula():
    draws = [((c + 0.7) / 5.4) ** (-1 / 2) - 1 for c in range(5)]
    wanted = [10 + 90 * (x - draws[4]) / (draws[0] - draws[4]) for x in draws]
    assert datasets.pareto_counts(100, 5, 10, power=2.0) == [round(n) for n in wanted]


def test_a_ratio_that_empties_a_class_is_refused():
    with pytest.raises(ValueError, match="ratio must be at most num_max = 50") as error:
        datasets.exponential_counts(50, 10, 100)
    assert one_line(error)


@pytest.mark.parametrize("ratio", [0.5, float("nan"), float("inf")])
def test_profiles_refuse_a_bad_ratio(ratio):
    for profile in (datasets.exponential_counts, datasets.step_counts, datasets.pareto_counts):
        with pytest.raises(ValueError, match="ratio must be a finite number of at least 1"):
            profile(100, 10, ratio)


def test_subsample_keeps_the_counts_and_is_a_function_of_the_seed():
    labels = torch.arange(100) % 4
    first = datasets.subsample(labels, [25, 10, 3, 1], seed=5)
    assert torch.equal(first, datasets.subsample(labels, [25, 10, 3, 1], seed=5))
    assert not torch.equal(first, datasets.subsample(labels, [25, 10, 3, 1], seed=6))
    assert labels[first].bincount().tolist() == [25, 10, 3, 1]
    assert torch.equal(first, first.unique())


def test_smaller_counts_keep_part_of_what_larger_ones_keep():
    labels = torch.arange(90) % 3
    small = datasets.subsample(labels, [9, 4, 2], seed=1)
    large = datasets.subsample(labels, [20, 10, 5], seed=1)
    assert set(small.tolist()) <= set(large.tolist())


def test_subsample_refuses_more_than_there_is():
    with pytest.raises(ValueError, match=r"class 1 has 2 samples. Got a count of 3"):
        datasets.subsample([0, 1, 1], [1, 3], seed=0)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1. Got 4"):
        datasets.subsample([0, 1, 4], [1, 1], seed=0)


def test_shuffled_counts_differ_in_order_alone():
    counts = datasets.exponential_counts(100, 20, 10)
    assert sorted(datasets.shuffled(counts, seed=3), reverse=True) == counts
    assert datasets.shuffled(counts, seed=3) != counts
    assert datasets.shuffled(counts, seed=3) == datasets.shuffled(counts, seed=3)


def test_long_tailed_cuts_the_training_split_alone():
    split = Split(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    data = dataset.long_tailed(Dataset("example", split, split, ("a", "b")), [20, 2], seed=0)
    assert data.prior.counts.tolist() == [20, 2]
    assert len(data.test) == 40
    assert torch.equal(data.train.inputs[:, 0].long() % 2, data.train.labels)


def test_stratified_holdout_splits_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    kept, held = datasets.stratified_holdout(labels, 0.2, seed=0)
    assert labels[held].bincount(minlength=4).tolist() == [10, 2, 1, 0]
    assert sorted(torch.cat([kept, held]).tolist()) == list(range(63))


# Data set


def test_a_batch_is_a_selection_in_the_given_order():
    split = Split(torch.arange(5)[:, None], torch.arange(5))
    assert split.batch(torch.tensor([3, 3, 0])).tolist() == [[3], [3], [0]]
    assert split.take(torch.tensor([4, 1])).labels.tolist() == [4, 1]


def test_dataset_checks_its_parts():
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"must be in 0\.\.0. Got 1 in row 1"):
        Dataset("example", split, split, ("only",))
    with pytest.raises(ValueError, match=r"one shape. Got \(3,\) and \(4,\)"):
        Dataset("example", split, Split(torch.zeros(1, 4), torch.tensor([0])), ("a", "b"))
    with pytest.raises(ValueError, match=r"one length. Got 2 and 3"):
        Split(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="labels must be int64"):
        Split(torch.zeros(2, 3), torch.zeros(2))


def test_prior_of_several_labels_a_sample():
    split = Split(torch.zeros(2, 1), torch.tensor([[True, True], [True, False]]))
    assert Dataset("example", split, split, ("a", "b")).prior.counts.tolist() == [2, 1]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_targets_of_several_labels_are_zeros_and_ones(is_sparse):
    matrix = np.random.default_rng(0).random((12, 5)) < 0.3
    matrix[4] = False
    labels = sparse_indicator(csr_array(matrix)) if is_sparse else torch.from_numpy(matrix)
    split = Split(torch.arange(12)[:, None], labels)
    indices = torch.tensor([4, 11, 0, 11])
    wanted = torch.from_numpy(matrix)[indices]
    assert torch.equal(split.targets(indices), wanted.float())
    assert torch.equal(split.take(indices).take(torch.tensor([1, 0])).labels.to_dense(), wanted[[1, 0]])
    data = Dataset("example", split, split, tuple("abcde"))
    assert data.is_multilabel
    assert data.prior.counts.tolist() == matrix.sum(0).tolist()
    assert data.prior.num_samples == 12


def test_labels_that_can_not_be_are_refused():
    one, several = Split(torch.zeros(2, 3), torch.tensor([0, 1])), Split(torch.zeros(2, 3), torch.eye(2).bool())
    with pytest.raises(ValueError, match="must both have one label, or both several"):
        Dataset("example", one, several, ("a", "b"))
    doubled = torch.sparse_coo_tensor([[0, 0], [1, 1]], [True, True], (2, 3), check_invariants=True)
    with pytest.raises(ValueError, match="sparse labels must be coalesced"):
        Split(torch.zeros(2, 3), doubled)
    with pytest.raises(ValueError, match="entries must be 0 or 1"):
        sparse_indicator(csr_array([[0, 2]]))


def test_sparse_rows_select_as_scipy_does():
    matrix = csr_array(random_array((12, 30), density=0.1, rng=np.random.default_rng(0), format="csr"))
    rows = SparseRows.from_scipy(matrix)
    indices = torch.tensor([11, 0, 0, 7, 3])
    assert np.allclose(rows.batch(indices).dense().numpy(), matrix[indices.numpy()].toarray())
    assert len(rows.batch(indices)) == 5
    assert rows.batch(indices[:0]).dense().shape == (0, 30)
    assert rows.to(torch.float64).values.dtype == torch.float64


# CIFAR

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


def test_missing_cifar_says_where_to_put_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="CIFAR-100 was not found: put its folder cifar-100-binary") as error:
        cifar.load_cifar100(tmp_path)
    assert str(tmp_path) in one_line(error)
    assert "LONGTAIL_DATA" in one_line(error)


def test_a_missing_part_is_named(tmp_path):
    (write_cifar10_binary(tmp_path) / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


@pytest.mark.parametrize("size", [0, 100, 3073, 2 * 3073 - 1])
def test_a_cut_off_binary_file_is_refused(tmp_path, size):
    path = write_cifar10_binary(tmp_path) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin must have whole records") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


def test_a_label_out_of_range_is_refused(tmp_path):
    path = write_cifar10_binary(tmp_path) / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"test labels must be in 0\.\.9. Got 10 in row 0"):
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
def test_a_pickle_is_never_run(tmp_path, protocol):
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
def test_python_files_with_other_content_are_refused(tmp_path, content):
    path = write_cifar10_python(tmp_path) / "test_batch"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match="test_batch") as error:
        cifar.load_cifar10(tmp_path)
    assert one_line(error)


def test_an_array_that_claims_more_than_its_bytes_is_refused(tmp_path):
    path = write_cifar10_python(tmp_path) / "test_batch"
    path.write_bytes(path.read_bytes().replace(b"M\x02\x00M\x00\x0c\x86", b"M\xff\xffM\x00\x0c\x86"))
    with pytest.raises(ValueError, match=r"an array of shape \(65535, 3072\) must have as many bytes. Got 6144"):
        cifar.load_cifar10(tmp_path)


@settings(deadline=None, max_examples=30)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=20,
    ),
    protocol=st.integers(2, 4),
)
def test_plain_pickles_read_as_pickle_reads_them(value, protocol):
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol)) == value


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_pickle_give_one_kind_of_error(data):
    with contextlib.suppress(ValueError):
        read_plain_pickle(b"\x80\x02" + data + b".")


def test_real_cifar10():
    real_file("cifar-10-batches-bin")
    data = cifar.load_cifar10()
    assert data.prior.counts.tolist() == [5000] * 10
    assert len(data.test) == 10_000
    counts = datasets.exponential_counts(5000, 10, 100)
    assert len(dataset.long_tailed(data, counts, seed=0).train) == 12_406


# MNIST


def idx_bytes(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, packed):
    folder.mkdir(parents=True)
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 256
    for prefix in ("train", "t10k"):
        for name, array in (("images-idx3", images), ("labels-idx1", np.array([7, 0, 9]))):
            content = idx_bytes(array)
            path = folder / f"{prefix}-{name}-ubyte"
            if packed:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
    return images


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_packed_and_not(tmp_path, packed):
    images = write_mnist(tmp_path / "mnist", packed)
    data = mnist.load_mnist(tmp_path)
    assert np.array_equal(data.train.inputs.numpy()[:, 0], images)
    assert data.test.labels.tolist() == [7, 0, 9]
    assert data.input_shape == (1, 28, 28)


def test_fashion_mnist_has_its_own_folder(tmp_path):
    write_mnist(tmp_path / "FashionMNIST" / "raw", packed=True)
    assert mnist.load_fashion_mnist(tmp_path).class_names[9] == "Ankle boot"
    with pytest.raises(FileNotFoundError, match="MNIST was not found: put a folder mnist") as error:
        mnist.load_mnist(tmp_path)
    assert one_line(error)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [0, 3, 9, 20, -1])
def test_cut_off_idx_files_are_refused(tmp_path, suffix, keep):
    content = idx_bytes(np.zeros((4, 5, 6)))[:keep]
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(ValueError, match="images") as error:
        mnist.read_idx(path)
    assert one_line(error)


def test_a_cut_off_gzip_file_is_refused(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((40, 50, 6))))[:-12])
    with pytest.raises(ValueError, match="must be a complete gzip file") as error:
        mnist.read_idx(path)
    assert one_line(error)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_that_claims_terabytes_allocates_nothing(tmp_path, suffix):
    content = struct.pack(">BBBB", 0, 0, 8, 3) + struct.pack(">3I", 2**31, 2**10, 2**10)
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(ValueError, match="It is cut off"):
        mnist.read_idx(path)


def test_real_mnist():
    real_file("mnist")
    data = mnist.load_mnist()
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.prior.counts[1] == 6742


# Arrays


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
        ({"test_labels": np.array([0, 9])}, r"test labels must be in 0\.\.1. Got 9 in row 1"),
        ({"test_labels": np.array([0, -1])}, r"test labels must be in 0\.\.1. Got -1"),
        ({"train_images": np.array([{}] * 4)}, "Got Python objects"),
        ({"train_images": np.array(["a"] * 4)}, "must be numbers"),
        ({"test_images": np.zeros((2, 9, 9, 3), dtype=np.uint8)}, "one shape"),
    ],
)
def test_npz_files_with_other_content_are_refused(tmp_path, changes, message):
    save_arrays(tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=message) as error:
        arrays.load_arrays(tmp_path / "bad.npz")
    assert one_line(error)


def test_a_missing_key_lists_those_there_are(tmp_path):
    save_arrays(tmp_path / "small.npz")
    with pytest.raises(ValueError, match=r"no array 'x'. It has: train_images, train_labels"):
        arrays.load_arrays(tmp_path / "small.npz", train_inputs="x")


def test_damaged_npz_files_are_refused(tmp_path):
    path = tmp_path / "small.npz"
    save_arrays(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"must be a complete \.npz file") as error:
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


def test_real_features():
    path = real_file("tiny_imagenet_lt/features_pca256.npz")
    data = arrays.load_arrays(path, "f_train", "y_train", "f_val", "y_val")
    assert (data.num_classes, data.prior.imbalance, data.input_shape) == (200, 100.0, (256,))


# Image files


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


def test_bad_image_folders(tmp_path, image_module):
    with pytest.raises(FileNotFoundError, match="put one folder a class"):
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


def test_a_corrupt_image_is_named(tmp_path, image_module):
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
def test_every_line_of_a_list_is_checked(tmp_path, line, error_type, message):
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


# Texts


def write_csv(path, rows, header="text,label"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_csv_tables_with_train_and_test(tmp_path):
    pytest.importorskip("pyarrow")
    train = write_csv(tmp_path / "train.csv", ['"good, dog",10', "bad cat,9", '"two\nlines",10'])
    test = write_csv(tmp_path / "test.csv", ["cat,9"])
    texts = text.read_text_table(train, test)
    assert texts.class_names == ("9", "10")
    assert texts.train_texts == ["good, dog", "bad cat", "two\nlines"]
    assert texts.train_labels.tolist() == [1, 0, 1]
    data = text.tfidf_ngrams(texts)
    assert data.input_shape == (9,)
    assert torch.allclose(data.train.inputs.dense().norm(dim=1), torch.ones(3))


def test_parquet_tables_hold_out_a_part(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = pyarrow.table(
        {"message": ["x y"] * 10 + ["z"] * 5, "intent": ["ask"] * 10 + ["tell"] * 5, "more": [0] * 15}
    )
    parquet.write_table(table, tmp_path / "all.parquet")
    texts = text.read_text_table(tmp_path / "all.parquet", text_column="message", label_column="intent")
    assert (len(texts.train_texts), len(texts.test_texts)) == (12, 3)
    assert texts.test_labels.tolist() == [0, 0, 1]
    data = text.hashed_ngrams(texts, num_features=64)
    assert data.input_shape == (64,)
    assert data.prior.counts.tolist() == [8, 4]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["good,"], "row 1: the column 'label' must not be empty"),
        (["good,a", ",b"], "row 2: the column 'text' must not be empty"),
        (["good,a,more"], "must be a complete CSV table"),
        ([], "must have rows"),
        (["good,a", "bad,b"], "a class with two texts or more"),
    ],
)
def test_bad_csv_tables(tmp_path, rows, message):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=message) as error:
        text.read_text_table(write_csv(tmp_path / "bad.csv", rows))
    assert one_line(error)


def test_bad_tables(tmp_path):
    pytest.importorskip("pyarrow")
    train = write_csv(tmp_path / "train.csv", ["good,a", "bad,b"])
    with pytest.raises(ValueError, match=r"no column 'body'. It has: text, label"):
        text.read_text_table(train, text_column="body")
    with pytest.raises(ValueError, match=r"test\.csv, test row 1: the label must occur .* Got 'c'"):
        text.read_text_table(train, write_csv(tmp_path / "test.csv", ["x,c"]))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        text.read_text_table(tmp_path / "nowhere.csv")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="must be a complete Parquet table") as error:
        text.read_text_table(tmp_path / "cut.parquet")
    assert one_line(error)


def test_test_texts_do_not_shape_the_vocabulary():
    labels = torch.tensor([0, 1])
    texts = text.Texts("example", ["a word here", "other word"], labels, ["unseen", "word"], labels, ("x", "y"))
    data = text.tfidf_ngrams(texts, max_words=1)
    assert data.input_shape == (3,)
    assert data.test.inputs.dense().count_nonzero(dim=1).tolist() == [0, 1]


def write_clinc(root, content, packed=False):
    (root / "clinc150").mkdir(parents=True, exist_ok=True)
    name = "data_imbalanced.json.gz" if packed else "data_imbalanced.json"
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    (root / "clinc150" / name).write_bytes(gzip.compress(encoded) if packed else encoded)


@pytest.mark.parametrize("packed", [False, True])
def test_clinc150(tmp_path, packed):
    content = {"train": [["pay my bill", "pay"], ["hello", "greet"]], "val": [], "test": [["hi", "greet"]]}
    write_clinc(tmp_path, content, packed)
    texts = text_sets.read_clinc150(tmp_path)
    assert texts.class_names == ("greet", "pay")
    assert (texts.train_labels.tolist(), texts.test_labels.tolist()) == ([1, 0], [0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "must be JSON"),
        ([], "must have 'train'"),
        ({"train": [["a"]], "test": []}, r"train 0: must be a \[text, label\] pair"),
        ({"train": [["a", "b"]], "test": [["a", "c"]]}, "test row 1: the label must occur"),
        (b"[" * 100_000, "must be JSON"),
    ],
)
def test_bad_clinc150(tmp_path, content, message):
    write_clinc(tmp_path, content)
    with pytest.raises(ValueError, match=message) as error:
        text_sets.read_clinc150(tmp_path)
    assert one_line(error)


def test_missing_text_sets_say_where_to_put_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"put clinc150/data_imbalanced\.json or .*\.gz into"):
        text_sets.read_clinc150(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"put reuters90/reuters90\.jsonl or .*\.gz into"):
        text_sets.read_reuters90(tmp_path)


def write_reuters(root, *lines):
    (root / "reuters90").mkdir(exist_ok=True)
    (root / "reuters90" / "reuters90.jsonl").write_text("\n".join(lines) + "\n")


def test_reuters90(tmp_path):
    write_reuters(
        tmp_path,
        '{"split": "train", "text": "cocoa\\u2028rises", "labels": ["cocoa", "trade"]}',
        '{"split": "test", "text": "oil", "labels": ["trade"]}',
    )
    data = text.hashed_ngrams(text_sets.read_reuters90(tmp_path))
    assert data.class_names == ("cocoa", "trade")
    assert data.train.labels.tolist() == [[True, True]]
    assert data.test.labels.tolist() == [[False, True]]


@pytest.mark.parametrize(
    "line",
    ['{"split": "dev", "text": "a", "labels": ["b"]}', '{"split": "test", "text": "a", "labels": "b"}', "7", "{"],
)
def test_bad_reuters90(tmp_path, line):
    write_reuters(tmp_path, '{"split": "train", "text": "a", "labels": ["b"]}', "", line)
    with pytest.raises(ValueError, match="line 3: must") as error:
        text_sets.read_reuters90(tmp_path)
    assert one_line(error)


def test_real_texts():
    real_file("clinc150")
    texts = text_sets.read_clinc150()
    assert (len(texts.train_texts), len(texts.test_texts), len(texts.class_names)) == (10_525, 4_500, 150)


def test_real_several_labels():
    real_file("reuters90")
    texts = text_sets.read_reuters90()
    assert texts.train_labels.shape == (7_770, 90)
    assert texts.train_labels.sum(0).max() == 2_877


# Download

CONTENT = bytes(range(256)) * 5000


def remote_file(url, content=CONTENT, algorithm="sha256"):
    return download.RemoteFile(url, "", f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, from where the client asks; ``/cut`` breaks off in the middle."""

    def __init__(self, requests, *args):
        self.requests = requests
        super().__init__(*args)

    def do_GET(self):
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        start = 0 if self.path == "/plain" else int(start)
        self.requests.append((self.path, start))
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        is_cut = self.path == "/cut" and start == 0
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if is_cut else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    requests = []
    handler = functools.partial(RangeHandler, requests)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", requests
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_download_of_a_local_file(tmp_path, algorithm):
    (tmp_path / "source.bin").write_bytes(CONTENT)
    file = remote_file((tmp_path / "source.bin").as_uri(), algorithm=algorithm)
    path = download.download(file, tmp_path / "new" / "folder", show_progress=False)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["source.bin"]


def test_download_goes_on_where_it_stopped(tmp_path, server):
    url, requests = server
    file = remote_file(f"{url}/cut")
    with pytest.raises(OSError, match=r"Could not download .* put it into") as error:
        download.download(file, tmp_path, show_progress=False)
    assert one_line(error)
    assert not (tmp_path / "cut").exists()
    assert download.download(file, tmp_path, show_progress=False).read_bytes() == CONTENT
    assert requests == [("/cut", 0), ("/cut", len(CONTENT) // 2)]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path, server):
    url, requests = server
    file = remote_file(f"{url}/whole")
    download.download(file, tmp_path, show_progress=False)
    download.download(file, tmp_path, show_progress=False)
    assert len(requests) == 1


def test_a_server_that_cannot_resume_starts_again(tmp_path, server):
    (tmp_path / "plain.part").write_bytes(b"something else")
    path = download.download(remote_file(f"{server[0]}/plain"), tmp_path, show_progress=False)
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_complete_needs_its_checksum_only(tmp_path, server):
    (tmp_path / "whole.part").write_bytes(CONTENT)
    path = download.download(remote_file(f"{server[0]}/whole"), tmp_path, show_progress=False)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(tmp_path):
    (tmp_path / "source.bin").write_bytes(b"changed on the way")
    target = tmp_path / "target"
    with pytest.raises(ValueError, match=r"checksum must be .* nothing was kept") as error:
        download.download(remote_file((tmp_path / "source.bin").as_uri()), target, show_progress=False)
    assert one_line(error)
    assert list(target.iterdir()) == []


def test_no_network_is_one_line(tmp_path, server):
    file = remote_file((tmp_path / "nowhere.bin").as_uri())
    with pytest.raises(OSError, match="get it on another machine and put it into") as error:
        download.download(file, tmp_path, show_progress=False)
    assert one_line(error)


def test_download_draws_a_progress_bar(tmp_path, capsys):
    pytest.importorskip("rich")
    (tmp_path / "source.bin").write_bytes(CONTENT)
    download.download(remote_file((tmp_path / "source.bin").as_uri()), tmp_path / "target")
    assert "source.bin" in capsys.readouterr().out


def test_download_dataset_unpacks_where_the_loader_looks(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "made")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    file = remote_file(archive.as_uri(), archive.read_bytes())
    monkeypatch.setattr(download, "DOWNLOADS", {"cifar10": (file,)})
    root = download.download_dataset("cifar10", tmp_path / "root")
    assert len(cifar.load_cifar10(root).train) == 10
    with pytest.raises(ValueError, match=r"no download named 'imagenet'. Known: cifar10"):
        download.download_dataset("imagenet", tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_an_archive_stays_in_its_folder(tmp_path, name):
    member = tarfile.TarInfo(name)
    member.size = 3
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.addfile(member, io.BytesIO(b"abc"))
    with pytest.raises(ValueError, match="files below its own folder") as error:
        download.unpack(tmp_path / "bad.tar.gz", tmp_path / "inside")
    assert one_line(error)
    assert not (tmp_path / "outside").exists()


def test_links_in_an_archive_are_left_out(tmp_path):
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(tmp_path / "links.tar.gz", "w:gz") as tar:
        tar.addfile(link)
    download.unpack(tmp_path / "links.tar.gz", tmp_path / "inside")
    assert not (tmp_path / "inside" / "link").exists()


def test_a_cut_off_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(CONTENT)
        tar.addfile(member, io.BytesIO(CONTENT))
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"must be a complete \.tar\.gz archive") as error:
        download.unpack(tmp_path / "cut.tar.gz", tmp_path / "inside")
    assert one_line(error)
    assert not (tmp_path / "inside" / "file").exists()


def test_every_download_has_a_checksum_and_a_publisher():
    for files in download.DOWNLOADS.values():
        for file in files:
            algorithm, _, digits = file.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[algorithm]
            assert file.url.startswith("http")
