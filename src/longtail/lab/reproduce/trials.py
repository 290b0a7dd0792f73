"""Experiments that are trainings: make the runs, write their rows as they end, and then tables and pictures."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.lab.data.registry import load_data
from longtail.lab.reproduce._writing import csv_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, MissingRow, Outcome, Say, Summary
from longtail.lab.reproduce.figures import draw_figure
from longtail.lab.reproduce.ledger import POINT_COLUMNS, ROW_COLUMNS, Ledger, Line
from longtail.lab.reproduce.paper_tables import summarize_table, to_html, to_markdown
from longtail.lab.reproduce.study import (
    KEPT_EMBEDDINGS,
    Entry,
    Study,
    StudyOptions,
    choose_entries,
    choose_recipe,
    describe_protocol,
)
from longtail.lab.runs.folder import Run
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.comparison import Failure, Job, default_workers, run_jobs
from longtail.lab.training.epochs import plan_epochs
from longtail.lab.training.recipe import Recipe
from longtail.methods import get_method
from longtail.prior import ClassPrior

__all__ = ["Trial", "count_epochs", "make_experiment", "plan_trials", "run_study", "say_epochs", "write_study"]

SMALL_FIGURES = ("lines", "bars")
"""Kinds of figures whose points are kept beside the rows; those of clouds and densities are too many."""


Runner = Callable[[Sequence[Job], int, Callable[[Sequence[Job]], None]], Iterator[Run | Failure]]
"""``run_jobs``, or what does the same in another way."""


def run_study(study: Study, options: StudyOptions, folder: Path, say: Say, run_all: Runner = run_jobs) -> Outcome:
    """Make the trainings of the rows that are wanted, then summarize all rows that there are of this recipe.

    A row that the ledger has, and whose run is not at hand, is not trained again.
    """
    recipe = choose_recipe(options)
    entries = choose_entries(study.entries, options.rows)
    ledgers = _Ledgers(study, recipe, folder, options.record)
    planned = plan_trials(entries, recipe, range(options.seeds), Path(options.runs))
    trials = {trial.job.folder: trial for trial in _leave_out_held(planned, ledgers)}
    epochs = {path: count_epochs(trial.job.recipe) for path, trial in trials.items()}
    missing: list[MissingRow] = []
    done = 0

    def watch(running: Sequence[Job]) -> None:
        say(done, len(trials), " | ".join(say_epochs(job, epochs[job.folder]) for job in running))

    jobs = [trial.job for trial in trials.values()]
    if not all((job.folder / "summary.json").is_file() for job in jobs):
        load_data(recipe.data)  # where they are absent, that is said once, and not by every run
    for outcome in run_all(jobs, options.workers or default_workers(), watch):
        done += 1
        if isinstance(outcome, Failure):
            missing.append(MissingRow(outcome.job.name, outcome.reason))
            continue
        trial = trials[outcome.path]
        for entry in trial.entries:
            ledgers.put(entry, outcome, trial.job.recipe)
    say(len(trials), len(trials), "")
    lines = ledgers.read_rows()
    if not lines:
        return Outcome([], [], missing)
    summaries = [summary for table in study.tables for summary in summarize_table(lines, table)]
    summaries += study.conclude(lines)
    points = [*ledgers.read_points(), *(point for figure in study.figures for point in figure.locate(lines))]
    return Outcome(summaries, write_study(study, recipe, summaries, points, folder), missing)


def make_experiment(reference: str, options: type[StudyOptions], build_study: Callable[[Any], Study]) -> Experiment:
    """The experiment of a study that follows from its options."""

    def run(options: StudyOptions, folder: Path, say: Say) -> Outcome:
        return run_study(build_study(options), options, folder, say)

    return Experiment(reference, options, run)


@dataclass(frozen=True)
class Trial:
    """A run to make, and the rows that are measured of it."""

    job: Job
    entries: list[Entry]


def plan_trials(entries: Iterable[Entry], recipe: Recipe, seeds: Sequence[int], runs: Path) -> list[Trial]:
    """The runs that rows need: rows of one training share it."""
    trials: dict[Path, Trial] = {}
    for entry in entries:
        chosen = _keep_embeddings(entry.training.build(recipe))
        check_recipe(chosen)
        base = entry.training.base
        for seed in seeds:
            place, needed = (
                None if part is None else runs / recipe.name / part.name / f"seed-{seed}"
                for part in (entry.training, base)
            )
            assert place is not None
            if base is not None and needed is not None:
                first = _keep_embeddings(base.build(recipe)).with_seed(seed)
                trials.setdefault(needed, Trial(Job(first, needed), []))
            trials.setdefault(place, Trial(Job(chosen.with_seed(seed), place, needed), [])).entries.append(entry)
    return list(trials.values())


def _keep_embeddings(recipe: Recipe) -> Recipe:
    """The recipe with embeddings kept, where there is one label per sample."""
    if get_method(recipe.method.name).accepts_multilabel or recipe.train.save_embeddings:
        return recipe
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, save_embeddings=KEPT_EMBEDDINGS))


def _leave_out_held(planned: Sequence[Trial], ledgers: _Ledgers) -> list[Trial]:
    """The runs to make: those with rows that are not written, and what these take over."""
    wanted = [trial for trial in planned if trial.entries and not ledgers.hold(trial)]
    needed = {trial.job.needs for trial in wanted}
    return [trial for trial in planned if trial in wanted or trial.job.folder in needed]


def count_epochs(recipe: Recipe) -> int:
    """How many epochs a run has, over all its phases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what options mean for the data is not known here
        plan = get_method(recipe.method.name).plan(ClassPrior.from_counts([2, 1]), **recipe.method.options)
    return len(plan_epochs(plan.phases, recipe.train.epochs))


