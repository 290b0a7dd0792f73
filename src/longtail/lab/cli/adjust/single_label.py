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

from longtail._core.memory import check_memory
from longtail.correction import Correction
from longtail.lab.cli._console import make_table, percents, print_screen, say, show_progress
from longtail.lab.cli.adjust.request import Request
from longtail.lab.data.formats.labels import Labels, find_labels
from longtail.lab.data.formats.predictions import writing_predictions
from longtail.lab.data.formats.sources import Source
from longtail.lab.data.formats.tables import ClassNumbers, ScoreFile, Scores, read_class_numbers
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
    "Tally",
    "TauChoice",
    "adjust_file",
    "adjust_scores",
    "build_holdout",
    "changes_nothing",
    "choose_tau",
    "choose_target",
    "convert_to_logits",
    "make_record",
    "measure",
    "read_seen_prior",
    "read_target",
    "read_training_prior",
    "refuse_corrected",
    "render_adjustment",
]

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
PriorLike = ClassPrior | Tensor

ROW_SUM_TOLERANCE = 1e-2
"""How far probabilities that were stored in half precision may be from a sum of 1."""
ESTIMATE_BYTES = 40
"""For each score, while frequencies are estimated from all of them."""


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


class Tally:
    """What becomes known of predictions some rows at a time.

    Args:
        num_classes: C.
        has_labels: whether the true labels are known.
    """

    def __init__(self, num_classes: int, has_labels: bool) -> None:
        self.predicted = torch.zeros(num_classes, dtype=torch.int64)
        self.hits, self.counts = (torch.zeros_like(self.predicted) if has_labels else None for _ in range(2))

    def add(self, predictions: IntArray, labels: IntArray | None) -> None:
        """Take in predictions [N], and where they are known the labels [N]."""
        predicted = torch.from_numpy(predictions)
        self.predicted += predicted.bincount(minlength=len(self.predicted))
        if labels is not None and self.hits is not None and self.counts is not None:
            hits, counts = count_hits(predicted, torch.from_numpy(labels), len(self.predicted))
            self.hits += hits
            self.counts += counts


def adjust_file(request: Request) -> None:
    """Read scores, adjust them, write predictions and print what changed."""
    if request.holdout_labels is not None and request.holdout_scores is None:
        raise ValueError("--holdout-labels needs --holdout-scores.")
    scores = request.open_scores(request.scores)
    header = scores.header
    refuse_corrected(scores)
    _check_label_exists(request, scores)
    prior = read_training_prior(request, header)
    labels = read_target(scores, request.labels, request.label, request.budget)
    request.check_scale(scores)
    holdout = None
    if request.holdout_scores is not None:
        held_out = request.open_scores([request.holdout_scores])
        holdout = build_holdout(request, held_out, header)
    seen = read_seen_prior(request.trained_with, header, prior)
    target_prior = choose_target(request, scores, prior, seen)
    choice = choose_tau(request.tau, holdout, seen, target_prior, header)
    record = make_record(prior, seen, choice.tau, target_prior)
    before, after = (Tally(header.num_classes, labels is not None) for _ in range(2))
    start, num_changed = 0, 0
    with (
        writing_predictions(request.output, header, scores.num_rows, request.budget, record) as sink,
        show_progress("Adjusting", scores.num_bytes) as progress,
    ):
        for batch in scores.batches(progress):
            logits = convert_to_logits(batch, request.probabilities, start)
            adjusted = adjust_scores(logits, seen, choice.tau, target_prior)
            sink.write(batch, adjusted.probabilities, adjusted.after)
            known = None if labels is None else labels[start : start + len(logits)].astype(np.int64)
            before.add(adjusted.before, known)
            after.add(adjusted.after, known)
            num_changed += int((adjusted.before != adjusted.after).sum())
            start += len(logits)
    if request.trained_with is not None and changes_nothing(seen, target_prior):
        typer.echo(
            "longtail: training gave these scores the target frequencies already, and nothing is left to adjust; "
            "--target-prior train makes probabilities for the frequencies of the data.",
            err=True,
        )
    print_screen(render_adjustment(prior, choice, measure(before, prior), measure(after, prior)))
    say(f"{num_changed:,} of {start:,} predictions changed. Wrote {request.output}.")


def refuse_corrected(scores: ScoreFile) -> None:
    """Raise for scores whose file says that class frequencies are taken out of them."""
    record = scores.correction
    if record is not None and record.is_corrected:
        raise ValueError(
            f"{scores.name}: scores must not be corrected yet. Got some that are, by {record.cause}; a second "
            "correction would make them prefer rare classes: use them as they are, or adjust those of the model."
        )


