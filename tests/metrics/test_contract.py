"""What every metric module keeps: it is its function, whatever the batches and processes, and plain loops agree."""

import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import Metric

from longtail import metrics

NUM_CLASSES = 6
NUM_SAMPLES = 120
K = 3
KS = (1, 4)
NUM_BINS = 10
GROUPS = {"head": [0, 1], "torso": [2], "tail": [3, 4, 5]}
GROUP_TENSORS = {name: torch.tensor(classes) for name, classes in GROUPS.items()}
INVERSES = [1.0, 1.5, 2.0, 4.0, 7.0, 3.0]


# Samples


def class_samples(seed=0):
    """Logits and class indices; class 4 has no samples."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.0, 0.05])
    target = torch.multinomial(shares, NUM_SAMPLES, replacement=True, generator=generator)
    logits = torch.randn(NUM_SAMPLES, NUM_CLASSES, dtype=torch.float64, generator=generator)
    logits[torch.arange(NUM_SAMPLES), target] += 1.0
    return logits, target


def label_samples(seed=0):
    """Probabilities with ties that bfloat16 holds exactly, and [N, C] labels; class 4 has no positives."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 33, (NUM_SAMPLES, NUM_CLASSES), generator=generator).double() / 32
    target = torch.rand(NUM_SAMPLES, NUM_CLASSES, generator=generator) < scores * torch.linspace(
        0.9, 0.2, NUM_CLASSES
    )
    target[:, 4] = False
    target[::7] = False
    return scores, target.long()


# References, in plain Python


def loop_accuracies(logits, target, k=1):
    hits, counts = [0] * NUM_CLASSES, [0] * NUM_CLASSES
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        ranking = sorted(range(NUM_CLASSES), key=lambda index: (-row[index], index))
        hits[label] += label in ranking[:k]
        counts[label] += 1
    return [h / n if n else math.nan for h, n in zip(hits, counts, strict=True)]


def loop_mean(values):
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def loop_calibration(logits, target, is_balanced):
    counts = [target.tolist().count(label) for label in range(NUM_CLASSES)]
    gaps, total = [0.0] * NUM_BINS, 0.0
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        exponentials = [math.exp(value) for value in row]
        confidence = max(exponentials) / sum(exponentials)
        weight = 1 / counts[label] if is_balanced else 1.0
        bin_index = next(b for b in range(NUM_BINS) if b / NUM_BINS < confidence <= (b + 1) / NUM_BINS)
        gaps[bin_index] += weight * (confidence - (row.index(max(row)) == label))
        total += weight
    return sum(abs(gap) for gap in gaps) / total if total else math.nan


def loop_scores(predicted, target, classes):
    """Mean precision, recall and F1 of the classes with positives."""
    rows = []
    for label in classes:
        pairs = list(zip(predicted[:, label].tolist(), target[:, label].tolist(), strict=True))
        hits = sum(1 for p, t in pairs if p and t)
        num_predicted, positives = sum(bool(p) for p, _ in pairs), sum(bool(t) for _, t in pairs)
        if positives:
            precision = hits / num_predicted if num_predicted else 0.0
            rows.append((precision, hits / positives, 2 * hits / (num_predicted + positives)))
    return [loop_mean([row[i] for row in rows]) for i in range(3)]


def loop_multilabel(scores, target):
    predicted = scores >= 0.5
    flat = loop_scores(predicted.reshape(-1, 1), target.reshape(-1, 1), [0])
    matches = [p == t for p, t in zip(predicted.long().tolist(), target.tolist(), strict=True)]
    everywhere, tail = loop_scores(predicted, target, range(NUM_CLASSES)), loop_scores(predicted, target, [3, 4, 5])
    names = ("precision", "recall", "f1")
    return {
        **dict(zip(names, everywhere, strict=True)),
        **{f"micro_{name}": value for name, value in zip(names, flat, strict=True)},
        "exact_match": loop_mean([float(match) for match in matches]),
        **{f"tail/{name}": value for name, value in zip(names, tail, strict=True)},
    }


def loop_average_precision(scores, target):
    values = []
    for column, truth in zip(scores.T.tolist(), target.T.tolist(), strict=True):
        area, before = 0.0, 0
        for threshold in sorted(set(column), reverse=True):
            chosen = [t for s, t in zip(column, truth, strict=True) if s >= threshold]
            area += (sum(chosen) - before) * sum(chosen) / len(chosen)
            before = sum(chosen)
        values.append(area / before if before else math.nan)
    return loop_mean(values)


