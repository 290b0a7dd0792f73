"""Seconds to ``import longtail`` against ``import torch``, in fresh processes that take turns.

python benchmarks/import_time.py       # about a minute; writes results/import_time.csv
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import environment, write_rows

ROUNDS = 9


def seconds(statement: str) -> float:
    """Wall time of a Python process that runs one statement."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Take turns, and write every round."""
    rows = []
    for number in range(ROUNDS + 1):
        torch_alone, with_longtail = seconds("import torch"), seconds("import longtail")
        if number > 0:  # the first round fills the disk cache
            row = {"round": number, "torch": round(torch_alone, 3), "longtail": round(with_longtail, 3)}
            rows.append(row | {"ratio": round(with_longtail / torch_alone, 3)})
    print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")
    versions = {f"version_{key}" if key == "torch" else key: value for key, value in environment().items()}
    print(write_rows("import_time", [row | versions for row in rows]))


if __name__ == "__main__":
    main()
