"""Tables 1 and 3 to 6 of Duarte et al., "PLM: partial label masking for imbalanced multi-label classification".

Table 1 compares losses with and without masking on samples with two labels: imbalanced MultiMNIST, or pairs of the
digits that ship with scikit-learn. Tables 3 and 4 do so on CIFAR-10-LT and CIFAR-100-LT with one label per sample;
Tables 5 and 6 vary the rate and the initial ratio there.

"fit" is not in the paper: masking and plain training at several lengths and weight decays, with rate * epochs held at
the paper's 0.9, so that it can be seen how the gain depends on how well the network fits its training samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from longtail.lab.data.registry import load_data
from longtail.lab.report.text import class_name
from longtail.lab.reproduce.experiment import Summary, add_option
from longtail.lab.reproduce.logit_adjustment import CITED
from longtail.lab.reproduce.study import (
    DATA,
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    choose_recipe,
    locate_nothing,
)
from longtail.lab.reproduce.trials import make_experiment
from longtail.lab.runs.folder import Run
from longtail.lab.runs.statistics import estimate
from longtail.lab.training.recipe import Recipe
from longtail.masking import count_bins, positive_ratio
from longtail.metrics.classes import balanced_accuracy_from_counts, count_hits

__all__ = ["EXPERIMENT", "MULTILABEL", "REPORTED", "SINGLE_LABEL", "TABLES", "Options", "build_study"]

COLUMNS = (
    "precision",
    "recall",
    "recall_rarest_5",
    "recall_rarest_3",
    "f1",
    "f1_rarest_5",
    "f1_rarest_3",
    "exact_match",
)
"""The columns of Table 1."""

PLM = "partial_label_masking"
MULTILABEL = {
    "BCE": "binary_cross_entropy",
    "focal": "binary_focal",
    "BCE + CB": "class_balanced_binary",
    "BCE (undersampled)": "undersampled_binary",
    "PLM (BCE)": PLM,
    "PLM (focal)": f"{PLM}_focal",
    "PLM (BCE + CB)": f"{PLM}_class_balanced",
    "PLM (BCE, undersampled)": f"{PLM}_undersampled",
}
"""Rows of Table 1 -> methods."""
REPORTED = {
    "BCE": (86.96, 78.65, 63.39, 51.50, 80.35, 73.87, 65.73, 53.42),
    "focal": (86.75, 78.28, 62.53, 50.44, 79.93, 73.33, 64.88, 52.64),
    "BCE + CB": (85.86, 76.55, 61.02, 49.12, 78.05, 72.32, 63.81, 48.51),
    "BCE (undersampled)": (87.97, 79.00, 65.36, 54.16, 81.39, 75.57, 67.92, 54.46),
    "PLM (BCE)": (87.41, 81.55, 71.91, 65.31, 83.73, 79.17, 74.27, 56.95),
    "PLM (focal)": (87.50, 80.95, 70.27, 62.31, 83.22, 78.13, 72.61, 56.45),
    "PLM (BCE + CB)": (89.37, 75.24, 65.31, 56.25, 80.52, 75.64, 69.28, 49.95),
    "PLM (BCE, undersampled)": (88.54, 80.38, 71.29, 65.86, 83.56, 79.44, 75.10, 56.53),
}
"""Table 1, in percent, MultiMNIST."""

SINGLE_LABEL = {
    "BCE": "binary_cross_entropy",
    "focal": "binary_focal",
    "CB": "class_balanced",
    "LDAM-DRW": "ldam_drw",
    "PLM (BCE)": PLM,
    "PLM (focal)": f"{PLM}_focal",
}
"""Rows of Tables 3 and 4 -> methods."""
RATIOS = (200, 100, 50, 20, 10)
Errors = tuple[float | None, ...]
CIFAR_ERRORS: Mapping[str, Mapping[str, tuple[Errors, Errors]]] = {
    "cifar10": {
        "BCE": ((34.88, 29.43, 23.34, 16.37, 12.71), (55.84, 46.46, 35.52, 22.54, 15.98)),
        "focal": ((36.28, 29.69, 23.38, 16.53, 12.63), (58.80, 46.88, 35.22, 23.00, 16.74)),
        "CB": ((31.11, 25.43, 20.73, 15.64, 12.51), (None,) * 5),
        "LDAM-DRW": ((None, 22.97, None, None, 11.84), (None,) * 5),
        "PLM (BCE)": ((29.67, 24.86, 20.50, 15.21, 12.35), (44.65, 36.05, 28.66, 19.92, 14.98)),
        "PLM (focal)": ((29.79, 25.19, 20.19, 15.21, 12.20), (44.54, 36.53, 27.94, 19.60, 14.60)),
    },
    "cifar100": {
        "BCE": ((63.92, 59.88, 55.25, 48.66, 43.35), (86.10, 79.18, 72.84, 59.98, 52.12)),
        "focal": ((64.67, 60.04, 55.71, 48.62, 43.04), (87.84, 81.62, 74.60, 63.86, 53.74)),
        "CB": ((63.77, 60.40, 54.68, 47.41, 42.01), (None,) * 5),
        "LDAM-DRW": ((None, 57.96, None, None, 41.29), (None,) * 5),
        "PLM (BCE)": ((61.37, 55.98, 52.49, 46.15, 41.71), (80.79, 73.14, 67.07, 57.26, 49.78)),
        "PLM (focal)": ((61.68, 56.19, 52.09, 46.11, 41.54), (79.43, 72.39, 65.39, 56.28, 48.83)),
    },
}
"""Tables 3 and 4: error in percent of all classes, and of the 5 or 50 rarest, by ``RATIOS``."""
CIFAR_TABLES = {"cifar10": "Table 3", "cifar100": "Table 4"}
CIFAR_RATES = {"cifar10": 1.0, "cifar100": 0.01}
"""The paper's rates."""

