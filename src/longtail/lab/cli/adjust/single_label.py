"""``longtail adjust`` for one label per sample: from files of scores and counts to adjusted predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from longtail.lab.cli._console import make_table, percents, print_screen, say
from longtail.lab.cli.adjust.request import Request
from longtail.lab.data.formats.tables import (
    ClassNumbers,
    Labels,
    Scores,
    read_class_numbers,
    read_labels,
    write_predictions,
)
from longtail.metrics.classes import balanced_accuracy_from_counts, count_hits, group_accuracy_from_counts
from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.seen import weighted_prior
from longtail.posthoc.shift import estimate_target_prior
from longtail.posthoc.tau import tune_tau
from longtail.prior import ClassPrior

__all__ = [
    "Adjustment",
    "Holdout",
    "Measurement",
    "TauChoice",
    "adjust_file",
    "adjust_scores",
    "build_holdout",
    "changes_nothing",
    "choose_tau",
    "choose_target",
    "convert_to_logits",
    "look_like_probabilities",
    "measure",
    "read_seen_prior",
    "read_target",
    "read_training_prior",
    "render_adjustment",
]

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
PriorLike = ClassPrior | Tensor

ROW_SUM_TOLERANCE = 1e-2
"""How far probabilities that were stored in half precision may be from a sum of 1."""


class Holdout(NamedTuple):
    """Samples to choose tau on."""

    logits: FloatArray
    """[N, C]."""
    labels: IntArray
    """[N]."""


class TauChoice(NamedTuple):
    """A strength, and if it was chosen from data, the range that is as good within one standard error."""

    tau: float
    interval: tuple[float, float] | None


class Adjustment(NamedTuple):
    """Predictions of the scores as they were, and after adjustment."""

    before: IntArray
    """[N] class indices."""
    after: IntArray
    """[N] class indices."""
    probabilities: FloatArray
    """[N, C] after adjustment."""


@dataclass(frozen=True)
class Measurement:
    """How predictions spread over head, torso and tail and, where labels are known, how right they are."""

    shares: dict[str, float]
    """Of each group of classes, the share of samples that are predicted to be in it."""
    accuracy: float | None
    balanced_accuracy: float | None
    group_accuracy: dict[str, float] | None
    """Mean recall over the classes of each group."""


def adjust_file(request: Request) -> None:
    """Read scores, adjust them, write predictions and print what changed."""
    if request.holdout_labels is not None and request.holdout_scores is None:
        raise ValueError("--holdout-labels needs --holdout-scores.")
    scores = request.read_scores(request.scores)
    _check_label_exists(request, scores)
    prior = read_training_prior(scores, request.counts, request.train_labels, request.label, request.smooth)
    logits = convert_to_logits(scores, request.probabilities)
    target = read_target(scores, request.labels, request.label)
    holdout = None
    if request.holdout_scores is not None:
        held_out = request.read_scores(request.holdout_scores)
        holdout = build_holdout(held_out, scores, request.holdout_labels, request.label, request.probabilities)
    seen = read_seen_prior(request.trained_with, scores, prior)
    target_prior = choose_target(request.target_prior, scores, logits, prior, seen)
    choice = choose_tau(request.tau, holdout, seen, target_prior)
    adjusted = adjust_scores(logits, seen, choice.tau, target_prior)
    write_predictions(request.output, scores, adjusted.after, adjusted.probabilities)
    if not request.probabilities and look_like_probabilities(scores.values):
        typer.echo(
            "longtail: every row of the scores sums to 1; if they are probabilities, add --probabilities.", err=True
        )
    if request.trained_with is not None and changes_nothing(seen, target_prior):
        typer.echo(
            "longtail: training gave these scores the target frequencies already, and nothing is left to adjust; "
            "--target-prior train makes probabilities for the frequencies of the data.",
            err=True,
        )
    before, after = (measure(part, prior, target) for part in (adjusted.before, adjusted.after))
    print_screen(render_adjustment(prior, choice, before, after))
    num_changed = (adjusted.before != adjusted.after).sum()
    say(f"{num_changed:,} of {len(logits):,} predictions changed. Wrote {request.output}.")


def _check_label_exists(request: Request, scores: Scores) -> None:
    has_label_file = any((request.labels, request.train_labels, request.holdout_scores))
    if request.label is not None and scores.labels is None and not has_label_file:
        raise ValueError(f"{request.scores}: there is no column or array {request.label!r}.")


def read_training_prior(
    scores: Scores, counts: Path | None, train_labels: Path | None, column: str | None, smooth: float
) -> ClassPrior:
    """The training prior from a file of class counts, or else of training labels."""
    if counts is not None and train_labels is None:
        prior = ClassPrior.from_counts(_order_by_class(read_class_numbers(counts), scores, counts))
    elif train_labels is not None and counts is None:
        indices = _find_positions(read_labels(train_labels, column), scores, train_labels)
        prior = ClassPrior.from_labels(indices, scores.num_classes)
    else:
        raise ValueError("adjust needs the class frequencies of training: either --counts or --train-labels.")
    smoothed = prior.smoothed(smooth)
    _check_no_class_is_empty(smoothed, scores)
    return smoothed


def read_seen_prior(trained_with: str | None, scores: Scores, prior: ClassPrior) -> Tensor:
    """[C] the prior that ``--trained-with`` says training made of the data's."""
    if trained_with is None:
        return prior.probs
    if trained_with == "balanced":
        return torch.full((scores.num_classes,), 1 / scores.num_classes, dtype=torch.float64)
    kind, _, file = trained_with.partition(":")
    if kind not in ("weights", "counts") or not file:
        raise ValueError(f"--trained-with must be balanced, weights:FILE or counts:FILE. Got {trained_with!r}.")
    path = Path(file)
    numbers = _order_by_class(read_class_numbers(path), scores, path)
    if kind == "weights":
        return weighted_prior(prior, numbers)
    counted = ClassPrior.from_counts(numbers)
    _check_no_class_is_empty(counted, scores)
    return counted.probs


