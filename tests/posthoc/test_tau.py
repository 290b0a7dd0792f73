"""The choice of tau against plain loops, and on data whose right answer is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from longtail import ClassPrior
from longtail.posthoc import (
    adjust_logits,
    balanced_calibration_error_shares,
    balanced_error_shares,
    balanced_log_loss_shares,
    cross_validate_tau,
    tune_tau,
)

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


def reference_standard_error(values: list[float], labels: list[int]) -> float:
    """Of the mean of class means: each class's variance has one more degree of freedom, at the mean variance."""
    classes = sorted(set(labels))
    groups = {c: [v for v, y in zip(values, labels, strict=True) if y == c] for c in classes}
    squares = {c: sum((v - sum(g) / len(g)) ** 2 for v in g) for c, g in groups.items()}
    known = [squares[c] / (len(g) - 1) for c, g in groups.items() if len(g) > 1]
    typical = sum(known) / len(known)
    variances = {c: (squares[c] + typical) / len(g) for c, g in groups.items()}
    return math.sqrt(sum(variances[c] / len(groups[c]) for c in classes)) / len(classes)


class TestTuneTau:
    def test_curve_and_errors_are_those_of_a_plain_loop(self, gaussians):
        logits, labels = gaussians([40, 20, 6, 1], PRIOR, seed=3)
        search = tune_tau(logits, labels, PRIOR, taus=[0.0, 0.5, 1.0, 2.0])
        wrong = []
        for tau in search.taus.tolist():
            predicted = [
                max(range(4), key=lambda y: row[y] - tau * PRIOR.log_probs[y].item()) for row in logits.tolist()
            ]
            wrong.append([float(p != y) for p, y in zip(predicted, labels.tolist(), strict=True)])
        ys = labels.tolist()
        scores = [
            sum(sum(w for w, y in zip(row, ys, strict=True) if y == c) / ys.count(c) for c in range(4)) / 4
            for row in wrong
        ]
        torch.testing.assert_close(search.scores, torch.tensor(scores, dtype=torch.float64), rtol=0, atol=1e-10)
        errors = [reference_standard_error(row, ys) for row in wrong]
        torch.testing.assert_close(
            search.standard_errors, torch.tensor(errors, dtype=torch.float64), atol=1e-10, rtol=0
        )
        best = wrong[scores.index(min(scores))]
        in_doubt = []
        for tau, score, row in zip(search.taus.tolist(), scores, wrong, strict=True):
            difference = [a - b for a, b in zip(row, best, strict=True)]
            if score - min(scores) <= reference_standard_error(difference, ys) + 1e-12:
                in_doubt.append(tau)
        assert search.interval == (min(in_doubt), max(in_doubt))
        assert search.tau == min(in_doubt, key=lambda tau: abs(tau - 1))

    @pytest.mark.parametrize("scale", [0.6, 1.0, 2.0])
    @pytest.mark.parametrize("objective", [balanced_error_shares, balanced_log_loss_shares])
    def test_finds_the_scale_of_the_logits(self, scale, objective, gaussians):
        """Logits that are ``scale`` times too large need tau = scale; a long-tailed holdout must say so too."""
        logits, labels = gaussians([3600, 1800, 450, 150], PRIOR, seed=4, scale=scale)
        search = tune_tau(logits, labels, PRIOR, objective=objective)
        assert search.tau == pytest.approx(scale, rel=0.2)
        assert search.interval[0] <= search.tau <= search.interval[1] < 3

    def test_calibration_error_is_least_at_one_for_calibrated_logits(self, gaussians):
        logits, labels = gaussians([3600, 1800, 450, 150], PRIOR, seed=5)
        assert tune_tau(logits, labels, PRIOR, objective=balanced_calibration_error_shares).tau == pytest.approx(
            1, abs=0.1
        )

    def test_is_steadier_than_the_lowest_point_where_the_tail_is_small(self, gaussians):
        chosen, lowest = [], []
        for seed in range(20):
            logits, labels = gaussians([60, 30, 9, 2], PRIOR, seed=seed)
            search = tune_tau(logits, labels, PRIOR)
            chosen.append(abs(search.tau - 1))
            lowest.append(abs(float(search.taus[search.scores.argmin()]) - 1))
        assert sum(chosen) < 0.5 * sum(lowest)

    def test_flat_curve_gives_one(self):
        logits = 1e3 * torch.eye(4, dtype=torch.float64)
        search = tune_tau(logits.repeat(2, 1), torch.arange(4).repeat(2), PRIOR)
        assert search.tau == 1.0
        assert search.interval == (0.0, 3.0)
        assert (search.standard_errors == 0).all()

    def test_single_samples_leave_everything_in_doubt(self, random_logits):
        search = tune_tau(random_logits(4), torch.arange(4), PRIOR)
        assert search.tau == 1.0
        assert (search.standard_errors == math.inf).all()

    def test_missing_classes_are_named_and_do_not_count(self, gaussians):
        logits, labels = gaussians([30, 20, 0, 0], PRIOR, seed=6)
        search = tune_tau(logits, labels, PRIOR)
        assert search.missing_classes.tolist() == [2, 3]
        plain = balanced_accuracy_score(labels, adjust_logits(logits, PRIOR).argmax(dim=1).clamp_max(1))
        assert search.scores[20].item() >= 1 - plain - 1e-12

    def test_training_prior_as_target_makes_the_curve_flat(self, gaussians):
        logits, labels = gaussians([60, 30, 9, 3], PRIOR, seed=7)
        search = tune_tau(logits, labels, PRIOR, target_prior=PRIOR)
        wrong = (logits.argmax(dim=1) != labels).double()
        expected = sum(PRIOR.probs[c].item() * wrong[labels == c].mean().item() for c in range(4))
        torch.testing.assert_close(search.scores, torch.full_like(search.scores, expected))
        assert search.tau == 1.0

    @pytest.mark.parametrize(
        "objective", [balanced_error_shares, balanced_log_loss_shares, balanced_calibration_error_shares]
    )
    def test_target_of_zero_leaves_its_samples_out(self, objective, gaussians):
        logits, labels = gaussians([40, 20, 6, 5], PRIOR, seed=8)
        target = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
        search = tune_tau(logits, labels, PRIOR, objective=objective, target_prior=target)
        kept = labels < 2
        alone = tune_tau(logits[kept], labels[kept], PRIOR, objective=objective, target_prior=target)
        torch.testing.assert_close(search.scores, alone.scores)
        assert search.missing_classes.tolist() == []

    @given(repeats=st.lists(st.integers(0, 3), min_size=12, max_size=12), seed=st.integers(0, 100))
    @example(repeats=[3, 3, 0, 1, 1, 1, 1, 2, 0, 2, 0, 0], seed=27)  # several best taus, apart by rounding
    @settings(deadline=None, max_examples=10, database=None)
    def test_weights_count_samples(self, repeats, seed, random_logits):
        logits, labels = random_logits(13, seed=seed), torch.tensor([*range(4), *range(4), *range(4), 0])
        weights = torch.tensor([*repeats, 1], dtype=torch.float64)
        weighted = tune_tau(logits, labels, PRIOR, sample_weight=weights)
        rows = torch.repeat_interleave(weights.long())
        repeated = tune_tau(logits[rows], labels[rows], PRIOR)
        torch.testing.assert_close(weighted.scores, repeated.scores)
        torch.testing.assert_close(weighted.standard_errors, repeated.standard_errors)
        assert (weighted.tau, weighted.interval) == (repeated.tau, repeated.interval)
        assert torch.equal(weighted.missing_classes, repeated.missing_classes)

    @given(seed=st.integers(0, 1000))
    @settings(deadline=None, max_examples=10, database=None)
    def test_order_of_samples_and_classes_does_not_matter(self, seed, gaussians):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows, classes = torch.randperm(25, generator=generator), torch.randperm(4, generator=generator)
        permuted_prior = ClassPrior.from_counts(PRIOR.counts[classes])
        permuted = tune_tau(logits[rows][:, classes], classes.argsort()[labels[rows]], permuted_prior)
        search = tune_tau(logits, labels, PRIOR)
        torch.testing.assert_close(permuted.scores, search.scores)
        assert permuted.tau == search.tau

    def test_takes_arrays_and_half_precision(self, gaussians):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=9)
        search = tune_tau(logits, labels, PRIOR)
        assert tune_tau(logits.numpy(), labels.numpy().astype(np.uint8), PRIOR).tau == search.tau
        assert torch.isfinite(tune_tau(logits.bfloat16(), labels, PRIOR).scores).all()

    def test_own_objective(self, gaussians):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=9)
        search = tune_tau(logits, labels, PRIOR, objective=lambda f, y, w: w * (f.argmax(dim=1) != y))
        assert torch.equal(search.scores, tune_tau(logits, labels, PRIOR).scores)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"taus": []}, "taus must be a vector of finite numbers of at least 0"),
            ({"taus": [0.0, math.nan]}, "taus must be a vector of finite numbers"),
            ({"taus": [-1.0]}, "taus must be a vector of finite numbers"),
            ({"target": torch.tensor([0, 1, 2])}, r"target must be \[4\] class indices. Got torch.int64 \(3,\)"),
            ({"target": torch.zeros(4)}, r"target must be \[4\] class indices. Got torch.float32"),
            ({"target": torch.tensor([0, 1, 2, 7])}, r"target must be in 0..3. Got 7"),
            ({"logits": torch.full((4, 4), math.nan)}, "logits must be finite"),
            ({"logits": torch.zeros(4)}, r"logits must be floating-point \[N, C\]"),
            ({"prior": ClassPrior.from_counts([1, 1])}, "prior is for 2 classes, but logits have 4"),
            ({"sample_weight": torch.ones(3)}, r"sample_weight must be \[4\] finite numbers"),
            ({"sample_weight": -torch.ones(4)}, r"sample_weight must be \[4\] finite numbers"),
            ({"sample_weight": torch.zeros(4)}, "at least one labeled sample"),
            ({"objective": lambda f, y, w: f.sum()}, r"objective must return \[4\], one share"),
            ({"objective": lambda f, y, w: w * math.nan}, "objective must return finite numbers"),
        ],
    )
    def test_bad_input(self, options, message):
        arguments = {"logits": torch.zeros(4, 4), "target": torch.arange(4), "prior": PRIOR} | options
        with pytest.raises(ValueError, match=message):
            tune_tau(**arguments)


