"""A comparison that is stopped leaves no process behind; a worker that is killed fails its own run alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longtail.lab.runs.folder import find_runs, load_run

LONGTAIL = str(Path(sys.executable).parent / "longtail")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(LONGTAIL).exists(), reason="longtail is not installed beside this Python"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
]


@pytest.fixture
def start():
    """Starts a comparison, waits until two of its three runs train, and leaves nothing of it behind."""
    started = []

    def start(folder, epochs=4000, *options):
        started.append(start_comparison(folder, epochs, *options))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def start_comparison(folder, epochs, *options):
    command = [LONGTAIL, "compare", "digits", "--methods", "cross_entropy,logit_adjusted,focal", "--seeds", "1"]
    command += ["--workers", "2", "--output", str(folder), "--set", f"train.epochs={epochs}", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A suite that runs in the background hands down that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 400
    while len(list(folder.rglob("metrics.jsonl"))) < 2:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def processes_of(session):
    """The processes of a session that are not over."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.name))
    return found


def workers_of(process):
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in processes_of(process.pid)}
    return [pid for pid, name in names.items() if "spawn_main" in name]


def wait_until_gone(session, seconds=20):
    deadline = time.monotonic() + seconds
    while processes_of(session):
        assert time.monotonic() < deadline, processes_of(session)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [
        (signal.SIGINT, True, 130),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGKILL, False, -signal.SIGKILL),
    ],
)
def test_a_stopped_comparison_leaves_no_process(start, tmp_path, number, to_group, code):
    process = start(tmp_path / "runs")
    (os.killpg if to_group else os.kill)(process.pid, number)
    process.communicate(timeout=20)
    assert process.returncode == code
    wait_until_gone(process.pid)
    assert not find_runs(tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("focal/*"))  # it was queued


def test_a_killed_worker_fails_its_own_run_alone(start, tmp_path):
    process = start(tmp_path / "runs", epochs=150)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert b"1 of 3 runs failed" in errors
    assert b"its process was killed" in errors
    runs = [load_run(path) for path in find_runs(tmp_path / "runs")]
    assert len(runs) == 2
    assert all(len(run.history) == 150 for run in runs)


def test_a_worker_that_stalls_is_ended_and_said(start, tmp_path):
    process = start(tmp_path / "runs", 100, "--timeout", "20")
    os.kill(workers_of(process)[0], signal.SIGSTOP)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 2
    assert b"it showed no sign of life for 20 seconds, and was ended" in errors
    wait_until_gone(process.pid)
    assert len(find_runs(tmp_path / "runs")) == 2


def end_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


WAYS = {
    "interrupt the group": lambda parent, workers: os.killpg(parent, signal.SIGINT),
    "interrupt the parent": lambda parent, workers: os.kill(parent, signal.SIGINT),
    "interrupt twice": lambda parent, workers: [os.killpg(parent, signal.SIGINT) for _ in range(2)],
    "terminate the group": lambda parent, workers: os.killpg(parent, signal.SIGTERM),
    "terminate the parent": lambda parent, workers: os.kill(parent, signal.SIGTERM),
    "hang up": lambda parent, workers: os.killpg(parent, signal.SIGHUP),
    "quit the parent": lambda parent, workers: os.kill(parent, signal.SIGQUIT),
    "kill the parent": lambda parent, workers: os.kill(parent, signal.SIGKILL),
    "kill a worker, then the parent": lambda parent, workers: end_all([workers[0], parent], signal.SIGKILL),
    "kill a parent whose workers are stopped": lambda parent, workers: [
        end_all(workers, signal.SIGSTOP),
        os.kill(parent, signal.SIGKILL),
        end_all(workers, signal.SIGCONT),
    ],
}
"""Ten ways to end a comparison."""


def results_of(folder):
    runs = {path.relative_to(folder): load_run(path) for path in find_runs(folder)}
    assert all([row["epoch"] for row in run.history] == list(range(60)) for run in runs.values())
    return {path: run.predictions.logits.tobytes() for path, run in runs.items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "runs"
    process = start_comparison(folder, 60)
    process.communicate(timeout=600)
    assert process.returncode == 0
    return results_of(folder)


@pytest.mark.skipif("not config.getoption('--fuzz-minutes')", reason="minutes: with --fuzz-minutes alone")
@pytest.mark.parametrize("way", WAYS)
def test_however_a_comparison_ends_nothing_is_left_and_nothing_is_mixed(start, tmp_path, uninterrupted, way):
    process = start(tmp_path / "runs", 60)
    WAYS[way](process.pid, workers_of(process))
    process.communicate(timeout=60)
    wait_until_gone(process.pid)
    again = start(tmp_path / "runs", 60)
    again.communicate(timeout=600)
    assert again.returncode == 0
    assert results_of(tmp_path / "runs") == uninterrupted
    assert not list((tmp_path / "runs").rglob(".*.partial"))