def changes_nothing(seen: Tensor, target: Tensor | None) -> bool:
    """Whether the prior seen in training is the one to predict for."""
    wanted = torch.full_like(seen, 1 / len(seen)) if target is None else target
    return bool(torch.allclose(seen, wanted, rtol=1e-3, atol=0))


def read_target(scores: Scores, labels: Path | None, column: str | None) -> IntArray | None:
    """[N] class indices from a file of labels, or else from the label column of the scores; None without either."""
    if labels is not None:
        indices = _find_positions(read_labels(labels, column), scores, labels)
        where = f"{labels}: "
    elif scores.labels is not None:
        indices, where = _find_positions(scores.labels, scores, column), ""
    else:
        return None
    if len(indices) != len(scores.values):
        raise ValueError(
            f"{where}there must be {len(scores.values):,} labels, one per row of scores. Got {len(indices):,}."
        )
    return indices


def choose_tau(tau: str, holdout: Holdout | None, prior: PriorLike, target: Tensor | None) -> TauChoice:
    """The tau that ``--tau`` says, or for ``auto`` the one that is best on the holdout."""
    if tau == "auto":
        if holdout is None:
            raise ValueError("--tau auto needs --holdout-scores, of samples that the model was not trained on.")
        search = tune_tau(holdout.logits, holdout.labels, prior, target_prior=target)
        if len(search.missing_classes):
            typer.echo(
                f"longtail: the holdout has no samples of {len(search.missing_classes):,} classes, "
                "which have no say about tau.",
                err=True,
            )
        return TauChoice(search.tau, search.interval)
    if holdout is not None:
        raise ValueError(f"a holdout is for --tau auto. Got --tau {tau}.")
    try:
        return TauChoice(float(tau), None)
    except ValueError:
        raise ValueError(f"--tau must be auto or a number of at least 0. Got {tau!r}.") from None


def build_holdout(
    scores: Scores, like: Scores, labels: Path | None, column: str | None, probabilities: bool
) -> Holdout:
    """Scores and labels of samples not trained on, with the classes of ``like``."""
    if (scores.num_classes, scores.class_names) != (like.num_classes, like.class_names):
        raise ValueError("the holdout must have the same classes as the scores, in the same order.")
    indices = read_target(scores, labels, column)
    if indices is None:
        raise ValueError(
            "the holdout needs labels: --holdout-labels, or --label with a column of the holdout scores."
        )
    return Holdout(convert_to_logits(scores, probabilities), indices)


def convert_to_logits(scores: Scores, are_probabilities: bool) -> FloatArray:
    """[N, C] logits: the scores themselves, or the logarithm of probabilities."""
    values = scores.values
    if not are_probabilities:
        return values
    if values.min() < 0 or values.max() > 1 + ROW_SUM_TOLERANCE:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"--probabilities: every score must be in [0, 1]. Got {wrong:g}.")
    sums = values.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > ROW_SUM_TOLERANCE:
        raise ValueError(f"--probabilities: the scores of a row must sum to 1. Got {sums[row]:g} in row {row}.")
    return np.log(np.maximum(values, np.finfo(values.dtype).tiny))


def look_like_probabilities(values: FloatArray) -> bool:
    """Whether every row could be a distribution, which rows of logits hardly ever are."""
    return bool(values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() <= ROW_SUM_TOLERANCE)


