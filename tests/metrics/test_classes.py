"""Accuracies against scikit-learn and plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, recall_score, top_k_accuracy_score
from torchmetrics import MetricCollection

from longtail import ClassPrior
from longtail.metrics import (
    BalancedAccuracy,
    BalancedError,
    GroupAccuracy,
    PerClassAccuracy,
    balanced_accuracy,
    balanced_accuracy_from_counts,
    balanced_error,
    count_hits,
    group_accuracy,
    per_class_accuracy,
)

NUM_CLASSES = 6
GROUPS = {"head": torch.tensor([0, 1]), "torso": torch.tensor([2]), "tail": torch.tensor([3, 4, 5])}


def make_samples(num_samples=400, dtype=torch.float64):
    """Long-tailed targets without class 4, and logits that are right more often than not."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0, 0.0625])
    target = torch.multinomial(shares, num_samples, replacement=True, generator=generator)
    logits = torch.randn(num_samples, NUM_CLASSES, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), target] += 1.0
    return logits.to(dtype), target


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_balanced_accuracy_is_scikit_learns():
    logits, target = make_samples()
    expected = balanced_accuracy_score(target, logits.argmax(dim=1))
    assert BalancedAccuracy(NUM_CLASSES)(logits, target).item() == pytest.approx(expected, abs=1e-12)
    assert BalancedError(NUM_CLASSES)(logits, target).item() == pytest.approx(1 - expected, abs=1e-12)
    assert balanced_accuracy(logits, target).item() == pytest.approx(expected, abs=1e-12)
    assert balanced_accuracy(logits.numpy(), target.numpy()).item() == pytest.approx(expected, abs=1e-12)
    assert balanced_error(logits.argmax(dim=1), target, NUM_CLASSES).item() == pytest.approx(1 - expected, abs=1e-12)
    counted = count_hits(logits, target, NUM_CLASSES)
    assert balanced_accuracy_from_counts(*counted).item() == pytest.approx(expected, abs=1e-12)


def test_per_class_accuracy_is_scikit_learns_recall():
    logits, target = make_samples()
    present = [0, 1, 2, 3, 5]
    expected = recall_score(target.numpy(), logits.argmax(dim=1).numpy(), labels=present, average=None)
    value = PerClassAccuracy(NUM_CLASSES)(logits, target)
    np.testing.assert_allclose(value[present], expected, atol=1e-12)
    assert math.isnan(value[4])


def test_group_accuracy_is_the_mean_recall_of_the_groups_classes():
    logits, target = make_samples()
    true, predicted = target.numpy(), logits.argmax(dim=1).numpy()
    expected = {
        "head": recall_score(true, predicted, labels=[0, 1], average="macro"),
        "torso": recall_score(true, predicted, labels=[2], average="macro"),
        "tail": recall_score(true, predicted, labels=[3, 5], average="macro"),  # class 4 has no samples
    }
    for found in (GroupAccuracy(GROUPS, NUM_CLASSES)(logits, target), group_accuracy(logits, target, GROUPS)):
        assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, NUM_CLASSES - 1])
def test_top_k_is_scikit_learns(k):
    logits, target = make_samples()
    value = PerClassAccuracy(NUM_CLASSES, k=k)(logits, target)
    for label in (0, 1, 2, 3, 5):
        rows = target == label
        expected = top_k_accuracy_score(target[rows], logits[rows], k=k, labels=range(NUM_CLASSES))
        assert value[label].item() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4))
def test_equal_logits_rank_by_class_index(seed, k):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 3, (20, 4), generator=generator).float()
    target = torch.randint(0, 4, (20,), generator=generator)
    expected = [0] * 4
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        ranking = sorted(range(4), key=lambda index: (-row[index], index))
        expected[label] += label in ranking[:k]
    assert count_hits(logits, target, 4, k)[0].tolist() == expected


def make_metrics():
    return {
        "accuracy": BalancedAccuracy(NUM_CLASSES),
        "error": BalancedError(NUM_CLASSES),
        "per class": PerClassAccuracy(NUM_CLASSES),
        "groups": GroupAccuracy(GROUPS, NUM_CLASSES),
    }


def test_indices_count_as_the_logits_they_are_the_largest_of():
    logits, target = make_samples()
    for name in make_metrics():
        by_logits, by_index = make_metrics()[name], make_metrics()[name]
        predicted = logits.argmax(dim=1).to(torch.uint8)
        by_index(predicted, target.to(torch.int16))
        by_logits(logits, target)
        assert torch.equal(by_index.hits, by_logits.hits)
        assert torch.equal(by_index.counts, by_logits.counts)


def test_missing_classes_are_named():
    logits, target = make_samples()
    for metric in make_metrics().values():
        assert metric.missing_classes().tolist() == list(range(NUM_CLASSES))
        metric.update(logits, target)
        assert metric.missing_classes().tolist() == [4]


