"""Class vectors normalized as in the formulas."""

import math

import pytest
import torch

from longtail import ClassPrior
from longtail.posthoc import adjust_logits, normalize_weights, normalize_weights_by_prior

PRIOR = ClassPrior.from_counts([60, 30, 9, 1])


class TestNormalizeWeights:
    @pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
    def test_formula(self, tau, random_logits):
        weight = random_logits(4, 3)
        normalized, by_prior = normalize_weights(weight, PRIOR, tau), normalize_weights_by_prior(weight, PRIOR, tau)
        for y in range(4):
            norm = math.sqrt(sum(v * v for v in weight[y].tolist()))
            for d in range(3):
                value = weight[y, d].item()
                assert normalized[y, d].item() == pytest.approx(value / norm**tau, abs=1e-10)
                assert by_prior[y, d].item() == pytest.approx(value / PRIOR.probs[y].item() ** tau, abs=1e-10)

    @pytest.mark.parametrize("normalize", [normalize_weights, normalize_weights_by_prior])
    def test_strength_zero_changes_nothing_and_dtype_is_kept(self, normalize, random_logits):
        weight = random_logits(4, 3).float()
        result = normalize(weight, PRIOR, tau=0.0)
        assert result.dtype == torch.float32
        assert torch.equal(result, weight)

    def test_zero_row_stays(self):
        weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        result = normalize_weights(weight, ClassPrior.from_counts([2, 1]), tau=0.5)
        assert torch.isfinite(result).all()
        assert torch.equal(result[1], weight[1])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_long_vectors_of_half_precision_keep_their_direction(self, dtype):
        """In float16 a length past 65,504 is infinite, and a vector divided by it is 0."""
        weight = torch.full((4, 1000), 5000.0, dtype=dtype)
        result = normalize_weights(weight, PRIOR)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double().norm(dim=1), torch.ones(4, dtype=torch.float64), rtol=1e-2, atol=0)
        mixed = torch.cat([weight[:2], weight[2:] / 100])
        torch.testing.assert_close(
            normalize_weights(mixed, PRIOR, tau=0.5), normalize_weights(mixed.float(), PRIOR, tau=0.5).to(dtype)
        )

    def test_a_negative_rare_logit_cannot_win_as_it_can_by_adjustment(self):
        """Section 4.2 of the paper."""
        prior = ClassPrior.from_counts([999, 1])
        weight, x = torch.tensor([[0.1], [-1.0]]), torch.ones(1, 1)
        assert (x @ normalize_weights_by_prior(weight, prior).T).argmax() == 0
        assert adjust_logits(x @ weight.T, prior).argmax() == 1

    @pytest.mark.parametrize("normalize", [normalize_weights, normalize_weights_by_prior])
    def test_bad_input(self, normalize):
        with pytest.raises(ValueError, match="prior is for 4 classes, but linear_weight has 3 rows"):
            normalize(torch.zeros(3, 2), PRIOR)
        with pytest.raises(ValueError, match=r"linear_weight must be floating-point \[C, D\]"):
            normalize(torch.zeros(4), PRIOR)
        with pytest.raises(ValueError, match="tau must be a finite number"):
            normalize(torch.ones(4, 2), PRIOR, tau=math.nan)
