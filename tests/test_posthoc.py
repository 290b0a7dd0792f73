"""Post-hoc corrections against plain loops from the papers' formulas, and on data whose right answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import balanced_accuracy_score, log_loss
from threadpoolctl import threadpool_limits

from longtail import ClassPrior, margins, posthoc
from longtail.posthoc import (
    adjust_logits,
    balanced_calibration_error,
    balanced_error,
    balanced_log_loss,
    cross_validated_tau,
    estimate_target_prior,
    normalize_weights,
    normalize_weights_by_prior,
    temperature_scale,
    tune_tau,
)
from longtail.posthoc import nearest as nearest_module

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Sums this small only lose time to threads that wait for each other."""
    with threadpool_limits(limits=1):
        yield


def random_logits(num_rows: int, num_classes: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2


def gaussians(
    counts: list[int], prior: ClassPrior, seed: int, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of unit Gaussians, and ``scale`` times their exact log posterior under the prior (up to a constant)."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(len(counts), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(99)) * 1.2
    labels = torch.repeat_interleave(torch.tensor(counts))
    x = means[labels] + torch.randn(len(labels), 5, dtype=torch.float64, generator=generator)
    return scale * (x @ means.T - means.square().sum(dim=1) / 2 + prior.log_probs), labels


class TestAdjustLogits:
    @pytest.mark.parametrize("target", [None, [0.1, 0.2, 0.3, 0.4]])
    def test_formula(self, target):
        logits, tau = random_logits(5), 1.3
        adjusted = adjust_logits(logits, PRIOR, tau, None if target is None else torch.tensor(target))
        counts = [60, 30, 9, 1]
        for row in range(5):
            for y in range(4):
                wanted = 0.25 if target is None else target[y]
                expected = logits[row, y].item() - tau * (math.log(counts[y] / 100) - math.log(wanted))
                assert adjusted[row, y].item() == pytest.approx(expected, abs=1e-7 if target else 1e-12)

    def test_numpy_and_torch_agree(self):
        logits = random_logits(5)
        result = adjust_logits(logits.numpy(), PRIOR)
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, adjust_logits(logits, PRIOR).numpy())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_keeps_dtype(self, dtype):
        logits = random_logits(3).to(dtype)
        adjusted = adjust_logits(logits, PRIOR)
        assert adjusted.dtype == dtype
        tolerance = 8 * torch.finfo(dtype).eps * 8
        torch.testing.assert_close(adjusted.double(), adjust_logits(logits.double(), PRIOR), rtol=0, atol=tolerance)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_keeps_array_dtype(self, dtype):
        assert adjust_logits(np.zeros((2, 4), dtype), PRIOR).dtype == dtype

    def test_read_only_array_stays_as_it_is(self):
        logits = random_logits(3).numpy()
        before = logits.copy()
        logits.setflags(write=False)
        adjust_logits(logits, PRIOR)
        np.testing.assert_array_equal(logits, before)

    @pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 3, 4)])
    def test_any_leading_shape(self, shape):
        logits = torch.zeros(shape)
        expected = torch.full(shape, 0.25).log() - PRIOR.log_probs.float()
        torch.testing.assert_close(adjust_logits(logits, PRIOR), expected)

    def test_stays_on_the_device_without_looking_at_values(self):
        logits = torch.empty(2, 4, device="meta")  # any look at its values raises
        assert adjust_logits(logits, PRIOR).device.type == "meta"

    def test_gradient_passes_unchanged(self):
        logits = random_logits(3).requires_grad_()
        adjust_logits(logits, PRIOR).sum().backward()
        assert logits.grad is not None
        assert (logits.grad == 1).all()

    def test_identities(self):
        logits = random_logits(6)
        assert torch.equal(adjust_logits(logits, PRIOR, tau=0.0), logits)
        assert torch.equal(adjust_logits(logits, PRIOR, tau=2.0, target_prior=PRIOR), logits)
        uniform = ClassPrior.from_counts([7, 7, 7, 7])
        torch.testing.assert_close(adjust_logits(logits, uniform), logits)
        torch.testing.assert_close(adjust_logits(logits, PRIOR.probs), adjust_logits(logits, PRIOR))

    def test_inverts_the_logit_adjusted_loss(self):
        logits = random_logits(6)
        trained = logits + margins.logit_adjusted(PRIOR).negative
        torch.testing.assert_close(adjust_logits(trained, PRIOR).softmax(dim=1), logits.softmax(dim=1))

    def test_is_bayes_optimal_for_the_balanced_error(self):
        generator = torch.Generator().manual_seed(1)
        likelihood = torch.rand(50, 4, dtype=torch.float64, generator=generator)  # P(x | y), one row an x
        posterior = likelihood * PRIOR.probs / (likelihood @ PRIOR.probs)[:, None]
        assert (posterior.argmax(dim=1) != likelihood.argmax(dim=1)).any()
        assert torch.equal(adjust_logits(posterior.log(), PRIOR).argmax(dim=1), likelihood.argmax(dim=1))

    def test_softmax_is_the_posterior_under_the_target(self):
        generator = torch.Generator().manual_seed(2)
        likelihood = torch.rand(50, 4, dtype=torch.float64, generator=generator)
        target = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        posterior = (likelihood * PRIOR.probs) / (likelihood @ PRIOR.probs)[:, None]
        wanted = (likelihood * target) / (likelihood @ target)[:, None]
        torch.testing.assert_close(adjust_logits(posterior.log(), PRIOR, target_prior=target).softmax(dim=1), wanted)

    def test_target_of_zero_is_never_predicted(self):
        target = np.array([0.5, 0.5, 0.0, 0.0])
        adjusted = adjust_logits(random_logits(50), PRIOR, 0.1, target)
        assert (adjusted[:, 2:] == -math.inf).all()
        assert adjusted.argmax(dim=1).max() == 1
        logits = random_logits(5)
        assert torch.equal(adjust_logits(logits, PRIOR, 0.0, target), logits)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((torch.zeros(2, 3), PRIOR), "prior is for 4 classes, but logits have 3"),
            ((torch.zeros(2, 4), PRIOR, 1.0, torch.ones(2) / 2), "target_prior is for 2 classes, but logits have 4"),
            ((torch.zeros(2, 4), PRIOR, math.nan), "tau must be a finite number of at least 0. Got nan"),
            ((torch.zeros(2, 4), PRIOR, math.inf), "tau must be a finite number"),
            ((torch.zeros(2, 4), PRIOR, -1.0), "tau must be a finite number of at least 0. Got -1"),
            ((torch.full((2, 4), math.nan), PRIOR), "logits must be finite"),
            ((np.full((2, 4), -math.inf), PRIOR), "logits must be finite"),
            ((torch.zeros(2, 4, dtype=torch.int64), PRIOR), "must be floating-point"),
            ((np.zeros((2, 4), int), PRIOR), "must be floating-point"),
            ((torch.tensor(1.0), PRIOR), r"must be floating-point \[..., C\]"),
            ((torch.zeros(2, 2), ClassPrior.from_counts([1, 0])), r"has no samples.*smoothed\(1\)"),
            (
                (torch.zeros(2, 2), torch.tensor([1.0, 0.0])),
                "prior must be above 0 for every class. Got 0 for class 1",
            ),
            ((torch.zeros(2, 2), torch.tensor([3.0, 1.0])), "prior must be a ClassPrior or .* sum to 1"),
            ((torch.zeros(2, 2), np.array([1.5, -0.5])), "prior must be a ClassPrior or .* sum to 1"),
            ((torch.zeros(2, 2), np.array([math.nan, 0.5])), "prior must be a ClassPrior or .* sum to 1"),
        ],
    )
    def test_bad_input(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            adjust_logits(*arguments)


class TestNormalizeWeights:
    @pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
    def test_formula(self, tau):
        weight = random_logits(4, 3)
        normalized, by_prior = normalize_weights(weight, PRIOR, tau), normalize_weights_by_prior(weight, PRIOR, tau)
        for y in range(4):
            norm = math.sqrt(sum(v * v for v in weight[y].tolist()))
            for d in range(3):
                value = weight[y, d].item()
                assert normalized[y, d].item() == pytest.approx(value / norm**tau, abs=1e-10)
                assert by_prior[y, d].item() == pytest.approx(value / PRIOR.probs[y].item() ** tau, abs=1e-10)

    @pytest.mark.parametrize("normalize", [normalize_weights, normalize_weights_by_prior])
    def test_strength_zero_changes_nothing_and_dtype_is_kept(self, normalize):
        weight = random_logits(4, 3).float()
        result = normalize(weight, PRIOR, tau=0.0)
        assert result.dtype == torch.float32
        assert torch.equal(result, weight)

    def test_zero_row_stays(self):
        weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        result = normalize_weights(weight, ClassPrior.from_counts([2, 1]), tau=0.5)
        assert torch.isfinite(result).all()
        assert torch.equal(result[1], weight[1])

    def test_a_negative_rare_logit_cannot_win_as_it_can_by_adjustment(self):
        """Section 4.2 of the paper."""
        prior = ClassPrior.from_counts([999, 1])
        weight, x = torch.tensor([[0.1], [-1.0]]), torch.ones(1, 1)
        assert (x @ normalize_weights_by_prior(weight, prior).T).argmax() == 0
        assert adjust_logits(x @ weight.T, prior).argmax() == 1

    @pytest.mark.parametrize("normalize", [normalize_weights, normalize_weights_by_prior])
    def test_bad_input(self, normalize):
        with pytest.raises(ValueError, match="prior is for 4 classes, but weight has 3 rows"):
            normalize(torch.zeros(3, 2), PRIOR)
        with pytest.raises(ValueError, match=r"weight must be floating-point \[C, D\]"):
            normalize(torch.zeros(4), PRIOR)
        with pytest.raises(ValueError, match="tau must be a finite number"):
            normalize(torch.ones(4, 2), PRIOR, tau=math.nan)


class TestObjectives:
    def test_error_is_that_of_scikit_learn(self):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        expected = 1 - balanced_accuracy_score(labels, logits.argmax(dim=1))
        assert balanced_error(logits, labels).sum().item() == pytest.approx(expected, abs=1e-12)
        assert balanced_error(logits.numpy(), labels.numpy()).sum().item() == pytest.approx(expected, abs=1e-12)

    def test_log_loss_is_that_of_scikit_learn(self):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        inverse = (1 / torch.bincount(labels).double())[labels]
        expected = log_loss(labels.numpy(), logits.softmax(dim=1).numpy(), sample_weight=inverse.numpy())
        assert balanced_log_loss(logits, labels).sum().item() == pytest.approx(expected, abs=1e-10)

    def test_calibration_error_is_the_sum_over_bins(self):
        logits, labels = gaussians([50, 20, 5, 2], PRIOR, seed=0)
        probs, counts = logits.softmax(dim=1).tolist(), torch.bincount(labels).tolist()
        gaps = [0.0] * 15
        for row, label in zip(probs, labels.tolist(), strict=True):
            confidence = max(row)
            correct = row.index(confidence) == label
            gaps[math.ceil(confidence * 15) - 1] += (confidence - correct) / (4 * counts[label])
        expected = sum(abs(gap) for gap in gaps)
        assert balanced_calibration_error(logits, labels).sum().item() == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("objective", [balanced_error, balanced_log_loss, balanced_calibration_error])
    def test_absent_classes_do_not_count(self, objective):
        logits, labels = random_logits(6), torch.tensor([0, 0, 0, 1, 1, 1])
        every = torch.full((6,), 1 / 6, dtype=torch.float64)
        torch.testing.assert_close(objective(logits, labels), objective(logits, labels, every))

    @pytest.mark.parametrize("objective", [balanced_error, balanced_log_loss, balanced_calibration_error])
    def test_half_precision_logits(self, objective):
        logits, labels = random_logits(6).half(), torch.tensor([0, 1, 2, 3, 0, 1])
        torch.testing.assert_close(objective(logits, labels), objective(logits.float(), labels))

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"labels must be in 0..3. Got 4"):
            balanced_error(torch.zeros(1, 4), torch.tensor([4]))
        with pytest.raises(ValueError, match=r"labels must be in 0..3. Got -1"):
            balanced_error(torch.zeros(1, 4), torch.tensor([-1]))
        with pytest.raises(ValueError, match=r"labels must be \[2\] class indices"):
            balanced_error(torch.zeros(2, 4), torch.tensor([0]))
        with pytest.raises(ValueError, match=r"logits must be floating-point \[N, C\]"):
            balanced_error(torch.zeros(4), torch.tensor([0]))
        with pytest.raises(ValueError, match="at least one labeled sample"):
            balanced_error(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
        with pytest.raises(ValueError, match="bins must be at least 1"):
            balanced_calibration_error(torch.zeros(1, 4), torch.tensor([0]), bins=0)


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
    def test_curve_and_errors_are_those_of_a_plain_loop(self):
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
    @pytest.mark.parametrize("objective", [balanced_error, balanced_log_loss])
    def test_finds_the_scale_of_the_logits(self, scale, objective):
        """Logits that are ``scale`` times too large need tau = scale; a long-tailed holdout must say so too."""
        logits, labels = gaussians([3600, 1800, 450, 150], PRIOR, seed=4, scale=scale)
        search = tune_tau(logits, labels, PRIOR, objective=objective)
        assert search.tau == pytest.approx(scale, rel=0.2)
        assert search.interval[0] <= search.tau <= search.interval[1] < 3

    def test_calibration_error_is_least_at_one_for_calibrated_logits(self):
        logits, labels = gaussians([3600, 1800, 450, 150], PRIOR, seed=5)
        assert tune_tau(logits, labels, PRIOR, objective=balanced_calibration_error).tau == pytest.approx(1, abs=0.1)

    def test_is_steadier_than_the_lowest_point_where_the_tail_is_small(self):
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

    def test_single_samples_leave_everything_in_doubt(self):
        search = tune_tau(random_logits(4), torch.arange(4), PRIOR)
        assert search.tau == 1.0
        assert (search.standard_errors == math.inf).all()

    def test_missing_classes_are_named_and_do_not_count(self):
        logits, labels = gaussians([30, 20, 0, 0], PRIOR, seed=6)
        search = tune_tau(logits, labels, PRIOR)
        assert search.missing_classes.tolist() == [2, 3]
        plain = balanced_accuracy_score(labels, adjust_logits(logits, PRIOR).argmax(dim=1).clamp_max(1))
        assert search.scores[20].item() >= 1 - plain - 1e-12

    def test_training_prior_as_target_makes_the_curve_flat(self):
        logits, labels = gaussians([60, 30, 9, 3], PRIOR, seed=7)
        search = tune_tau(logits, labels, PRIOR, target_prior=PRIOR)
        wrong = (logits.argmax(dim=1) != labels).double()
        expected = sum(PRIOR.probs[c].item() * wrong[labels == c].mean().item() for c in range(4))
        torch.testing.assert_close(search.scores, torch.full_like(search.scores, expected))
        assert search.tau == 1.0

    @pytest.mark.parametrize("objective", [balanced_error, balanced_log_loss, balanced_calibration_error])
    def test_target_of_zero_leaves_its_samples_out(self, objective):
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
    def test_weights_count_samples(self, repeats, seed):
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
    def test_order_of_samples_and_classes_does_not_matter(self, seed):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows, classes = torch.randperm(25, generator=generator), torch.randperm(4, generator=generator)
        permuted_prior = ClassPrior.from_counts(PRIOR.counts[classes])
        permuted = tune_tau(logits[rows][:, classes], classes.argsort()[labels[rows]], permuted_prior)
        search = tune_tau(logits, labels, PRIOR)
        torch.testing.assert_close(permuted.scores, search.scores)
        assert permuted.tau == search.tau

    def test_takes_arrays_and_half_precision(self):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=9)
        search = tune_tau(logits, labels, PRIOR)
        assert tune_tau(logits.numpy(), labels.numpy().astype(np.uint8), PRIOR).tau == search.tau
        assert torch.isfinite(tune_tau(logits.bfloat16(), labels, PRIOR).scores).all()

    def test_own_objective(self):
        logits, labels = gaussians([12, 6, 4, 3], PRIOR, seed=9)
        search = tune_tau(logits, labels, PRIOR, objective=lambda f, y, w: w * (f.argmax(dim=1) != y))
        assert torch.equal(search.scores, tune_tau(logits, labels, PRIOR).scores)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"taus": []}, "taus must be a vector of finite numbers of at least 0"),
            ({"taus": [0.0, math.nan]}, "taus must be a vector of finite numbers"),
            ({"taus": [-1.0]}, "taus must be a vector of finite numbers"),
            ({"labels": torch.tensor([0, 1, 2])}, r"labels must be \[4\] class indices. Got torch.int64 \(3,\)"),
            ({"labels": torch.zeros(4)}, r"labels must be \[4\] class indices. Got torch.float32"),
            ({"labels": torch.tensor([0, 1, 2, 7])}, r"labels must be in 0..3. Got 7"),
            ({"logits": torch.full((4, 4), math.nan)}, "logits must be finite"),
            ({"logits": torch.zeros(4)}, r"logits must be floating-point \[N, C\]"),
            ({"prior": ClassPrior.from_counts([1, 1])}, "prior is for 2 classes, but logits have 4"),
            ({"sample_weight": torch.ones(3)}, r"sample weights must be \[4\] finite numbers"),
            ({"sample_weight": -torch.ones(4)}, r"sample weights must be \[4\] finite numbers"),
            ({"sample_weight": torch.zeros(4)}, "at least one labeled sample"),
            ({"objective": lambda f, y, w: f.sum()}, r"objective must return \[4\], one share"),
            ({"objective": lambda f, y, w: w * math.nan}, "objective must return finite numbers"),
        ],
    )
    def test_bad_input(self, options, message):
        arguments = {"logits": torch.zeros(4, 4), "labels": torch.arange(4), "prior": PRIOR} | options
        with pytest.raises(ValueError, match=message):
            tune_tau(**arguments)