def loop_measure(name):
    """PRECISION, RECALL, NDCG, and with "ps" before it the propensity-scored ones, at the places 1..K."""
    is_scored, is_ndcg = name.startswith("ps"), name.endswith("ndcg")

    def value(scores, target, k):
        above = below = 0.0
        for row, truth in zip(scores.tolist(), target.tolist(), strict=True):
            ranking = sorted(range(NUM_CLASSES), key=lambda index: (-row[index], index))
            worth = [INVERSES[label] if is_scored else 1.0 for label in range(NUM_CLASSES)]
            best = sorted((worth[label] for label in range(NUM_CLASSES) if truth[label]), reverse=True)
            discounts = [1 / math.log2(place + 1) if is_ndcg else 1.0 for place in range(1, k + 1)]
            gain = sum(worth[y] * d for y, d in zip(ranking, discounts, strict=False) if truth[y])
            most = sum(w * d for w, d in zip(best, discounts, strict=False))
            norm = sum(discounts[: len(best)]) if is_ndcg else max(1, len(best)) if name == "recall" else k
            above += gain / norm if best else 0.0
            below += (most / norm if best else 0.0) if is_scored else 1.0
        return above / below if below else math.nan

    return lambda scores, target: [value(scores, target, k) for k in range(1, K + 1)]


def loop_label_hits(scores, target):
    hits, predicted = ([[0] * NUM_CLASSES for _ in KS] for _ in range(2))
    for row, truth in zip(scores.tolist(), target.tolist(), strict=True):
        ranking = sorted(range(NUM_CLASSES), key=lambda index: (-row[index], index))
        for place, k in enumerate(KS):
            for label in ranking[:k]:
                predicted[place][label] += 1
                hits[place][label] += truth[label]
    return [hits, predicted, target.sum(dim=0).tolist()]


# The table


@dataclass(frozen=True)
class Case:
    """A metric module, the function that it is over all samples, and plain loops."""

    build: Callable[[int], Metric]
    """From the number of classes."""
    function: Callable[..., Any]
    reference: Callable[..., Any]
    samples: Callable[..., tuple[torch.Tensor, torch.Tensor]] = class_samples
    grows: bool = False
    """Whether the state grows with the samples."""


def multilabel_function(scores, target):
    predicted = scores >= 0.5
    counts = metrics.count_labels(predicted, target)
    return {
        **metrics.macro_scores(predicted, target)._asdict(),
        **{f"micro_{name}": value for name, value in metrics.micro_scores(predicted, target)._asdict().items()},
        "exact_match": metrics.exact_match(predicted, target),
        **{
            f"tail/{name}": value
            for name, value in metrics.macro_scores_from_counts(counts.of(GROUP_TENSORS["tail"]))._asdict().items()
        },
    }


