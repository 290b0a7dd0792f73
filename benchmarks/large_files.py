"""Large files: peak memory and rows per second of ``longtail inspect`` and ``longtail adjust``.

    python benchmarks/large_files.py labels --rows 100000000
    python benchmarks/large_files.py scores --score-rows 600000 20000000    # 16 GB of disk, until it ends
    python benchmarks/large_files.py bombs wide samplers

Every row of the result is a process of its own, with one thread for torch and NumPy and two for pyarrow. Beside it
pandas and scikit-learn do the same: read the file and count its labels; or read scores, adjust, take the softmax,
measure and write them. ``cpu_seconds`` is time of the processor, which other programs on the machine change less than
``seconds``; rates are by the former. Peak memory is of the whole process, with all that Python has loaded.

- labels: a folder of ten Parquet parts, a thousand classes.
- scores: one Parquet file with 100 columns in float32, to Parquet, labels beside them. pandas, which holds all of it,
  does so only for sizes up to ``--pandas-rows``.
- bombs: small files that unpack to gigabytes, or lie; the budget is 0.5 GB. ``size`` is the file's bytes, ``outcome``
  what is said.
- wide: 30,000 score columns in Parquet, 100,000 classes to CSV; a size and its half, so that a ratio of 2 is linear.
- samplers: what the first batch of an epoch and the alias table take, in multiples of int64 labels.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from bombs import write_bombs

NUM_CLASSES = 100
REPORT = """
import json, resource, sys, time
from pathlib import Path
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print("@" + json.dumps({
    "seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(time.process_time(), 2),
    "peak_megabytes": round(int(status["VmHWM"].split()[0]) * 1024 / 1e6),
    "outcome": globals().get("outcome", "done")}))
"""
COMMAND = """
import time; started = time.perf_counter()
import sys
from longtail.lab.cli.app import app
from typer.testing import CliRunner
done = CliRunner().invoke(app, sys.argv[1:])
outcome = done.stderr.strip().replace(sys.argv[2], "FILE") or "done"
"""
PANDAS_LABELS = """
import time; started = time.perf_counter()
import sys
import pandas as pd
counts = pd.read_parquet(sys.argv[1])["label"].value_counts()
"""
PANDAS_SCORES = """
import time; started = time.perf_counter()
import sys
import numpy as np, pandas as pd
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score
frame = pd.read_parquet(sys.argv[1])
counts = pd.read_csv(sys.argv[2])["count"].to_numpy()
labels = frame.pop("label").to_numpy()
logits = frame.to_numpy()
adjusted = logits - np.log(counts / counts.sum()).astype(np.float32)
balanced_accuracy_score(labels, logits.argmax(axis=1)), balanced_accuracy_score(labels, adjusted.argmax(axis=1))
output = pd.DataFrame(softmax(adjusted, axis=1), columns=frame.columns)
output.insert(0, "prediction", adjusted.argmax(axis=1))
output.to_parquet(sys.argv[3])
"""
SAMPLER = """
import time; started = time.perf_counter()
import sys
sys.path.insert(0, sys.argv[1])
import harness, numpy as np, torch
from longtail._core.random import AliasTable
from longtail.sampling import InstanceSampler, RepeatFactorSampler, UndersamplingSampler
torch.set_num_threads(1)
name, size = sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
if name == "AliasTable":
    values = torch.rand(size, dtype=torch.float64)
    run = lambda: AliasTable(values)