class TestCrossValidatedTau:
    def test_folds_of_one_prior_are_one_holdout(self):
        logits, labels = gaussians([40, 20, 6, 3], PRIOR, seed=10)
        even = torch.arange(len(labels)) % 2 == 0
        pooled = cross_validated_tau([(logits[rows], labels[rows], PRIOR) for rows in (even, ~even)])
        single = tune_tau(logits, labels, PRIOR)
        torch.testing.assert_close(pooled.scores, single.scores)
        torch.testing.assert_close(pooled.standard_errors, single.standard_errors)
        assert (pooled.tau, pooled.interval) == (single.tau, single.interval)

    def test_every_fold_is_adjusted_by_its_own_prior(self):
        other = ClassPrior.from_counts([1, 10, 20, 70])
        one, two = gaussians([20, 10, 5, 3], PRIOR, seed=11), gaussians([20, 10, 5, 3], other, seed=12)
        search = cross_validated_tau([(*one, PRIOR), (*two, other)], taus=[1.0])
        adjusted = torch.cat([adjust_logits(one[0], PRIOR), adjust_logits(two[0], other)])
        expected = balanced_error(adjusted, torch.cat([one[1], two[1]])).sum()
        assert search.scores[0].item() == pytest.approx(expected.item(), abs=1e-12)

    def test_bad_input(self):
        with pytest.raises(ValueError, match="at least one fold"):
            cross_validated_tau([])
        folds = [(torch.zeros(1, n), torch.zeros(1, dtype=torch.int64), PRIOR) for n in (4, 3)]
        with pytest.raises(ValueError, match=r"folds must have the same classes. Got 4 and 3"):
            cross_validated_tau(folds)
        with pytest.raises(ValueError, match=r"sample_weights must be one vector a fold, 1. Got 2"):
            cross_validated_tau(folds[:1], sample_weights=[torch.ones(1), torch.ones(1)])


