"""What an experiment of trainings is: rows of a paper's tables, points of its figures, what both are made from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from longtail._core.suggestions import suggest
from longtail.lab.reproduce.experiment import Summary, add_option
from longtail.lab.runs.folder import Run
from longtail.lab.training.comparison import name_folder
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe, parse_method, split_methods, with_settings

__all__ = [
    "DATA",
    "Entry",
    "Figure",
    "PaperTable",
    "Point",
    "Study",
    "StudyOptions",
    "Training",
    "choose_entries",
    "choose_recipe",
    "describe_protocol",
    "find_errors",
    "find_column",
    "locate_nothing",
    "measure_errors",
]

DATA = {
    "cifar10": ("cifar10_lt", "cifar10_lt_fast"),
    "cifar100": ("cifar100_lt", "cifar100_lt_fast"),
    "imagenet_lt": ("imagenet_lt", None),
    "inaturalist2018": ("inaturalist2018", None),
    "multimnist": ("multimnist", "multimnist_fast"),
}
"""Data of the papers -> the recipe with the paper's schedule, and the one with a short schedule."""

COLUMNS = ("cifar10", "cifar100", "imagenet_lt", "inaturalist2018")
"""Data that two papers have in their tables, in this order."""

KEPT_EMBEDDINGS = 2000
"""Of training and of test samples, in every run: experiments share runs, and some of them look at embeddings."""


@dataclass(frozen=True)
class StudyOptions:
    """How to run an experiment of trainings."""

    data: str = add_option("cifar10", f"{', '.join(DATA)}, or a recipe.")
    fast: bool = add_option(False, "A short one-cycle schedule in place of the paper's.")
    profile: str = add_option("exponential", "exponential or step, where the data are made long-tailed.")
    ratio: int = add_option(100, "Largest over smallest class count, where the data are made long-tailed.", minimum=1)
    epochs: int = add_option(0, "Length of training; 0: the recipe's.", minimum=0)
    seeds: int = add_option(1, "How many runs of each row, with seeds 0, 1, ...", minimum=1)
    rows: str = add_option("", "Rows to make, by name or method, with commas between them; default: all.")
    settings: tuple[str, ...] = add_option((), "A setting, such as train.batch_size=64.", flag="--set")
    workers: int = add_option(0, "Runs at a time; 0: as many as there are cores.", minimum=0)
    runs: str = add_option("runs/papers", "Folder of the trainings, which experiments share.")
    record: str = add_option("", "Folder to keep rows in besides, such as benchmarks/results/quality.")


@dataclass(frozen=True)
class Training:
    """A method with options, and settings in which it differs from the experiment's recipe."""

    method: str
    """As ``longtail compare --methods`` has it: ``elm(strength=0.1)``."""
    settings: tuple[str, ...] = ()
    base: Training | None = None
    """The training whose model it takes over in place of its own first stage."""

    @property
    def name(self) -> str:
        """For its folder."""
        if self.base is not None:
            return f"{self.base.name}+{Training(self.method, self.settings).name}"
        method = parse_method(self.method)
        changes = [re.sub(r"[^\w.=-]+", "_", re.sub(r"^[\w.]*\.", "", setting)) for setting in self.settings]
        return "+".join([name_folder(method.name, method.options), *changes])

    def build(self, recipe: Recipe) -> Recipe:
        """The recipe to train, for seed 0."""
        method = parse_method(self.method)
        changed = with_settings(recipe, self.settings) if self.settings else recipe
        return changed.with_method(method.name, changed.options_for(method.name) | dict(method.options))


@dataclass(frozen=True)
class Point:
    """A place in a figure."""

    figure: str
    x: float | str
    y: float
    panel: str = ""
    series: str = ""
    """What it belongs to; "": the row that it is of."""


def find_errors(metrics: Mapping[str, float]) -> dict[str, float]:
    """Balanced error, errors by group and calibration error in percent, from metrics of one label per sample."""
    groups = [name for name in ("head", "torso", "tail") if name in metrics]
    return {
        "balanced_error": 100 * (1 - metrics["balanced_accuracy"]),
        **{f"{name}_error": 100 * (1 - metrics[name]) for name in groups},
        "calibration_error": 100 * metrics["calibration_error"],
    }


def measure_errors(run: Run) -> dict[str, float]:
    """What is measured of a run with one label per sample."""
    return find_errors(run.metrics)


def locate_nothing(run: Run) -> list[Point]:
    """No points."""
    return []


@dataclass(frozen=True)
class Entry:
    """A row of a paper's table: what is trained, what is measured of it, and what the paper has."""

    table: str
    """Such as "Table 2"; "" for what only a figure shows."""
    name: str
    training: Training
    reported: Mapping[str, float] = field(default_factory=dict)
    """Quantity -> the paper's value."""
    note: str = ""
    """What sets the paper's value or ours apart."""
    measure: Callable[[Run], Mapping[str, float]] = measure_errors
    locate: Callable[[Run], Iterable[Point]] = locate_nothing
    """Its points in figures."""


