"""What a page needs of a run: a few vectors, nothing of size N x C, so that any number of runs fits in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from longtail._core.numerics import row_chunks
from longtail.diagnostics import logit_margins
from longtail.lab.report.embedded import EmbeddingDigest, digest_embeddings
from longtail.lab.runs.folder import Predictions, Run
from longtail.lab.training.label_metrics import multilabel_metrics
from longtail.masking import count_bins
from longtail.methods.table import METHODS
from longtail.metrics.calibration import bin_confidences, calibration_error
from longtail.metrics.classes import balanced_accuracy, count_hits, group_accuracy, per_class_accuracy
from longtail.metrics.multilabel import LabelCounts, LabelScores, count_labels, per_class_scores
from longtail.posthoc.adjust import adjust_logits
from longtail.prior import ClassPrior

__all__ = [
    "BASELINE",
    "PROBABILITY_BINS",
    "TAUS",
    "Comparison",
    "Confusion",
    "Digest",
    "Estimate",
    "Labels",
    "MethodResults",
    "compare",
    "digest",
    "estimate",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Bins = tuple[Tensor, Tensor, Tensor]
"""Three [B]: samples, right ones and summed confidence in each bin of confidence."""

BASELINES = ("cross_entropy", "binary_cross_entropy")
"""The plain losses, for one label a sample and for several."""
BASELINE = BASELINES[0]
PROBABILITY_BINS = 10
TAUS: FloatArray = np.linspace(0, 3, 25)
CALIBRATION_BINS = 15
CHUNK_ELEMENTS = 2**20
"""Logits looked at together: they fit a processor's cache."""
FEWEST_SAMPLES = 20
"""A class with fewer test samples has no distribution worth drawing."""
MOST_SAMPLES = 5000
"""Margins kept of one group and run."""
MOST_CONFUSIONS = 10


@dataclass(frozen=True, eq=False)
class Labels:
    """The classes, how often they occur, and the groups they form. The same for all runs of a page."""

    names: tuple[str, ...]
    counts: IntArray
    """[C] training samples."""
    test_counts: IntArray
    """[C] test samples."""
    groups: Mapping[str, IntArray]
    """Class indices of head, torso and tail; a group without classes is not among them."""
    num_train: int
    """Training samples: the sum of the counts, unless a sample may have several labels."""
    num_test: int

    @staticmethod
    def of(predictions: Predictions) -> Labels:
        """The labels of a run's data."""
        names, labels = predictions.class_names, predictions.labels
        is_matrix = predictions.is_multilabel
        return Labels(
            names=names,
            counts=predictions.prior.counts.numpy(),
            test_counts=labels.sum(axis=0) if is_matrix else np.bincount(labels, minlength=len(names)),
            groups={name: classes.numpy() for name, classes in predictions.prior.groups().items() if len(classes)},
            num_train=predictions.prior.num_samples,
            num_test=len(labels),
        )

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.names)

    @property
    def by_frequency(self) -> IntArray:
        """Class indices, most frequent first."""
        return np.argsort(-self.counts, kind="stable")

    @property
    def prior(self) -> ClassPrior:
        """The prior to adjust with: smoothed only where a class has no samples."""
        prior = ClassPrior.from_counts(self.counts)
        return prior if self.counts.min() > 0 else prior.smoothed(1)

    def example(self, group: str) -> IntArray:
        """A class to stand for its group: the most frequent of the head, the middle one of the torso, the rarest of
        the tail, among classes with test samples enough. If none has enough, all classes of the group."""
        is_member = np.isin(self.by_frequency, self.groups[group])
        candidates = self.by_frequency[is_member & (self.test_counts[self.by_frequency] >= FEWEST_SAMPLES)]
        if not len(candidates):
            return self.groups[group]
        place = {"head": 0, "torso": len(candidates) // 2, "tail": -1}[group]
        return candidates[[place]]

    def same_data(self, other: Labels) -> bool:
        """Whether both are of one data set."""
        arrays = ((self.counts, other.counts), (self.test_counts, other.test_counts))
        return self.names == other.names and all(np.array_equal(one, two) for one, two in arrays)


@dataclass(frozen=True, eq=False)
class Digest:
    """One run, reduced to what the page shows."""

    path: Path
    method: str
    seed: int
    settings: Mapping[str, str]
    """The flattened recipe, without the seed."""
    environment: Mapping[str, str]
    history: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float]
    """accuracy, balanced_accuracy, head, torso, tail (where they have classes), calibration_error, seconds."""
    hits: IntArray
    """[C] right test samples of each class."""
    counts: IntArray
    """[C] test samples of each class."""
    bins: Bins
    wrong: tuple[IntArray, IntArray, IntArray]
    """True class, predicted class and number of samples of every confusion that occurs."""
    margins: Mapping[str, FloatArray]
    """Score of the true label minus the best other, for test samples of each group's example."""
    group_margins: Mapping[str, FloatArray]
    """The same for test samples of the whole group."""
    tau_metrics: Mapping[str, FloatArray] | None
    """[T] balanced_accuracy and groups after adjusting by each of TAUS; None where that would adjust twice."""
    weight_norms: FloatArray | None
    embeddings: EmbeddingDigest | None
    """None where the run kept none."""
    several: LabelTally | None = None
    """What is known where a sample may have several labels. ``hits`` are then the positives that are predicted, and
    what needs one label a sample is empty."""


