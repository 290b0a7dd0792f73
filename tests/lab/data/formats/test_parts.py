"""Tables in several parts, some rows at a time: what comes out is what one file, read at once, would give."""

import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longtail.lab.data.formats import _csv_blocks, labels, sources, table_files, tables


@pytest.fixture
def small_batches(monkeypatch):
    """As if files were large."""
    monkeypatch.setattr(_csv_blocks, "BLOCK", 40)
    monkeypatch.setattr(table_files, "BATCH", 200)
    monkeypatch.setattr(table_files, "FEWEST_ROWS", 1)


def write_parts(folder, suffix, num_parts=3, rows_per_part=7):
    """Parts of scores, and the table that they are."""
    rng = np.random.default_rng(0)
    num_rows = num_parts * rows_per_part
    scores = rng.normal(size=(num_rows, 2))
    whole = pa.table(
        {
            "id": [f"{i:02}" for i in range(num_rows)],
            "note": [f'line "{i}"\nand, more' for i in range(num_rows)],
            "label": rng.choice(["cat", "dog"], num_rows),
            "cat": scores[:, 0],
            "dog": scores[:, 1],
        }
    )
    (folder / "year=2026").mkdir(parents=True)
    (folder / "_SUCCESS").write_text("")
    for i in range(num_parts):
        part = whole.slice(i * rows_per_part, rows_per_part)
        path = folder / ("year=2026" if i else ".") / f"part-{i}{suffix}"
        if suffix == ".parquet":
            pa.parquet.write_table(part, path, row_group_size=3)
        else:
            content = io.BytesIO()
            pa.csv.write_csv(part, content)
            path.write_bytes(gzip.compress(content.getvalue()) if suffix.endswith(".gz") else content.getvalue())
    return whole


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("given_as", ["folder", "files", "URL"])
def test_parts_are_one_table(tmp_path, suffix, given_as):
    folder = tmp_path / "parts"
    whole = write_parts(folder, suffix)
    files = [folder / f"part-0{suffix}", *(folder / "year=2026" / f"part-{i}{suffix}" for i in (1, 2))]
    given = {"folder": folder, "files": files, "URL": folder.as_uri()}[given_as]
    file = tables.open_scores(given, id_columns=["id"], label="label")
    assert len([*file.batches()]) > 3
    found = file.read(10**9)
    np.testing.assert_allclose(found.values, np.column_stack([whole["cat"], whole["dog"]]))
    assert found.others.column("id").to_pylist() == whole.column("id").to_pylist()
    assert found.others.column("note").to_pylist() == whole.column("note").to_pylist()
    assert [found.labels.classes[code] for code in found.labels.codes] == whole.column("label").to_pylist()
    done = []
    counts = labels.find_labels(given, "label", 10**9).count(10**9, done.append)
    expected = whole.column("label").to_pylist()
    assert dict(zip(counts.classes, counts.counts.tolist(), strict=True)) == {c: expected.count(c) for c in expected}
    assert 0 < sum(done) <= sum(part.size for part in sources.find_parts(given))


def test_other_file_systems(tmp_path, monkeypatch):
    """Where a URL leads is pyarrow's business: here to a folder, under another name."""
    write_parts(tmp_path / "parts", ".parquet")
    store = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())

    def find(uri):
        assert uri == "s3://bucket/parts"
        return store, "parts"

    monkeypatch.setattr(sources, "find_file_system", find)
    assert labels.count_labels("s3://bucket/parts", "label").counts.sum() == 21
    assert sources.find_parts("s3://bucket/parts")[0].name == "s3://bucket/parts/part-0.parquet"