class TestTemperature:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("seed", range(3))
    def test_is_the_minimum_of_the_log_loss(self, seed, smoothing):
        logits, labels = gaussians([30, 20, 10, 5], PRIOR, seed=seed, scale=3.0)

        def loss(log_temperature):
            scaled = logits / math.exp(log_temperature)
            return torch.nn.functional.cross_entropy(scaled, labels, label_smoothing=smoothing).item()

        best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
        fitted = temperature_scale(logits, labels, label_smoothing=smoothing)
        assert fitted == pytest.approx(math.exp(best.x), rel=1e-5)
        assert isinstance(fitted, float)

    def test_calibrated_logits_have_temperature_one(self):
        logits, labels = gaussians([6000, 3000, 900, 100], PRIOR, seed=13)
        assert temperature_scale(logits, labels) == pytest.approx(1, abs=0.05)

    @given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 100))
    @settings(deadline=None, max_examples=20, database=None)
    def test_follows_the_scale_of_the_logits(self, factor, seed):
        logits, labels = gaussians([30, 20, 10, 5], PRIOR, seed=seed)
        wanted = factor * temperature_scale(logits, labels)
        assert temperature_scale(factor * logits, labels) == pytest.approx(wanted, rel=1e-6)

    def test_weights_count_samples(self):
        logits, labels = gaussians([10, 10, 5, 5], PRIOR, seed=14)
        weights = torch.arange(30) % 3
        rows = torch.repeat_interleave(weights)
        assert temperature_scale(logits, labels, weights) == pytest.approx(
            temperature_scale(logits[rows], labels[rows]), rel=1e-9
        )

    def test_stays_bounded(self):
        logits = 5 * torch.eye(4)
        right = temperature_scale(logits, torch.arange(4))
        wrong = temperature_scale(logits, (torch.arange(4) + 1) % 4)
        assert 1e-3 < right < 1
        assert 1e3 < wrong < 1e4
        assert temperature_scale(torch.ones(3, 4), torch.arange(3)) == 1.0

    def test_smoothing_gives_separable_samples_what_they_can_say(self):
        logits, smoothing = 50 * torch.eye(2, dtype=torch.float64), 0.1
        probs = (logits / temperature_scale(logits, torch.arange(2), label_smoothing=smoothing)).softmax(dim=1)
        assert probs[0, 0].item() == pytest.approx(1 - smoothing / 2, abs=1e-9)

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
            temperature_scale(torch.zeros(2, 2), torch.arange(2), label_smoothing=1.0)
        with pytest.raises(ValueError, match="at least one sample with a weight"):
            temperature_scale(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"sample weights must be \[2\]"):
            temperature_scale(torch.zeros(2, 2), torch.arange(2), torch.ones(3))


