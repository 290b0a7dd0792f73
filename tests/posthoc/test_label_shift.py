"""Estimates of shifted class frequencies against the truth and against plain solvers; their intervals; the test."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import binom, chi2_contingency

from longtail.posthoc import (
    bbse_prior,
    bootstrap_prior,
    calibrated_em_prior,
    detect_prior_shift,
    estimate_target_prior,
    rlls_prior,
)
from longtail.posthoc.label_shift import _interval_ends

ESTIMATORS = [calibrated_em_prior, bbse_prior, rlls_prior]
OLD, NEW = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])


def draw(probs, num_samples, seed, scale=1.0, bias=(0.0, 0.0, 0.0)):
    """Logits of a model of three Gaussians that has learned OLD, made overconfident and biased."""
    generator = np.random.default_rng(seed)
    y = generator.choice(3, num_samples, p=probs)
    x = 1.2 * np.eye(3)[y] + generator.normal(size=(num_samples, 3))
    return torch.from_numpy(scale * (1.2 * x + np.log(OLD)) + np.array(bias)), torch.from_numpy(y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_finds_the_new_frequencies_of_a_badly_calibrated_model(estimator):
    spoil = {"scale": 3.0, "bias": (0.0, 1.5, -1.0)}
    holdout, target = draw(OLD, 4000, 0, **spoil)
    logits, _ = draw(NEW, 4000, 1, **spoil)
    found = estimator(holdout, target, logits)
    assert float(found.sum()) == pytest.approx(1)
    assert found.tolist() == pytest.approx(NEW.tolist(), abs=0.06)
    naive = estimate_target_prior(logits, OLD).probs
    assert np.abs(naive.numpy() - NEW).max() > 0.12  # what the calibration is for


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_a_shift_it_is_the_holdout_s(estimator):
    holdout, target = draw(OLD, 3000, 0)
    found = estimator(holdout, target, holdout)
    expected = torch.bincount(target) / 3000
    assert found.tolist() == pytest.approx(expected.tolist(), abs=0.01)


def test_bbse_solves_the_confusion_matrix():
    holdout, target = draw(OLD, 300, 2)
    logits, _ = draw(NEW, 200, 3)
    joint = np.zeros((3, 3))
    for scores, label in zip(holdout.tolist(), target.tolist(), strict=True):
        joint[int(np.argmax(scores)), label] += 1 / 300
    predicted = np.bincount(logits.argmax(dim=1), minlength=3) / 200
    weights = np.maximum(np.linalg.solve(joint, predicted), 0)
    expected = weights * joint.sum(axis=0)
    assert bbse_prior(holdout, target, logits).tolist() == pytest.approx(expected / expected.sum(), abs=1e-10)


@pytest.mark.parametrize("strength", [0.01, 0.1, 0.5])
def test_rlls_minimizes_its_objective(strength):
    holdout, target = draw(OLD, 300, 2)
    logits, _ = draw(NEW, 200, 3)
    predicted = holdout.argmax(dim=1).numpy()
    joint = np.array([[np.mean((predicted == i) & (target.numpy() == j)) for j in range(3)] for i in range(3)])
    gap = np.bincount(logits.argmax(dim=1), minlength=3) / 200 - joint.sum(axis=1)
    term = np.log(2 * 3 / 0.05)
    bound = strength * 3 * (2 * term / 900 + np.sqrt(2 * term / 300))

    def cost(step):
        return np.linalg.norm(joint @ step - gap) + bound * np.linalg.norm(step)

    starts = [np.zeros(3), np.ones(3), np.linalg.solve(joint, gap)]
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 10_000, "maxfev": 10_000}
    best = min(
        (minimize(cost, start, method="Nelder-Mead", options=options) for start in starts), key=lambda r: r.fun
    )
    weights = np.maximum(1 + best.x, 0) * joint.sum(axis=0)
    found = rlls_prior(holdout, target, logits, strength)
    assert found.tolist() == pytest.approx(weights / weights.sum(), abs=2e-4)


def test_rlls_goes_from_bbse_to_the_holdout():
    holdout, target = draw(OLD, 300, 2)
    logits, _ = draw(NEW, 200, 3)
    expected = bbse_prior(holdout, target, logits).tolist()
    assert rlls_prior(holdout, target, logits, 0.0).tolist() == pytest.approx(expected)
    assert rlls_prior(holdout, target, logits, 1e6).tolist() == pytest.approx((torch.bincount(target) / 300).tolist())


class TestIntervals:
    @pytest.mark.parametrize(("num_resamples", "level"), [(9, 0.8), (19, 0.9)])
    def test_hold_the_truth_as_often_as_they_say(self, num_resamples, level):
        """So often of 600 times that one right program in 10,000 would fail for a class."""
        hits = np.zeros(3)
        for seed in range(600):
            holdout, target = draw(OLD, 400, 2 * seed)
            logits, _ = draw(NEW, 400, 2 * seed + 1)
            found = bootstrap_prior(bbse_prior, holdout, target, logits, num_resamples=num_resamples, level=level)
            hits += (found.low.numpy() <= NEW) & (found.high.numpy() >= NEW)
        few, many = binom.interval(1 - 1e-4, 600, level)
        assert few <= hits.min()
        assert hits.max() <= many

    @pytest.mark.parametrize(("num_values", "level"), [(9, 0.8), (50, 0.8), (199, 0.95), (200, 0.95), (3, 0.5)])
    def test_ends_are_those_between_which_a_further_value_falls(self, num_values, level):
        values = np.random.default_rng(0).normal(size=(num_values, 2))
        low, high = _interval_ends(torch.from_numpy(values), level)
        expected = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
        np.testing.assert_allclose([low, high], expected, atol=1e-12)

    def test_are_reproducible_and_around_the_estimate(self):
        holdout, target = draw(OLD, 300, 0)
        logits, _ = draw(NEW, 300, 1)
        found, again = (bootstrap_prior(rlls_prior, holdout, target, logits, num_resamples=39) for _ in range(2))
        assert found.low.tolist() == again.low.tolist()
        assert found.probs.tolist() == rlls_prior(holdout, target, logits).tolist()
        assert bool((found.low <= found.high).all())

    @pytest.mark.parametrize("options", [{"num_resamples": 38}, {"level": 0.0}, {"level": 1.0}])
    def test_bad_options(self, options):
        holdout, target = draw(OLD, 300, 0)
        with pytest.raises(ValueError, match=r"num_resamples|level"):
            bootstrap_prior(bbse_prior, holdout, target, holdout, **options)


class TestDetection:
    def test_statistic_is_pearson_s(self):
        old, new = draw(OLD, 300, 0)[0], draw(NEW, 200, 1)[0]
        table = np.array([np.bincount(part.argmax(dim=1), minlength=3) for part in (old, new)])
        reference = chi2_contingency(table, correction=False)
        found = detect_prior_shift(old, new)
        assert found.statistic == pytest.approx(reference.statistic)
        assert found.p_value < 0.001

    def test_p_values_without_a_shift_are_those_of_many_counts(self):
        for seed in range(5):
            old, new = draw(OLD, 2000, 2 * seed)[0], draw(OLD, 1500, 2 * seed + 1)[0]
            table = np.array([np.bincount(part.argmax(dim=1), minlength=3) for part in (old, new)])
            assert detect_prior_shift(old, new).p_value == pytest.approx(chi2_contingency(table).pvalue, abs=0.03)

    def test_false_alarms_are_as_rare_as_promised_also_with_rare_classes(self):
        generator = np.random.default_rng(0)
        probs = np.append(np.full(30, 0.001), 0.97)
        alarms = 0
        for _ in range(200):
            old, new = (torch.eye(31)[torch.from_numpy(generator.choice(31, n, p=probs))] for n in (150, 80))
            alarms += detect_prior_shift(old, new, num_permutations=199).p_value <= 0.1
        assert alarms <= 34  # 20 expected; more than 34 comes once in a thousand times

    def test_bad_input(self):
        with pytest.raises(ValueError, match="samples of the same classes"):
            detect_prior_shift(torch.zeros(3, 2), torch.zeros(3, 3))
        with pytest.raises(ValueError, match="samples of the same classes"):
            detect_prior_shift(torch.zeros(0, 2), torch.zeros(3, 2))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_input(estimator):
    holdout, target = draw(OLD, 30, 0)
    with pytest.raises(ValueError, match=r"holdout must have samples of every class. Got none of class 2"):
        estimator(holdout, target.clamp_max(1), holdout)
    with pytest.raises(ValueError, match=r"must have the holdout's 3 classes. Got 2"):
        estimator(holdout, target, holdout[:, :2])
    with pytest.raises(ValueError, match="at least one unlabeled sample"):
        estimator(holdout, target, holdout[:0])
