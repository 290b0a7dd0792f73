"""Fixtures that several test files use."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def two_processes():
    """``two_processes(function, *args)`` runs ``function(rank, *args)`` in two processes and gives both results."""
    # Tests are imported by path, not from sys.path, so their neighbors are too.
    path = Path(__file__).with_name("distributed_helpers.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    return helpers.run_in_two_processes


@pytest.fixture(scope="module")
def one_thread():
    """For networks so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