def choose_target(target: str, scores: Scores, logits: FloatArray, prior: ClassPrior, seen: Tensor) -> Tensor | None:
    """[C] probabilities that ``--target-prior`` asks for; None is uniform. ``seen`` is what the logits stand for."""
    if target == "uniform":
        return None
    if target == "train":
        return prior.probs
    if target == "estimate":
        estimate = estimate_target_prior(logits, seen)
        if not estimate.converged:
            raise ValueError(
                f"--target-prior estimate: no stable estimate after {estimate.iterations} steps; name a file instead."
            )
        return estimate.probs
    path = Path(target)
    numbers = _order_by_class(read_class_numbers(path), scores, path).astype(np.float64)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.sum() == 0:
        raise ValueError(f"{path}: a target prior must be counts or probabilities, none negative, not all 0.")
    return torch.from_numpy(numbers / numbers.sum())


def adjust_scores(logits: FloatArray, prior: PriorLike, tau: float, target: Tensor | None) -> Adjustment:
    """Predictions before and after ``adjust_logits``."""
    adjusted = torch.from_numpy(adjust_logits(logits, prior, tau, target))
    return Adjustment(logits.argmax(axis=1), adjusted.argmax(dim=1).numpy(), adjusted.softmax(dim=1).numpy())


def measure(predictions: IntArray, prior: ClassPrior, labels: IntArray | None) -> Measurement:
    """Measure predictions [N] with or without labels [N]; groups are those of the training prior."""
    groups = {name: members for name, members in prior.groups().items() if len(members)}
    predicted = torch.from_numpy(predictions)
    frequencies = predicted.bincount(minlength=prior.num_classes).double() / len(predicted)
    shares = {name: float(frequencies[members].sum()) for name, members in groups.items()}
    if labels is None:
        return Measurement(shares, None, None, None)
    hits, counts = count_hits(predicted, torch.from_numpy(labels), prior.num_classes)
    return Measurement(
        shares,
        accuracy=int(hits.sum()) / int(counts.sum()),
        balanced_accuracy=float(balanced_accuracy_from_counts(hits, counts)),
        group_accuracy={name: float(v) for name, v in group_accuracy_from_counts(hits, counts, groups).items()},
    )


def render_adjustment(
    prior: ClassPrior, choice: TauChoice, before: Measurement, after: Measurement
) -> RenderableType:
    """What adjustment changed, group by group."""
    chosen = ""
    if choice.interval is not None:
        low, high = choice.interval
        chosen = f", chosen on the holdout; {low:g} to {high:g} are as good within a standard error"
    return Group(Text(f"tau {choice.tau:g}{chosen}", "bold"), _compare_measurements(prior, before, after))


def _compare_measurements(prior: ClassPrior, before: Measurement, after: Measurement) -> Table:
    """Shares of predictions by group; with labels, accuracies too."""
    table = make_table("", "classes", "before", "after")
    groups = prior.groups()
    for name in before.shares:
        table.add_row(
            f"predicted {name}", f"{len(groups[name]):,}", *percents(before.shares[name], after.shares[name])
        )
    if before.group_accuracy is None or after.group_accuracy is None:
        return table
    table.add_section()
    for name in before.group_accuracy:
        row = percents(before.group_accuracy[name], after.group_accuracy[name])
        table.add_row(f"{name} recall", f"{len(groups[name]):,}", *row)
    table.add_section()
    table.add_row("accuracy", "", *percents(before.accuracy, after.accuracy))
    table.add_row(Text("balanced accuracy", "bold"), "", *percents(before.balanced_accuracy, after.balanced_accuracy))
    return table


def _find_positions(labels: Labels, scores: Scores, where: object) -> IntArray:
    """[N] score columns that the labels name."""
    if labels.num_missing:
        raise ValueError(
            f"{where}: every row must have a label. Got {labels.num_missing:,} without; drop these rows."
        )
    return scores.positions(labels.classes, where)[labels.codes]


def _order_by_class(numbers: ClassNumbers, scores: Scores, path: Path) -> npt.NDArray[Any]:
    """[C] numbers in the order of the score columns."""
    if len(numbers.values) != scores.num_classes:
        raise ValueError(
            f"{path}: there must be a number for each of the {scores.num_classes} classes of the scores. "
            f"Got {len(numbers.values)}."
        )
    if numbers.classes is None:
        return numbers.values
    ordered = np.empty_like(numbers.values)
    ordered[scores.positions(numbers.classes, path)] = numbers.values
    return ordered


def _check_no_class_is_empty(prior: ClassPrior, scores: Scores) -> None:
    empty = torch.nonzero(prior.probs == 0)[:, 0].tolist()
    if empty:
        others = f" and {len(empty) - 1} more have" if len(empty) > 1 else " has"
        raise ValueError(
            f"class {scores.name_of(empty[0])}{others} no training samples; "
            "drop it from the scores or add --smooth 1."
        )
