"""Methods x seeds, side by side: same data, same initial weights and same batches for a seed, another method.

Each run has a folder of its own, ``METHOD/seed-N``, so a comparison that is killed resumes where it was.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from longtail._core.files import replacing
from longtail.lab.runs.folder import CHECKPOINT, Run, find_runs, label_runs, load_run
from longtail.lab.runs.lock import last_sign_of_life, lock_folder
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.recipe import Recipe, differences, parse_method, parse_recipe, to_toml
from longtail.methods.custom import is_reference
from longtail.methods.table import get_method

__all__ = [
    "Failure",
    "Job",
    "default_methods",
    "default_workers",
    "make_run",
    "name_folder",
    "plan_jobs",
    "run_jobs",
    "take_over",
    "write_rows",
]


WATCH_SECONDS = 1.0
"""Between two looks at the runs that are going on."""

STALL_SECONDS = 3600.0
"""How long a run may show no sign of life, of which there is one every few steps of training."""

START_SECONDS = 600.0
"""What a run has beside that before its first sign, to load its data."""


@dataclass(frozen=True)
class Job:
    """One run to make."""

    recipe: Recipe
    folder: Path
    needs: Path | None = None
    """The run whose trained model this one takes over: a post-hoc method, or a second stage."""
    trust_code: bool = False
    """Whether code that the recipe names may be run."""

    @property
    def name(self) -> str:
        """Method, with the options that tell it apart, and seed."""
        return f"{self.folder.parent.name}, seed {self.recipe.train.seed}"

    @property
    def title(self) -> str:
        """The same for a line of facts."""
        return f"{self.folder.parent.name} · seed {self.recipe.train.seed}"


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end."""

    job: Job
    reason: str


def default_methods(recipe: Recipe) -> list[str]:
    """The plain loss and what corrects it, for the kind of labels that the recipe's own method is for.

    A recipe that trains by rows has very many labels, for which losses that draw negatives are.
    """
    own = recipe.method.name
    if recipe.train.optimizer == "rowwise_adam" and get_method(own).accepts_label_lists:
        other = "importance" if recipe.method.options.get("weighting") == "tail" else "tail"
        return [own, f"{own}(weighting={other})"]
    if not is_reference(own) and get_method(own).family == "multi-label":
        methods = ["binary_cross_entropy", "partial_label_masking"]
    else:
        methods = ["cross_entropy", "posthoc_adjusted", "logit_adjusted"]
    return methods if own in methods else [*methods, own]


