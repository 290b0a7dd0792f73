"""Tables of scores, labels and counts: nothing that a CSV says is lost, and wide files take linear time."""

import gzip
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from longtail.lab.data.formats import labels, predictions, tables


def write(folder, content, name="file.csv"):
    (folder / name).write_text(content)
    return folder / name


class TestFirstRow:
    @pytest.mark.parametrize("content", ["5\n5\n9\n", "0\n0\n1\n", "0.5,3\n0.1,4\n", "5.0\n5.0\nnan\n", "1e3\n2\n"])
    def test_labels_without_a_row_of_names_are_refused(self, tmp_path, content):
        with pytest.raises(
            ValueError, match=r"first row must name the columns. Got numbers .*first row of names: label"
        ):
            labels.read_labels(write(tmp_path, content))

    def test_a_text_label_is_no_name_unless_the_caller_says_so(self, tmp_path):
        path = write(tmp_path, "cat\ndog\ncat\n")
        with pytest.raises(ValueError, match=r"Got 'cat', which is a label too.*--label cat"):
            labels.read_labels(path)
        assert labels.read_labels(path, "cat").classes == ("cat", "dog")
        assert labels.read_labels(write(tmp_path, "label\nlabel\ndog\n")).classes == ("dog", "label")

    @pytest.mark.parametrize("content", ["400\n60\n10\n", "0,400\n1,60\n", "cat,400\ndog,60\n"])
    def test_counts_without_a_row_of_names_are_refused(self, tmp_path, content):
        with pytest.raises(ValueError, match="first row of names: count"):
            tables.read_class_numbers(write(tmp_path, content))

    @pytest.mark.parametrize(
        "content",
        ["0.5,0.25\n0.1,0.2\n", "3,1,2\n4,5,6\n", "0,1,0,1\n1,1,0,0\n", "a,0.5,0.2\nb,0.1,0.3\n", "-1,2\n0.5,1.5\n"],
    )
    def test_scores_without_a_row_of_names_are_refused(self, tmp_path, content):
        path = write(tmp_path, content)
        for read in (tables.read_scores, tables.read_indicators):
            with pytest.raises(ValueError, match="first row must name the columns"):
                read(path)

    @pytest.mark.parametrize("content", ["7,30,2\n0.5,0.1,0.2\n", "0,1,2\n4,5,6\n", "1,2\n0,1\n"])
    def test_numbers_may_name_classes(self, tmp_path, content):
        names = tuple(content.partition("\n")[0].split(","))
        assert tables.read_scores(write(tmp_path, content)).class_names == names

    def test_what_is_written_without_names_can_be_read(self, tmp_path):
        scores = tables.Scores(np.zeros((2, 3)))
        with predictions.writing_label_predictions(tmp_path / "out.csv", scores, 2, np.zeros(3), 10**9) as sink:
            sink.write(scores, np.eye(3, dtype=np.uint8)[:2])
        assert tables.read_indicators(tmp_path / "out.csv").values.tolist() == [[1, 0, 0], [0, 1, 0]]


class TestQuotes:
    @pytest.mark.parametrize("content", ['label\n"cat\ndog\n', '"label\ncat\n', 'x,label\n1,"a ""b"" \n2,c\n'])
    def test_a_quote_that_is_not_closed_is_an_error(self, tmp_path, content):
        with pytest.raises(ValueError, match=r"a quote .* is not closed"):
            labels.read_labels(write(tmp_path, content))

    def test_other_quotes_are_text(self, tmp_path):
        content = '\ufefflabel\n5" pipe\n"a ""b"", c"\n"two\nlines"\n""\n'
        found = labels.read_labels(write(tmp_path, content))
        assert set(found.classes) == {'5" pipe', 'a "b", c', "two\nlines"}


