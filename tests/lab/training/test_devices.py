"""Who decides how many processes train: the caller, or the launcher that started them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.lab.runs.folder import load_run

BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("torchrun", path=str(BIN)) is None, reason="torchrun is not beside this Python")
def test_the_documented_torchrun_command_trains_one_model_on_two_processes(tmp_path):
    """As docs/training.md has it: one run, one line per epoch, and each process half of the samples."""
    command = [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", BIN / "longtail", "train", "digits", "--accelerator", "cpu"]
    command += ["--set", "train.epochs=4", "--output", tmp_path / "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [0, 1, 2, 3]
    assert load_run(tmp_path / "run").summary["processes"] == 2
