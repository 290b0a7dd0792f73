"""Reading a file of the extreme-classification repository: array operations against a loop over lines.

    python benchmarks/sparse_files.py delicious/train.txt

Without a file, made ones are read: with values of 1, as Delicious has them, and with six decimals, as texts have.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np
from scipy.sparse import csr_array

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


def write_made(path: Path, num_samples: int, has_decimals: bool) -> Path:
    """A file with 19 labels and 75 features a sample."""
    rng = np.random.default_rng(0)
    lines = [f"{num_samples} 100000 10000"]
    for _ in range(num_samples):
        labels = np.sort(rng.choice(10_000, 19, replace=False))
        columns = np.sort(rng.choice(100_000, 75, replace=False))
        values = [f"{value:.6f}" for value in rng.random(75)] if has_decimals else ["1"] * 75
        pairs = " ".join(f"{column}:{value}" for column, value in zip(columns, values, strict=True))
        lines.append(f"{','.join(map(str, labels))} {pairs}")
    path.write_text("\n".join(lines) + "\n")
    return path


def measure(path: Path, name: str, rounds: int, cache: Path) -> list[dict[str, Any]]:
    """One row for each way to read the file, after a check that they agree."""
    fast, slow = read_sparse_file(path, cache), read_by_lines(path)
    if (fast.features != slow.features).nnz or (fast.labels != slow.labels).nnz:
        raise AssertionError(f"{path}: the two readers differ")
    times = harness.interleaved_times(
        {
            "loop over lines": lambda: read_by_lines(path),
            "array operations": lambda: read_sparse_file(path),
            "cached": lambda: read_sparse_file(path, cache),
        },
        rounds,
    )
    ratios = harness.paired_ratios(times, "loop over lines")
    megabytes = round(path.stat().st_size / 1e6, 2)
    return [
        {"file": name, "megabytes": megabytes, "reader": reader, **harness.quantiles(times[reader])}
        | {"times_faster": round(1 / ratios[reader], 1), **harness.environment()}
        for reader in times
    ]


def main() -> None:
    """Read each file in each way, and write every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a file of the repository, also packed")
    parser.add_argument("--rounds", type=int, default=15)
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
    for row in rows:
        print(f"{row['file']:16} {row['reader']:18} {row['ms_p50']:9.2f} ms {row['times_faster']:8.1f} x")
    print(harness.write_rows("sparse_files", rows))


if __name__ == "__main__":
    main()