def make_record(prior: ClassPrior, seen: Tensor, tau: float, target: PriorLike | None) -> Correction:
    """What an adjusted file says of itself: corrected, unless it stands for the data's own class frequencies."""
    wanted = target.probs if isinstance(target, ClassPrior) else target
    aim = torch.full_like(seen, 1 / len(seen)) if wanted is None else wanted.to(seen)
    reached = seen ** (1 - tau) * aim**tau
    is_back = torch.allclose(reached / reached.sum(), prior.probs, rtol=1e-3, atol=0)
    return Correction(prior, "longtail adjust", tau, is_corrected=not is_back)


def _check_label_exists(request: Request, scores: ScoreFile) -> None:
    has_label_file = any((request.labels, request.train_labels, request.holdout_scores))
    if request.label is not None and scores.label_column is None and not has_label_file:
        raise ValueError(f"{scores.name}: there is no column or array {request.label!r}.")


def read_training_prior(request: Request, scores: Scores) -> ClassPrior:
    """The training prior from a file of class counts, or else of training labels."""
    if request.counts is not None and request.train_labels is None:
        counts = _order_by_class(read_class_numbers(request.counts, request.budget), scores, request.counts)
    elif request.train_labels is not None and request.counts is None:
        column = find_labels(request.train_labels, request.label, request.budget)
        with show_progress("Counting labels", column.num_bytes) as progress:
            found = column.count(request.budget, progress)
        _check_none_is_missing(found.num_missing, request.train_labels)
        counts = np.zeros(scores.num_classes, dtype=np.int64)
        counts[scores.positions(found.classes, request.train_labels)] = found.counts
    else:
        raise ValueError("adjust needs the class frequencies of training: either --counts or --train-labels.")
    prior = ClassPrior.from_counts(counts).smoothed(request.smooth)
    _check_no_class_is_empty(prior, scores)
    return prior


def read_seen_prior(trained_with: str | None, scores: Scores, prior: ClassPrior) -> Tensor:
    """[C] the prior that ``--trained-with`` says training made of the data's."""
    if trained_with is None:
        return prior.probs
    if trained_with == "balanced":
        return torch.full((scores.num_classes,), 1 / scores.num_classes, dtype=torch.float64)
    kind, _, file = trained_with.partition(":")
    if kind not in ("weights", "counts") or not file:
        raise ValueError(f"--trained-with must be balanced, weights:FILE or counts:FILE. Got {trained_with!r}.")
    numbers = _order_by_class(read_class_numbers(file), scores, file)
    if kind == "weights":
        return weighted_prior(prior, numbers)
    counted = ClassPrior.from_counts(numbers)
    _check_no_class_is_empty(counted, scores)
    return counted.probs


def changes_nothing(seen: Tensor, target: Tensor | None) -> bool:
    """Whether the prior seen in training is the one to predict for."""
    wanted = torch.full_like(seen, 1 / len(seen)) if target is None else target
    return bool(torch.allclose(seen, wanted, rtol=1e-3, atol=0))


def read_target(
    scores: ScoreFile, labels: Source | None, column: str | None, budget: int
) -> npt.NDArray[np.int32] | None:
    """[N] class indices from a file of labels, or else from the label column of the scores; None without either."""
    source = scores.label_column if labels is None else find_labels(labels, column, budget)
    if source is None:
        return None
    where = column if labels is None else labels
    with show_progress("Reading labels", source.num_bytes) as progress:
        found = source.read(budget, progress)
    indices = _find_positions(found, scores.header, where)
    if len(indices) != scores.num_rows:
        raise ValueError(
            f"{where}: there must be {scores.num_rows:,} labels, one per row of scores. Got {len(indices):,}."
        )
    return indices


def choose_tau(
    tau: str, holdout: Holdout | None, prior: PriorLike, target: Tensor | None, scores: Scores
) -> TauChoice:
    """The tau that ``--tau`` says, or for ``auto`` the best one on the holdout, which must have all classes."""
    if tau == "auto":
        if holdout is None:
            raise ValueError("--tau auto needs --holdout-scores, of samples that the model was not trained on.")
        search = tune_tau(holdout.logits, holdout.labels, prior, target_prior=target)
        missing = search.missing_classes.tolist()
        if missing:
            others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise ValueError(
                "--tau auto: the holdout must have samples of every class, or those without have no say. Got none of "
                f"class {scores.name_of(missing[0])}{others}; add some, or give tau as a number, such as --tau 1."
            )
        return TauChoice(search.tau, search.interval)
    if holdout is not None:
        raise ValueError(f"a holdout is for --tau auto. Got --tau {tau}.")
    try:
        return TauChoice(float(tau), None)
    except ValueError:
        raise ValueError(f"--tau must be auto or a number of at least 0. Got {tau!r}.") from None