@dataclass(frozen=True, eq=False)
class LabelTally:
    """Predictions of several labels a sample, at a probability of 0.5."""

    num_samples: int
    predicted: IntArray
    """[C] samples for which each class is predicted."""
    histogram: IntArray
    """[2, C, PROBABILITY_BINS] probabilities of each class, of its negatives and its positives."""


def digest(run: Run) -> Digest:
    """Reduce a run. Raises a ValueError of one line if its arrays do not fit together."""
    predictions = run.predictions
    _check(run.path, predictions)
    if predictions.is_multilabel:
        return _digest_of_several(run)
    labels = Labels.of(predictions)
    scores = torch.from_numpy(predictions.scores)
    target = torch.from_numpy(predictions.labels.astype(np.int64, copy=False))
    predicted = scores.argmax(dim=1)
    margins = logit_margins(scores, target).double().numpy()
    hits, counts = count_hits(predicted, target, labels.num_classes)
    bins = _confidence_bins(scores, target)
    metrics = {
        "accuracy": float(hits.sum() / counts.sum()),
        **_class_metrics(hits, counts, labels),
        "calibration_error": float(calibration_error(*bins)),
        "seconds": float(run.summary["seconds"]),
    }
    # These have logits of plain cross-entropy, which still hold the training prior.
    is_plain = run.method == BASELINE or _adjusts_logits(run.method)
    return Digest(
        **_what_ran(run),
        metrics=metrics,
        hits=hits.numpy(),
        counts=counts.numpy(),
        bins=bins,
        wrong=_confusions(target, predicted),
        margins=_samples_of(margins, target.numpy(), {name: labels.example(name) for name in labels.groups}),
        group_margins=_samples_of(margins, target.numpy(), labels.groups),
        tau_metrics=_tau_metrics(predictions.logits, target, labels) if is_plain else None,
        embeddings=_embeddings(run),
    )


def _what_ran(run: Run) -> dict[str, Any]:
    """The part of a digest that all runs have, whatever their labels."""
    norms = run.predictions.weight_norms
    return {
        "path": run.path,
        "method": run.method,
        "seed": run.seed,
        "settings": {key: value for key, value in _flat(run.recipe) if key not in ("train.seed", "description")},
        "environment": _environment(run.path),
        "history": run.history,
        "weight_norms": None if norms is None else norms.astype(np.float64),
    }