class TestCrossValidateTau:
    def test_folds_of_one_prior_are_one_holdout(self, gaussians):
        logits, labels = gaussians([40, 20, 6, 3], PRIOR, seed=10)
        even = torch.arange(len(labels)) % 2 == 0
        pooled = cross_validate_tau([(logits[rows], labels[rows], PRIOR) for rows in (even, ~even)])
        single = tune_tau(logits, labels, PRIOR)
        torch.testing.assert_close(pooled.scores, single.scores)
        torch.testing.assert_close(pooled.standard_errors, single.standard_errors)
        assert (pooled.tau, pooled.interval) == (single.tau, single.interval)

    def test_every_fold_is_adjusted_by_its_own_prior(self, gaussians):
        other = ClassPrior.from_counts([1, 10, 20, 70])
        one, two = gaussians([20, 10, 5, 3], PRIOR, seed=11), gaussians([20, 10, 5, 3], other, seed=12)
        search = cross_validate_tau([(*one, PRIOR), (*two, other)], taus=[1.0])
        adjusted = torch.cat([adjust_logits(one[0], PRIOR), adjust_logits(two[0], other)])
        expected = balanced_error_shares(adjusted, torch.cat([one[1], two[1]])).sum()
        assert search.scores[0].item() == pytest.approx(expected.item(), abs=1e-12)

    def test_bad_input(self):
        with pytest.raises(ValueError, match="at least one fold"):
            cross_validate_tau([])
        folds = [(torch.zeros(1, n), torch.zeros(1, dtype=torch.int64), PRIOR) for n in (4, 3)]
        with pytest.raises(ValueError, match=r"folds must have the same classes. Got 4 and 3"):
            cross_validate_tau(folds)
        with pytest.raises(ValueError, match=r"sample_weight must be one vector per fold, 1. Got 2"):
            cross_validate_tau(folds[:1], sample_weight=[torch.ones(1), torch.ones(1)])