class TestEstimateTargetPrior:
    def test_steps_are_those_of_a_plain_loop(self):
        logits = random_logits(7)
        trained = PRIOR.probs.tolist()
        probs = list(trained)
        for _ in range(3):
            totals = [0.0] * 4
            for row in logits.tolist():
                posterior = [math.exp(f) * probs[y] / trained[y] for y, f in enumerate(row)]
                for y in range(4):
                    totals[y] += posterior[y] / sum(posterior)
            probs = [total / 7 for total in totals]
        estimate = estimate_target_prior(logits, PRIOR, max_iterations=3)
        torch.testing.assert_close(estimate.probs, torch.tensor(probs, dtype=torch.float64), rtol=0, atol=1e-10)
        assert (estimate.iterations, estimate.converged) == (3, False)

    @pytest.mark.parametrize("counts", [[500, 1000, 1500, 2000], [6000, 3000, 900, 100], [3000, 0, 0, 1000]])
    def test_recovers_the_prior_of_gaussians(self, counts):
        logits, _ = gaussians(counts, PRIOR, seed=15)
        estimate = estimate_target_prior(logits, PRIOR)
        assert estimate.converged
        wanted = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        torch.testing.assert_close(estimate.probs, wanted, rtol=0, atol=0.03)
        assert estimate.probs.sum().item() == pytest.approx(1, abs=1e-12)

    def test_adjusting_to_it_beats_the_training_prior(self):
        logits, labels = gaussians([100, 400, 1500, 2000], PRIOR, seed=16)
        target = estimate_target_prior(logits.numpy(), PRIOR).probs
        adjusted = adjust_logits(logits, PRIOR, target_prior=target)
        right = [(scores.argmax(dim=1) == labels).double().mean().item() for scores in (adjusted, logits)]
        assert right[0] > right[1] + 0.02

    def test_large_logits_stay_finite(self):
        estimate = estimate_target_prior(1e4 * random_logits(20).float(), PRIOR)
        assert torch.isfinite(estimate.probs).all()

    def test_bad_input(self):
        with pytest.raises(ValueError, match="at least one sample"):
            estimate_target_prior(torch.zeros(0, 4), PRIOR)
        with pytest.raises(ValueError, match="max_iterations must be at least 1 and tolerance above 0"):
            estimate_target_prior(torch.zeros(1, 4), PRIOR, max_iterations=0)
        with pytest.raises(ValueError, match="max_iterations must be at least 1 and tolerance above 0"):
            estimate_target_prior(torch.zeros(1, 4), PRIOR, tolerance=0.0)
        with pytest.raises(ValueError, match="prior is for 4 classes, but logits have 3"):
            estimate_target_prior(torch.zeros(1, 3), PRIOR)


