"""Reading a file of the extreme-classification repository: array operations, scikit-learn, and a loop over lines.

    python benchmarks/sparse_files.py delicious/train.txt --large 300

Without a file, made ones are read: with values of 1, as Delicious has them, and with six decimals, as texts have;
``--large`` makes one of about so many megabytes, which is read once in each way but by the loop.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_svmlight_file

from longtail.lab.data.formats.sparse_text import SparseSamples, read_sparse_file


def read_by_lines(path: Path) -> SparseSamples:
    """The plain way: split every line, convert every number."""
    labels: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    label_ends, column_ends = [0], [0]
    with path.open() as file:
        num_samples, num_features, num_labels = map(int, file.readline().split())
        for line in file:
            first, *pairs = line.rstrip("\n").split(" ")
            if first:
                labels.extend(int(label) for label in first.split(","))
            label_ends.append(len(labels))
            for pair in pairs:
                column, value = pair.split(":")
                columns.append(int(column))
                values.append(float(value))
            column_ends.append(len(columns))
    return SparseSamples(
        csr_array((np.array(values, dtype=np.float32), columns, column_ends), shape=(num_samples, num_features)),
        csr_array((np.ones(len(labels), dtype=bool), labels, label_ends), shape=(num_samples, num_labels)),
    )


def read_with_sklearn(path: Path) -> SparseSamples:
    """scikit-learn's reader of the lines after the first; its tuples of labels become a matrix."""
    with path.open("rb") as file:
        num_samples, num_features, num_labels = map(int, file.readline().split())
        features, tuples = load_svmlight_file(
            file, n_features=num_features, dtype=np.float32, multilabel=True, zero_based=True
        )
    ends = np.cumsum([0, *map(len, tuples)])
    labels = np.fromiter((label for row in tuples for label in row), dtype=np.int32, count=ends[-1])
    return SparseSamples(
        csr_array(features),
        csr_array((np.ones(len(labels), dtype=bool), labels, ends), shape=(num_samples, num_labels)),
    )


def write_made(path: Path, num_samples: int, has_decimals: bool) -> Path:
    """A file with 19 labels and 75 features per sample."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(f"{num_samples} 100000 10000\n")
        for _ in range(num_samples):
            labels = np.sort(rng.choice(10_000, 19, replace=False))
            columns = np.sort(rng.choice(100_000, 75, replace=False))
            values = [f"{value:.6f}" for value in rng.random(75)] if has_decimals else ["1"] * 75
            pairs = " ".join(f"{column}:{value}" for column, value in zip(columns, values, strict=True))
            file.write(f"{','.join(map(str, labels))} {pairs}\n")
    return path


def measure(path: Path, name: str, rounds: int, cache: Path, is_large: bool = False) -> list[dict[str, Any]]:
    """One row for each way to read the file, after a check that they agree."""
    readers: dict[str, Callable[[], SparseSamples]] = {
        "loop over lines": lambda: read_by_lines(path),
        "scikit-learn": lambda: read_with_sklearn(path),
        "array operations": lambda: read_sparse_file(path),
        "cached": lambda: read_sparse_file(path, cache),
    }
    fast = read_sparse_file(path, cache)
    if is_large:
        del readers["loop over lines"]
        times = {reader: [_seconds(read)] for reader, read in readers.items()}
    else:
        for slow in (readers["loop over lines"](), readers["scikit-learn"]()):
            if abs(fast.features - slow.features).max() > 1e-7 or (fast.labels != slow.labels).nnz:
                raise AssertionError(f"{path}: the readers differ")
        times = harness.interleaved_times(readers, rounds)
    ratios = harness.paired_ratios(times, "scikit-learn")
    megabytes = round(path.stat().st_size / 1e6, 2)
    return [
        {"file": name, "megabytes": megabytes, "reader": reader, **harness.quantiles(times[reader])}
        | {"times_faster_than_sklearn": round(1 / ratios[reader], 1), **harness.environment()}
        for reader in times
    ]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Read each file in each way, and write every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a file of the repository, also packed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--large", type=int, default=0, help="megabytes of a file to make and to read once")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "made, ones": write_made(Path(folder, "ones.txt"), 3000, has_decimals=False),
            "made, decimals": write_made(Path(folder, "decimals.txt"), 3000, has_decimals=True),
        }
        if arguments.file is not None:
            content = arguments.file.read_bytes()
            unpacked = Path(folder, "given.txt")
            unpacked.write_bytes(gzip.decompress(content) if arguments.file.suffix == ".gz" else content)
            files = {arguments.file.parent.name: unpacked} | files
        for name, path in files.items():
            rows += measure(path, name, arguments.rounds, Path(folder, "cache"))
        if arguments.large:
            large = write_made(Path(folder, "large.txt"), arguments.large * 830, has_decimals=True)
            rows += measure(large, "made, large", 1, Path(folder, "cache"), is_large=True)
    for row in rows:
        print(
            f"{row['file']:16} {row['reader']:18} {row['ms_p50']:9.2f} ms {row['times_faster_than_sklearn']:8.1f} x"
        )
    print(harness.write_rows("sparse_files", rows))


if __name__ == "__main__":
    main()