def tail_of(num_classes):
    return {"tail": torch.arange(num_classes // 2, num_classes)}


def retrieval_case(name, measure, function):
    return Case(lambda _: metrics.RetrievalMetric(measure, K), function, loop_measure(name), label_samples)


PROPENSITIES = torch.tensor(INVERSES)
CASES = {
    "BalancedAccuracy": Case(
        metrics.BalancedAccuracy, metrics.balanced_accuracy, lambda *s: loop_mean(loop_accuracies(*s))
    ),
    "BalancedAccuracy, k=2": Case(
        lambda c: metrics.BalancedAccuracy(c, k=2),
        lambda *s: metrics.balanced_accuracy(*s, k=2),
        lambda *s: loop_mean(loop_accuracies(*s, k=2)),
    ),
    "BalancedError": Case(
        metrics.BalancedError, metrics.balanced_error, lambda *s: 1 - loop_mean(loop_accuracies(*s))
    ),
    "PerClassAccuracy": Case(metrics.PerClassAccuracy, metrics.per_class_accuracy, loop_accuracies),
    "GroupAccuracy": Case(
        lambda c: metrics.GroupAccuracy(GROUP_TENSORS, c),
        lambda *s: metrics.group_accuracy(*s, GROUP_TENSORS),
        lambda *s: {n: loop_mean([loop_accuracies(*s)[c] for c in classes]) for n, classes in GROUPS.items()},
    ),
    "CalibrationError": Case(
        lambda _: metrics.CalibrationError(NUM_BINS),
        lambda *s: metrics.calibration_error(*s, num_bins=NUM_BINS),
        lambda *s: loop_calibration(*s, is_balanced=False),
    ),
    "BalancedCalibrationError": Case(
        lambda c: metrics.BalancedCalibrationError(c, NUM_BINS),
        lambda *s: metrics.balanced_calibration_error(*s, num_bins=NUM_BINS),
        lambda *s: loop_calibration(*s, is_balanced=True),
    ),
    "MultilabelScores": Case(
        lambda c: metrics.MultilabelScores(c, groups=tail_of(c)), multilabel_function, loop_multilabel, label_samples
    ),
    "AveragePrecision": Case(
        metrics.AveragePrecision,
        lambda *s: metrics.average_precision(*s).nanmean(),
        loop_average_precision,
        label_samples,
        grows=True,
    ),
    "BinnedAveragePrecision": Case(
        lambda c: metrics.BinnedAveragePrecision(c, NUM_BINS),
        lambda *s: metrics.binned_average_precision(*s, num_bins=NUM_BINS).nanmean(),
        lambda scores, target: loop_average_precision((scores * NUM_BINS).floor().clamp_max(NUM_BINS - 1), target),
        label_samples,
    ),
    "RetrievalMetric, precision": retrieval_case(
        "precision", metrics.PRECISION, lambda *s: metrics.precision_at_k(*s, K)
    ),
    "RetrievalMetric, recall": retrieval_case("recall", metrics.RECALL, lambda *s: metrics.recall_at_k(*s, K)),
    "RetrievalMetric, ndcg": retrieval_case("ndcg", metrics.NDCG, lambda *s: metrics.ndcg_at_k(*s, K)),
    "RetrievalMetric, psprecision": retrieval_case(
        "psprecision",
        metrics.propensity_scored_precision(PROPENSITIES),
        lambda *s: metrics.propensity_scored_precision_at_k(*s, K, PROPENSITIES),
    ),
    "RetrievalMetric, psndcg": retrieval_case(
        "psndcg",
        metrics.propensity_scored_ndcg(PROPENSITIES),
        lambda *s: metrics.propensity_scored_ndcg_at_k(*s, K, PROPENSITIES),
    ),
    "LabelHitsAtK": Case(
        lambda c: metrics.LabelHitsAtK(c, KS),
        lambda *s: metrics.count_label_hits(*s, KS),
        loop_label_hits,
        label_samples,
    ),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def to_plain(value):
    """Tensors of any nesting as lists, so that they compare and pickle."""
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [to_plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def assert_same(left, right, tolerance=1e-10):
    left, right = to_plain(left), to_plain(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key], tolerance)
    elif isinstance(left, list) and any(isinstance(part, list) for part in left):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other, tolerance)
    else:
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance)  # NaN equals NaN


def value_of(case, predictions, target):
    metric = case.build(NUM_CLASSES)
    metric.update(predictions, target)
    return metric.compute()


def state_size(metric):
    states = (
        part for state in metric.metric_state.values() for part in (state if isinstance(state, list) else [state])
    )
    return sum(state.numel() for state in states)


def test_the_table_has_every_module():
    public = (getattr(metrics, name) for name in metrics.__all__)
    modules = {value.__name__ for value in public if isinstance(value, type) and issubclass(value, Metric)}
    assert modules == {name.split(",")[0] for name in CASES}


@every_case
@pytest.mark.parametrize("seed", [0, 1])
def test_module_function_and_loops_agree(case, seed):
    predictions, target = case.samples(seed)
    expected = case.reference(predictions, target)
    assert_same(case.function(predictions, target), expected)
    assert_same(value_of(case, predictions, target), expected)


@every_case
def test_batches_add_up(case):
    predictions, target = case.samples()
    whole, metric = value_of(case, predictions, target), case.build(NUM_CLASSES)
    for rows in torch.arange(NUM_SAMPLES).split([1, 0, 49, 70]):
        metric(predictions[rows], target[rows])  # forward: the batch's value, and the state goes on
    assert_same(metric.compute(), whole, 1e-12)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_as_its_float32_values(case, dtype):
    predictions, target = case.samples()
    half = predictions.to(dtype)
    assert_same(value_of(case, half, target), value_of(case, half.float(), target), 1e-12)
    assert_same(case.function(half, target), case.function(half.float(), target), 1e-12)


@every_case
def test_an_empty_batch_is_worth_what_the_function_says_and_changes_nothing(case):
    predictions, target = case.samples()
    metric = case.build(NUM_CLASSES)
    metric.update(predictions[:0], target[:0])
    if case.samples is class_samples:
        assert np.isnan(np.array(list(flatten(to_plain(metric.compute()))))).all()
    elif not isinstance(metric, metrics.BinnedAveragePrecision):  # count_bins has nothing to look at
        assert_same(metric.compute(), case.function(predictions[:0], target[:0]))
    metric.update(predictions, target)
    assert_same(metric.compute(), value_of(case, predictions, target), 0)


def flatten(value):
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        yield from flatten(part) if isinstance(part, (dict, list)) else [part]


@every_case
def test_reset_and_pickle(case):
    predictions, target = case.samples()
    metric = case.build(NUM_CLASSES)
    metric.update(predictions, target)
    value = metric.compute()
    assert_same(pickle.loads(pickle.dumps(metric)).compute(), value, 0)
    metric.reset()
    metric.update(*case.samples(1))
    assert_same(metric.compute(), value_of(case, *case.samples(1)), 0)


@every_case
def test_states_grow_with_classes_and_not_with_samples(case):
    predictions, target = case.samples()
    metric = case.build(NUM_CLASSES)
    before = state_size(metric)
    metric.update(predictions, target)
    assert (state_size(metric) > before) == case.grows
    assert state_size(case.build(2 * NUM_CLASSES)) <= 2 * before
    assert before <= 2 * NUM_BINS * 3 * NUM_CLASSES


@every_case
def test_nan_is_refused_and_leaves_the_state_alone(case):
    predictions, target = case.samples()
    metric = case.build(NUM_CLASSES)
    metric.update(predictions, target)
    value = metric.compute()
    broken = predictions.clone()
    broken[3, 2] = math.nan
    with pytest.raises(ValueError, match=r"NaN|nan"):
        metric.update(broken, target)
    assert_same(metric.compute(), value, 0)
    if case.function is not multilabel_function:  # it takes predictions of 0 and 1
        with pytest.raises(ValueError, match=r"NaN|nan"):
            case.function(broken, target)


@pytest.mark.parametrize("case", [c for c in CASES.values() if c.samples is class_samples])
def test_ignored_samples_do_not_count(case):
    predictions, target = case.samples()
    # What an ignored sample's logits hold is nobody's business.
    more = torch.cat([predictions, torch.full((3, NUM_CLASSES), torch.nan)])
    padded = torch.cat([target, torch.full((3,), -100)])
    assert_same(value_of(case, more, padded), value_of(case, predictions, target), 0)
    assert_same(case.function(more, padded), case.function(predictions, target), 0)


# In two processes


def evaluate_in_part(rank):
    """Every metric of this process's share of the samples, of uneven shares, and where rank 1 saw nothing."""
    values = {}
    for name, case in CASES.items():
        predictions, target = case.samples()
        for split, stop in (("uneven", 50), ("nothing", NUM_SAMPLES)):
            rows = slice(0, stop) if rank == 0 else slice(stop, None)
            metric = case.build(NUM_CLASSES)
            for part in torch.arange(NUM_SAMPLES)[rows].split(30):
                metric.update(predictions[part], target[part])
            if not metric.update_called:
                metric.update(predictions[:0], target[:0])
            values[name, split] = to_plain(metric.compute())
            for method in ("missing_classes", "reliability", "per_class"):
                if hasattr(metric, method):
                    values[name, split, method] = to_plain(getattr(metric, method)())
    return values | {"never updated": average_precision_of_rank_0(rank)}


def average_precision_of_rank_0(rank):
    """Rank 0 keeps scores of float64; rank 1 does not know that there are any."""
    metric = metrics.AveragePrecision(NUM_CLASSES)
    if rank == 0:
        metric.update(*label_samples())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method of metric AveragePrecision was called before")
        return metric.compute().item()


@pytest.fixture(scope="module")
def results(two_processes):
    return two_processes(evaluate_in_part)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_values_of_all_samples(results, name):
    case = CASES[name]
    metric = case.build(NUM_CLASSES)
    metric.update(*case.samples())
    for result in results:
        for split in ("uneven", "nothing"):
            assert_same(result[name, split], metric.compute(), 1e-12)
            for method in ("missing_classes", "reliability", "per_class"):
                if hasattr(metric, method):
                    assert_same(result[name, split, method], getattr(metric, method)(), 1e-12)


def test_a_process_that_never_updates_does_not_abort_the_others(results):
    expected = metrics.average_precision(*label_samples()).nanmean().item()
    assert [result["never updated"] for result in results] == pytest.approx([expected] * 2, abs=1e-12)
