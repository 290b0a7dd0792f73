"""Rows without a folder, and runs without processes, for the tests of experiments."""

import pytest

from longtail.lab.training.comparison import Failure, take_over
from longtail.lab.training.loop import train


@pytest.fixture(scope="session")
def make_all():
    """Make planned rows, one after the other."""
    return lambda rows: [row.make() for row in rows]


@pytest.fixture(scope="session")
def run_here():
    """``run_jobs`` in this process."""

    def run_all(jobs, workers, watch):
        for job in jobs:
            watch([job])
            try:
                if job.needs is not None:
                    job.folder.mkdir(parents=True)
                    take_over(job.needs, job.folder, job.recipe)
                yield train(job.recipe, job.folder, show_progress=False)
            except FloatingPointError as error:
                yield Failure(job, str(error))

    return run_all