def build_holdout(request: Request, scores: ScoreFile, like: Scores) -> Holdout:
    """Scores and labels of samples not trained on, with the classes of ``like``."""
    refuse_corrected(scores)
    if (scores.header.num_classes, scores.header.class_names) != (like.num_classes, like.class_names):
        raise ValueError("the holdout must have the same classes as the scores, in the same order.")
    indices = read_target(scores, request.holdout_labels, request.label, request.budget)
    if indices is None:
        raise ValueError(
            "the holdout needs labels: --holdout-labels, or --label with a column of the holdout scores."
        )
    return Holdout(convert_to_logits(scores.read(request.budget), request.probabilities), indices.astype(np.int64))


def convert_to_logits(scores: Scores, are_probabilities: bool | None, start: int = 0) -> FloatArray:
    """[N, C] logits: the scores themselves, or the logarithm of probabilities. ``start``: which row is the first."""
    values = scores.values
    if not are_probabilities:
        return values
    if values.min() < 0 or values.max() > 1 + ROW_SUM_TOLERANCE:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"--probabilities: every score must be in [0, 1]. Got {wrong:g}.")
    sums = values.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"--probabilities: the scores of a row must sum to 1. Got {sums[row]:g} in row {start + row}."
        )
    return np.log(np.maximum(values, np.finfo(values.dtype).tiny))


def choose_target(request: Request, scores: ScoreFile, prior: ClassPrior, seen: Tensor) -> Tensor | None:
    """[C] probabilities that ``--target-prior`` asks for; None is uniform. ``seen`` is what the scores stand for."""
    target = request.target_prior
    if target == "uniform":
        return None
    if target == "train":
        return prior.probs
    if target == "estimate":
        needed = ESTIMATE_BYTES * scores.num_rows * scores.header.num_classes
        check_memory(needed, f"--target-prior estimate: {scores.name}", request.budget)
        estimate = estimate_target_prior(convert_to_logits(scores.read(request.budget), request.probabilities), seen)
        if not estimate.converged:
            raise ValueError(
                f"--target-prior estimate: no stable estimate after {estimate.iterations} steps; name a file instead."
            )
        return estimate.probs
    if "." not in target and not Path(target).exists():
        raise ValueError(f"--target-prior must be uniform, train, estimate or a file. Got {target!r}.")
    numbers = _order_by_class(read_class_numbers(target, request.budget), scores.header, target).astype(np.float64)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.sum() == 0:
        raise ValueError(f"{target}: a target prior must be counts or probabilities, none negative, not all 0.")
    return torch.from_numpy(numbers / numbers.sum())


def adjust_scores(logits: FloatArray, prior: PriorLike, tau: float, target: PriorLike | None) -> Adjustment:
    """Predictions before and after ``adjust_logits``."""
    adjusted = torch.from_numpy(adjust_logits(logits, prior, tau, target))
    return Adjustment(logits.argmax(axis=1), adjusted.argmax(dim=1).numpy(), adjusted.softmax(dim=1).numpy())


def measure(tally: Tally, prior: ClassPrior) -> Measurement:
    """Measure predictions with or without labels; groups are those of the training prior."""
    groups = {name: members for name, members in prior.groups().items() if len(members)}
    frequencies = tally.predicted.double() / tally.predicted.sum()
    shares = {name: float(frequencies[members].sum()) for name, members in groups.items()}
    hits, counts = tally.hits, tally.counts
    if hits is None or counts is None:
        return Measurement(shares, None, None, None)
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


def _find_positions(labels: Labels, scores: Scores, where: object) -> npt.NDArray[np.int32]:
    """[N] score columns that the labels name."""
    _check_none_is_missing(labels.num_missing, where)
    return scores.positions(labels.classes, where).astype(np.int32)[labels.codes]


def _check_none_is_missing(num_missing: int, where: object) -> None:
    if num_missing:
        raise ValueError(f"{where}: every row must have a label. Got {num_missing:,} without; drop these rows.")


def _order_by_class(numbers: ClassNumbers, scores: Scores, path: Source) -> npt.NDArray[Any]:
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