def _digest_of_several(run: Run) -> Digest:
    predictions = run.predictions
    scores, target = torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels)
    counts = count_labels(scores >= 0, target)
    parts = (count_bins(scores[rows].sigmoid(), target[rows], PROBABILITY_BINS) for rows in _chunks(scores))
    nothing = np.zeros(0, dtype=np.int64)
    return Digest(
        **_what_ran(run),
        metrics=multilabel_metrics(scores, target, predictions.prior) | {"seconds": float(run.summary["seconds"])},
        hits=counts.hits.numpy(),
        counts=counts.positives.numpy(),
        bins=(torch.zeros(CALIBRATION_BINS),) * 3,
        wrong=(nothing, nothing, nothing),
        margins={},
        group_margins={},
        tau_metrics=None,
        embeddings=None,
        several=LabelTally(len(target), counts.predicted.numpy(), sum(parts, torch.tensor(0)).numpy()),
    )


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and its 95% interval by Student's t distribution."""

    mean: float
    half_width: float
    """NaN where fewer than two seeds say nothing of the spread."""
    count: int

    @property
    def has_interval(self) -> bool:
        """Whether there are seeds enough for an interval."""
        return self.count > 1

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half_width


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of finite ``values`` with its interval; NaN if there are none.

    >>> found = estimate([1.0, 3.0])
    >>> found.mean, round(found.half_width, 6), found.count
    (2.0, 12.706205, 2)
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    count = len(finite)
    if count == 0:
        return Estimate(math.nan, math.nan, 0)
    half_width = math.nan
    if count > 1:
        half_width = float(special.stdtrit(count - 1, 0.975) * finite.std(ddof=1) / math.sqrt(count))
    return Estimate(float(finite.mean()), half_width, count)


@dataclass(frozen=True)
class Confusion:
    """Samples of one class that are taken for another."""

    true: int
    predicted: int
    samples: int
    of: int
    """Test samples of the true class, over all seeds."""

    @property
    def share(self) -> float:
        """The share of the true class's samples."""
        return self.samples / self.of


