"""What the benchmark scripts share: interleaved timing, peak memory, and rows that say where they were measured."""

from __future__ import annotations

import csv
import ctypes
import gc
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

RESULTS = Path(__file__).parent / "results"


def interleaved_times(
    functions: Mapping[str, Callable[[], object]], rounds: int, seed: int = 0
) -> dict[str, list[float]]:
    """Seconds of each call: every round calls each function once, in a new random order, after two warm-up rounds."""
    order = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_number in range(rounds + 2):
        names = list(functions)
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            functions[name]()
            elapsed = time.perf_counter() - start
            if round_number >= 2:
                times[name].append(elapsed)
    return times


def paired_ratios(times: Mapping[str, Sequence[float]], baseline: str) -> dict[str, float]:
    """Median over rounds of (time / the baseline's time in the same round), so that drift cancels."""
    return {
        name: statistics.median(t / b for t, b in zip(values, times[baseline], strict=True))
        for name, values in times.items()
    }


def free_a_large_block() -> None:
    """Free 30 MiB, as any network's training has long done.

    glibc maps a block that is larger than all it has seen freed so far, and unmaps it after use: in a fresh process
    small benchmarks page their tensors in at each step, as they would not in a program of which they are a part.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8).fill_(1)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of handing it back to the system, as caching allocators do.

    With the default, a tensor of some megabytes is paged in anew at each step, at a cost that depends on what was
    freed before it: times then say more about the allocator's luck than about the function. No effect elsewhere.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        mmap_threshold, trim_threshold, large = -3, -1, 2**30
        libc.mallopt(mmap_threshold, large)
        libc.mallopt(trim_threshold, large)


def peak_extra_mebibytes(function: Callable[[], object]) -> float:
    """How far the resident set rises above its size before the call. Linux only; run it in a fresh process."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)  # what is freed but kept would hide what the call needs
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    function()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def environment() -> dict[str, Any]:
    """Columns that say what the row was measured on."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
    }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Milliseconds at the 20 %, 50 % and 80 % quantiles."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(1000 * ordered[round(share * (len(ordered) - 1))], 4)

    return {"ms_p20": at(0.2), "ms_p50": at(0.5), "ms_p80": at(0.8)}


def write_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the raw rows to ``results/name.csv``, replacing those of the last run."""
    path = RESULTS / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        names = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, fieldnames=names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)
    return path


def update_rows(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    order: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Path:
    """Write rows beside those that are there: the ones with the same values of ``keys`` are replaced.

    So rows that another machine measured stay, and two runs may write side by side.
    """
    path = RESULTS / f"{name}.csv"
    with FileLock(Path(tempfile.gettempdir(), f"{name.replace('/', '_')}.lock")):
        new = {tuple(str(row[key]) for key in keys) for row in rows}
        kept = [row for row in _read_rows(path) if tuple(row[key] for key in keys) not in new]
        return write_rows(name, sorted([*kept, *rows], key=order) if order else [*kept, *rows])


def _read_rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