RATES = {1.0: (24.86, 56.92), 0.1: (25.08, 57.67), 0.01: (25.64, 55.98), 0.0: (29.43, 59.88)}
"""Table 5: rate -> error on CIFAR-10-LT and CIFAR-100-LT at a ratio of 100. A rate of 0 is binary cross-entropy."""
INITIAL_RATIOS = {"min": (28.82, 73.46), "max": (30.74, 56.73), "mean": (25.65, 56.08), "data": (24.86, 55.98)}
"""Table 6: initial ratio -> error on these, at the paper's rates."""

UNDERSAMPLED_SHARE = 19
"""The reference draws 500 samples per class, a 19th of those of its most frequent one."""

RATE_TIMES_EPOCHS = 0.9
"""0.01 over 90 epochs."""
FIT_EPOCHS = (12, 16, 30, 90)
FIT_DECAYS = (1e-4, 5e-4, 2e-3)
WARMUP_SHARE = 5 / 90
NUM_BINS = 10


@dataclass(frozen=True)
class Options(StudyOptions):
    """How to run the experiment."""

    data: str = add_option("two_digits", f"{', '.join(DATA)}, or a recipe; multi-label data for Table 1.")
    tables: str = add_option("", "Tables with commas between them: 1, 3, 4, 5, 6 or fit; default: all but fit.")
    rate: float = add_option(0.0, "How fast ratios adapt; 0: the recipe's, or the paper's for CIFAR.")
    seeds: int = add_option(3, "How many runs of each row, with seeds 0, 1, ...", minimum=1)


def measure_scores(run: Run) -> dict[str, float]:
    """What is measured of multi-label runs, in percent, and how well they fit."""
    scores = {name: 100 * run.metrics[name] for name in COLUMNS if name in run.metrics}
    return {**scores, **measure_fit(run)}


def measure_fit(run: Run) -> dict[str, float]:
    """The last training loss; how far the ratio of the most frequent class fell, and that of the rarest one rose."""
    found = {"train_loss": float(run.history[-1]["train_loss"])}
    ratios = run.history[-1].get("positive_ratios")
    if ratios is not None:
        initial, counts = find_initial_ratios(run), run.predictions.train_counts
        frequent, rare = int(counts.argmax()), int(counts.argmin())
        found |= {"ratio_down": initial[frequent] / ratios[frequent], "ratio_up": ratios[rare] / initial[rare]}
    return found