def test_a_collection_counts_once_for_all_of_them():
    logits, target = make_samples()
    together = MetricCollection(make_metrics())
    for rows in torch.arange(len(target)).split(150):
        together.update(logits[rows], target[rows])
    assert [sorted(group) for group in together.compute_groups.values()] == [sorted(make_metrics())]
    values = together.compute()
    for name, metric in make_metrics().items():
        metric.update(logits, target)
        alone = metric.compute()
        for key, value in alone.items() if isinstance(alone, dict) else [(name, alone)]:
            torch.testing.assert_close(values[key], value, rtol=0, atol=0, equal_nan=True)


def test_a_collection_keeps_metrics_of_other_settings_apart():
    """torchmetrics joins metrics whose states are equal after the first batch, and then updates one of them only."""
    together = MetricCollection(
        {
            "one": BalancedAccuracy(3),
            "two": BalancedAccuracy(3, k=2),
            "ignoring": BalancedAccuracy(3, ignore_index=2),
        }
    )
    together.update(torch.eye(3)[:2], torch.tensor([0, 1]))  # all right, and nothing to ignore
    together.update(torch.tensor([[2.0, 1.0, 0.0]] * 2), torch.tensor([1, 2]))
    values = {name: value.item() for name, value in together.compute().items()}
    assert values == pytest.approx({"one": 0.5, "two": 2 / 3, "ignoring": 0.75})


def test_groups_of_a_prior_work_also_when_one_is_empty():
    prior = ClassPrior.from_counts([500, 400, 10, 1])
    metric = GroupAccuracy(prior.groups(), num_classes=4)
    value = metric(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3]))
    assert value["head"] == 1.0
    assert value["torso"].isnan()
    assert value["tail"] == 0.5


def test_the_state_is_linear_in_the_number_of_classes():
    num_classes = 10**6
    metric = BalancedAccuracy(num_classes)
    metric.update(torch.tensor([5, num_classes - 1]), torch.tensor([5, 0]))
    assert metric.compute().item() == 0.5
    assert sum(state.numel() for state in metric.metric_state.values()) == 2 * num_classes + 2  # and two settings


def test_infinite_logits_of_other_classes_are_fine():
    masked = torch.tensor([[0.0, -math.inf], [-math.inf, 1.0]])
    assert BalancedAccuracy(2)(masked, torch.tensor([0, 1])).item() == 1.0


LOGITS = torch.zeros(2, 3)
TARGET = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("predictions", "target", "message"),
    [
        (LOGITS, torch.tensor([0, 3]), r"target must be in 0\.\.2 \(or ignore_index\). Got 3"),
        (LOGITS, torch.tensor([0, -1]), r"target must be in 0\.\.2 .* Got -1"),
        (LOGITS, torch.tensor([0.0, 1.0]), r"target must be \[2\] integer class indices. Got torch.float32"),
        (LOGITS, torch.tensor([0, 1, 2]), r"target must be \[2\]"),
        (LOGITS, torch.tensor([[0], [1]]), r"target must be \[2\]"),
        (torch.zeros(2, 4), TARGET, r"logits must be \[N, 3\]. Got shape \(2, 4\)"),
        (torch.zeros(2, 3, 1), TARGET, r"predictions must be floating-point logits"),
        (torch.zeros(2, 3, dtype=torch.int64), TARGET, r"predictions must be floating-point logits"),
        (torch.zeros(2), TARGET, r"predictions must be floating-point logits"),
        (torch.tensor([True, False]), TARGET, r"predictions must be floating-point logits"),
        (torch.tensor([0, 3]), TARGET, r"predictions must be in 0\.\.2. Got 3"),
        (torch.tensor([[0.0, 0.0, torch.nan], [0.0, 0.0, 0.0]]), TARGET, r"logits must not be NaN"),
    ],
)
def test_bad_batches_are_refused_and_leave_the_state_alone(predictions, target, message):
    metric = BalancedAccuracy(3)
    metric.update(LOGITS, TARGET)
    with pytest.raises(ValueError, match=message):
        metric.update(predictions, target)
    assert metric.counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BalancedAccuracy(0), "num_classes must be at least 1. Got 0"),
        (lambda: BalancedAccuracy(3, k=4), r"k must be in 1\.\.3. Got 4"),
        (lambda: BalancedError(3, k=0), r"k must be in 1\.\.3. Got 0"),
        (lambda: BalancedAccuracy(3, k=2).update(TARGET, TARGET), "k=2 needs logits"),
        (lambda: balanced_accuracy(TARGET, TARGET), "num_classes must be given where predictions are class indices"),
        (lambda: per_class_accuracy(LOGITS, TARGET, 4), r"logits must be \[N, 4\]"),
        (lambda: group_accuracy(LOGITS, TARGET, {"tail": torch.tensor([3])}), r"group 'tail' must be in 0\.\.2"),
        (lambda: GroupAccuracy({}, 3), "at least one group"),
        (lambda: GroupAccuracy({"tail": torch.tensor([3])}, 3), r"group 'tail' must be in 0\.\.2. Got 3"),
        (lambda: GroupAccuracy({"tail": torch.tensor([1, 1])}, 3), "group 'tail' must name every class once"),
        (lambda: GroupAccuracy({"tail": torch.tensor([0.5])}, 3), "group 'tail' must be a vector of class indices"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
