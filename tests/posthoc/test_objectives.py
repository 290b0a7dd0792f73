"""Shares of errors: their sums are those of scikit-learn, of plain loops and of the metrics."""

import math

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss

from longtail import ClassPrior, metrics
from longtail.posthoc import balanced_calibration_error_shares, balanced_error_shares, balanced_log_loss_shares

OBJECTIVES = (balanced_error_shares, balanced_log_loss_shares, balanced_calibration_error_shares)
PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


class TestObjectives:
    def test_error_is_that_of_scikit_learn(self, gaussians):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        expected = 1 - balanced_accuracy_score(labels, logits.argmax(dim=1))
        assert balanced_error_shares(logits, labels).sum().item() == pytest.approx(expected, abs=1e-12)
        assert balanced_error_shares(logits.numpy(), labels.numpy()).sum().item() == pytest.approx(
            expected, abs=1e-12
        )

    def test_log_loss_is_that_of_scikit_learn(self, gaussians):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        inverse = (1 / torch.bincount(labels).double())[labels]
        expected = log_loss(labels.numpy(), logits.softmax(dim=1).numpy(), sample_weight=inverse.numpy())
        assert balanced_log_loss_shares(logits, labels).sum().item() == pytest.approx(expected, abs=1e-10)

    def test_calibration_error_is_the_sum_over_bins(self, gaussians):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        probs, counts = logits.softmax(dim=1).tolist(), torch.bincount(labels).tolist()
        gaps = [0.0] * 15
        for row, label in zip(probs, labels.tolist(), strict=True):
            confidence = max(row)
            correct = row.index(confidence) == label
            gaps[math.ceil(confidence * 15) - 1] += (confidence - correct) / (4 * counts[label])
        expected = sum(abs(gap) for gap in gaps)
        assert balanced_calibration_error_shares(logits, labels).sum().item() == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_absent_classes_do_not_count(self, objective, random_logits):
        logits, labels = random_logits(6), torch.tensor([0, 0, 0, 1, 1, 1])
        every = torch.full((6,), 1 / 6, dtype=torch.float64)
        torch.testing.assert_close(objective(logits, labels), objective(logits, labels, every))

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_half_precision_logits(self, objective, random_logits):
        logits, labels = random_logits(6).half(), torch.tensor([0, 1, 2, 3, 0, 1])
        torch.testing.assert_close(objective(logits, labels), objective(logits.float(), labels))

    def test_sums_are_the_metrics(self, gaussians):
        logits, target = gaussians([50, 20, 5, 2], PRIOR, seed=1)
        error = balanced_error_shares(logits, target).sum().item()
        assert error == pytest.approx(metrics.balanced_error(logits, target).item(), abs=1e-12)
        for num_bins in (1, 15):
            calibration = balanced_calibration_error_shares(logits, target, num_bins=num_bins).sum().item()
            expected = metrics.balanced_calibration_error(logits, target, num_bins).item()
            assert calibration == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_nan_is_not_scored(self, objective):
        logits = torch.zeros(2, 4)
        logits[1, 2] = math.nan
        with pytest.raises(ValueError, match="logits must not be NaN"):
            objective(logits, torch.tensor([0, 1]))

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"target must be in 0..3. Got 4"):
            balanced_error_shares(torch.zeros(1, 4), torch.tensor([4]))
        with pytest.raises(ValueError, match=r"target must be in 0..3. Got -1"):
            balanced_error_shares(torch.zeros(1, 4), torch.tensor([-1]))
        with pytest.raises(ValueError, match=r"target must be \[2\] class indices"):
            balanced_error_shares(torch.zeros(2, 4), torch.tensor([0]))
        with pytest.raises(ValueError, match=r"logits must be floating-point \[N, C\]"):
            balanced_error_shares(torch.zeros(4), torch.tensor([0]))
        with pytest.raises(ValueError, match="at least one labeled sample"):
            balanced_error_shares(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
        with pytest.raises(ValueError, match="num_bins must be at least 1"):
            balanced_calibration_error_shares(torch.zeros(1, 4), torch.tensor([0]), num_bins=0)