class TestNumbersAsText:
    @pytest.mark.parametrize(
        ("values", "classes"),
        [
            (["01", "1"], ("01", "1")),
            (["1", "+1"], ("+1", "1")),
            (["1", "1.0"], ("1", "1.0")),
            (["1e3", "1000"], ("1000", "1e3")),
            (["-0", "0"], ("-0", "0")),
            (["12345678901234567890", "1"], ("1", "12345678901234567890")),
            (["10", "9", "-3"], (-3, 9, 10)),
            (["10.0", "nan", "9.0"], (9, 10)),
            (["10", "nan", "9"], (9, 10)),
            ([" 10", "9 "], (9, 10)),
        ],
    )
    def test_labels_are_numbers_only_if_all_are_written_plainly(self, tmp_path, values, classes):
        path = write(tmp_path, "id,label\n" + "".join(f"{i}.5,{value}\n" for i, value in enumerate(values)))
        assert labels.read_labels(path).classes == classes

    def test_fractions_are_no_labels(self, tmp_path):
        with pytest.raises(ValueError, match=r"whole numbers or strings. Got 0.5"):
            labels.read_labels(write(tmp_path, "label\n0.5\n01\n"))

    def test_counts_and_scores_keep_the_names_apart(self, tmp_path):
        numbers = tables.read_class_numbers(write(tmp_path, "class,count\n01,5\n1,7\n", "counts.csv"))
        assert numbers.classes == ("01", "1")
        scores = tables.read_scores(
            write(tmp_path, "id,y,01,1\n007,01,0.5,0.2\n010,1,0.1,0.3\n"), id_columns=["id"], label="y"
        )
        assert scores.positions(numbers.classes, "counts").tolist() == [0, 1]
        assert scores.labels is not None
        assert scores.labels.classes == ("01", "1")
        assert scores.positions([1], "labels").tolist() == [1]
        assert scores.others is not None
        assert scores.others.column("id").to_pylist() == ["007", "010"]

    def test_names_with_zeros_in_front_are_found_by_number_where_that_is_clear(self):
        scores = tables.Scores(np.zeros((1, 2)), columns=("02", "01"), class_names=("02", "01"))
        assert scores.positions([1, 2], "labels").tolist() == [1, 0]

    def test_columns_of_fractions_beside_the_scores_stay_numbers(self, tmp_path):
        path = write(tmp_path, "weight,s_a,s_b\n0.50,1.5,2.5\n01.25,2.5,3.5\n")
        scores = tables.read_scores(path, columns="s_")
        assert scores.others is not None
        assert scores.others.column("weight").to_pylist() == [0.5, 1.25]


def test_whole_number_labels_are_names_where_names_are_numbers():
    scores = tables.Scores(np.zeros((1, 3)), columns=("3", "1", "2"), class_names=("3", "1", "2"))
    assert scores.positions([1, 2, 3], "labels").tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="Got 0"):
        scores.positions([0], "labels")
    named = tables.Scores(np.zeros((1, 3)), columns=("a", "b", "c"), class_names=("a", "b", "c"))
    assert named.positions([2, 0], "labels").tolist() == [2, 0]
    assert named.positions(["c", "a"], "labels").tolist() == [2, 0]


def test_packed_csv(tmp_path):
    path = tmp_path / "labels.csv.gz"
    path.write_bytes(gzip.compress(b"label\ncat\ndog\ncat\n"))
    assert labels.read_labels(path).codes.tolist() == [0, 1, 0]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="complete gzip file"):
        labels.read_labels(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_many_classes_take_time_in_proportion(tmp_path, suffix):
    """A second or two of the processor; half a minute where each column is looked up by its name."""
    values = np.random.default_rng(0).normal(size=(3, 12_000)).astype(np.float32)
    columns = [pa.array(column) for column in values.T]
    path, output = tmp_path / "scores.parquet", tmp_path / f"out{suffix}"
    pa.parquet.write_table(pa.table(columns, names=[f"c{i}" for i in range(12_000)]), path)
    start = time.process_time()
    scores = tables.read_scores(path)
    with predictions.writing_predictions(output, scores, 3, 10**9) as sink:
        sink.write(scores, values, values.argmax(axis=1))
    again = tables.read_scores(output)
    assert time.process_time() - start < 12
    np.testing.assert_allclose(again.values, scores.values, rtol=1e-6)
    assert again.class_names == scores.class_names
