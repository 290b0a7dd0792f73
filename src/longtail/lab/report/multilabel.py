"""A page about multi-label runs: what is ranked, told, tabulated and drawn."""

from __future__ import annotations

from longtail.lab.report.blocks import (
    Column,
    Section,
    arrange_figures,
    build_label_section,
    build_method_table,
    build_settings,
)
from longtail.lab.report.digests.labels import Labels
from longtail.lab.report.digests.multilabel import (
    MAIN_METRIC,
    MultilabelComparison,
    MultilabelDigest,
    MultilabelResults,
    digest_run,
)
from longtail.lab.report.figures import f1, masking_ratios, precision_recall, probabilities, training
from longtail.lab.training.label_metrics import rarest_sizes

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

MAIN_NAME = "mean F1"
MEANING = (
    "A label is predicted at a probability of at least 0.5. Precision, recall and F1 are means over classes with "
    "test samples; exact match: all labels of a sample are right; mAP: the mean average precision, without threshold."
)


def gather_runs(label: str, runs: tuple[MultilabelDigest, ...]) -> MultilabelResults:
    """The runs of one method."""
    return MultilabelResults(label, runs)


def list_columns(labels: Labels) -> list[Column]:
    """The columns of the table of methods."""
    rare = [
        Column(f"{key}_rarest_{size}", f"{name}, {size} rarest", f"{name}, {size} rarest", max)
        for key, name in (("recall", "recall"), ("f1", "F1"))
        for size in rarest_sizes(labels.num_classes)[:1]
    ]
    return [
        Column("f1", "F1", "F1", max),
        Column("precision", "precision", "precision", max),
        Column("recall", "recall", "recall", max),
        *rare,
        Column("exact_match", "exact match", "exact match", max),
        Column("mean_average_precision", "mAP", "mAP", max),
        Column("seconds", "time", "time"),
    ]


def find_changes(comparison: MultilabelComparison) -> dict[str, float]:
    """What the best method adds to both sides of its predictions, on the rarest classes and on all."""
    names = {"recall": "recall", "precision": "precision"}
    rare = {
        f"recall_rarest_{size}": f"recall of the {size} rarest classes"
        for size in rarest_sizes(comparison.labels.num_classes)[:1]
    }
    return {name: comparison.difference(key).mean for key, name in (rare | names).items()}


def describe_levels(comparison: MultilabelComparison) -> list[str]:
    """Nothing more of a method that is alone."""
    return []


def build_sections(comparison: MultilabelComparison) -> list[Section]:
    """The sections of the page."""
    by_frequency = (precision_recall.draw_recall(comparison), precision_recall.draw_precision(comparison))
    histograms = (probabilities.draw_probabilities(comparison, is_positive) for is_positive in (True, False))
    curves = (
        training.draw_loss(comparison),
        training.draw_f1_by_epoch(comparison),
        training.draw_learning_rate(comparison),
    )
    table = build_method_table(comparison, list_columns(comparison.labels), MEANING)
    return [
        Section("methods", "Methods", "Methods", [table]),
        Section("classes", "Recall and precision against frequency", "Classes", arrange_figures(*by_frequency)),
        Section("f1", "F1 of each class", "F1", arrange_figures(f1.draw_f1(comparison))),
        Section(
            "probabilities",
            "Predicted probabilities in head and tail",
            "Probabilities",
            arrange_figures(*histograms),
        ),
        Section(
            "ratios",
            "Ratios that labels are masked to",
            "Ratios",
            arrange_figures(masking_ratios.draw_masking_ratios(comparison)),
            is_wide=False,
        ),
        build_label_section(comparison),
        Section("training", "Training", "Training", arrange_figures(*curves)),
        Section("settings", "Recipe and environment", "Settings", [build_settings(comparison)]),
    ]
