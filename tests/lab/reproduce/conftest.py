"""Rows without a folder, for the tests of experiments."""

import pytest


@pytest.fixture(scope="session")
def make_all():
    """Make planned rows, one after the other."""
    return lambda rows: [row.make() for row in rows]