@dataclass(frozen=True, eq=False)
class MethodResults:
    """The runs of one method, which differ in nothing but the seed."""

    label: str
    runs: tuple[Digest, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.runs[0].method

    @property
    def adjusted_by(self) -> float | None:
        """The tau by which the method adjusts logits after training; None if it does not, or does not say."""
        tau = self.runs[0].settings.get("method.options.tau", "1")
        is_number = tau.replace(".", "", 1).isdecimal()
        return float(tau) if _adjusts_logits(self.method) and is_number else None

    def metric(self, name: str) -> Estimate:
        """The mean of a final metric over seeds."""
        return estimate(run.metrics.get(name, math.nan) for run in self.runs)

    def class_accuracy(self) -> FloatArray:
        """[C] over the samples of all seeds; NaN for a class without test samples."""
        hits, counts = (sum(getattr(run, name) for run in self.runs) for name in ("hits", "counts"))
        return per_class_accuracy(torch.from_numpy(hits), torch.from_numpy(counts)).numpy()

    def label_scores(self) -> LabelScores:
        """Precision, recall and F1 [C] where a sample may have several labels, over the samples of all seeds."""
        predicted = sum(run.several.predicted for run in self.runs if run.several is not None)
        hits, counts = (sum(getattr(run, name) for run in self.runs) for name in ("hits", "counts"))
        return per_class_scores(LabelCounts(*(torch.from_numpy(part) for part in (hits, predicted, counts))))

    def probabilities(self) -> IntArray:
        """[2, C, bins] histograms of probabilities, of negatives and positives, over the samples of all seeds."""
        histograms = [run.several.histogram for run in self.runs if run.several is not None]
        total: IntArray = np.sum(histograms, axis=0)
        return total

    def positive_ratios(self) -> tuple[list[int], FloatArray] | None:
        """Epochs, and [T, C] the ratios of positives to negatives that labels were masked to; None if none was."""
        rows = [row for row in self.runs[0].history if isinstance(row.get("positive_ratios"), list)]
        if not rows or any(len(row["positive_ratios"]) != len(self.test_counts()) for row in rows):
            return None
        ratios = np.array([[math.nan if r is None else float(r) for r in row["positive_ratios"]] for row in rows])
        return [int(row["epoch"]) for row in rows], ratios

    def test_counts(self) -> IntArray:
        """[C] test samples of each class, over all seeds."""
        counts: IntArray = np.sum([run.counts for run in self.runs], axis=0)
        return counts

    def bins(self) -> Bins:
        """Bins of confidence over all seeds."""
        return _sum_bins([run.bins for run in self.runs])

    def margins(self, group: str) -> FloatArray:
        """Logit margins of samples of the group's example, over all seeds."""
        return np.concatenate([run.margins[group] for run in self.runs])

    def group_margins(self, group: str) -> FloatArray:
        """Logit margins of the group's samples, over all seeds."""
        return np.concatenate([run.group_margins[group] for run in self.runs])

    @property
    def embeddings(self) -> tuple[EmbeddingDigest, ...]:
        """Of the runs that kept any."""
        return tuple(run.embeddings for run in self.runs if run.embeddings is not None)

    def weight_norms(self) -> FloatArray | None:
        """[C] the mean over seeds."""
        norms = [run.weight_norms for run in self.runs if run.weight_norms is not None]
        return np.mean(norms, axis=0) if norms else None

    def sample_rates(self) -> FloatArray | None:
        """[C] the class rates that a sampler had learned in the last epoch, the mean over seeds."""
        last = [run.history[-1].get("sample_rates") for run in self.runs if run.history]
        num_classes = len(self.test_counts())
        rates = [each for each in last if isinstance(each, list) and len(each) == num_classes]
        rates = [each for each in rates if all(isinstance(rate, int | float) for rate in each)]
        return np.mean(rates, axis=0) if rates else None

    def tau_metric(self, name: str) -> list[Estimate] | None:
        """A metric at each of TAUS."""
        curves = [run.tau_metrics[name] for run in self.runs if run.tau_metrics is not None]
        return [estimate(values) for values in zip(*curves, strict=True)] if curves else None

    def history(self, name: str) -> tuple[list[int], list[float]]:
        """Epochs in which ``name`` was measured, and its mean over seeds."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for row in run.history:
                if isinstance(row.get(name), int | float):
                    values.setdefault(int(row["epoch"]), []).append(float(row[name]))
        epochs = sorted(values)
        return epochs, [float(np.mean(values[epoch])) for epoch in epochs]

    def worst_confusions(self) -> list[Confusion]:
        """The largest confusions. A share of few samples is less sure, so it is ranked by its lower 95% bound."""
        wrong = zip(*(run.wrong for run in self.runs), strict=True)
        true, predicted, samples = (np.concatenate(parts) for parts in wrong)
        of_class = self.test_counts()
        pairs, place = np.unique(np.stack([true, predicted]), axis=1, return_inverse=True)
        totals = np.bincount(place.ravel(), weights=samples, minlength=pairs.shape[1]).astype(np.int64)
        order = np.argsort(-_wilson_lower_bound(totals, of_class[pairs[0]]), kind="stable")[:MOST_CONFUSIONS]
        return [Confusion(*(int(v) for v in (*pairs[:, i], totals[i], of_class[pairs[0, i]]))) for i in order]


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that a page shows."""

    labels: Labels
    methods: tuple[MethodResults, ...]
    """In the order of METHODS, so that plain cross-entropy is first."""

    @property
    def is_multilabel(self) -> bool:
        """Whether a sample may have several labels."""
        return self.methods[0].runs[0].several is not None

    @property
    def main_metric(self) -> str:
        """What methods are ranked by: balanced accuracy, or the mean F1 where a sample may have several labels."""
        return "f1" if self.is_multilabel else "balanced_accuracy"

    @property
    def best(self) -> MethodResults:
        """The method with the highest main metric."""
        return max(self.methods, key=lambda method: method.metric(self.main_metric).mean)

    @property
    def reference(self) -> MethodResults | None:
        """What to hold the best method against: the plain loss, or the next best; None if there is but one."""
        others = [method for method in self.methods if method is not self.best]
        plain = [method for method in others if method.method in BASELINES]
        ranked = plain or sorted(others, key=lambda method: -method.metric(self.main_metric).mean)
        return ranked[0] if ranked else None

    @property
    def plain(self) -> MethodResults | None:
        """The method whose logits the tau curve adjusts."""
        return next((method for method in self.methods if method.tau_metric("balanced_accuracy")), None)

    def difference(self, name: str) -> Estimate:
        """How much the best method exceeds the reference in a metric; seed by seed where both have the same seeds."""
        if self.reference is None:
            return Estimate(math.nan, math.nan, 0)
        best = {run.seed: run.metrics.get(name, math.nan) for run in self.best.runs}
        reference = {run.seed: run.metrics.get(name, math.nan) for run in self.reference.runs}
        if best.keys() == reference.keys():
            return estimate(best[seed] - reference[seed] for seed in best)
        return Estimate(self.best.metric(name).mean - self.reference.metric(name).mean, math.nan, 1)

    def largest_changes(self, most: int = 5) -> list[int]:
        """Classes on which the best method gains most over the reference, then those on which it loses most.

        A change on few test samples is less sure, so it is weighted by the root of their number.
        """
        if self.reference is None:
            return []
        change = self.best.class_accuracy() - self.reference.class_accuracy()
        weighted = np.nan_to_num(change) * np.sqrt(self.labels.test_counts)
        order = np.argsort(-weighted, kind="stable")
        gains = [int(index) for index in order[:most] if weighted[index] > 0]
        losses = [int(index) for index in order[::-1][:most] if weighted[index] < 0]
        return gains + losses


def compare(runs: Iterable[Run]) -> Comparison:
    """Digest runs one by one, and sort them into methods. Raises if they do not belong on one page."""
    labels: Labels | None = None
    digests: list[Digest] = []
    for run in runs:
        digests.append(digest(run))
        its_labels = Labels.of(run.predictions)
        if labels is None:
            labels = its_labels
        elif not labels.same_data(its_labels):
            raise ValueError(
                f"runs must be of the same data. {run.path} has other classes, class counts or test samples than "
                f"{digests[0].path}; report them apart."
            )
    if labels is None:
        raise ValueError("a report needs at least one run. Got none.")
    return Comparison(labels, tuple(_methods(digests)))


def _methods(digests: Sequence[Digest]) -> list[MethodResults]:
    """Runs by method; a method that was run with several recipes counts as several."""
    by_recipe: dict[tuple[str, str], list[Digest]] = {}
    for one in digests:
        by_recipe.setdefault((one.method, json.dumps(one.settings, sort_keys=True)), []).append(one)
    for same in by_recipe.values():
        _check_seeds(same)
    recipes_of: dict[str, list[Mapping[str, str]]] = {}
    for method, _ in by_recipe:
        recipes_of[method] = [same[0].settings for (name, _), same in by_recipe.items() if name == method]
    results = [
        MethodResults(
            label=_label(method, same[0].settings, recipes_of[method]),
            runs=tuple(sorted(same, key=lambda one: one.seed)),
        )
        for (method, _), same in by_recipe.items()
    ]
    order = {name: index for index, name in enumerate(METHODS)}
    return sorted(results, key=lambda result: (order.get(result.method, len(order)), result.label))


def _label(method: str, settings: Mapping[str, str], recipes: Sequence[Mapping[str, str]]) -> str:
    differing = [key for key, value in settings.items() if any(other.get(key) != value for other in recipes)]
    named = [f"{key.rpartition('.')[2]}={settings[key]}" for key in differing]
    return f"{method} ({', '.join(named)})" if named else method


def _check_seeds(same: Sequence[Digest]) -> None:
    first_with: dict[int, Digest] = {}
    for one in same:
        first = first_with.setdefault(one.seed, one)
        if first is not one:
            raise ValueError(
                f"runs must differ in method, recipe or seed. {first.path} and {one.path} are both {one.method} with "
                f"seed {one.seed}; leave one out."
            )


def _check(path: Path, predictions: Predictions) -> None:
    logits, scores, labels = predictions.logits, predictions.scores, predictions.labels
    num_classes = len(predictions.class_names)
    shape = (len(labels), num_classes)
    for name, array in (("logits", logits), ("scores", scores)):
        if array.shape != shape or array.dtype.kind != "f":
            raise ValueError(f"{path}: {name} must be numbers of shape {shape}. Got {array.dtype} {array.shape}.")
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} must be finite. Got NaN or an infinity; look for a diverged model.")
    vectors: dict[str, npt.NDArray[Any] | None] = {
        "train_counts": predictions.train_counts,
        "weight_norms": predictions.weight_norms,
    }
    for name, vector in vectors.items():
        if vector is not None and vector.shape != (num_classes,):
            raise ValueError(f"{path}: {name} must have one number a class, {num_classes}. Got shape {vector.shape}.")
    if labels.shape == shape and labels.dtype == np.bool_ and len(labels):
        return
    if num_classes < 2 or labels.ndim != 1 or not len(labels):
        raise ValueError(f"{path}: a test set must have samples, and at least 2 classes. Got logits {logits.shape}.")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: labels must be whole numbers. Got {labels.dtype}.")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"{path}: labels must be in 0..{num_classes - 1}. Got {labels.min()} to {labels.max()}.")


