"""Logit adjustment against the formula, and on posteriors whose right answer is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from longtail import ClassPrior, margins
from longtail.posthoc import adjust_logits

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


class TestAdjustLogits:
    @pytest.mark.parametrize("target", [None, [0.1, 0.2, 0.3, 0.4]])
    def test_formula(self, target, random_logits):
        logits, tau = random_logits(5), 1.3
        adjusted = adjust_logits(logits, PRIOR, tau, None if target is None else torch.tensor(target))
        counts = [60, 30, 9, 1]
        for row in range(5):
            for y in range(4):
                wanted = 0.25 if target is None else target[y]
                expected = logits[row, y].item() - tau * (math.log(counts[y] / 100) - math.log(wanted))
                assert adjusted[row, y].item() == pytest.approx(expected, abs=1e-7 if target else 1e-12)

    def test_numpy_and_torch_agree(self, random_logits):
        logits = random_logits(5)
        result = adjust_logits(logits.numpy(), PRIOR)
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, adjust_logits(logits, PRIOR).numpy())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_keeps_dtype(self, dtype, random_logits):
        logits = random_logits(3).to(dtype)
        adjusted = adjust_logits(logits, PRIOR)
        assert adjusted.dtype == dtype
        tolerance = 8 * torch.finfo(dtype).eps * 8
        torch.testing.assert_close(adjusted.double(), adjust_logits(logits.double(), PRIOR), rtol=0, atol=tolerance)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_keeps_array_dtype(self, dtype):
        assert adjust_logits(np.zeros((2, 4), dtype), PRIOR).dtype == dtype

    def test_read_only_array_stays_as_it_is(self, random_logits):
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

    def test_gradient_passes_unchanged(self, random_logits):
        logits = random_logits(3).requires_grad_()
        adjust_logits(logits, PRIOR).sum().backward()
        assert logits.grad is not None
        assert (logits.grad == 1).all()

    def test_identities(self, random_logits):
        logits = random_logits(6)
        assert torch.equal(adjust_logits(logits, PRIOR, tau=0.0), logits)
        assert torch.equal(adjust_logits(logits, PRIOR, tau=2.0, target_prior=PRIOR), logits)
        uniform = ClassPrior.from_counts([7, 7, 7, 7])
        torch.testing.assert_close(adjust_logits(logits, uniform), logits)
        torch.testing.assert_close(adjust_logits(logits, PRIOR.probs), adjust_logits(logits, PRIOR))

    def test_inverts_the_logit_adjusted_loss(self, random_logits):
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

    def test_target_of_zero_is_never_predicted(self, random_logits):
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
            ((torch.zeros(2, 4, dtype=torch.float64), PRIOR, 1e308), "tau=1e.308 shifts logits by inf"),
            ((np.zeros((2, 4)), PRIOR, 1e308), "tau=1e.308 shifts logits by inf"),
            ((torch.zeros(2, 4), PRIOR, 2e38), "their dtype ends at 3.40282e.38; choose less"),
            ((torch.zeros(2, 4, dtype=torch.float16), PRIOR, 1e5), "their dtype ends at 65504"),
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


def test_probabilities_in_place_of_logits_are_noticed(random_logits):
    logits = random_logits(5)
    for probabilities in (logits.softmax(dim=1), logits.softmax(dim=1).numpy()):
        with pytest.warns(UserWarning, match="logits look like probabilities"):
            adjust_logits(probabilities, PRIOR)
    adjust_logits(logits.softmax(dim=1).log(), PRIOR)


def test_a_model_s_output_is_told_from_its_logits():
    output = SimpleNamespace(logits=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="pass its logits"):
        adjust_logits(output, ClassPrior.from_counts([3, 1]))
