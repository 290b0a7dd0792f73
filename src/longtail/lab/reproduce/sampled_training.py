"""Section 5.1 of Rawat et al. (2021), "Disentangling sampling and labeling bias": Figures 1 and 3 to 7.

Uniform and within-batch negatives with four weightings, beside the losses that use all labels: softmax cross-entropy
and logit adjustment, and the cosine contrastive loss. The paper shows errors by slice in figures without numbers, so
what it finds is told in words, and whether it is found here.

The paper trains a ResNet-56 on CIFAR-100 by SGD with momentum: ``--set model.name=resnet56``. The recipe's ResNet-32
shares its trainings with other papers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from longtail.lab.reproduce._schemes import DISTRIBUTIONS
from longtail.lab.reproduce.experiment import Summary
from longtail.lab.reproduce.explanation import TABLE_2
from longtail.lab.reproduce.study import (
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    locate_nothing,
    measure_errors,
)
from longtail.lab.runs.folder import Run
from longtail.lab.runs.statistics import estimate

__all__ = ["TABLES", "build_study", "check_findings"]

SOFTMAX, CONTRASTIVE, NUMBERS = "Figures 1 and 4", "Figures 3 and 5", "Figure 6"
"""Tables by the figures that they are the numbers of; on iNaturalist, Figure 7."""
GROUPS = {"head_error": "head", "torso_error": "torso", "tail_error": "tail"}


def build_study(options: StudyOptions, negatives: str = "") -> Study:
    """The rows of section 5.1; with several numbers of negatives, those of Figure 6 besides."""
    numbers = [int(part) for part in negatives.split(",") if part.strip()]
    numbers = numbers or [512 if options.data == "imagenet_lt" else 32]
    entries = [
        Entry(SOFTMAX, "cross-entropy", Training("cross_entropy")),
        Entry(SOFTMAX, "logit adjustment", Training("logit_adjusted")),
        *_plan_schemes(SOFTMAX, "sampled_softmax", numbers[0]),
        Entry(CONTRASTIVE, "contrastive", Training("cosine_contrastive")),
        *_plan_schemes(CONTRASTIVE, "sampled_contrastive", numbers[0]),
    ]
    for number in numbers if len(numbers) > 1 else ():
        entries += _plan_schemes(NUMBERS, "sampled_softmax", number, f" (m = {number})")
    title = "Disentangling sampling and labeling bias"
    note = f"Balanced error on the test set in percent, after the last epoch; m = {numbers[0]} negatives."
    return Study("sampling-bias", title, entries, TABLES, FIGURES, note, check_findings)


def _plan_schemes(table: str, method: str, number: int, suffix: str = "") -> list[Entry]:
    entries = []
    for sampling in DISTRIBUTIONS:
        for weighting in TABLE_2:
            options = f"distribution={sampling.replace('-', '_')},weighting={weighting},num_negatives={number}"
            name = f"{sampling} {weighting}"
            locate = partial(_locate_number, number=number, name=name) if suffix else locate_nothing
            training = Training(f"{method}({options})")
            entries.append(Entry(table, f"{name}{suffix}", training, measure=measure_errors, locate=locate))
    return entries


def _locate_number(run: Run, number: int, name: str) -> list[Point]:
    """Figure 6: errors by group against the number of negatives."""
    errors = measure_errors(run)
    found = {group: errors[key] for key, group in GROUPS.items() if key in errors}
    return [Point("Figure 6", number, value, panel=group, series=name) for group, value in found.items()]


QUANTITIES = {"balanced_error": "balanced error, %", **GROUPS}
TABLES = tuple(PaperTable(name, name, QUANTITIES) for name in (SOFTMAX, CONTRASTIVE, NUMBERS))
FIGURES = (
    *(
        Figure(number, title, "", "error, %", "bars", quantities=GROUPS, table=table)
        for number, title, table in (
            ("Figure 1", "errors by slice, softmax cross-entropy", SOFTMAX),
            ("Figure 3", "errors by slice, contrastive loss", CONTRASTIVE),
        )
    ),
    *(
        Figure(number, title, "", "error, %", "bars", quantities={"balanced_error": "all classes"}, table=table)
        for number, title, table in (
            ("Figure 4", "balanced error, softmax cross-entropy", SOFTMAX),
            ("Figure 5", "balanced error, contrastive loss", CONTRASTIVE),
        )
    ),
    Figure("Figure 6", "errors against the number of negatives", "m", "error, %", log_x=True),
)

Claim = tuple[str, str, str, str]
"""What the paper says; the row that it says is better, the row that it is better than, and at what."""
CLAIMS: Sequence[Claim] = (
    ("Within-batch, constant helps the tail", "within-batch constant", "cross-entropy", "tail_error"),
    (
        "Within-batch, constant beats relative on the tail",
        "within-batch constant",
        "within-batch relative",
        "tail_error",
    ),
    (
        "Within-batch, relative beats constant on the head",
        "within-batch relative",
        "within-batch constant",
        "head_error",
    ),
    ("Within-batch, constant improves on all labels", "within-batch constant", "cross-entropy", "balanced_error"),
    ("Tail weights help the tail, within-batch", "within-batch tail", "within-batch importance", "tail_error"),
    ("Tail weights help the tail, uniform", "uniform tail", "uniform importance", "tail_error"),
    ("Logit adjustment beats cross-entropy on the tail", "logit adjustment", "cross-entropy", "tail_error"),
    ("Logit adjustment beats what samples it", "logit adjustment", "uniform tail", "balanced_error"),
)


def check_findings(lines: Sequence[Mapping[str, str]]) -> list[Summary]:
    """What section 5.1 finds, and what is found here: the errors, and how often seeds agree."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for line in lines:
        if line["table"] == SOFTMAX and line["value"]:
            cells.setdefault((line["row"], line["quantity"]), {})[line["seed"]] = float(line["value"])
    rows = []
    for claim, better, worse, quantity in CLAIMS:
        low, high = cells.get((better, quantity), {}), cells.get((worse, quantity), {})
        seeds = sorted(low.keys() & high.keys())
        if seeds:
            found = estimate(low[seed] - high[seed] for seed in seeds)
            spread = f" ± {found.half_width:.2f}" if found.has_interval else ""
            agree = sum(low[seed] < high[seed] for seed in seeds)
            verdict = "yes" if found.mean < 0 and not found.high > 0 else "no" if found.mean > 0 else "not sure"
            rows.append(
                (claim, quantity.replace("_", " "), f"{found.mean:+.2f}{spread}", f"{agree} of {len(seeds)}", verdict)
            )
    headings = ("finding", "measured by", "difference", "seeds that agree", "found here")
    note = "Findings of section 5.1 with softmax cross-entropy; less error is better."
    return [Summary(headings, rows, note)] if rows else []
