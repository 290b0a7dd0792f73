"""Fixtures that several test files use."""

import gc
import importlib.util
import os
from functools import partial
from pathlib import Path

import pytest
import torch


def load_neighbor(name):
    # Tests are imported by path, not from sys.path, so their neighbors are too.
    path = Path(__file__).with_name(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def two_processes(run_in_processes):
    """``two_processes(function, *args)`` runs ``function(rank, *args)`` in two processes and gives both results."""
    return partial(run_in_processes, 2)


@pytest.fixture(scope="session")
def run_in_processes():
    """``run_in_processes(number, function, *args)`` runs ``function(rank, *args)`` in so many processes."""
    return load_neighbor("distributed_helpers.py").run_in_processes


@pytest.fixture(scope="session")
def contrast():
    """``contrast("#000000", "#ffffff")`` of two colors, as WCAG 2 has it."""

    def luminance(color):
        channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def measure(one, other):
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    return measure


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser that opens pages; tests that need it are skipped where there is none."""
    helpers = load_neighbor("browser.py")
    program = helpers.find_browser()
    if program is None:
        pytest.skip(f"needs one of {', '.join(helpers.NAMES)} to open the page")
    opened = helpers.Browser(program, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def one_thread():
    """For networks so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_line():
    """``one_line(caught)`` gives the message of an error that pytest caught, which must be one line."""

    def message_of(caught):
        message = str(caught.value)
        assert "\n" not in message
        return message

    return message_of


@pytest.fixture
def real_file():
    """``real_file(relative)`` gives a file below LONGTAIL_DATA; the test is skipped where it is absent."""

    def find(relative):
        root = os.environ.get("LONGTAIL_DATA")
        if not root or not (Path(root) / relative).exists():
            pytest.skip(f"needs {relative} below the folder that the variable LONGTAIL_DATA names")
        return Path(root) / relative

    return find


@pytest.fixture
def gloo_threads(tmp_path):
    """An environment for programs, and a function that lists how many threads of gloo each of them had at its end."""
    if not Path("/proc/self/task").exists():
        pytest.skip("needs Linux's /proc")
    hook, counts = tmp_path / "hook", tmp_path / "counts"
    hook.mkdir()
    counts.mkdir()
    (hook / "sitecustomize.py").write_text(COUNT_GLOO_THREADS.format(folder=str(counts)))
    return {"PYTHONPATH": str(hook)}, lambda: [int(path.read_text()) for path in counts.iterdir()]


COUNT_GLOO_THREADS = """
import atexit, os, pathlib

def count():  # what registers first is called last
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    pathlib.Path({folder!r}, str(os.getpid())).write_text(str(sum("gloo" in name for name in names)))

atexit.register(count)
"""


@pytest.fixture
def peak_memory():
    """``peak_memory(function)``: bytes by which memory grows at most while it runs; skips where that is not known."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not (clear.exists() and os.access(clear, os.W_OK)):
        pytest.skip("needs Linux's /proc")

    def read(field):
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field)) * 1024

    def measure(function):
        gc.collect()
        clear.write_text("5")
        before = read("VmRSS")
        function()
        return read("VmHWM") - before

    return measure
