"""A page about runs with one label per sample: what is ranked, told, tabulated and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from longtail.lab.report.blocks import (
    Block,
    Column,
    Heading,
    Paragraph,
    Section,
    TableBlock,
    arrange_figures,
    build_label_section,
    build_method_table,
    build_settings,
)
from longtail.lab.report.digests.embeddings import SCALES
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.digests.single_label import (
    MAIN_METRIC,
    TAUS,
    Confusion,
    SingleLabelComparison,
    SingleLabelDigest,
    SingleLabelResults,
    digest_run,
    find_changed_classes,
    find_plain,
)
from longtail.lab.report.figures import (
    calibration,
    embeddings,
    groups,
    margins,
    norms,
    per_class,
    sample_rates,
    tau,
    training,
)
from longtail.lab.report.figures.drawing import Series, Table, pair_series
from longtail.lab.report.text import class_name, clean, count, join_words, percent, points

__all__ = [
    "MAIN_METRIC",
    "MAIN_NAME",
    "build_sections",
    "describe_levels",
    "digest_run",
    "find_changes",
    "gather_runs",
    "list_columns",
]

MAIN_NAME = "balanced accuracy"

TAU_WARNING = Markup(
    "Plain cross-entropy, with its stored logits adjusted by <code>adjust_logits</code>. <strong>Measured on the "
    "test set, for analysis only</strong>: choose tau on held-out data, or take tau = 1."
)
TRAINING_NOTE = "Losses of different methods are on different scales: compare their shape, not their height."
DISTANCE_NOTE = (
    "How far the farthest sample of the same class is, on three scales. What shrinks all embeddings lowers the "
    "first, what moves them away from the origin the second; only the third says how compact classes are against "
    "what separates them."
)
EXPERTS_NOTE = (
    "Each expert alone after the last epoch. Their mean is right for the mean of their margins as far as each is "
    "calibrated for its own."
)
CONFUSION_NOTE = "Over all seeds; pairs of few samples rank lower. In brackets: training samples of the class."


@dataclass(frozen=True)
class ConfusionRow:
    """A class, and what it is taken for."""

    true: str
    true_count: str
    predicted: str
    predicted_count: str
    share: float
    percent: str
    samples: str


@dataclass(frozen=True)
class ConfusionTable:
    """The largest confusions of a method."""

    series: Series
    rows: Sequence[ConfusionRow]


@dataclass(frozen=True)
class ConfusionTables:
    """Of the reference and the best in full view, of other methods folded."""

    template: ClassVar[str] = "confusion_tables"
    open: Sequence[ConfusionTable]
    folded: Sequence[ConfusionTable]


def gather_runs(label: str, runs: tuple[SingleLabelDigest, ...]) -> SingleLabelResults:
    """The runs of one method."""
    return SingleLabelResults(label, runs)


def list_columns(labels: Labels) -> list[Column]:
    """The columns of the table of methods."""
    return [
        Column("balanced_accuracy", "balanced accuracy", "balanced", max),
        *(Column(group.key, group.name, group.name, max) for group in labels.groups.values()),
        Column("accuracy", "accuracy", "accuracy", max),
        Column("calibration_error", "calibration error", "calibration", min),
        Column("seconds", "time", "time"),
    ]


def find_changes(comparison: SingleLabelComparison) -> dict[str, float]:
    """What the best method adds to every group, against the reference: rarest first."""
    groups = reversed([*comparison.labels.groups.items()])
    return {group.name: comparison.difference(key).mean for key, group in groups}


def describe_levels(comparison: SingleLabelComparison) -> list[str]:
    """Where the only method is, by group, and what adjusting its logits would give."""
    found = {group.place: comparison.best.metric(key).mean for key, group in comparison.labels.groups.items()}
    levels = [f"{percent(level)} {place}" for place, level in found.items() if math.isfinite(level)]
    sentences = [f"Mean accuracy is {join_words(levels)}."] if len(levels) > 1 else []
    plain = find_plain(comparison)
    curve = plain.tau_metric(MAIN_METRIC) if plain else None
    if curve:
        at_one = curve[int(abs(TAUS - 1).argmin())].mean
        gain = points(at_one - curve[0].mean)
        sentences.append(
            f"Adjusting the logits after training, with tau = 1, gives {percent(at_one)} ({gain} points)."
        )
    return sentences


def build_sections(comparison: SingleLabelComparison) -> list[Section]:
    """The sections of the page."""
    data = comparison.labels
    is_named = data.has_named_groups
    parts = "the accuracy of each class is beside it" if is_named else "head, torso and tail are its parts"
    meaning = f"Balanced accuracy is the mean over classes; {parts}. {data.define_groups()}".rstrip()
    table = build_method_table(comparison, list_columns(data), meaning)
    group_title = "Each class" if is_named else "Head, torso and tail"
    # Classes that are named have their accuracy beside each other already.
    accuracy: list[Block] = []
    if not is_named:
        accuracy = [*arrange_figures(per_class.draw_class_accuracy(comparison)), *_build_changes(comparison)]
    tau_curve = arrange_figures(tau.draw_tau(comparison))
    rates = (sample_rates.draw_sample_rates(comparison), sample_rates.draw_sample_rate_variance(comparison))
    return [
        Section("methods", "Methods", "Methods", [table]),
        Section("experts", "Experts", "Experts", _build_experts(comparison)),
        Section("groups", group_title, "Groups", arrange_figures(groups.draw_groups(comparison)), is_wide=False),
        build_label_section(comparison),
        Section("classes", "Accuracy of each class against its frequency", "Classes", accuracy),
        Section(
            "adjustment",
            "Adjusting the logits after training",
            "Tau",
            [Paragraph(TAU_WARNING), *tau_curve] if tau_curve else [],
            is_wide=False,
        ),
        Section(
            "calibration",
            "Calibration",
            "Calibration",
            arrange_figures(calibration.draw_calibration(comparison)),
            is_wide=False,
        ),
        Section(
            "margins", "Logit margins", "Margins", arrange_figures(margins.draw_margins(comparison)), is_wide=False
        ),
        Section(
            "norms",
            "Norms of the class vectors",
            "Norms",
            arrange_figures(norms.draw_norms(comparison)),
            is_wide=False,
        ),
        Section("embeddings", "Embeddings and margins", "Embeddings", _build_embeddings(comparison)),
        Section("rates", "Learned sample rates", "Rates", arrange_figures(*rates)),
        Section("confusions", "The worst confusions", "Confusions", _build_confusions(comparison)),
        Section("training", "Training", "Training", _build_training(comparison)),
        Section("settings", "Recipe and environment", "Settings", [build_settings(comparison)]),
    ]


def _build_experts(comparison: SingleLabelComparison) -> list[Block]:
    """Each expert alone, as it was measured last."""
    groups = comparison.labels.groups.values()
    rows = [
        (
            f"{clean(method.label)}, seed {run.seed}",
            str(number + 1),
            *(percent(expert.get(key, math.nan)) for key in (MAIN_METRIC, *(group.key for group in groups))),
            percent(expert.get("calibration_error", math.nan)),
        )
        for method in comparison.methods
        for run in method.runs
        for number, expert in enumerate((run.history[-1] if run.history else {}).get("experts", ()))
    ]
    if not rows:
        return []
    header = ("method", "expert", MAIN_NAME, *(group.name for group in groups), "calibration error")
    return [Paragraph(EXPERTS_NOTE), TableBlock(Table(header, rows), "Experts", most=80)]


def _build_training(comparison: SingleLabelComparison) -> list[Block]:
    curves = (
        training.draw_loss(comparison),
        training.draw_accuracy(comparison),
        training.draw_learning_rate(comparison),
    )
    panels = arrange_figures(*curves)
    note: list[Block] = [Paragraph(TRAINING_NOTE)] if panels and len(comparison.methods) > 1 else []
    return [*note, *panels]


def _build_embeddings(comparison: SingleLabelComparison) -> list[Block]:
    if not any(method.embeddings for method in comparison.methods):
        return []
    groups = comparison.labels.groups.values()
    distances = [embeddings.draw_distances(comparison, scale) for scale in SCALES]
    parts: dict[str, list[Block]] = {
        "Share of samples up to a margin": arrange_figures(
            *(margins.draw_margin_shares(comparison, group) for group in groups)
        ),
        "Distances within a class": [Paragraph(DISTANCE_NOTE), *arrange_figures(*distances)],
        "Other heads, and the variance of classes": arrange_figures(
            embeddings.draw_other_heads(comparison), embeddings.draw_variance_bound(comparison)
        ),
        "Maps": arrange_figures(*embeddings.draw_maps(comparison)),
    }
    return [block for title, blocks in parts.items() if blocks for block in (Heading(title), *blocks)]


def _build_changes(comparison: SingleLabelComparison) -> list[Block]:
    """The classes on which the best method differs most from the reference."""
    classes, reference = find_changed_classes(comparison), comparison.reference
    if not classes or reference is None:
        return []
    data = comparison.labels
    before, after = reference.class_accuracy(), comparison.best.class_accuracy()
    rows = [
        (
            f"{class_name(data.names[index])} ({count(data.counts[index])})",
            f"{percent(before[index])} → {percent(after[index])}",
            points(after[index] - before[index]),
        )
        for index in classes
    ]
    table = Table(("class (training samples)", "accuracy", "points"), rows)
    title = f"Classes that change most from {clean(reference.label)} to {clean(comparison.best.label)}"
    return [Heading(title), TableBlock(table, "Classes that change most", most=80)]


def _build_confusions(comparison: SingleLabelComparison) -> list[Block]:
    """The largest confusions of every method."""
    chosen = (comparison.best, comparison.reference)
    shown: list[ConfusionTable] = []
    folded: list[ConfusionTable] = []
    for series, method in pair_series(comparison):
        table = ConfusionTable(
            series, [_build_confusion(comparison.labels, one) for one in method.worst_confusions()]
        )
        (shown if method in chosen else folded).append(table)
    return [Paragraph(CONFUSION_NOTE), ConfusionTables(shown, folded)]


def _build_confusion(labels: Labels, one: Confusion) -> ConfusionRow:
    names = [class_name(labels.names[index]) for index in (one.true, one.predicted)]
    counts = [count(labels.counts[index]) for index in (one.true, one.predicted)]
    samples = f"{count(one.samples)} of {count(one.of)}"
    return ConfusionRow(names[0], counts[0], names[1], counts[1], one.share, percent(one.share), samples)