def find_initial_ratios(run: Run) -> list[float]:
    """The ratios before the first epoch."""
    data = positive_ratio(run.predictions.prior)
    named = {"data": data, "mean": data.mean(), "min": data.min(), "max": data.max()}
    ratios: list[float] = named[str(run.summary["options"].get("initial", "data"))].expand_as(data).tolist()
    return ratios


def measure_rare_errors(run: Run, size: int) -> dict[str, float]:
    """Errors of all classes and of the rarest ones, in percent."""
    predictions = run.predictions
    hits, counts = count_hits(torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels))
    rare = predictions.prior.rarest(min(size, predictions.prior.num_classes))
    return {
        "error": 100 * (1 - run.metrics["accuracy"]),
        "error_rarest": 100 * (1 - float(balanced_accuracy_from_counts(hits[rare], counts[rare]))),
        **measure_fit(run),
    }


def locate_ratios(run: Run, name: str) -> Iterator[Point]:
    """Figure 2: the ratio of the three most frequent and the three rarest classes, from the initial one on."""
    history = [find_initial_ratios(run)]
    history += [row["positive_ratios"] for row in run.history if "positive_ratios" in row]
    order = np.argsort(-run.predictions.train_counts, kind="stable")
    for c in dict.fromkeys([*order[:3], *order[-3:]]) if len(history) > 1 else ():
        shown = class_name(run.predictions.class_names[c])
        for epoch, ratios in enumerate(history):
            if ratios[c] is not None:
                yield Point("Figure 2", epoch, ratios[c], panel=name, series=shown)


def locate_probabilities(run: Run) -> Iterator[Point]:
    """Figures 1 and 7: how probabilities of the test set spread, of positives and negatives of two kinds of class."""
    predictions = run.predictions
    probs = torch.from_numpy(predictions.logits).sigmoid()
    labels = torch.from_numpy(predictions.labels)
    target = labels if labels.ndim == 2 else torch.nn.functional.one_hot(labels, probs.shape[1])
    histogram = count_bins(probs, target.bool(), NUM_BINS).double()
    order = np.argsort(-predictions.train_counts, kind="stable")
    for kind, classes in (("frequent", order[:3]), ("rare", order[-3:])):
        for sign, counts in (("negatives", histogram[0]), ("positives", histogram[1])):
            shares = counts[torch.from_numpy(classes.copy())].sum(0)
            shares = shares / shares.sum().clamp_min(1)
            for place, share in enumerate(shares.tolist()):
                yield Point("Figure 7", (place + 0.5) / NUM_BINS, share, panel=f"{sign} of {kind} classes")


def locate_accuracies(run: Run) -> Iterator[Point]:
    """Figure 3: the accuracy of each class, most frequent first."""
    labels = torch.from_numpy(run.predictions.labels)
    if labels.ndim == 1:
        hits, counts = count_hits(torch.from_numpy(run.predictions.scores), labels)
        order = np.argsort(-run.predictions.train_counts, kind="stable")
        yield from (Point("Figure 3", rank, 100 * float(hits[c] / counts[c])) for rank, c in enumerate(order))


def _locate_all(run: Run, name: str) -> Iterator[Point]:
    yield from locate_ratios(run, name)
    yield from locate_probabilities(run)
    yield from locate_accuracies(run)