# Heads on embeddings


def embedded(num_samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (num_samples,), generator=generator)
    offsets = 2 * torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return offsets[labels] + torch.randn(num_samples, 3, dtype=torch.float64, generator=generator) + 100, labels


def loop_distances(x, known):
    return [sum((a - b) ** 2 for a, b in zip(x.tolist(), other.tolist(), strict=True)) for other in known]


def test_class_means_are_means():
    embeddings, labels = embedded(30)
    found = posthoc.class_means(embeddings, labels, 5)
    for c in range(4):
        members = embeddings[labels == c].tolist()
        expected = [sum(column) / len(members) for column in zip(*members, strict=True)]
        np.testing.assert_allclose(found[c], expected, atol=1e-10)
    assert found[4].isnan().all()


@pytest.mark.parametrize("as_array", [False, True])
def test_the_nearest_mean_is_predicted(as_array, monkeypatch):
    monkeypatch.setattr(nearest_module, "CHUNK_ELEMENTS", 7)
    (train, labels), (test, _) = embedded(30), embedded(20, seed=1)
    means = posthoc.class_means(train, torch.where(labels == 1, 5, labels), 6)  # class 1 and 4 have no samples
    expected = [min((0, 2, 3, 5), key=lambda c, x=x: loop_distances(x, means)[c]) for x in test]
    found = posthoc.nearest_mean(*((test.numpy(), means.numpy()) if as_array else (test, means)))
    assert found.tolist() == expected


