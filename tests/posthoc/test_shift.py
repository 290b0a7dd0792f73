"""Temperatures and estimated priors against plain loops, and on data whose right answer is known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from longtail import ClassPrior
from longtail.posthoc import adjust_logits, estimate_target_prior, temperature_scale

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


class TestTemperature:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("seed", range(3))
    def test_is_the_minimum_of_the_log_loss(self, seed, smoothing, gaussians):
        logits, labels = gaussians([30, 20, 10, 5], PRIOR, seed=seed, scale=3.0)

        def loss(log_temperature):
            scaled = logits / math.exp(log_temperature)
            return torch.nn.functional.cross_entropy(scaled, labels, label_smoothing=smoothing).item()

        best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
        fitted = temperature_scale(logits, labels, label_smoothing=smoothing)
        assert fitted == pytest.approx(math.exp(best.x), rel=1e-5)
        assert isinstance(fitted, float)

    def test_calibrated_logits_have_temperature_one(self, gaussians):
        logits, labels = gaussians([6000, 3000, 900, 100], PRIOR, seed=13)
        assert temperature_scale(logits, labels) == pytest.approx(1, abs=0.05)

    @given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 100))
    @settings(deadline=None, max_examples=20, database=None)
    def test_follows_the_scale_of_the_logits(self, factor, seed, gaussians):
        logits, labels = gaussians([30, 20, 10, 5], PRIOR, seed=seed)
        wanted = factor * temperature_scale(logits, labels)
        assert temperature_scale(factor * logits, labels) == pytest.approx(wanted, rel=1e-6)

    def test_weights_count_samples(self, gaussians):
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
        with pytest.raises(ValueError, match=r"sample_weight must be \[2\]"):
            temperature_scale(torch.zeros(2, 2), torch.arange(2), torch.ones(3))


class TestEstimateTargetPrior:
    def test_steps_are_those_of_a_plain_loop(self, random_logits):
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
    def test_recovers_the_prior_of_gaussians(self, counts, gaussians):
        logits, _ = gaussians(counts, PRIOR, seed=15)
        estimate = estimate_target_prior(logits, PRIOR)
        assert estimate.converged
        wanted = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        torch.testing.assert_close(estimate.probs, wanted, rtol=0, atol=0.03)
        assert estimate.probs.sum().item() == pytest.approx(1, abs=1e-12)

    def test_adjusting_to_it_beats_the_training_prior(self, gaussians):
        logits, labels = gaussians([100, 400, 1500, 2000], PRIOR, seed=16)
        target = estimate_target_prior(logits.numpy(), PRIOR).probs
        adjusted = adjust_logits(logits, PRIOR, target_prior=target)
        right = [(scores.argmax(dim=1) == labels).double().mean().item() for scores in (adjusted, logits)]
        assert right[0] > right[1] + 0.02

    def test_large_logits_stay_finite(self, random_logits):
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
