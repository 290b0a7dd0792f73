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
from longtail.lab.training import devices, loop
from longtail.lab.training.devices import open_fabric
from longtail.lab.training.recipe import find_recipe, load_recipe

BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("torchrun", path=str(BIN)) is None, reason="torchrun is not beside this Python")
def test_the_documented_torchrun_command_trains_one_model_on_two_processes(tmp_path, gloo_threads):
    """As docs/training.md has it: a line per epoch, each process half of the samples, and no threads at the end."""
    variables, count = gloo_threads
    command = [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", BIN / "longtail", "train", "digits", "--accelerator", "cpu"]
    command += ["--set", "train.epochs=4", "--output", tmp_path / "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [0, 1, 2, 3]
    assert load_run(tmp_path / "run").summary["processes"] == 2
    assert count() == [0, 0, 0]  # the launcher, and what it started


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


class TestMatrixTiles:
    """A processor may announce instructions that it lacks; a process that uses them ends without a word."""

    STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    WORKS = "pass"

    @pytest.fixture
    def machine(self, tmp_path, monkeypatch):
        """``machine(flags, program)``: what the processor announces, and what trying it does."""

        def make(flags, program):
            processor = tmp_path / "cpuinfo"
            processor.write_text(f"flags : fpu avx2 {flags}\n")
            monkeypatch.setattr(devices, "PROCESSOR", processor)
            monkeypatch.setattr(devices, "MULTIPLY", program)
            monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
            devices._can_multiply.cache_clear()

        yield make
        devices._can_multiply.cache_clear()

    def test_that_are_announced_and_stop_are_one_line(self, machine, one_line):
        machine("amx_bf16 amx_tile", self.STOPS)
        with pytest.raises(ValueError, match="Illegal instruction") as caught:
            open_fabric("cpu", precision="bf16-mixed")
        assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in one_line(caught)

    def test_that_are_announced_and_work_are_used(self, machine):
        machine("amx_bf16", self.WORKS)
        assert open_fabric("cpu", precision="bf16-mixed").device.type == "cpu"

    def test_are_not_tried_for_nothing(self, machine, monkeypatch):
        machine("avx512_bf16", self.STOPS)
        assert open_fabric("cpu", precision="bf16-mixed")
        machine("amx_bf16", self.STOPS)
        assert open_fabric("cpu", precision="32-true")
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        assert open_fabric("cpu", precision="bf16-mixed")
        monkeypatch.setattr(devices, "PROCESSOR", devices.PROCESSOR / "absent")
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
        assert open_fabric("cpu", precision="bf16-mixed")


def test_the_precision_is_no_line_of_its_own(caplog, monkeypatch):
    monkeypatch.setattr(devices, "_check_matrix_tiles", lambda: None)
    with caplog.at_level("INFO", logger="lightning_fabric"):
        devices.open_fabric("cpu", precision="bf16-mixed")
    assert caplog.messages == []
