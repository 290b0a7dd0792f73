"""What ``longtail reproduce`` prints: tables of results that others computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from longtail.lab.cli._console import make_table

if TYPE_CHECKING:  # for annotations alone: a screen should not import what another one needs
    from longtail.lab.report.digest import Estimate
    from longtail.lab.reproduce import delicious, gowalla
    from longtail.lab.reproduce.balms import Heads, RateRun
    from longtail.lab.reproduce.elm import Result
    from longtail.lab.reproduce.gaussians import Summary
    from longtail.lab.reproduce.moons import Trial as MoonsTrial
    from longtail.lab.reproduce.plm import Outcome
    from longtail.lab.reproduce.sampling_bias import Scheme

__all__ = [
    "compactness",
    "decision_areas",
    "elm_rows",
    "gaussian_errors",
    "learned_rates",
    "masked_losses",
    "masking_settings",
    "recommendation",
    "retrieval",
    "sampling_bias",
]


def gaussian_errors(summary: Summary) -> RenderableType:
    """Mean balanced errors with standard errors."""
    from longtail.lab.reproduce.gaussians import BAYES_ERROR

    table = make_table("method", "balanced error", "± standard error")
    for name, (mean, error) in summary.errors.items():
        table.add_row(name, f"{mean:.2%}", f"{error:.2%}")
    note = f"Means over {summary.num_trials} trials; post-hoc methods at tau = 1. Bayes in theory: {BAYES_ERROR:.2%}."
    return Group(table, Text(note, "dim"))


def learned_rates(runs: Sequence[RateRun]) -> RenderableType:
    """How far apart the learned sample rates are, for each loss."""
    from longtail.lab.reproduce.balms import REFERENCE_VARIANCE, mean_variance

    table = make_table("method", "variance", "in the paper", "sample rates", "balanced accuracy")
    for loss, reference in REFERENCE_VARIANCE.items():
        members = [run for run in runs if run.loss == loss]
        last = [rate for run in members for rate in run.rates[-1]]
        accuracy = sum(run.balanced_accuracy for run in members) / len(members)
        spread = f"{min(last):.2f} to {max(last):.2f}"
        table.add_row(loss, f"{mean_variance(runs, loss):.3f}", f"{reference}", spread, f"{accuracy:.1%}")
    note = f"Runs of each: {len(runs) // len(REFERENCE_VARIANCE)}. The paper's are of CIFAR-100-LT with ratio 200."
    return Group(table, Text(note, "dim"))


def compactness(trials: Sequence[MoonsTrial]) -> RenderableType:
    """How far apart the samples of a class are, against logit adjustment, in three measures."""
    from longtail.lab.reproduce.moons import CLASSES, MEASURES, VARIANTS, mean_accuracy, ratio

    places = [(split, name) for split in ("train", "test") for name in CLASSES]
    table = make_table("method", "balanced accuracy", *(f"{name}, {split}" for split, name in places))
    for variant in VARIANTS:
        cells = (" / ".join(f"{ratio(trials, variant, (*place, m)):.2f}" for m in MEASURES) for place in places)
        table.add_row(variant, f"{mean_accuracy(trials, variant):.1%}", *cells)
    note = (
        "Largest distance inside a class over that of logit adjustment, medians over "
        f"{len(trials) // len(VARIANTS)} seeds: as it is / by the largest norm / by the distance of class means."
    )
    return Group(table, Text(note, "dim"))


def decision_areas(heads: Heads) -> RenderableType:
    """How much of the plane the classes of 10,000, 100 and 1 samples get, over iterations."""
    from longtail.lab.reproduce.balms import ITERATIONS, area_shares

    table = make_table("method", *(f"{iteration:,}" for iteration in ITERATIONS))
    for name, found in heads.items():
        cells = ("/".join(f"{100 * share:.0f}" for share in area_shares(head)) for head in found.values())
        table.add_row(name, *cells)
    note = "Percent of the plane for the classes of 10,000, 100 and 1 samples after so many iterations."
    return Group(Text(), table, Text(note, "dim"))


def elm_rows(rows: Mapping[str, Sequence[Result]]) -> RenderableType:
    """Table 2 of ELM: accuracy, and how compact rare classes are on the test set."""
    from longtail.lab.reproduce.elm import groups_with_classes, measured

    groups = groups_with_classes(rows["CE"])
    rarest = groups[-1]
    shares = (*groups, "nearest_mean")
    distances = (f"{rarest}_distance_by_norm", f"{rarest}_distance_by_class_means")
    table = make_table("method", "balanced", *groups, "means", "/ norm", "/ means")
    for label, found in rows.items():
        balanced = measured(found, "balanced_accuracy")
        spread = f" ± {100 * balanced.half_width:.1f}" if balanced.has_interval else ""
        table.add_row(
            label,
            f"{100 * balanced.mean:.1f}{spread}",
            *(f"{100 * measured(found, name).mean:.1f}" for name in shares),
            *(f"{measured(found, name).mean:.2f}" for name in distances),
        )
    seeds = max(map(len, rows.values()))
    note = (
        f"Accuracy on the test set in percent, of {seeds} seed{'s' * (seeds > 1)}; means: by the nearest class mean. "
        f"Then the largest distance within a class of the {rarest}, by the largest norm and by the distance of means."
    )
    return Group(table, Text(note, "dim"))


def masked_losses(outcomes: Sequence[Outcome]) -> RenderableType:
    """Table 1 of the PLM paper: what was measured, and in brackets what the paper reports."""
    from longtail.lab.reproduce.plm import LOSSES, mean

    shown = {"recall": "recall", "recall_rarest_3": "recall, 3 rarest", "f1": "F1", "f1_rarest_3": "F1, 3 rarest"}
    table = make_table("method", *shown.values())
    reported = {outcome.row: outcome.reported for outcome in outcomes}
    for row in LOSSES:
        cells = (f"{100 * mean(outcomes, row, name):.1f} ({100 * reported[row][name]:.1f})" for name in shown)
        table.add_row(row, *cells)
    note = f"Recipe {outcomes[0].run.recipe['name']}; in brackets: the paper's, of MultiMNIST over 90 epochs."
    return Group(table, Text(note, "dim"))


def masking_settings(outcomes: Sequence[Outcome]) -> RenderableType:
    """Tables 5 and 6 of the PLM paper."""
    from longtail.lab.reproduce.plm import mean

    table = make_table("method", "error", "in the paper")
    rows = {outcome.row: outcome for outcome in outcomes if outcome.table != 1}
    for row, outcome in rows.items():
        table.add_row(row, f"{100 * mean(outcomes, row, 'error'):.2f}", f"{100 * outcome.reported['error']:.2f}")
    recipe = next(iter(rows.values())).run.recipe["name"]
    note = f"Error in percent, recipe {recipe}; the paper's: CIFAR-10-LT, ratio 100. Initial ratios are at rate 1."
    return Group(Text(), table, Text(note, "dim"))


def sampling_bias(schemes: Sequence[Scheme]) -> RenderableType:
    """Sampled and implied losses, and how the error falls with the number of negatives."""
    table = make_table("method", "implied", "sampled", "error", "theory", "falls as")
    for scheme in schemes:
        last = scheme.measurements[-1]
        table.add_row(
            f"{scheme.explanation.sampling}, {scheme.explanation.weighting}",
            f"{last.implied:.4f}",
            f"{last.sampled:.4f}",
            f"{last.squared_error:.2e}",
            f"{last.expected_error:.2e}",
            f"m^{scheme.slope:.2f}",
        )
    at = f"at m = {schemes[0].measurements[-1].num_negatives:,}"
    note = f"Mean losses {at}; error: mean squared difference of sampled and implied loss; theory: by Theorem 3."
    return Group(table, Text(note, "dim"))


def retrieval(outcomes: Sequence[delicious.Outcome]) -> RenderableType:
    """Recall by slice, and precision, for each way to sample negatives."""
    from longtail.lab.reproduce.delicious import summarize

    summary = summarize(outcomes)
    # Two narrow tables: one of all columns would not fit into 80 characters.
    parts = (["full R@10", "head R@10", "torso R@10", "tail R@10"], ["P@1", "P@5", "PSP@1", "PSP@5"])
    tables = [make_table("method", *names) for names in parts]
    for table, names in zip(tables, parts, strict=True):
        for scheme, values in summary.items():
            table.add_row(str(scheme), *(_with_interval(values[name]) for name in names))
    note = "Percent; head, torso and tail by training frequency. 95 % intervals over seeds."
    return Group(*tables, Text(note, "dim"))


def recommendation(outcomes: Sequence[gowalla.Outcome]) -> RenderableType:
    """R@20 of all items and of rare ones, for each way to sample negatives."""
    from longtail.lab.reproduce.gowalla import above_line

    gaps = above_line(outcomes)
    table = make_table("method", "R@20", "rare R@20", "above the line", "seconds")
    for outcome in outcomes:
        gap = f"{gaps[outcome.scheme]:+.4f}" if outcome.scheme in gaps else "-"
        values = f"{outcome.recall:.4f}", f"{outcome.rare_recall:.4f}", gap, f"{outcome.seconds:.0f}"
        table.add_row(str(outcome.scheme), *values)
    note = "Rare: the rarest third of the items. The line joins uniform and within-batch, both of weight 1."
    return Group(table, Text(note, "dim"))


def _with_interval(value: Estimate) -> str:
    return f"{value.mean:.1f} \u00b1 {value.half_width:.1f}" if value.has_interval else f"{value.mean:.1f}"
