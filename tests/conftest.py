"""Fixtures that several test files use."""

import gc
import importlib.util
import os
from functools import partial
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def two_processes(run_in_processes):
    """``two_processes(function, *args)`` runs ``function(rank, *args)`` in two processes and gives both results."""
    return partial(run_in_processes, 2)


@pytest.fixture(scope="session")
def run_in_processes():
    """``run_in_processes(number, function, *args)`` runs ``function(rank, *args)`` in so many processes."""
    # Tests are imported by path, not from sys.path, so their neighbors are too.
    path = Path(__file__).with_name("distributed_helpers.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    return helpers.run_in_processes


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
