"""What `make bench` runs: scripts that need data or runs of yours say so and end well without them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    "name",
    [
        "compactness",
        "conformal",
        "extreme_index",
        "extreme_peers",
        "extreme_stream",
        "extreme_table",
        "ingredients",
        "meta_sets",
        "reuters",
        "sequences",
        "sharded",
    ],
)
def test_a_script_without_its_data_measures_nothing_and_succeeds(name, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "LONGTAIL_DATA"}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py")]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not any(tmp_path.iterdir())
