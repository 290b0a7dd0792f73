"""Small files that unpack to much, and honest ones that are sparse: memory stays within the budget."""

import gzip
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy.sparse import random_array

from longtail import ClassPrior
from longtail.lab.data.formats.arrays import load_arrays
from longtail.lab.data.formats.labels import count_labels, read_labels
from longtail.lab.data.formats.sparse_text import count_sparse_labels, load_sparse_table, read_sparse_file
from longtail.lab.data.formats.tables import open_scores, read_class_numbers, read_scores
from longtail.lab.data.formats.text import read_text_table
from longtail.lab.data.locate import read_bytes

MEGABYTE = 10**6
BUDGET = 0.05
"""Gigabytes."""
ALLOWED = 150 * MEGABYTE
"""The budget, and what reading takes beside it."""
NUM_ROWS = 24_000_000


@pytest.fixture(autouse=True)
def budget(monkeypatch):
    """What a larger machine has as a share of its memory."""
    monkeypatch.setenv("LONGTAIL_MEMORY", str(BUDGET))


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """Files of some kilobytes that unpack to 200 megabytes each."""
    folder = tmp_path_factory.mktemp("bombs")
    zeros = pa.table({"label": pa.array(np.zeros(NUM_ROWS // 8, dtype=np.int64))})
    with pa.parquet.ParquetWriter(folder / "zeros.parquet", zeros.schema) as writer:
        for _ in range(8):
            writer.write_table(zeros)
    word = pa.DictionaryArray.from_arrays(np.zeros(300, dtype=np.int32), ["x" * MEGABYTE])
    text = pa.table({"label": word, "text": word, "a": np.full(300, 0.5), "b": np.full(300, 0.5)})
    pa.parquet.write_table(text, folder / "text.parquet", compression="zstd")
    with zipfile.ZipFile(folder / "arrays.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("train_images.npy", "w") as file:
            header = {"descr": "<i8", "fortran_order": False, "shape": (NUM_ROWS // 10, 10)}
            np.lib.format.write_array_header_1_0(file, header)
            for _ in range(60):
                file.write(bytes(NUM_ROWS // 60 * 8))
        for name in ("label", "train_labels", "test_images", "test_labels"):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, np.zeros(3, dtype=np.int64))
    for name, start, content in (
        ("line.csv.gz", b"label\n", b"x" * MEGABYTE),
        ("rows.csv.gz", b"label,text\n", (b"0," + b"x" * 997 + b"\n") * (MEGABYTE // 1000)),
        ("line.txt.gz", b"1 9 9\n", b"1" * MEGABYTE),
        ("samples.txt.gz", b"99999999999 9 9\n", b"1 1:1\n" * (MEGABYTE // 6)),
    ):
        with gzip.open(folder / name, "wb", compresslevel=1) as file:
            file.write(start)
            for _ in range(200):
                file.write(content)
    return folder


def expect(peak_memory, read, message=None):
    """What ``read`` gives within the allowed memory, or that it is refused with this message."""
    found = []

    def call():
        if message is None:
            found.append(read())
        else:
            with pytest.raises(ValueError, match=message):
                read()

    assert peak_memory(call) < ALLOWED
    return found[0] if found else None


def zigzag(value, width=1):
    """A whole number as in a Parquet footer, in at least so many bytes."""
    value, parts = 2 * value, []
    while value or len(parts) < width:
        parts.append(value & 127)
        value >>= 7
    return bytes([part | 128 for part in parts[:-1]] + [parts[-1]])


REFUSED = r"would take .* GB of memory, and data may take 0\.05 GB; allow more with --memory or LONGTAIL_MEMORY"


class TestParquet:
    def test_rows_that_are_written_as_one_run_are_counted_in_batches(self, bombs, peak_memory):
        assert (bombs / "zeros.parquet").stat().st_size < 200_000
        found = expect(peak_memory, lambda: count_labels(bombs / "zeros.parquet"))
        assert (found.classes, found.counts.tolist()) == ((0,), [NUM_ROWS])

    def test_rows_are_not_held_where_they_have_no_room(self, bombs, peak_memory):
        expect(peak_memory, lambda: read_labels(bombs / "zeros.parquet"), REFUSED)
        expect(peak_memory, lambda: read_class_numbers(bombs / "zeros.parquet"), REFUSED)

    def test_a_long_word_is_there_once(self, bombs, peak_memory):
        found = expect(peak_memory, lambda: count_labels(bombs / "text.parquet"))
        assert found.counts.tolist() == [300]
        expect(peak_memory, lambda: read_scores(bombs / "text.parquet"), REFUSED)
        expect(peak_memory, lambda: read_text_table(bombs / "text.parquet"), REFUSED)

    def test_a_footer_that_lies_about_a_page(self, bombs, tmp_path, peak_memory):
        """pyarrow unpacks a page to the size in its header; the size in the footer is for information."""
        zeros = pa.table({"label": np.zeros(NUM_ROWS, dtype=np.int64)})
        path = tmp_path / "lie.parquet"
        options = {"use_dictionary": False, "data_page_size": 2**30, "max_rows_per_page": NUM_ROWS}
        pa.parquet.write_table(zeros, path, row_group_size=NUM_ROWS, compression="zstd", **options)
        del zeros
        pa.default_memory_pool().release_unused()
        honest = pa.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size
        path.write_bytes(path.read_bytes().replace(zigzag(honest), zigzag(100, len(zigzag(honest)))))
        assert pa.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100
        expect(peak_memory, lambda: count_labels(path), r"lie.parquet: a page of each column " + REFUSED)

    @pytest.mark.parametrize("is_fixed", [False, True])
    def test_a_list_of_very_many_values(self, tmp_path, peak_memory, is_fixed):
        values = pa.array(np.zeros(NUM_ROWS, dtype=np.int64))
        ends = pa.array([0, NUM_ROWS], pa.int32())
        cells = (
            pa.FixedSizeListArray.from_arrays(values, NUM_ROWS)
            if is_fixed
            else pa.ListArray.from_arrays(ends, values)
        )
        path = tmp_path / "list.parquet"
        pa.parquet.write_table(pa.table({"a": [0.5], "b": [0.5], "beside": cells}), path)
        del values, cells
        pa.default_memory_pool().release_unused()
        assert path.stat().st_size < 10_000
        expect(peak_memory, lambda: read_scores(path), r"column 'beside.list.element' of a row group " + REFUSED)
        expect(peak_memory, lambda: count_labels(path, "beside"), "must have one label per row. Got .*list")

    def test_long_values_of_fixed_length_are_read_a_few_at_a_time(self, tmp_path, peak_memory):
        path = tmp_path / "fixed.parquet"
        cells = pa.array([b"x" * MEGABYTE] * 300, pa.binary(MEGABYTE))
        pa.parquet.write_table(
            pa.table({"a": np.zeros(300), "b": np.ones(300), "beside": cells}), path, compression="zstd"
        )
        del cells
        pa.default_memory_pool().release_unused()
        scores = open_scores(path)
        assert expect(peak_memory, lambda: sum(len(batch.values) for batch in scores.batches())) == 300


class TestArrays:
    def test_what_nobody_asked_for_is_not_unpacked(self, bombs, peak_memory):
        assert expect(peak_memory, lambda: count_labels(bombs / "arrays.npz", "label")).counts.tolist() == [3]

    def test_what_is_asked_for_must_have_room(self, bombs, peak_memory):
        expect(peak_memory, lambda: load_arrays(bombs / "arrays.npz"), REFUSED)
        expect(peak_memory, lambda: read_scores(bombs / "arrays.npz", columns="train_images"), REFUSED)

    def test_scores_are_read_in_batches(self, bombs, peak_memory):
        scores = open_scores(bombs / "arrays.npz", columns="train_images")
        assert expect(peak_memory, lambda: sum(len(batch.values) for batch in scores.batches())) == NUM_ROWS // 10

    def test_a_large_label_names_no_classes(self, tmp_path, peak_memory):
        inputs, labels = np.zeros((2, 1)), np.array([0, 10**9])
        np.savez(tmp_path / "d.npz", train_images=inputs, train_labels=labels, test_images=inputs, test_labels=labels)
        expect(peak_memory, lambda: load_arrays(tmp_path / "d.npz"), r"names of 1,000,000,001 classes.*" + REFUSED)
        expect(peak_memory, lambda: ClassPrior.from_labels(labels), r"1,000,000,001 classes.*" + REFUSED)


class TestText:
    def test_packed_rows_are_counted_in_batches(self, bombs, peak_memory):
        assert expect(peak_memory, lambda: count_labels(bombs / "rows.csv.gz")).counts.tolist() == [200_000]

    def test_a_row_that_does_not_end_is_refused(self, bombs, peak_memory):
        expect(peak_memory, lambda: count_labels(bombs / "line.csv.gz"), "a row must have at most")
        expect(peak_memory, lambda: count_sparse_labels(bombs / "line.txt.gz"), "a line must have at most")
        expect(peak_memory, lambda: read_sparse_file(bombs / "line.txt.gz"), "a line must have at most")

    def test_samples_must_have_room(self, bombs, peak_memory):
        expect(peak_memory, lambda: read_sparse_file(bombs / "samples.txt.gz"), REFUSED)
        expect(peak_memory, lambda: read_bytes(bombs / "samples.txt.gz"), REFUSED)

    def test_a_first_line_of_many_labels_names_none(self, tmp_path, peak_memory):
        path = tmp_path / "many.txt"
        path.write_text(f"1 1 {2**31 - 1}\n{2**31 - 2} 0:1\n")
        labels, counts, num_samples = expect(peak_memory, lambda: count_sparse_labels(path))
        assert (labels.tolist(), counts.tolist(), num_samples) == ([2**31 - 2], [1], 1)
        expect(peak_memory, lambda: load_sparse_table(str(path), str(path)), r"2,147,483,647 labels.*" + REFUSED)


def test_an_honest_sparse_table_is_never_dense(tmp_path, peak_memory, monkeypatch):
    """60,000 samples of 200,000 labels: 12 GB as a matrix of bytes, 2 MB as it is."""
    from longtail.lab.cli._labels import count_any_labels

    monkeypatch.setenv("LONGTAIL_MEMORY", "0.2")
    rows = random_array((60_000, 200_000), density=2e-5, rng=np.random.default_rng(0)).tocsr()
    lines = [
        ",".join(map(str, rows.indices[start:end])) + " 0:1"
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]
    (tmp_path / "t.txt").write_text("\n".join([f"{len(lines)} 1 200000", *lines]) + "\n")
    options = {"train": str(tmp_path / "t.txt"), "test": str(tmp_path / "t.txt")}
    recipe = ['name = "r"', "[data]", 'source = "sparse_table"', "[data.options]"]
    recipe += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    (tmp_path / "r.toml").write_text("\n".join([*recipe, "[model]", 'name = "bag_of_features"']))
    for name in ("t.txt", "r.toml"):
        found = expect(peak_memory, lambda name=name: count_any_labels([str(tmp_path / name)], None))
        assert found.counts.sum() == rows.nnz
