"""Small files that unpack to much, and some that lie about it: what ``large_files.py bombs`` opens."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

__all__ = ["write_bombs"]

MOST_ROWS = 2**31 - 1
"""Of a page of Parquet."""
GROUP_ROWS, SAID_ROWS, NUM_GROUPS = 2**26, 2**27 - 1, 19
"""Rows of a group that pyarrow writes, and the most whose spelling is as long."""
ONE_PAGE = {"data_page_size": MOST_ROWS, "max_rows_per_page": MOST_ROWS}


def write_bombs(folder: Path, num_bytes: int, num_text_bytes: int) -> Iterator[tuple[str, Path, str]]:
    """Write one after another: what it is, the file, and the label column to ask for.

    Args:
        folder: where to write.
        num_bytes: what an array unpacks to.
        num_text_bytes: what a packed text unpacks to.
    """
    yield "runs of 20 GB", _write_runs(folder / "runs.parquet"), "label"
    yield "a page of which the footer lies", _write_lie(folder / "lie.parquet"), "label"
    yield "a list of 10^8 values", _write_list(folder / "list.parquet"), "label"
    yield "a long word in every row", _write_words(folder / "words.parquet", num_bytes), "label"
    arrays = _write_arrays(folder / "arrays.npz", num_bytes)
    yield "an array nobody asked for", arrays, "label"
    yield "an array", arrays, "bomb"
    for what, name, start, content in (
        ("a packed row without end", "line.csv.gz", b"label\n", b"x" * 10**6),
        ("packed rows", "rows.csv.gz", b"label,text\n", (b"0," + b"x" * 997 + b"\n") * 1000),
        ("a packed line without end", "line.txt.gz", b"1 9 9\n", b"1" * 10**6),
        ("packed lines", "lines.txt.gz", b"99999999999 9 9\n", b"1 1:1\n" * 166_000),
    ):
        with gzip.open(folder / name, "wb", compresslevel=1) as file:
            file.write(start)
            for _ in range(num_text_bytes // len(content)):
                file.write(content)
        yield what, folder / name, "label"
    (folder / "header.txt").write_text(f"1 1 {MOST_ROWS}\n{MOST_ROWS - 1} 0:1\n")
    yield "a header of 2^31 - 1 labels", folder / "header.txt", "label"
    np.save(folder / "label.npy", np.array([0, 10**9]))
    yield "a label of 10^9", folder / "label.npy", "label"
    yield "an honest sparse table", _write_sparse(folder / "sparse.txt"), "label"
    yield "an honest sparse table, by recipe", _write_recipe(folder / "sparse.toml", folder / "sparse.txt"), "label"


def _write_runs(path: Path) -> Path:
    """Runs of one value, each of which is then said to be longer: some kilobytes for 20 GB."""
    table = pa.table({"label": np.zeros(GROUP_ROWS, dtype=np.int64)})
    with pa.parquet.ParquetWriter(path, table.schema, write_statistics=False, **ONE_PAGE) as writer:
        for _ in range(NUM_GROUPS):
            writer.write_table(table, row_group_size=GROUP_ROWS)
    content = path.read_bytes()
    # A number of rows and the length of a run are spelled alike: twice as much.
    for written, said in ((GROUP_ROWS * NUM_GROUPS, SAID_ROWS * NUM_GROUPS), (GROUP_ROWS, SAID_ROWS)):
        content = content.replace(_spell(written), _spell(said))
    path.write_bytes(content)
    return path


def _write_lie(path: Path) -> Path:
    """A page of 0.54 GB, in a column that is said to have 100 bytes."""
    table = pa.table({"label": np.zeros(GROUP_ROWS, dtype=np.int64)})
    _write_one_page(table, path, compression="zstd", use_dictionary=False)
    honest = _spell(pa.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size)
    path.write_bytes(path.read_bytes().replace(honest, _spell(100, len(honest))))
    return path


def _write_list(path: Path) -> Path:
    values = pa.array(np.zeros(10**8, dtype=np.int64))
    _write_one_page(pa.table({"label": pa.ListArray.from_arrays(pa.array([0, 10**8], pa.int32()), values)}), path)
    return path


def _write_words(path: Path, num_bytes: int) -> Path:
    words = pa.DictionaryArray.from_arrays(np.zeros(num_bytes // 10**6, dtype=np.int32), ["x" * 10**6])
    pa.parquet.write_table(pa.table({"label": words}), path, compression="zstd")
    return path


def _write_arrays(path: Path, num_bytes: int) -> Path:
    header = {"descr": "<i8", "fortran_order": False}
    zeros = bytes(10**7)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("bomb.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (num_bytes // 10**7 * 10**7 // 8,)})
            for _ in range(num_bytes // 10**7):
                file.write(zeros)
        with archive.open("label.npy", "w") as file:
            np.lib.format.write_array(file, np.array([0, 0, 1]))
    return path


def _write_sparse(path: Path) -> Path:
    """60,000 samples of 200,000 labels, four each: 12 GB as a matrix of bytes."""
    labels = np.random.default_rng(0).integers(0, 200_000, (60_000, 4))
    lines = [",".join(map(str, sorted(set(row)))) + " 0:1" for row in labels.tolist()]
    path.write_text("\n".join([f"{len(lines)} 1 200000", *lines]) + "\n")
    return path


def _write_recipe(path: Path, table: Path) -> Path:
    name = json.dumps(str(table))
    lines = ['name = "sparse"', "[data]", 'source = "sparse_table"', "[data.options]"]
    lines += [f"train = {name}", f"test = {name}", "[model]", 'name = "bag_of_features"']
    path.write_text("\n".join(lines) + "\n")
    return path


def _write_one_page(table: pa.Table, path: Path, **options: object) -> None:
    pa.parquet.write_table(table, path, row_group_size=MOST_ROWS, write_statistics=False, **ONE_PAGE, **options)


def _spell(number: int, width: int = 1) -> bytes:
    """A whole number of at least 0 as Parquet spells it, in at least so many bytes."""
    rest = 2 * number
    parts: list[int] = []
    while rest or len(parts) < width:
        parts.append(rest & 127)
        rest >>= 7
    return bytes([part | 128 for part in parts[:-1]] + [parts[-1]])