@pytest.mark.usefixtures("small_batches")
class TestTypes:
    """What a column of a CSV holds is decided by all its rows."""

    @pytest.mark.parametrize(
        ("values", "kind", "found"),
        [
            (["1", "2"] * 20, pa.int64(), 1),
            (["1"] * 40 + ["0.5"], pa.float64(), 1.0),
            (["1"] * 40 + ["x"], pa.string(), "1"),
            (["1"] * 40 + ["01"], pa.string(), "1"),
            (["1"] * 40 + [""], pa.int64(), 1),
            (["1.0"] * 40 + ["nan"], pa.float64(), 1.0),
            (["1"] * 40 + ["1.0"], pa.string(), "1"),
            (["2020-01-01"] * 40 + ["x"], pa.string(), "2020-01-01"),
        ],
    )
    def test_ids(self, tmp_path, values, kind, found):
        rows = "".join(f"{value},0.5,1.5\n" for value in values)
        (tmp_path / "s.csv").write_text("id,a,b\n" + rows)
        scores = tables.read_scores(tmp_path / "s.csv", id_columns=["id"])
        assert scores.others.schema.types == [kind]
        assert scores.others.column("id")[0].as_py() == found

    def test_whole_numbers_first_and_fractions_later_are_scores(self, tmp_path):
        (tmp_path / "s.csv").write_text("a,b\n" + "1,2\n" * 40 + "0.5,0.25\n")
        assert tables.read_scores(tmp_path / "s.csv").values[-1].tolist() == [0.5, 0.25]

    def test_labels(self, tmp_path):
        (tmp_path / "l.csv").write_text("label\n" + "1\n" * 40 + "01\n")
        assert labels.count_labels(tmp_path / "l.csv").classes == ("01", "1")


class TestBadParts:
    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    @pytest.mark.parametrize("names", [["a", "c"], ["a"], ["a", "b", "c"], ["b", "a"]])
    def test_other_columns(self, tmp_path, suffix, names, one_line):
        for i, columns in enumerate((["a", "b"], names)):
            table = pa.table({name: [0.5, 1.5] for name in columns})
            write = pa.csv.write_csv if suffix == ".csv" else pa.parquet.write_table
            write(table, tmp_path / f"part-{i}{suffix}")
        with pytest.raises(ValueError, match=r"part-1.*: every part must have the columns of .*part-0") as error:
            tables.open_scores(tmp_path)
        assert one_line(error)

    def test_other_types(self, tmp_path):
        pa.parquet.write_table(pa.table({"label": [1, 2]}), tmp_path / "0.parquet")
        pa.parquet.write_table(pa.table({"label": ["1", "2"]}), tmp_path / "1.parquet")
        with pytest.raises(
            ValueError, match=r"1\.parquet: every part .*Got 'label: string' instead of 'label: int64'"
        ):
            labels.count_labels(tmp_path)

    def test_other_formats_and_nothing_at_all(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="a folder without tables"):
            labels.count_labels(tmp_path)
        pa.parquet.write_table(pa.table({"label": [1, 2]}), tmp_path / "0.parquet")
        (tmp_path / "1.csv").write_text("label\n1\n")
        with pytest.raises(ValueError, match=r"all parts must have one format. Got \.csv, \.parquet"):
            labels.count_labels(tmp_path)
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(ValueError, match="only tables may have several parts"):
            labels.count_labels([tmp_path / "a.npy", tmp_path / "a.npy"])
        with pytest.raises(ValueError, match=r"nowhere://x: .*"):
            labels.count_labels("nowhere://x")


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(['"', '""', ",", "\n", "\r\n", "ab", " "]), max_size=40), st.integers(1, 9))
@example(['"', '""', "\n", '"', "\n", "ab"], 3)
def test_blocks_are_whole_rows(pieces, size):
    """Cut anywhere, the blocks are the content, and each but the last ends a row that is not within quotes."""
    content = "".join(pieces).encode()
    file = io.BytesIO(content)
    is_open = _csv_blocks.find_open_quote(content) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_csv_blocks, "BLOCK", size)
        cut = _csv_blocks.cut_blocks(file.read, 10**6, "file")
        if is_open:
            with pytest.raises(ValueError, match="is not closed"):
                next(block for block in cut if block is None)
            return
        blocks = [*cut]
    assert b"".join(blocks) == content
    start = 0
    for block in blocks[:-1]:
        start += len(block)
        assert _csv_blocks.find_open_quote(content[:start]) is None
        assert block.endswith(b"\n")


def test_names_may_have_line_ends(tmp_path):
    (tmp_path / "s.csv").write_text('"a\nb","c ""d""\n\n"\n0.5,0.25\n')
    assert tables.read_scores(tmp_path / "s.csv").class_names == ("a\nb", 'c "d"\n\n')