@pytest.mark.parametrize("num_neighbors", [1, 2, 5, 30])
def test_the_nearest_samples_vote(num_neighbors, monkeypatch):
    monkeypatch.setattr(nearest_module, "CHUNK_ELEMENTS", 70)
    (train, labels), (test, _) = embedded(30), embedded(20, seed=1)
    found = posthoc.nearest_neighbors(test, train, labels, num_neighbors)
    for x, predicted in zip(test, found.tolist(), strict=True):
        distances = loop_distances(x, train)
        nearest = sorted(range(30), key=distances.__getitem__)[:num_neighbors]
        classes = [int(labels[i]) for i in nearest]
        most = max(classes.count(c) for c in classes)
        assert predicted == next(c for c in classes if classes.count(c) == most)


def test_heads_on_embeddings_agree_with_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

    (train, labels), (test, _) = embedded(200), embedded(100, seed=1)
    means = posthoc.class_means(train, labels, 4)
    expected = NearestCentroid().fit(train.numpy(), labels.numpy()).predict(test.numpy())
    assert np.array_equal(posthoc.nearest_mean(test, means), expected)
    neighbors = KNeighborsClassifier(1).fit(train.numpy(), labels.numpy()).predict(test.numpy())
    assert np.array_equal(posthoc.nearest_neighbors(test, train, labels, 1), neighbors)