def say_epochs(job: Job, epochs: int) -> str:
    """Which run this is, and how far it is."""
    try:
        with (job.folder / "metrics.jsonl").open("rb") as file:
            done = sum(1 for _ in file)
    except OSError:
        done = 0
    return f"{job.name}, epoch {min(done + 1, epochs)} of {epochs}"


def write_study(
    study: Study, recipe: Recipe, summaries: Sequence[Summary], points: Sequence[Line], folder: Path
) -> list[Path]:
    """Tables as Markdown and CSV, and a page with the pictures; return their paths."""
    title = f"{study.title}: {recipe.name}"
    drawn = [(figure, draw_figure(figure, points)) for figure in study.figures]
    shown = [(figure, picture) for figure, picture in drawn if picture is not None]
    pictures = "".join(
        f"<h2>{figure.name}: {figure.title}</h2><p>{figure.note}</p>{text}"
        for (figure, _), text in zip(shown, plots(picture for _, picture in shown), strict=True)
    )
    tables = "\n\n".join(to_markdown(summary) for summary in summaries)
    contents = {f"{recipe.name}.md": f"# {title}\n\n{study.note}\n\n{tables}\n"}
    if summaries:
        contents[f"{recipe.name}.csv"] = csv_text(summaries[0].headings, summaries[0].rows)
    body = f"<p>{study.note}</p>{''.join(map(to_html, summaries))}{pictures}"
    contents[f"{recipe.name}.html"] = page(title, body)
    return write_files(folder, contents)


class _Ledgers:
    """Rows and points in the experiment's folder, and in the folder of records if there is one."""

    def __init__(self, study: Study, recipe: Recipe, folder: Path, record: str) -> None:
        self.recipe = recipe
        small = {figure.name for figure in study.figures if figure.kind in SMALL_FIGURES}
        places = [folder / "rows", *([Path(record, study.name.replace("-", "_"))] if record else [])]
        self.rows = [Ledger(place / f"{recipe.name}.csv", ROW_COLUMNS, ("table", "row", "seed")) for place in places]
        self.points = [
            Ledger(place / f"{recipe.name}_points.csv", POINT_COLUMNS, ("figure", "row", "seed")) for place in places
        ]
        self.kept_figures = [{figure.name for figure in study.figures}, *([small] if record else [])]
        self.order: dict[tuple[str, ...], int] = {
            (entry.table, entry.name): place for place, entry in enumerate(study.entries)
        }
        self.point_order: dict[tuple[str, ...], int] = {
            (figure.name, entry.name): place * len(study.entries) + number
            for place, figure in enumerate(study.figures)
            for number, entry in enumerate(study.entries)
        }

    def hold(self, trial: Trial) -> bool:
        """Whether all rows of a run are written and the run itself is not here."""
        if (trial.job.folder / "recipe.toml").is_file():
            return False
        seed = trial.job.recipe.train.seed
        return all(self.rows[-1].has(entry.table, entry.name, seed) for entry in trial.entries)

    def put(self, entry: Entry, run: Run, recipe: Recipe) -> None:
        """Write one row of a run, and its points."""
        shared = {"recipe": self.recipe.name, "row": entry.name, "seed": run.seed}
        about = {"table": entry.table, "note": entry.note, "protocol": describe_protocol(recipe)}
        measured = {**entry.measure(run), "seconds": float(run.summary["seconds"])}
        rows = [
            {**shared, **about, "quantity": name, "value": float(value), "paper": entry.reported.get(name, "")}
            for name, value in measured.items()
        ]
        points = [{**shared, **dataclasses.asdict(point)} for point in entry.locate(run)]
        for rows_of, points_of, kept in zip(self.rows, self.points, self.kept_figures, strict=True):
            rows_of.put(rows, self.order)
            points_of.put([point for point in points if point["figure"] in kept], self.point_order)

    def read_rows(self) -> list[Line]:
        """All rows that there are."""
        return self.rows[-1].read()

    def read_points(self) -> list[Line]:
        """All points that there are: those of this folder, or what was recorded of others."""
        own, recorded = (ledger.read() for ledger in (self.points[0], self.points[-1]))
        found = {(line["figure"], line["row"], line["seed"]) for line in own}
        return [*own, *(line for line in recorded if (line["figure"], line["row"], line["seed"]) not in found)]
