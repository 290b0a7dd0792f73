"""Pickles of plain values are read, and nothing in them is run."""

import contextlib
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.data.formats.plain_pickle import read_plain_pickle
from longtail.lab.data.sets import cifar

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
LABELS = np.arange(12) % 10


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