def plan_losses(recipe: Recipe, rate: float) -> list[Entry]:
    """Table 1: every loss on multi-label data. Masking is set as in the recipe's method."""
    is_published = recipe.data.source == "multimnist"
    per_class = max(1, int(load_data(recipe.data).prior.counts.max()) // UNDERSAMPLED_SHARE)
    entries = []
    for name, method in MULTILABEL.items():
        options = dict(recipe.method.options) if name.startswith("PLM") and recipe.method.name == PLM else {}
        options |= {"rate": rate} if rate and name.startswith("PLM") else {}
        options |= {"per_class": per_class} if "undersampled" in name else {}
        reported = dict(zip(COLUMNS, REPORTED[name], strict=True)) if is_published else {}
        training, locate = Training(_write_method(method, options)), partial(_locate_all, name=name)
        entries.append(Entry("Table 1", name, training, reported, measure=measure_scores, locate=locate))
    return entries


def plan_cifar(options: Options, recipe: Recipe) -> list[Entry]:
    """Tables 3 to 6: one label per sample. Tables 3 and 4 have the name of their data."""
    data = options.data if options.data in CIFAR_TABLES else ""
    rate = options.rate or CIFAR_RATES.get(data, 1.0)
    is_published = bool(data) and options.profile == "exponential" and options.ratio in RATIOS
    size = 50 if data == "cifar100" else 5
    measure = partial(measure_rare_errors, size=size)
    entries = []
    for name, method in SINGLE_LABEL.items():
        training = Training(_write_method(method, {"rate": rate} if name.startswith("PLM") else {}))
        reported = {}
        if is_published:
            pairs = zip(("error", "error_rarest"), CIFAR_ERRORS[data][name], strict=True)
            column = RATIOS.index(options.ratio)
            reported = {quantity: value for quantity, errors in pairs if (value := errors[column]) is not None}
        note = {"CB": CITED["Class-balanced"], "LDAM-DRW": CITED["Adaptive + DRW"]}.get(name, "")
        locate = partial(_locate_all, name=name) if name in ("BCE", "PLM (BCE)") else locate_nothing
        table = CIFAR_TABLES.get(data, "Table 3")
        entries.append(Entry(table, name, training, reported, note, measure, locate))
    place = {"cifar10": 0, "cifar100": 1}.get(data) if options.ratio == 100 and is_published else None
    cells: list[tuple[str, str, dict[str, Any], Sequence[float]]] = [
        ("Table 5", f"rate {rate:g}", {"rate": rate}, errors) for rate, errors in RATES.items()
    ]
    cells += [
        ("Table 6", f"initial {start}", {"rate": rate, "initial": start}, errors)
        for start, errors in INITIAL_RATIOS.items()
    ]
    for table, name, chosen, errors in cells:
        reported = {} if place is None else {"error": errors[place]}
        entries.append(Entry(table, name, Training(_write_method(PLM, chosen)), reported, measure=measure))
    return entries


def plan_fit(recipe: Recipe) -> list[Entry]:
    """Lengths and weight decays with the same rate * epochs, with and without masking."""
    entries = []
    for epochs in FIT_EPOCHS:
        for decay in FIT_DECAYS:
            settings = (
                f"train.epochs={epochs}",
                f"train.weight_decay={decay}",
                f"train.warmup_epochs={round(WARMUP_SHARE * epochs, 4)}",
                "train.evaluate_every=0",
            )
            for name, method in (("BCE", "binary_cross_entropy"), ("PLM", PLM)):
                chosen = {"rate": round(RATE_TIMES_EPOCHS / epochs, 6)} if name == "PLM" else {}
                training = Training(_write_method(method, chosen), settings)
                row = f"{name} ({epochs} epochs, decay {decay:g})"
                reported = dict(zip(COLUMNS, REPORTED["BCE" if name == "BCE" else "PLM (BCE)"], strict=True))
                entries.append(Entry("fit", row, training, reported, measure=measure_scores))
    return entries


def conclude_fit(lines: Sequence[Mapping[str, str]]) -> list[Summary]:
    """What masking gains at each length and weight decay, beside how well plain training fits."""
    cells: dict[tuple[str, str, str], list[float]] = {}
    for line in lines:
        if line["table"] == "fit":
            name, _, setting = line["row"].partition(" (")
            cells.setdefault((setting.rstrip(")"), name, line["quantity"]), []).append(float(line["value"]))
    rows = []
    for setting in dict.fromkeys(setting for setting, _, _ in cells):
        means = {key[1:]: estimate(values).mean for key, values in cells.items() if key[0] == setting}
        gains = [
            means.get(("PLM", name), np.nan) - means.get(("BCE", name), np.nan)
            for name in ("recall_rarest_3", "f1_rarest_3")
        ]
        others = [("BCE", "train_loss"), ("PLM", "train_loss"), ("PLM", "ratio_down"), ("PLM", "ratio_up")]
        numbers = [f"{gain:+.2f}" for gain in gains] + [f"{means.get(key, np.nan):.3g}" for key in others]
        rows.append((setting, *(number.replace("+nan", "").replace("nan", "") for number in numbers)))
    headings = ("setting", "recall gain", "F1 gain", "loss of BCE", "loss of PLM", "ratio down", "ratio up")
    note = (
        "Gain of masking on the three rarest, in points, at a rate of 0.9 / epochs; the paper gains 13.81 and 8.54, "
        "with ratios 7.58 times down and 6.54 times up."
    )
    return [Summary(headings, rows, note)] if rows else []


def _write_method(name: str, options: Mapping[str, Any]) -> str:
    shown = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}({shown})" if shown else name


