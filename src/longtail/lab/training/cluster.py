"""The runs of a comparison on many machines: joblib's backends (Dask, Ray) start them, run folders join them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from longtail.lab.runs.folder import Run, load_run
from longtail.lab.training.apart import run_apart
from longtail.lab.training.comparison import Failure, Job
from longtail.lab.training.recipe import to_toml

__all__ = ["connect_cluster", "run_on_cluster"]

CONNECT_SECONDS = 30


@contextmanager
def connect_cluster(address: str) -> Iterator[None]:
    """Let joblib use a cluster in this block: a scheduler of Dask, ``tcp://host:port``, or Ray, ``ray://host:port``."""
    import joblib

    is_ray = address.startswith("ray")
    connect = _import_ray(address) if is_ray else _import_dask(address)
    with connect(), joblib.parallel_config(backend="ray" if is_ray else "dask"):
        yield


def _import_dask(address: str) -> Callable[[], AbstractContextManager[Any]]:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{address} needs Dask; get it with: pip install "longtail[cluster]"') from None
    return partial(Client, address, timeout=CONNECT_SECONDS)


def _import_ray(address: str) -> Callable[[], AbstractContextManager[Any]]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{address} needs Ray; get it with: pip install "ray[client]"') from None
    register_ray()
    return partial(ray.init, address=address)


def run_on_cluster(jobs: Sequence[Job]) -> Iterator[Run | Failure]:
    """Make the runs with joblib's current backend, as many at a time as it has workers, and yield each as it is done.

    Every machine must have longtail, and see the runs' folders under the same path. A run is a process of its own,
    and ends with the worker that started it; another call resumes it. What is complete already is only read. An
    interrupt takes back what is queued; runs under way come to their end, and the next call finds them. Ray's backend
    hands over nothing before all of them are done: then runs are yielded at the end.

    Use it inside ``joblib.parallel_config(backend="dask")``, or ``connect_cluster``.
    """
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    return_as = "generator_unordered" if backend.supports_return_generator else "list"
    failed: set[Path | None] = set()
    for wave in ([job for job in jobs if job.needs is None], [job for job in jobs if job.needs is not None]):
        for job in wave:
            if job.needs in failed:
                yield Failure(job, f"{job.needs} failed, and this run takes over its model.")
        possible = [job for job in wave if job.needs not in failed]
        workers = Parallel(n_jobs=-1, return_as=return_as, batch_size=1, pre_dispatch="all")
        calls = (delayed(_run_numbered)(number, *_describe_job(job)) for number, job in enumerate(possible))
        for number, reason in workers(calls):
            outcome = Failure(possible[number], reason) if reason else _read_run(possible[number])
            if isinstance(outcome, Failure):
                failed.add(outcome.job.folder)
            yield outcome


def _describe_job(job: Job) -> tuple[str, str, str | None, bool]:
    """What :func:`run_apart` takes, wherever it is called."""
    needs = None if job.needs is None else str(job.needs.absolute())
    return to_toml(job.recipe), str(job.folder.absolute()), needs, job.trust_code


def _run_numbered(number: int, recipe: str, folder: str, needs: str | None, trust_code: bool) -> tuple[int, str]:
    return number, run_apart(recipe, folder, needs, trust_code)


def _read_run(job: Job) -> Run | Failure:
    try:
        return load_run(job.folder)
    except (OSError, ValueError):
        return Failure(job, f"{job.folder} is not there after its run; all machines must share the folder.")
