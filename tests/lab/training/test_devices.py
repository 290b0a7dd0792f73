"""Who decides how many processes train, the caller or the launcher that started them; and with how many threads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longtail.lab.runs.folder import load_run
from longtail.lab.training import loop
from longtail.lab.training.devices import limit_threads
from longtail.lab.training.recipe import find_recipe, load_recipe

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


def test_a_small_step_gets_one_thread_and_a_large_one_keeps_all():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with limit_threads(1e6):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with limit_threads(1e10):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_training_a_small_model_uses_one_thread_and_leaves_the_setting_alone(tmp_path, monkeypatch):
    seen = []
    step = loop._step
    monkeypatch.setattr(loop, "_step", lambda *args: seen.append(torch.get_num_threads()) or step(*args))
    recipe = load_recipe(find_recipe("digits"), ["train.epochs=1"])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loop.train(recipe, tmp_path / "run", accelerator="cpu", show_progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