def build_study(options: Options) -> Study:
    """The rows of the chosen tables for the chosen data."""
    recipe = choose_recipe(options)
    is_multilabel = recipe.data.source in ("multimnist", "two_digits", "annotated_images", "reuters90", "delicious")
    possible: dict[str, Callable[[], list[Entry]]] = (
        {"1": lambda: plan_losses(recipe, options.rate), "fit": lambda: plan_fit(recipe)}
        if is_multilabel
        else {number: lambda: plan_cifar(options, recipe) for number in _list_single_label_tables(options)}
    )
    chosen = [part.strip() for part in options.tables.split(",") if part.strip()]
    for name in chosen:
        if name not in possible:
            raise ValueError(f"--tables must be of {', '.join(possible)} for these data. Got {name!r}.")
    wanted = chosen or [name for name in possible if name != "fit"]
    entries = [entry for name in wanted for entry in possible[name]() if entry.table in (name, f"Table {name}")]
    return Study("plm", "Partial label masking", entries, TABLES, FIGURES, NOTE, conclude_fit)


def _list_single_label_tables(options: Options) -> tuple[str, str, str]:
    return "4" if options.data == "cifar100" else "3", "5", "6"


SCORES = {
    "recall_rarest_3": "recall, 3 rarest",
    "f1_rarest_3": "F1, 3 rarest",
    "precision": "precision",
    "recall": "recall",
    "recall_rarest_5": "recall, 5 rarest",
    "f1": "F1",
    "f1_rarest_5": "F1, 5 rarest",
    "exact_match": "exact match",
    "train_loss": "training loss",
    "ratio_down": "ratio down",
    "ratio_up": "ratio up",
}
ERRORS = {"error": "error, %", "error_rarest": "error of the rarest half, %", "train_loss": "training loss"}
TABLES = (
    PaperTable("Table 1", "Table 1", SCORES),
    *(PaperTable(f"Table {number}", f"Table {number}", ERRORS) for number in (3, 4, 5, 6)),
    PaperTable("fit", "Table 1 at other lengths and weight decays", SCORES),
)
FIGURES = (
    Figure("Figure 2", "the ratio over time", "epoch", "positives / negatives", note="From the initial ratio on."),
    Figure("Figure 3", "accuracy of each class", "classes, most frequent first", "accuracy, %"),
    Figure(
        "Figure 7",
        "probabilities of the test set",
        "probability",
        "share",
        note="Of the three most frequent and the three rarest classes; Figure 1 draws the same for single classes.",
    ),
)
NOTE = (
    "Percent on the test set, after the last epoch; scores of multi-label data at a probability of 0.5. The paper "
    "trains MultiMNIST over 90 epochs."
)


EXPERIMENT = make_experiment(
    'Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification", Tables 1, 3-6.',
    Options,
    build_study,
)