def test_heads_on_embeddings_take_half_precision_and_nothing():
    embeddings, labels = embedded(30)
    half = embeddings.half()
    means = posthoc.class_means(half, labels, 4)
    assert means.dtype == torch.float32
    assert posthoc.nearest_mean(half, means).shape == (30,)
    assert torch.equal(posthoc.nearest_neighbors(half, half, labels, 1), labels)
    assert posthoc.nearest_neighbors(embeddings[:0], embeddings, labels).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posthoc.class_means(torch.zeros(3), torch.zeros(3).long(), 2), r"floating-point \[N, D\]"),
        (lambda: posthoc.class_means(torch.zeros(3, 2), torch.tensor([0, 1, 2]), 2), r"in 0\.\.1. Got 2"),
        (lambda: posthoc.class_means(torch.full((1, 2), math.inf), torch.zeros(1).long(), 2), "finite"),
        (lambda: posthoc.nearest_mean(torch.zeros(3, 2), torch.zeros(4, 3)), r"means must be \[C, 2\]"),
        (lambda: posthoc.nearest_mean(torch.zeros(3, 2), torch.full((4, 2), math.nan)), "not NaN"),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4).long(), 5),
            r"num_neighbors must be in 1\.\.4",
        ),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(4).long()),
            r"train_embeddings must be \[M, 2\]",
        ),
        (
            lambda: posthoc.nearest_neighbors(torch.zeros(3, 2), torch.zeros(4, 2), torch.tensor([0, -1, 1, 1]), 1),
            "at least 0. Got -1",
        ),
    ],
)
def test_bad_embeddings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
