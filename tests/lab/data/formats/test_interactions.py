"""Pairs of users and items in an .npz that is damaged or encrypted."""

import numpy as np
import pytest

from longtail.lab.data.formats.interactions import read_interactions


def test_an_encrypted_file_is_one_line(tmp_path, one_line):
    path = tmp_path / "pairs.npz"
    np.savez(path, n_items=np.int64(3))
    content = bytearray(path.read_bytes())
    content[content.find(b"PK\x03\x04") + 6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"pairs\.npz must be an \.npz of users' items. Got: .*encrypted") as error:
        read_interactions(path)
    assert one_line(error)
