"""Temperature with biases, and group by group, against a reference and against what was done to the logits."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from longtail.posthoc import (
    bias_corrected_temperature,
    calibrate_groups,
    group_temperatures,
    temperature_scale,
)


def draw(num_samples, num_classes, seed=0):
    """Logits whose softmax is the truth, and labels drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_samples, num_classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]


class TestBiasCorrectedTemperature:
    def test_is_the_minimum_that_a_plain_loop_finds(self):
        logits, target = draw(60, 3)

        def cost(point):
            total = 0.0
            for row, label in zip(logits.numpy(), target.tolist(), strict=True):
                scores = row * point[0] + np.array([point[1], point[2], 0.0])
                total += np.log(np.exp(scores).sum()) - scores[label]
            return total / 60

        reference = minimize(cost, [1.0, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
        fitted = bias_corrected_temperature(logits, target)
        slope, bias = 1 / fitted.temperature, (fitted.bias - fitted.bias[-1]).tolist()
        # The ridge of a hundredth of a sample is the difference.
        assert [slope, *bias[:2]] == pytest.approx(reference.x.tolist(), abs=0.01)

    def test_takes_back_a_temperature_and_biases(self):
        logits, target = draw(20_000, 4)
        bias = torch.tensor([1.0, -0.5, 0.0, -0.5])
        fitted = bias_corrected_temperature(3 * logits + 3 * bias, target)
        assert fitted.temperature == pytest.approx(3, rel=0.05)
        assert fitted.bias.tolist() == pytest.approx((-bias).tolist(), abs=0.06)
        restored = fitted.apply(3 * logits + 3 * bias).softmax(dim=1)
        assert float((restored - logits.softmax(dim=1)).abs().mean()) < 0.01

    def test_predicted_frequencies_become_the_true_ones(self):
        logits, target = draw(500, 4)
        fitted = bias_corrected_temperature(2 * logits + torch.tensor([3.0, 0, 0, 0]), target)
        predicted = fitted.apply(2 * logits + torch.tensor([3.0, 0, 0, 0])).softmax(dim=1).mean(dim=0)
        assert predicted.tolist() == pytest.approx((target.bincount() / 500).tolist(), abs=1e-3)

    def test_weights_count_samples(self):
        logits, target = draw(200, 3)
        weight = torch.arange(200) % 3
        rows = torch.repeat_interleave(torch.arange(200), weight)
        weighted = bias_corrected_temperature(logits, target, weight)
        repeated = bias_corrected_temperature(logits[rows], target[rows])
        assert weighted.temperature == pytest.approx(repeated.temperature, rel=1e-3)

    def test_separable_samples_stay_finite(self):
        fitted = bias_corrected_temperature(torch.tensor([[5.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 1]))
        assert fitted.temperature > 0
        assert fitted.bias.isfinite().all()

    def test_bad_input(self):
        logits, target = draw(20, 3)
        with pytest.raises(ValueError, match=r"samples of every class.*Got none of class 2"):
            bias_corrected_temperature(logits, target.clamp_max(1))
        with pytest.raises(ValueError, match=r"must have 3 classes, as calibrated. Got 2"):
            bias_corrected_temperature(logits, torch.arange(20) % 3).apply(torch.zeros(1, 2))


class TestGroups:
    def test_each_group_gets_its_own_temperature(self):
        logits, target = draw(4000, 3)
        groups = torch.arange(4000) % 2
        spoiled = torch.where(groups[:, None] == 0, 4 * logits, 0.5 * logits)
        found = group_temperatures(spoiled, target, groups)
        assert found.tolist() == pytest.approx([4.0, 0.5], rel=0.1)
        expected = [temperature_scale(spoiled[groups == g], target[groups == g]) for g in (0, 1)]
        assert found.tolist() == pytest.approx(expected)
        restored = calibrate_groups(spoiled, groups, found)
        assert float((restored.softmax(1) - logits.softmax(1)).abs().mean()) < 0.02

    def test_group_without_samples_gets_the_temperature_of_all(self):
        logits, target = draw(100, 3)
        found = group_temperatures(logits, target, torch.zeros(100, dtype=torch.long), num_groups=2)
        assert found[1] == pytest.approx(temperature_scale(logits, target))

    @pytest.mark.parametrize("groups", [torch.zeros(3), torch.zeros(2, dtype=torch.long), torch.tensor([0, -1, 0])])
    def test_bad_groups(self, groups):
        with pytest.raises(ValueError, match=r"groups must be \[3\] integers"):
            group_temperatures(torch.zeros(3, 2), torch.tensor([0, 1, 0]), groups)
        with pytest.raises(ValueError, match=r"groups must be \[3\] integers, 0..1"):
            calibrate_groups(torch.zeros(3, 2), torch.tensor([0, 1, 2]), torch.ones(2))