def plan_jobs(
    recipe: Recipe,
    methods: Sequence[str],
    seeds: Iterable[int],
    folder: Path,
    options: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> list[Job]:
    """The runs that a comparison needs. Post-hoc methods share the training of plain cross-entropy.

    Args:
        recipe: data, model and training of all runs; it may have options for methods.
        methods: names, or names with options such as ``logit_adjusted(tau=0.5)``; the same name may come again with
            other options.
        seeds: of training.
        folder: where the runs go.
        options: for every method that has them; one that none has is an error.
        trust_code: whether methods and models that are code of their own may be run.
    """
    jobs: dict[Path, Job] = {}
    variants = _choose_options(recipe, methods, dict(options or {}), trust_code)
    for name, chosen in variants.items():
        for seed in seeds:
            variant = chosen.with_seed(seed)
            base = None
            if get_method(chosen.method.name).is_posthoc:
                base = folder / "cross_entropy" / f"seed-{seed}"
                jobs.setdefault(base, Job(variant.with_method("cross_entropy", {}), base, trust_code=trust_code))
            path = folder / name / f"seed-{seed}"
            jobs[path] = Job(variant, path, base, trust_code)
    return list(jobs.values())


def _choose_options(
    recipe: Recipe, methods: Sequence[str], common: Mapping[str, Any], trust_code: bool
) -> dict[str, Recipe]:
    """The recipe of each method, by the name of its folder."""
    variants: dict[str, Recipe] = {}
    unused = set(common)
    for text in methods:
        named = parse_method(text)
        check_recipe(recipe.with_method(named.name, {}), trust_code)
        method = get_method(named.name)
        shared = {name: value for name, value in common.items() if name in method.options}
        unused -= set(shared)
        chosen = recipe.with_method(method.name, recipe.options_for(method.name) | shared | dict(named.options))
        check_recipe(chosen, trust_code)
        variants[name_folder(method.name, named.options)] = chosen
    if unused:
        raise ValueError(f"method.options.{min(unused)}: none of the methods has this option: {', '.join(methods)}.")
    return variants


def name_folder(method: str, options: Mapping[str, Any] | None = None) -> str:
    """A name for the runs of a method: with the options that were given with it, if any.

    >>> name_folder("elm", {"strength": 0.1, "memory_size": 8})
    'elm(strength=0.1,memory_size=8)'
    """
    plain = re.sub(r"[^\w.-]+", "_", method)
    if not options:
        return plain
    return f"{plain}({','.join(re.sub(r'[^-+=.,()A-Za-z0-9_]', '_', f'{k}={v}') for k, v in options.items())})"


def default_workers() -> int:
    """As many runs at once as there are cores; one where there is a GPU to share."""
    if torch.accelerator.is_available():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    watch: Callable[[Sequence[Job]], None] = lambda running: None,
    timeout: float = STALL_SECONDS,
) -> Iterator[Run | Failure]:
    """Make the runs, ``workers`` at a time, and yield each as it is done. What is complete already is only read.

    An interrupt ends the workers at once: what they had saved is where the next call resumes. A worker that is killed
    fails its own run alone, and so does one that shows no sign of life for ``timeout`` seconds, which is ended.
    ``watch`` is told every second which jobs are running.
    """
    threads = max(1, torch.get_num_threads() // workers)
    idle = [_start_worker(threads) for _ in range(min(workers, max(1, len(jobs))))]
    waiting = list(jobs)
    running: dict[Future[None], tuple[Job, ProcessPoolExecutor]] = {}
    started: dict[Path, float] = {}
    unfinished = {job.folder for job in jobs}
    failed: set[Path | None] = set()
    stalled: set[Path] = set()
    try:
        while waiting or running:
            for job in [job for job in waiting if job.needs is None or job.needs not in unfinished]:
                if job.needs in failed:
                    waiting.remove(job)
                    yield Failure(job, f"{job.needs} failed, and this run takes over its model.")
                elif idle:
                    waiting.remove(job)
                    worker = idle.pop()
                    arguments = to_toml(job.recipe), job.folder, job.needs, job.trust_code
                    running[worker.submit(make_run, *arguments)] = job, worker
                    started[job.folder] = time.time()
            watch([job for job, _ in running.values()])
            done, _ = wait(running, timeout=WATCH_SECONDS, return_when=FIRST_COMPLETED)
            for job, worker in running.values():
                sign, start = last_sign_of_life(job.folder), started[job.folder]
                if time.time() > timeout + (sign if sign > start else start + START_SECONDS):
                    stalled.add(job.folder)
                    _kill_worker(worker)
            for future in done:
                job, worker = running.pop(future)
                unfinished.discard(job.folder)
                outcome = _read_outcome(future, job)
                if job.folder in stalled and isinstance(outcome, Failure):
                    outcome = Failure(job, f"it showed no sign of life for {timeout:g} seconds, and was ended.")
                if isinstance(future.exception(), BrokenExecutor):
                    worker.shutdown(wait=False)
                    worker = _start_worker(threads)
                idle.append(worker)
                if isinstance(outcome, Failure):
                    failed.add(job.folder)
                yield outcome
    finally:
        for worker in [*idle, *(worker for _, worker in running.values())]:
            worker.shutdown(wait=False, cancel_futures=True)
        if running:  # an interrupt, or a caller that wants no more
            for process in multiprocessing.active_children():
                process.kill()


def _kill_worker(worker: ProcessPoolExecutor) -> None:
    """End its process, which may be stopped and hear nothing less."""
    for process in (worker._processes or {}).values():
        process.kill()


def _start_worker(threads: int) -> ProcessPoolExecutor:
    """A process of its own: should it be killed, it takes no other run with it."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin_worker, initargs=(threads,))


def write_rows(runs: Sequence[Run], path: Path) -> None:
    """One CSV line per run: recipe, method, seed, every metric, seconds of training."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["recipe", "method", "seed", *names, "seconds"])
    for run, label in zip(runs, label_runs(runs), strict=True):
        metrics = [f"{run.metrics[name]:.6f}" if name in run.metrics else "" for name in names]
        writer.writerow([run.recipe["name"], label, run.seed, *metrics, run.summary["seconds"]])
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def _read_outcome(future: Future[None], job: Job) -> Run | Failure:
    try:
        future.result()
        return load_run(job.folder)
    except BrokenExecutor:
        return Failure(job, "its process was killed, perhaps for want of memory.")
    except Exception as error:  # whatever one run died of, the others continue
        return Failure(job, (str(error).strip().splitlines() or [type(error).__name__])[0])


def _begin_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the comparison
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Wait until the parent process is gone, however it went, and go too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def make_run(recipe_text: str, folder: Path, base: Path | None, trust_code: bool) -> None:
    """Train what a recipe, as TOML, says, in this process; ``base`` is the run whose trained model it takes over."""
    import tomllib

    from longtail.lab.training.loop import train

    recipe = parse_recipe(tomllib.loads(recipe_text))
    if base is not None and not (folder / CHECKPOINT).is_file():
        with lock_folder(folder):
            take_over(base, folder, recipe)
    train(recipe, folder, show_progress=False, trust_code=trust_code)


def take_over(base: Path, folder: Path, recipe: Recipe) -> None:
    """Start from the trained model of another run: its last checkpoint is at the end of its training.

    The runs may differ in the method, and in what only concerns the head of a second stage.
    """
    if base not in find_runs(base):
        raise FileNotFoundError(f"{base} is not complete, and this run takes over its model.")
    trained = parse_recipe(load_run(base).recipe)
    changed = [
        text
        for text in differences(trained, recipe.with_method(trained.method.name, trained.method.options))
        if not text.startswith("train.head_")
    ]
    if changed:
        raise ValueError(f"{base} holds a run of another recipe ({'; '.join(changed[:3])}); use another folder.")
    for name in ("metrics.jsonl", CHECKPOINT):
        with (base / name).open("rb") as original, replacing(folder / name) as copy:
            shutil.copyfileobj(original, copy)
