"""Calibration errors against the definition and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassCalibrationError

from longtail.metrics import (
    BalancedCalibrationError,
    CalibrationError,
    bin_confidences,
    calibration_error,
    reliability,
    reliability_from_counts,
)

NUM_CLASSES = 6


def make_samples(num_samples=400, dtype=torch.float64):
    """Long-tailed targets without class 4, and logits that are right more often than not."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0, 0.0625])
    target = torch.multinomial(shares, num_samples, replacement=True, generator=generator)
    logits = torch.randn(num_samples, NUM_CLASSES, dtype=torch.float64, generator=generator)
    logits[torch.arange(num_samples), target] += 1.0
    return logits.to(dtype), target


def reliability_by_loops(logits, target, num_bins, weight_of):
    """share, confidence and accuracy of each bin from the definition."""
    mass, confidences, right = [0.0] * num_bins, [0.0] * num_bins, [0.0] * num_bins
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        exponentials = [math.exp(value) for value in row]
        confidence = max(exponentials) / sum(exponentials)
        index = next(b for b in range(num_bins) if b / num_bins < confidence <= (b + 1) / num_bins)
        weight = weight_of[label]
        mass[index] += weight
        confidences[index] += weight * confidence
        right[index] += weight * (row.index(max(row)) == label)
    total = sum(mass)
    ratio = [(c / m, r / m) if m else (math.nan, math.nan) for m, c, r in zip(mass, confidences, right, strict=True)]
    return [m / total for m in mass], [c for c, _ in ratio], [r for _, r in ratio]


@pytest.mark.parametrize("num_bins", [1, 5, 15])
@pytest.mark.parametrize("is_balanced", [False, True])
def test_calibration_is_the_definition(num_bins, is_balanced):
    logits, target = make_samples(num_samples=150)
    counts = torch.bincount(target, minlength=NUM_CLASSES).tolist()
    weight_of = [1 / max(n, 1) if is_balanced else 1.0 for n in counts]
    metric = BalancedCalibrationError(NUM_CLASSES, num_bins) if is_balanced else CalibrationError(num_bins)
    metric.update(logits, target)
    share, confidence, accuracy = reliability_by_loops(logits, target, num_bins, weight_of)
    rows = metric.reliability()
    np.testing.assert_allclose(rows.share, share, atol=1e-12)
    np.testing.assert_allclose(rows.confidence, confidence, atol=1e-12)
    np.testing.assert_allclose(rows.accuracy, accuracy, atol=1e-12)
    expected = sum(s * abs(a - c) for s, c, a in zip(share, confidence, accuracy, strict=True) if s)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)


def test_calibration_error_is_torchmetrics():
    logits, target = make_samples(dtype=torch.float32)
    expected = MulticlassCalibrationError(NUM_CLASSES, n_bins=15)(logits, target).item()
    assert CalibrationError(15)(logits, target).item() == pytest.approx(expected, abs=1e-6)


def test_a_calibrated_model_has_no_error_and_a_certain_wrong_one_has_all():
    probs = torch.tensor([[0.75, 0.25]]).log().expand(4, 2)
    assert CalibrationError()(probs, torch.tensor([0, 0, 0, 1])).item() == pytest.approx(0, abs=1e-7)
    certain = torch.tensor([[1e4, -1e4]]).expand(4, 2)
    assert CalibrationError()(certain, torch.tensor([1, 1, 1, 1])).item() == 1.0


def test_a_bin_holds_its_upper_end():
    logits = torch.tensor([[0.0, 0.0], [0.0, -math.inf]])  # confidences 1/2 and 1
    _, counts, _ = bin_confidences(logits, torch.tensor([0, 0]), num_bins=4)
    assert counts.tolist() == [0, 1, 0, 1]


def test_balanced_calibration_equals_plain_on_balanced_samples():
    logits, _ = make_samples(num_samples=60)
    target = torch.arange(60) % NUM_CLASSES
    plain_error, balanced = CalibrationError(), BalancedCalibrationError(NUM_CLASSES)
    assert balanced(logits, target).item() == pytest.approx(plain_error(logits, target).item(), abs=1e-12)


def test_bins_by_class_add_up_to_bins():
    logits, target = make_samples()
    together = bin_confidences(logits, target, 7)
    by_class = bin_confidences(logits, target, 7, by_class=True)
    for whole, parts in zip(together, by_class, strict=True):
        torch.testing.assert_close(parts.sum(dim=0), whole, rtol=0, atol=1e-12)


LOGITS = torch.zeros(2, 3)
TARGET = torch.tensor([0, 1])


@pytest.mark.parametrize("metric", [CalibrationError(), BalancedCalibrationError(3)])
@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.tensor([0, 1]), TARGET, r"logits"),
        (LOGITS, torch.tensor([0, 3]), r"target must be in 0\.\.2"),
        (torch.tensor([[math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]]), TARGET, r"must be finite"),
        (torch.full((2, 3), torch.nan), TARGET, r"must not be NaN"),
    ],
)
def test_calibration_refuses_bad_batches(metric, logits, target, message):
    with pytest.raises(ValueError, match=message):
        metric.update(logits, target)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"num_bins must be at least 1\. Got 0"):
        CalibrationError(0)
    with pytest.raises(ValueError, match=r"logits must be \[N, 2\]"):
        BalancedCalibrationError(2).update(LOGITS, TARGET)
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        calibration_error(LOGITS, TARGET, num_bins=0)


def test_infinite_logits_of_other_classes_are_fine():
    masked = torch.tensor([[0.0, -math.inf], [-math.inf, 1.0]])
    assert calibration_error(masked, torch.tensor([0, 1])).item() == 0.0


def test_missing_classes_are_named():
    logits, target = make_samples()
    metric = BalancedCalibrationError(NUM_CLASSES)
    assert metric.missing_classes().tolist() == list(range(NUM_CLASSES))
    metric.update(logits, target)
    assert metric.missing_classes().tolist() == [4]


def test_reliability_is_that_of_the_counts():
    logits, target = make_samples()
    from_counts = reliability_from_counts(*bin_confidences(logits, target, 7))
    for one, other in zip(reliability(logits, target, 7), from_counts, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
