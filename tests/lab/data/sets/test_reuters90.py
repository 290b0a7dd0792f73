"""Reuters-90 on small files written here, and damaged files."""

import pytest

from longtail.lab.data.formats import text
from longtail.lab.data.sets.reuters90 import read_reuters90


def write_reuters(root, *lines):
    (root / "reuters90").mkdir(exist_ok=True)
    (root / "reuters90" / "reuters90.jsonl").write_text("\n".join(lines) + "\n")


def test_reuters90(tmp_path):
    write_reuters(
        tmp_path,
        '{"split": "train", "text": "cocoa\\u2028rises", "labels": ["cocoa", "trade"]}',
        '{"split": "test", "text": "oil", "labels": ["trade"]}',
    )
    data = text.hashed_ngrams(read_reuters90(tmp_path))
    assert data.class_names == ("cocoa", "trade")
    assert data.train.labels.tolist() == [[True, True]]
    assert data.test.labels.tolist() == [[False, True]]


@pytest.mark.parametrize(
    "line",
    ['{"split": "dev", "text": "a", "labels": ["b"]}', '{"split": "test", "text": "a", "labels": "b"}', "7", "{"],
)
def test_bad_reuters90(tmp_path, line, one_line):
    write_reuters(tmp_path, '{"split": "train", "text": "a", "labels": ["b"]}', "", line)
    with pytest.raises(ValueError, match="line 3: must") as error:
        read_reuters90(tmp_path)
    assert one_line(error)


def test_real_several_labels(real_file):
    real_file("reuters90")
    texts = read_reuters90()
    assert texts.train_labels.shape == (7_770, 90)
    assert texts.train_labels.sum(0).max() == 2_877


def test_missing_reuters90_says_where_to_put_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"put reuters90/reuters90\.jsonl or .*\.gz into"):
        read_reuters90(tmp_path)
