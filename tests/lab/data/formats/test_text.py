"""Tables of texts, and their words as features."""

import pytest
import torch

from longtail.lab.data.formats import text


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
        (["good,a,more"], "this is no readable .csv file"),
        ([], "must have rows"),
        (["good,a", "bad,b"], "a class with two texts or more"),
    ],
)
def test_bad_csv_tables(tmp_path, rows, message, one_line):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=message) as error:
        text.read_text_table(write_csv(tmp_path / "bad.csv", rows))
    assert one_line(error)


def test_bad_tables(tmp_path, one_line):
    pytest.importorskip("pyarrow")
    train = write_csv(tmp_path / "train.csv", ["good,a", "bad,b"])
    with pytest.raises(ValueError, match=r"no column 'body'. It has: text, label"):
        text.read_text_table(train, text_column="body")
    with pytest.raises(ValueError, match=r"test\.csv, test row 1: the label must occur .* Got 'c'"):
        text.read_text_table(train, write_csv(tmp_path / "test.csv", ["x,c"]))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        text.read_text_table(tmp_path / "nowhere.csv")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"this is no readable \.parquet file") as error:
        text.read_text_table(tmp_path / "cut.parquet")
    assert one_line(error)


def test_test_texts_do_not_shape_the_vocabulary():
    labels = torch.tensor([0, 1])
    texts = text.Texts("example", ["a word here", "other word"], labels, ["unseen", "word"], labels, ("x", "y"))
    data = text.tfidf_ngrams(texts, max_words=1)
    assert data.input_shape == (3,)
    assert data.test.inputs.dense().count_nonzero(dim=1).tolist() == [0, 1]
