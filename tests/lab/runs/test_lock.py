"""A run folder is one process's at a time, and free again however that process ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from longtail.lab.runs.lock import FolderInUse, lock_folder
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, with_settings

HOLD = """
import sys, time
from pathlib import Path
from longtail.lab.runs.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "held").touch()
    time.sleep(60)
"""

RECIPE = Recipe(
    "locked",
    DataRecipe("digits", options={"test_per_class": 10}),
    ModelRecipe("linear"),
    TrainRecipe(epochs=2),
)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")])
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "held").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_second_training_is_refused_and_named_who_has_the_folder(holder, tmp_path):
    for restart in (False, True):
        with pytest.raises(FolderInUse, match=rf"run is in use by process {holder.pid} on .*; wait for it"):
            train(RECIPE, tmp_path / "run", show_progress=False, restart=restart)
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_a_killed_process_leaves_the_folder_free(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    run = train(RECIPE, tmp_path / "run", show_progress=False)
    assert len(run.history) == 2


def test_nothing_is_left_where_nothing_was_made(tmp_path):
    with lock_folder(tmp_path / "runs" / "empty"):
        pass
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError, match="input_shape must be channels"):
        train(
            with_settings(RECIPE, ["model.name=resnet32", "model.options={}"]),
            tmp_path / "wrong",
            show_progress=False,
        )
    assert not (tmp_path / "wrong").exists()
