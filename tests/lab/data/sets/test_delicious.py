"""Delicious on small files written here."""

import gzip

import pytest

from longtail.lab.data.sets.delicious import load_delicious, read_delicious


def test_delicious_is_found_or_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Delicious was not found: put delicious/train\.txt"):
        read_delicious(tmp_path)
    (tmp_path / "delicious").mkdir()
    (tmp_path / "delicious" / "train.txt").write_bytes(b"1 4 2\n0 1:2\n")
    (tmp_path / "delicious" / "test.txt.gz").write_bytes(gzip.compress(b"2 4 2\n0 1:2\n1\n"))
    train, test = read_delicious(tmp_path, tmp_path / "cache")
    assert (len(train), len(test)) == (1, 2)
    data = load_delicious(str(tmp_path))
    assert (data.name, data.input_shape, data.test.labels.to_dense().int().tolist()) == (
        "Delicious",
        (4,),
        [[1, 0], [0, 1]],
    )
