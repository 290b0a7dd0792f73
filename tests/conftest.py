"""Fixtures that several test files use."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def two_processes():
    """``two_processes(function, *args)`` runs ``function(rank, *args)`` in two processes and gives both results."""
    # Tests are imported by path, not from sys.path, so their neighbors are too.
    path = Path(__file__).with_name("distributed_helpers.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    return helpers.run_in_two_processes