@dataclass(frozen=True)
class PaperTable:
    """How a table is shown: which quantities, in which order of worth."""

    name: str
    title: str
    quantities: Mapping[str, str]
    """Quantity -> its heading; the first one has a table beside the paper's, the others are shown in another."""


@dataclass(frozen=True)
class Figure:
    """How the points of one figure are drawn."""

    name: str
    title: str
    x: str
    y: str
    kind: str = "lines"
    """"lines" and "bars" show means and deviations over seeds, "scatter" every point, "violins" their densities."""
    log_x: bool = False
    note: str = ""
    quantities: Mapping[str, str] = field(default_factory=dict)
    """Quantity -> its place on the x axis, for a figure of what rows have: then it needs no points."""
    table: str = ""
    """The rows of such a figure."""

    def locate(self, lines: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
        """Points from lines of rows."""
        return [
            {
                "figure": self.name,
                "panel": "",
                "row": line["row"],
                "seed": line["seed"],
                "series": "",
                "x": x,
                "y": line["value"],
            }
            for line in lines
            if line["table"] == self.table and (x := self.quantities.get(line["quantity"])) and line["value"]
        ]


@dataclass(frozen=True)
class Study:
    """All of one experiment."""

    name: str
    title: str
    entries: Sequence[Entry]
    tables: Sequence[PaperTable]
    figures: Sequence[Figure] = ()
    note: str = ""
    """What must be known to read the tables."""
    conclude: Callable[[Sequence[Mapping[str, str]]], list[Summary]] = lambda lines: []
    """Lines of all rows -> further tables."""


def find_column(options: StudyOptions) -> int | None:
    """Where published tables have the chosen data, made long-tailed as these are; None if nowhere.

    >>> find_column(StudyOptions(data="cifar100")), find_column(StudyOptions(ratio=10))
    (1, None)
    """
    is_published = options.data in COLUMNS and options.profile == "exponential" and options.ratio == 100
    return COLUMNS.index(options.data) if is_published else None


def choose_recipe(options: StudyOptions) -> Recipe:
    """The recipe of an experiment; its name says in what it differs from the one that it is made from."""
    slow, fast = DATA.get(options.data, (options.data, options.data))
    if options.fast and fast is None:
        raise ValueError(f"--fast: there is no short schedule for {options.data}; leave it out, or give --epochs.")
    recipe = load_recipe(find_recipe(str(fast) if options.fast else slow), options.settings)
    name, data, train = recipe.name, recipe.data, recipe.train
    if data.profile == "none":
        if options.profile != "exponential" or options.ratio != 100:
            raise ValueError(f"--profile and --ratio: {options.data} is long-tailed by itself; leave them out.")
    elif options.data in DATA:
        name += f"_{options.profile}" * (options.profile != data.profile)
        name += f"_ratio{options.ratio}" * (options.ratio != data.ratio)
        data = dataclasses.replace(data, profile=options.profile, ratio=float(options.ratio))
    if options.epochs and options.epochs != train.epochs:
        name += f"_{options.epochs}epochs"
        train = dataclasses.replace(train, epochs=options.epochs, evaluate_every=0)
    for setting in options.settings:
        name += "+" + re.sub(r"[^\w.]+", "-", re.sub(r"^[\w.]*\.", "", setting)).strip("-")
    return dataclasses.replace(recipe, name=name, data=data, train=train)


def choose_entries(entries: Sequence[Entry], wanted: str) -> list[Entry]:
    """The rows that were asked for, by their own name or by that of their method; "" is all of them."""
    named: dict[str, list[Entry]] = {}
    by_method: dict[str, list[Entry]] = {}
    for entry in entries:
        named.setdefault(_simplify(entry.name), []).append(entry)
        if not entry.training.settings and entry.training.base is None:
            method = entry.training.method
            for name in dict.fromkeys((method, parse_method(method).name)):
                by_method.setdefault(_simplify(name), []).append(entry)
    known = by_method | named  # a row that has the name of a method is that row alone
    chosen = set()
    for part in split_methods(wanted):
        if _simplify(part) not in known:
            raise ValueError(f"--rows: there is no row {part!r}; {suggest(part, [entry.name for entry in entries])}")
        chosen |= {id(entry) for entry in known[_simplify(part)]}
    return [entry for entry in entries if not chosen or id(entry) in chosen]


def describe_protocol(recipe: Recipe) -> str:
    """Model, length and schedule, in a few words."""
    train = recipe.train
    precision = "" if train.precision == "32-true" else f", {train.precision}"
    return f"{recipe.model.name}, {train.epochs} epochs, {train.schedule}{precision}"


def _simplify(name: str) -> str:
    """For comparing names that people type.

    >>> _simplify("Adaptive + DRW"), _simplify("elm(strength=0.1)")
    ('adaptive+drw', 'elm(strength=0.1)')
    """
    return re.sub(r"[\s_-]+", "", name).lower()
