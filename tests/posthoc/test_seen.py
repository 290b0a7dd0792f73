"""The prior that training showed, against loops and against models that were trained that way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from longtail import ClassPrior, adjust_logits
from longtail.margins import adaptive, logit_adjusted
from longtail.posthoc import correct_probabilities, drawn_prior, margin_prior, weighted_prior
from longtail.sampling import ClassBalancedSampler, InstanceSampler

PRIOR = ClassPrior.from_counts([80, 15, 5])
SHARES = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda parts: np.array(parts) / sum(parts))


def overlapping(counts, seed=0):
    """Gaussians on a line, for which a logistic regression is the right model."""
    generator = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    return (1.5 * y + generator.normal(size=len(y)))[:, None], y


class TestSeenPriors:
    def test_weights_multiply(self):
        seen = [w * p for w, p in zip([1.0, 2.0, 7.0], [0.8, 0.15, 0.05], strict=True)]
        expected = [value / sum(seen) for value in seen]
        assert weighted_prior(PRIOR, [1.0, 2.0, 7.0]).tolist() == pytest.approx(expected, abs=1e-12)
        assert weighted_prior(PRIOR.probs, torch.tensor([1.0, 2.0, 7.0])).tolist() == pytest.approx(expected)

    def test_balanced_weights_are_uniform_and_equal_ones_change_nothing(self):
        assert weighted_prior(PRIOR, 1 / PRIOR.probs).tolist() == pytest.approx([1 / 3] * 3)
        assert weighted_prior(PRIOR, [2.0, 2.0, 2.0]).tolist() == pytest.approx(PRIOR.probs.tolist())

    @pytest.mark.parametrize("tau", [0.0, 0.4, 1.0, 1.5])
    def test_margins_leave_a_power_of_the_prior(self, tau):
        expected = PRIOR.probs ** (1 - tau)
        seen = margin_prior(PRIOR, logit_adjusted(PRIOR, tau))
        assert seen.tolist() == pytest.approx((expected / expected.sum()).tolist(), abs=1e-12)

    def test_other_margins_stand_for_no_prior(self):
        with pytest.raises(ValueError, match="margins must be a shift of the logits"):
            margin_prior(PRIOR, logit_adjusted(PRIOR) + adaptive(PRIOR))

    def test_draws_are_counted_and_the_sampler_left_alone(self):
        labels = [0] * 900 + [1] * 100
        sampler = ClassBalancedSampler(labels)
        assert drawn_prior(labels, sampler).probs.tolist() == pytest.approx([0.5, 0.5], abs=0.05)
        assert sampler.epoch == 0
        assert drawn_prior(labels, InstanceSampler(labels)).counts.tolist() == [900, 100]
        assert drawn_prior(labels, [0, 1], num_classes=3).counts.tolist() == [2, 0, 0]

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1.0, 2.0], "one for each of 3 classes. Got 2"),
            ([1.0, 2.0, 0.0], "finite numbers above 0"),
            ([1.0, 2.0, np.nan], "finite numbers above 0"),
            ([[1.0, 2.0, 3.0]], "finite numbers above 0"),
        ],
    )
    def test_bad_weights(self, weights, message):
        with pytest.raises(ValueError, match=message):
            weighted_prior(PRIOR, weights)


class TestCorrectProbabilities:
    @given(row=SHARES, seen=SHARES, target=SHARES)
    def test_is_the_softmax_of_adjusted_logits_and_can_be_undone(self, row, seen, target):
        probabilities = row[None]
        corrected = correct_probabilities(probabilities, seen, target)
        adjusted = torch.from_numpy(adjust_logits(np.log(probabilities), seen, target_prior=target))
        np.testing.assert_allclose(corrected, adjusted.softmax(dim=1).numpy(), atol=1e-10)
        np.testing.assert_allclose(correct_probabilities(corrected, target, seen), probabilities, atol=1e-10)

    def test_follows_bayes_row_by_row(self):
        probabilities, target = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), np.array([0.1, 0.6, 0.3])
        corrected = correct_probabilities(probabilities, PRIOR, target)
        for before, after in zip(probabilities, corrected, strict=True):
            parts = [p * t / s for p, t, s in zip(before, target, PRIOR.probs.tolist(), strict=True)]
            assert after.tolist() == pytest.approx([part / sum(parts) for part in parts], abs=1e-12)

    def test_keeps_type_and_dtype(self):
        corrected = correct_probabilities(torch.tensor([[0.2, 0.3, 0.5]]), PRIOR, PRIOR)
        assert corrected.dtype == torch.float32
        assert corrected.tolist()[0] == pytest.approx([0.2, 0.3, 0.5])
        assert correct_probabilities(np.float32([[0.2, 0.3, 0.5]]), PRIOR, PRIOR).dtype == np.float32

    def test_takes_a_weighted_model_back_to_the_plain_one(self):
        X, y = overlapping([4000, 400])
        weights = {0: 1.0, 1: 10.0}
        plain, weighted = (LogisticRegression(C=1e6, class_weight=w).fit(X, y) for w in (None, weights))
        prior = ClassPrior.from_labels(y)
        corrected = correct_probabilities(weighted.predict_proba(X), weighted_prior(prior, [1.0, 10.0]), prior)
        np.testing.assert_allclose(corrected, plain.predict_proba(X), atol=0.03)
        assert np.abs(weighted.predict_proba(X) - plain.predict_proba(X)).max() > 0.3

    @pytest.mark.parametrize(
        ("probabilities", "message"),
        [
            ([[0.5, 0.3, 0.3]], "must sum to 1. Got 1.1 in row 0"),
            ([[1.2, -0.1, -0.1]], "must be at least 0"),
            ([[np.nan, 0.5, 0.5]], "must be at least 0. Got less, or NaN"),
            ([0.5, 0.2, 0.3], "floating-point"),
            ([[1, 0, 0]], "floating-point"),
            ([[0.5, 0.5]], "prior is for 3 classes, but logits have 2"),
        ],
    )
    def test_bad_probabilities(self, probabilities, message):
        with pytest.raises(ValueError, match=message):
            correct_probabilities(np.array(probabilities), PRIOR, PRIOR)

    def test_row_that_the_target_makes_impossible(self):
        with pytest.raises(ValueError, match="Got row 0"):
            correct_probabilities(np.array([[1.0, 0.0]]), np.array([0.5, 0.5]), np.array([0.0, 1.0]))
