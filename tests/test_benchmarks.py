"""What `make bench` runs: scripts that need data or runs of yours say so and end well without them."""

import importlib
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


def test_rows_of_other_runs_stay_when_some_are_measured_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    harness = importlib.import_module("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    harness.update_rows(
        "part/rows", [{"name": "a", "seed": 0, "value": 1}, {"name": "b", "seed": 0, "value": 2}], ["name"]
    )
    path = harness.update_rows("part/rows", [{"name": "a", "seed": 1, "value": 3}], ["name", "seed"])
    harness.update_rows("part/rows", [{"name": "b", "seed": 0, "value": 4, "unit": "s"}], ["name", "seed"])
    assert path.read_text().splitlines() == ["name,seed,value,unit", "a,0,1,", "a,1,3,", "b,0,4,s"]
    harness.update_rows("part/rows", [], ["name"], order=lambda row: -int(row["value"]))
    assert [line[0] for line in path.read_text().splitlines()] == ["n", "b", "a", "a"]
