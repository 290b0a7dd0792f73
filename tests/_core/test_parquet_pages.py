"""Headers of Parquet pages: what they say is what pyarrow wrote, and one that is none is refused."""

import io

import numpy as np
import pytest

from longtail._core.parquet_pages import check_pages, measure_chunk

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

UNREADABLE = "this is no readable .parquet file"


def number(value, width=1):
    """A whole number as Thrift's compact protocol has it, in at least ``width`` bytes."""
    value, parts = value * 2 if value >= 0 else -2 * value - 1, []
    while value or len(parts) < max(1, width):
        parts.append(value & 127)
        value >>= 7
    return bytes([part | 128 for part in parts[:-1]] + [parts[-1]])


def integer(value, delta=1):
    """A field of 32 bits, so many fields after the last one."""
    return bytes([delta << 4 | 5]) + number(value)


def header(kind=0, unpacked=8, packed=8, num_values=1):
    """The header of a page of data, of version 1."""
    return integer(kind) + integer(unpacked) + integer(packed) + b"\x2c" + integer(num_values) + b"\0\0"


class Chunk:
    """A column of a row group that begins at the start of the file."""

    data_page_offset = 0
    has_dictionary_page = False

    def __init__(self, length, num_values=1):
        self.total_compressed_size, self.num_values = length, num_values


def measure(content, num_values=1, window=64):
    chunk = Chunk(len(content), num_values)
    return measure_chunk("f", chunk, len(content), lambda start, size: content[start : start + size], window)


class TestHonest:
    @pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}])
    @pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
    @pytest.mark.parametrize("window", [7, 4096, 2**20])
    def test_the_walk_over_all_pages_finds_all_values_and_bytes(self, options, compression, window):
        rng = np.random.default_rng(0)
        words = rng.choice(["a", "word " * 900, "c" * 300], 3_000)  # statistics make headers longer than a window
        table = pa.table({"x": rng.normal(size=3_000), "words": words, "some": [None, 1] * 1_500})
        sink = io.BytesIO()
        parquet.write_table(
            table, sink, compression=compression, data_page_size=2048, row_group_size=1_000, **options
        )
        content = sink.getvalue()
        metadata = parquet.read_metadata(io.BytesIO(content))
        read = []

        def read_at(start, size):
            read.append(size)
            return content[start : start + size]

        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                pages = measure_chunk("f", chunk, len(content), read_at, window)
                assert pages.num_values == chunk.num_values
                assert (pages.dictionary > 0) == chunk.has_dictionary_page
                # The footer's size includes the headers, which are all that is not in the pages.
                assert 0 < chunk.total_uncompressed_size - pages.total < 0.5 * chunk.total_uncompressed_size + 300
                assert pages.data <= 2 * chunk.total_uncompressed_size
        assert max(read) >= window or window > 4096

    def test_what_is_not_read_is_not_looked_at(self):
        sink = io.BytesIO()
        parquet.write_table(pa.table({"a": [1], "a.b": [2], "c": [3]}), sink)
        content = sink.getvalue()
        metadata = parquet.read_metadata(io.BytesIO(content))
        read = []

        def read_at(start, size):
            read.append(start)
            return content[start : start + size]

        for columns, starts in ((set(), 0), ({"a"}, 2), ({"a.b"}, 1), ({"c"}, 1)):
            read.clear()
            check_pages("f", metadata, columns, len(content), read_at, 10**6)
            assert len(read) == starts, columns  # pyarrow takes "a.b" for a part of "a" too


class TestLies:
    def test_sizes_are_those_of_the_largest_page(self):
        content = header(unpacked=100, packed=3) + b"xxx" + header(unpacked=2**31 - 1, packed=0)
        pages = measure(content, num_values=2)
        assert (pages.data, pages.total, pages.num_values) == (2**31 - 1, 2**31 + 99, 2)

    def test_pages_after_the_last_value_are_not_read(self):
        assert measure(header(packed=0) + b"\xff" * 20).data == 8

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (integer(0) + integer(-1) + integer(8) + b"\0", "a negative one"),
            (integer(0) + integer(8) + b"\0", "lacks a size"),
            (header()[:-2], "no end"),
            (b"\x15" + b"\xff" * 30, "a number that does not end"),
            (b"\x19" + b"\0" * 9, "a field of unknown type 9"),
            (b"\x1c" * 40, "nested too deeply"),
            # A reader takes field 65538 for field 2, and would make room for what it says.
            (header()[:-1] + b"\x05" + number(2**16 + 2) + number(2**31 - 1) + b"\0", "a field 65538"),
            (integer(2) + integer(8) + integer(8) + b"\x4c" + integer(9) + b"\0\0", "9 values in 8 bytes"),
        ],
    )
    def test_a_header_that_is_none_is_refused(self, content, reason):
        with pytest.raises(ValueError, match=f"f: {UNREADABLE}: .*{reason}"):
            measure(content)

    def test_a_size_of_another_type_does_not_replace_it(self):
        """A reader skips a size of 64 bits and keeps that of 32."""
        wide = b"\x06" + number(2) + number(5)
        content = integer(0) + integer(10**9) + wide + integer(0) + b"\x2c" + integer(1) + b"\0\0"
        assert measure(content).data == 10**9

    def test_the_values_are_those_of_the_type_of_page(self):
        """A page of version 2 that has a header of version 1 beside its own must not end the walk early."""
        page = integer(3) + integer(8) + integer(0) + b"\x2c" + integer(99) + b"\0" + b"\x3c" + integer(1) + b"\0\0"
        assert measure(page + header(unpacked=10**9, packed=0), num_values=2).data == 10**9

    def test_a_column_outside_of_the_file_is_refused(self):
        with pytest.raises(
            ValueError, match=r"f: this is no readable .parquet file: a column must be within its 5 bytes"
        ):
            measure_chunk("f", Chunk(9), 5, lambda start, size: b"", 64)
