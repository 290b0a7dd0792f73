"""Faults from outside: a full disk, a process of several that is killed or stalls. One line, and nothing is lost."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longtail.lab.runs.folder import load_run

LONGTAIL = str(Path(sys.executable).parent / "longtail")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(LONGTAIL).exists(), reason="longtail is not installed beside this Python"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
]


def start(folder, *options, before=lambda: None):
    command = [LONGTAIL, "train", "digits", "--accelerator", "cpu", "--output", str(folder), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
        preexec_fn=before,
    )


@pytest.fixture
def started():
    processes = []
    yield processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def limit_files():
    """What a full disk does to a process, without one: no file may be longer than this many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_disk_without_room_is_one_line_and_room_again_resumes(started, tmp_path):
    full = start(tmp_path / "run", "--set", "train.epochs=2", before=limit_files)
    started.append(full)
    _, errors = full.communicate(timeout=240)
    assert full.returncode == 2, errors
    lines = [line for line in errors.splitlines() if line.startswith("longtail: ")]
    assert len(lines) == 1
    assert "checkpoint.safetensors can't be written" in lines[0]
    assert "Traceback" not in errors
    assert not list((tmp_path / "run").glob(".*.partial"))
    again = start(tmp_path / "run", "--set", "train.epochs=2")
    started.append(again)
    _, errors = again.communicate(timeout=240)
    assert again.returncode == 0, errors
    assert len(load_run(tmp_path / "run").history) == 2


def children_of(session):
    """The other processes of a session that are not over."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != session:
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(path.name))
    return found


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def patience():
    """Seconds in which a process has surely joined the others, however busy the machine is."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import longtail.lab.training.loop"], check=True)
    return round(max(10, 5 * (time.monotonic() - start)))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
def test_a_lost_process_of_two_ends_the_other_with_one_line(started, tmp_path, fault, patience):
    options = ("--devices", "2", "--timeout", str(patience), "--set", "train.epochs=100000")
    process = start(tmp_path / "run", *options)
    started.append(process)
    wait_for(lambda: process.poll() is not None or (tmp_path / "run" / "metrics.jsonl").exists())
    assert process.poll() is None, process.stderr.read()
    (other,) = children_of(process.pid)
    os.kill(other, fault)
    _, errors = process.communicate(timeout=600)
    wait_for(lambda: not children_of(process.pid), seconds=30)
    assert process.returncode != 0
    said = f"another process of this training has ended, or has not answered for {patience} seconds"
    # The launcher, which watches the processes that it started, may be the first to see that one is gone.
    launcher = "terminated with code -9. Forcefully terminating all other processes"
    assert said in errors or (fault == signal.SIGKILL and launcher in errors)
    assert "Traceback" not in errors