def _chunks(scores: Tensor) -> Iterator[slice]:
    num_rows, num_classes = scores.shape
    return row_chunks(num_rows, num_classes, CHUNK_ELEMENTS)


def _confidence_bins(scores: Tensor, target: Tensor) -> Bins:
    return _sum_bins([bin_confidences(scores[rows], target[rows], CALIBRATION_BINS) for rows in _chunks(scores)])


def _sum_bins(parts: Sequence[Bins]) -> Bins:
    counts, hits, confidences = (torch.stack(values).sum(dim=0) for values in zip(*parts, strict=True))
    return counts, hits, confidences


def _class_metrics(hits: Tensor, counts: Tensor, labels: Labels) -> dict[str, float]:
    groups = {name: torch.from_numpy(classes) for name, classes in labels.groups.items()}
    by_group = group_accuracy(hits, counts, groups)
    return {
        "balanced_accuracy": float(balanced_accuracy(hits, counts)),
        **{name: float(value) for name, value in by_group.items()},
    }


def _adjusts_logits(name: str) -> bool:
    method = METHODS.get(name)
    return method is not None and method.adjust_logits is not None


def _tau_metrics(logits: npt.NDArray[np.float32], target: Tensor, labels: Labels) -> dict[str, FloatArray]:
    # Adjusting adds one number to each class's logit: adjusted zeros are these numbers, for every tau at once.
    zeros = np.zeros(labels.num_classes, dtype=logits.dtype)
    shifts = [adjust_logits(zeros, labels.prior, float(tau)) for tau in TAUS]
    predicted = np.empty((len(TAUS), len(logits)), dtype=np.int64)
    for rows in row_chunks(len(logits), labels.num_classes, CHUNK_ELEMENTS):
        for index, shift in enumerate(shifts):
            predicted[index, rows] = (logits[rows] + shift).argmax(axis=1)
    hits = (count_hits(row, target, labels.num_classes) for row in torch.from_numpy(predicted))
    curves = [_class_metrics(*counted, labels) for counted in hits]
    return {name: np.array([metrics[name] for metrics in curves]) for name in curves[0]}


