"""CLINC-150 on small files written here, and damaged files."""

import gzip
import json

import pytest

from longtail.lab.data.sets.clinc150 import load_clinc150, read_clinc150


def write_clinc(root, content, packed=False):
    (root / "clinc150").mkdir(parents=True, exist_ok=True)
    name = "data_imbalanced.json.gz" if packed else "data_imbalanced.json"
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    (root / "clinc150" / name).write_bytes(gzip.compress(encoded) if packed else encoded)


@pytest.mark.parametrize("packed", [False, True])
def test_clinc150(tmp_path, packed):
    content = {"train": [["pay my bill", "pay"], ["hello", "greet"]], "val": [], "test": [["hi", "greet"]]}
    write_clinc(tmp_path, content, packed)
    texts = read_clinc150(tmp_path)
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
def test_bad_clinc150(tmp_path, content, message, one_line):
    write_clinc(tmp_path, content)
    with pytest.raises(ValueError, match=message) as error:
        read_clinc150(tmp_path)
    assert one_line(error)


def test_missing_clinc150_says_where_to_put_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"put clinc150/data_imbalanced\.json or .*\.gz into"):
        read_clinc150(tmp_path)


def test_real_texts(real_file):
    real_file("clinc150")
    texts = read_clinc150()
    assert (len(texts.train_texts), len(texts.test_texts), len(texts.class_names)) == (10_525, 4_500, 150)
    assert load_clinc150().num_classes == 150