else:
    values = np.empty(size, dtype=np.int64)
    for start in range(0, size, 10**6):
        values[start : start + 10**6] = np.minimum(rng.pareto(1.0, min(10**6, size - start)), 999)
    samplers = {"InstanceSampler": InstanceSampler, "RepeatFactorSampler": RepeatFactorSampler,
                "UndersamplingSampler": lambda labels: UndersamplingSampler(labels, per_class=max(1, size // 1000))}
    run = lambda: next(iter(samplers[name](values)))
begun = time.process_time()
extra = harness.peak_extra_mebibytes(run) * 2**20
outcome = f"{time.process_time() - begun:.2f} s, {extra / (8 * size):.2f} times the labels"
"""


def measure(code: str, *arguments: object, memory: str | None = None) -> dict[str, Any]:
    """What a fresh process says that runs the code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if memory is None else {"LONGTAIL_MEMORY": memory})
    command = [sys.executable, "-c", code + REPORT, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"seconds": "", "cpu_seconds": "", "peak_megabytes": "", "outcome": f"exit {done.returncode}: {last}"}
    report = next(line for line in done.stdout.splitlines() if line.startswith("@"))
    found: dict[str, Any] = json.loads(report[1:])
    return found


def describe(case: str, who: str, size: int, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the result."""
    rate = round(size / found["cpu_seconds"]) if found["cpu_seconds"] else ""
    row = {"case": case, "who": who, "size": size, **found, "rows_per_cpu_second": rate, **harness.environment()}
    print(
        f"{case:30} {who:12} {size:11,} {found['cpu_seconds']!s:>8} s {found['peak_megabytes']!s:>6} MB  "
        f"{found['outcome'][:90]}",
        flush=True,
    )
    return row


def measure_labels(folder: Path, num_rows: int) -> list[dict[str, Any]]:
    """Count labels in ten parts."""
    rng = np.random.default_rng(0)
    (folder / "labels").mkdir()
    for part in range(10):
        labels = np.minimum(rng.pareto(1.0, num_rows // 10), 999).astype(np.int32)
        pa.parquet.write_table(pa.table({"label": labels}), folder / "labels" / f"{part}.parquet")
    rows = [describe("labels", "longtail", num_rows, measure(COMMAND, "inspect", folder / "labels", "--json"))]
    return [*rows, describe("labels", "pandas", num_rows, measure(PANDAS_LABELS, folder / "labels"))]


def measure_scores(folder: Path, sizes: Sequence[int], most_for_pandas: int) -> Iterator[dict[str, Any]]:
    """Adjust scores of 100 classes."""
    files = (folder / "scores.parquet", folder / "counts.csv", folder / "out.parquet")
    with files[1].open("w", newline="") as file:
        csv.writer(file).writerows([["count"], *([1000 - 9 * index] for index in range(NUM_CLASSES))])
    options = ("--counts", files[1], "--id", "label", "--label", "label", "--columns", "class_", "--output", files[2])
    for size in sizes:
        write_scores(files[0], size)
        yield describe("scores", "longtail", size, measure(COMMAND, "adjust", files[0], *options))
        files[2].unlink(missing_ok=True)
        if size <= most_for_pandas:
            yield describe("scores", "pandas", size, measure(PANDAS_SCORES, *files))
            files[2].unlink(missing_ok=True)


def write_scores(path: Path, num_rows: int) -> None:
    """Scores, some rows at a time; numbers that are all different, so that a dictionary of them would be a waste."""
    rng = np.random.default_rng(0)
    names = [f"class_{index}" for index in range(NUM_CLASSES)]
    schema = pa.schema([("label", pa.int64()), *((name, pa.float32()) for name in names)])
    with pa.parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, num_rows, 50_000):
            size = min(50_000, num_rows - start)
            columns = [rng.standard_normal(size, dtype=np.float32) for _ in names]
            writer.write_table(pa.table([rng.integers(0, NUM_CLASSES, size), *columns], schema=schema))


def measure_bombs(folder: Path, num_bytes: int, num_text_bytes: int) -> list[dict[str, Any]]:
    """Look at small files that unpack to much, with a budget of half a gigabyte."""
    bombs = folder / "bombs"
    bombs.mkdir()
    rows = []
    for what, path, label in write_bombs(bombs, num_bytes, num_text_bytes):
        found = measure(COMMAND, "inspect", path, "--label", label, "--json", memory="0.5")
        row = describe(f"bomb: {what}", "longtail", path.stat().st_size, found)
        del row["rows_per_cpu_second"]  # the size is in bytes
        rows.append(row)
    return rows


def measure_wide(folder: Path) -> list[dict[str, Any]]:
    """Adjust ten rows with very many columns, and with half as many."""
    rows = []
    for suffix, most in ((".parquet", 30_000), (".csv", 100_000)):
        for size in (most // 2, most):
            values = np.random.default_rng(0).normal(size=(size, 10)).astype(np.float32)
            table = pa.table([*map(pa.array, values)], names=[f"c{index}" for index in range(size)])
            np.save(folder / "counts.npy", np.arange(size) + 1)
            pa.parquet.write_table(table, folder / "wide.parquet")
            output = folder / f"out{suffix}"
            options = ("--counts", folder / "counts.npy", "--output", output, "--force")
            found = measure(COMMAND, "adjust", folder / "wide.parquet", *options)
            rows.append(describe(f"wide to {suffix}", "longtail", size, found))
            if suffix == ".csv":
                again = (
                    "--probabilities",
                    "--counts",
                    folder / "counts.npy",
                    "--output",
                    folder / "again.npy",
                    "--force",
                )
                found = measure(COMMAND, "adjust", output, *again)
                rows.append(describe(f"wide from {suffix}", "longtail", size, found))
    return rows


def measure_samplers(size: int) -> list[dict[str, Any]]:
    """Start an epoch."""
    names = ("AliasTable", "InstanceSampler", "RepeatFactorSampler", "UndersamplingSampler")
    here = Path(__file__).parent
    return [describe(name, "longtail", size, measure(SAMPLER, here, name, size)) for name in names]


def main() -> None:
    """Measure the cases that are named, and keep the rows of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="of labels, scores, bombs, wide, samplers; default: all")
    parser.add_argument("--rows", type=int, default=10**7, help="of labels")
    parser.add_argument("--score-rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--pandas-rows", type=int, default=1_000_000, help="of scores, at most")
    parser.add_argument("--bomb-bytes", type=int, default=12_700_000_000, help="that an array unpacks to")
    parser.add_argument("--bomb-text-bytes", type=int, default=10**9, help="that a packed text unpacks to")
    parser.add_argument("--samples", type=int, default=10**7, help="of samplers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
            "labels": lambda: measure_labels(folder, arguments.rows),
            "scores": lambda: measure_scores(folder, arguments.score_rows, arguments.pandas_rows),
            "bombs": lambda: measure_bombs(folder, arguments.bomb_bytes, arguments.bomb_text_bytes),
            "wide": lambda: measure_wide(folder),
            "samplers": lambda: measure_samplers(arguments.samples),
        }
        for case in arguments.cases or cases:
            rows: list[dict[str, Any]] = []
            for row in cases[case]():  # what is measured is kept, should a larger size not end
                rows.append(row)
                path = harness.write_rows(f"large_files_{case}", rows)
            print(path)


if __name__ == "__main__":
    main()
