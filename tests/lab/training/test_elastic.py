"""Two processes of torchrun, one of which is killed: both start again, resume, and end with the same numbers."""

import os
import subprocess
import sys

import pytest

from longtail.lab.runs.folder import load_run
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, to_toml

RECIPE = Recipe(
    "elastic",
    DataRecipe("digits", profile="exponential", ratio=50.0, options={"test_per_class": 20}),
    ModelRecipe("linear"),
    TrainRecipe(epochs=6),
)
PROGRAM = """
import os, signal, sys
from pathlib import Path
from longtail.lab.training import loop
from longtail.lab.training.recipe import load_recipe

loop.CHECKPOINT_SECONDS = 0.0  # after every epoch
folder, dies_at = Path(sys.argv[2]), int(sys.argv[3])
begin = loop.begin_stage

def begin_or_die(fabric, recipe, labels, planned, state):
    if state.epoch == dies_at and fabric.global_rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if fabric.global_rank == 0:
        with Path(sys.argv[4]).open("a") as file:
            file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']}:{state.epoch} ")
    begin(fabric, recipe, labels, planned, state)

loop.begin_stage = begin_or_die
loop.train(load_recipe(Path(sys.argv[1])), folder, accelerator="cpu", show_progress=False)
"""


def train_elastically(tmp_path, name, dies_at):
    """The run, and which epochs were begun in which life."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [
        tmp_path / "program.py",
        tmp_path / "recipe.toml",
        tmp_path / name,
        dies_at,
        tmp_path / f"{name}.txt",
    ]
    command = [*launcher, "--max-restarts", "1", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return load_run(tmp_path / name), (tmp_path / f"{name}.txt").read_text().split()


@pytest.mark.slow
def test_a_killed_process_restarts_and_ends_with_the_same_numbers(tmp_path):
    whole, began = train_elastically(tmp_path, "whole", dies_at=-1)
    assert began == [f"0:{epoch}" for epoch in range(6)]
    broken, began = train_elastically(tmp_path, "broken", dies_at=3)
    again = [entry for entry in began if entry.startswith("1:")]
    assert again == ["1:3", "1:4", "1:5"]  # nothing that was saved is done again
    assert broken.metrics == whole.metrics
    assert [row["train_loss"] for row in broken.history] == [row["train_loss"] for row in whole.history]
    assert broken.summary["processes"] == 2
