"""The digest of data: every number counts, wherever it lies in memory."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longtail.lab.data import digest as module
from longtail.lab.data.dataset import Dataset, Split, indicator_of_pairs
from longtail.lab.data.digest import DataChanged, check_same_data, digest_data
from longtail.lab.data.formats.image_files import ImageFiles
from longtail.lab.data.sparse_rows import SparseRows


def data_of(inputs, labels=None):
    labels = torch.arange(len(inputs)) % 2 if labels is None else labels
    test = Split(torch.zeros(1, *inputs.shape[1:]), labels[:1]) if isinstance(inputs, torch.Tensor) else None
    split = Split(inputs, labels)
    return Dataset("made", split, test or split, ("a", "b"))


@given(st.integers(0, 99), st.integers(0, 64), st.booleans())
def test_every_number_counts(row, column, is_float):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", 1000)
        patch.setattr(module, "BLOCK_BYTES", 64)
        inputs = torch.arange(100 * 65).reshape(100, 65).to(torch.float32 if is_float else torch.uint8)
        before = digest_data(data_of(inputs))
        inputs[row, column] += 1
        assert digest_data(data_of(inputs)) != before
        inputs[row, column] -= 1
        assert digest_data(data_of(inputs)) == before


def test_where_data_lie_in_memory_does_not_count():
    inputs = torch.arange(60.0).reshape(3, 4, 5)
    padded = torch.cat([torch.zeros(1, 4, 5), inputs])
    turned = inputs.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous()
    assert len({digest_data(data_of(x)) for x in (inputs, padded[1:], turned)}) == 1
    as_bytes = torch.arange(60, dtype=torch.uint8).reshape(12, 5)
    assert digest_data(data_of(as_bytes[1:])) == digest_data(data_of(as_bytes[1:].clone()))


def test_labels_names_types_and_shapes_count():
    inputs = torch.zeros(4, 6)
    plain = data_of(inputs)
    others = [
        data_of(inputs, torch.tensor([0, 1, 1, 0])),
        data_of(inputs.double()),
        data_of(inputs.reshape(4, 2, 3)),
        data_of(torch.zeros(5, 6)),
        dataclasses.replace(plain, class_names=("a", "c")),
    ]
    assert len({digest_data(data) for data in (plain, *others)}) == 6


def test_sparse_data():
    def made(value, column):
        rows = SparseRows(torch.tensor([0, 1, 1]), torch.tensor([column]), torch.tensor([value]), 4)
        return data_of(rows, indicator_of_pairs(torch.tensor([0]), torch.tensor([1]), (2, 2)))

    assert digest_data(made(1.0, 2)) == digest_data(made(1.0, 2))
    assert len({digest_data(data) for data in (made(1.0, 2), made(2.0, 2), made(1.0, 3))}) == 3


def test_images_in_files_count_by_name_and_size_wherever_the_folder_is(tmp_path):
    def made(folder, names, size=3):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(bytes(size))
        return data_of(ImageFiles(tuple(str(tmp_path / folder / name) for name in names), 8))

    first = digest_data(made("a", ["x.png", "y.png"]))
    assert digest_data(made("b", ["x.png", "y.png"])) == first
    assert digest_data(made("c", ["x.png", "z.png"])) != first
    assert digest_data(made("d", ["x.png", "y.png"], size=4)) != first


def test_the_message_says_what_to_do(tmp_path, one_line):
    check_same_data("a", "a", tmp_path)
    with pytest.raises(DataChanged) as caught:
        check_same_data("a", None, tmp_path)
    assert "--restart" in one_line(caught)