def _confusions(target: Tensor, predicted: Tensor) -> tuple[IntArray, IntArray, IntArray]:
    is_wrong = target != predicted
    pairs = torch.stack([target[is_wrong], predicted[is_wrong]]).numpy()
    (true, wrongly), samples = np.unique(pairs, axis=1, return_counts=True)
    return true, wrongly, samples


def _wilson_lower_bound(samples: IntArray, of: IntArray) -> FloatArray:
    """The lower end of Wilson's 95% interval of a share."""
    z = 1.96
    share = samples / of
    center = share + z**2 / (2 * of)
    spread = z * np.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    bound: FloatArray = (center - spread) / (1 + z**2 / of)
    return bound


def _samples_of(values: FloatArray, target: IntArray, groups: Mapping[str, IntArray]) -> dict[str, FloatArray]:
    """Of each group that has samples, as many values as a page needs."""
    samples = {}
    for name, classes in groups.items():
        of_group = values[np.isin(target, classes)]
        if len(of_group):
            samples[name] = of_group[:: math.ceil(len(of_group) / MOST_SAMPLES)]
    return samples


def _embeddings(run: Run) -> EmbeddingDigest | None:
    try:
        data = run.load_embeddings()
        return None if data is None else digest_embeddings(data, run.predictions.prior)
    except ValueError as error:
        raise ValueError(f"{run.path}: its embeddings can't be used: {error}") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, default=str)


def _environment(path: Path) -> dict[str, str]:
    """What environment.json says; a run without one has none."""
    file = path / "environment.json"
    if not file.is_file():
        return {}
    try:
        return dict(_flat(json.loads(file.read_text(encoding="utf-8"))))
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} is not a JSON table: {error}") from error
