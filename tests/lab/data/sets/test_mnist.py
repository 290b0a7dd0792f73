"""MNIST and Fashion-MNIST on small idx files written here, and damaged files."""

import gzip
import struct

import numpy as np
import pytest

from longtail.lab.data.sets import mnist


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


def test_fashion_mnist_has_its_own_folder(tmp_path, one_line):
    write_mnist(tmp_path / "FashionMNIST" / "raw", packed=True)
    assert mnist.load_fashion_mnist(tmp_path).class_names[9] == "Ankle boot"
    with pytest.raises(FileNotFoundError, match="MNIST was not found: put a folder mnist") as error:
        mnist.load_mnist(tmp_path)
    assert one_line(error)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [0, 3, 9, 20, -1])
def test_cut_off_idx_files_are_refused(tmp_path, suffix, keep, one_line):
    content = idx_bytes(np.zeros((4, 5, 6)))[:keep]
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(ValueError, match="images") as error:
        mnist.read_idx(path)
    assert one_line(error)


def test_a_cut_off_gzip_file_is_refused(tmp_path, one_line):
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


def test_real_mnist(real_file):
    real_file("mnist")
    data = mnist.load_mnist()
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.prior.counts[1] == 6742
