"""Calibration beyond one temperature: with a bias for each class, and group by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail.posthoc._inputs import (
    FloatArray,
    Labels,
    Scores,
    as_scores,
    as_target,
    sample_counts,
)
from longtail.posthoc.shift import temperature_scale

__all__ = ["BiasCorrectedTemperature", "bias_corrected_temperature", "calibrate_groups", "group_temperatures"]


@dataclass(frozen=True, eq=False, slots=True)
class BiasCorrectedTemperature:
    """A temperature, and a bias for each class."""

    temperature: float
    bias: Tensor
    """[C] float64 that sum to 0."""

    def apply(self, logits: Scores) -> Tensor:
        """[N, C] logits / temperature + bias, in at least float32.

        >>> BiasCorrectedTemperature(2.0, torch.tensor([0.5, -0.5])).apply(torch.tensor([[2.0, 0.0]]))
        tensor([[ 1.5000, -0.5000]])
        """
        scores = as_scores(logits)
        if scores.shape[1] != len(self.bias):
            raise ValueError(f"logits must have {len(self.bias)} classes, as calibrated. Got {scores.shape[1]}.")
        return scores / self.temperature + self.bias.to(scores)


def bias_corrected_temperature(
    logits: Scores, target: Labels, sample_weight: Tensor | FloatArray | None = None, max_iterations: int = 500
) -> BiasCorrectedTemperature:
    """Temperature scaling with a bias for each class, fitted to held-out samples.

    Formula:
        argmin_{T, b} sum_i w[i] * -log softmax(f[i] / T + b)[y[i]]

    Args:
        logits: [N, C] of the model, or log-probabilities.
        target: [N] class indices with the prior that probabilities are wanted for; every class must occur.
        sample_weight: [N] how much each sample counts; None is 1.
        max_iterations: most steps of the minimization.

    Returns:
        The temperature and the biases. Predicted class frequencies on these samples are the true ones.

    Use when:
        Frequencies are to be estimated from probabilities (``estimate_target_prior``), which a temperature alone
        leaves wrong class by class; or a model's training, SMOTE or a focal loss, has moved its prior by an amount
        that nobody can compute.
    Avoid when:
        Classes have but a few held-out samples: their biases are mostly luck. Use ``temperature_scale``.
    Special cases:
        Platt scaling for two classes; ``temperature_scale`` with biases of 0.

    >>> logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> fitted = bias_corrected_temperature(logits, torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> fitted.bias.round(decimals=4).abs().tolist()
    [0.0, 0.0]

    Reference:
        Alexandari et al. (2020), "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift
        adaptation", section 2.3.
    """
    scores = as_scores(logits).double().cpu()
    index = as_target(target, scores)
    count = sample_counts(sample_weight, index)
    sizes = torch.zeros(scores.shape[1], dtype=torch.float64).index_add_(0, index, count)
    missing = torch.nonzero(sizes == 0).flatten().tolist()
    if missing:
        raise ValueError(
            "target must have samples of every class, or a class's bias can't be fitted. "
            f"Got none of class {missing[0]}" + (f" and {len(missing) - 1} others." if len(missing) > 1 else ".")
        )
    centered = scores - scores.mean(dim=1, keepdim=True)
    spread = float((count @ centered.square().mean(dim=1) / count.sum()).sqrt()) or 1.0
    slope, bias = _fit_slope_and_biases(centered / spread, index, count, max_iterations)
    return BiasCorrectedTemperature(spread / slope, bias - bias.mean())


def group_temperatures(logits: Scores, target: Labels, groups: Labels, num_groups: int | None = None) -> Tensor:
    """A temperature for each group of samples, fitted to held-out ones.

    Args:
        logits: [N, C] of the model, not adjusted.
        target: [N] class indices.
        groups: [N] the group of each sample, 0..G - 1: something known when predicting, such as where a sample comes
            from, or whether the *predicted* class is of the head, torso or tail.
        num_groups: G; default: the largest group + 1.

    Returns:
        [G] float64. A group without samples, or without any spread, gets the temperature of all samples.

    Use when:
        A model is more overconfident on some samples than on others, as on those it predicts to be rare.
    Avoid when:
        Groups have fewer than some hundred held-out samples.
    Special cases:
        ``temperature_scale`` for one group.

    >>> logits = torch.tensor([[2.0, 0.0]] * 8)
    >>> target, groups = torch.tensor([0, 0, 0, 1, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> group_temperatures(logits, target, groups).round()[0]
    tensor(2., dtype=torch.float64)

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", section 4.2, group by group.
    """
    scores = as_scores(logits).double().cpu()
    index = as_target(target, scores)
    group = _check_groups(groups, len(scores), num_groups)
    size = int(group.max()) + 1 if num_groups is None else num_groups
    temperatures = torch.full((size,), temperature_scale(scores, index), dtype=torch.float64)
    for member in sorted(set(group.tolist())):
        rows = group == member
        temperatures[member] = temperature_scale(scores[rows], index[rows])
    return temperatures


def calibrate_groups(logits: Scores, groups: Labels, temperatures: Tensor | FloatArray) -> Tensor:
    """[N, C] logits divided by the temperature of their group, from ``group_temperatures``.

    >>> calibrate_groups(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [1., 0.]])
    """
    scores, by_group = as_scores(logits), as_tensor(temperatures)
    group = _check_groups(groups, len(scores), len(by_group))
    return scores / by_group.to(scores)[group.to(scores.device)][:, None]


def _check_groups(groups: Labels, num_samples: int, num_groups: int | None) -> Tensor:
    group = as_tensor(groups)
    is_index = group.shape == (num_samples,) and not group.is_floating_point() and group.dtype != torch.bool
    high = int(group.max()) if is_index and len(group) else 0
    if not is_index or (len(group) and int(group.min()) < 0) or (num_groups is not None and high >= num_groups):
        wanted = "0 or more" if num_groups is None else f"0..{num_groups - 1}"
        raise ValueError(
            f"groups must be [{num_samples}] integers, {wanted}. Got {group.dtype} {tuple(group.shape)}."
        )
    return group.long().cpu()


def _fit_slope_and_biases(scaled: Tensor, index: Tensor, count: Tensor, max_iterations: int) -> tuple[float, Tensor]:
    """The slope and the biases of least cross-entropy: a convex problem of C + 1 numbers.

    SciPy minimizes it with its exact gradient. A ridge of a hundredth of a sample keeps separable samples finite.
    """
    from scipy.optimize import minimize  # loads for half a second, where all else here is there at once

    rows, num_classes = torch.arange(len(index)), scaled.shape[1]
    share, ridge = count / count.sum(), 0.01 / float(count.sum())

    def cost(point: FloatArray) -> tuple[float, FloatArray]:
        slope, bias = float(point[0]), torch.from_numpy(point[1:])
        logs = (slope * scaled + bias).log_softmax(dim=1)
        residual = logs.exp() * share[:, None]
        residual[rows, index] -= share
        value = -float(share @ logs[rows, index]) + ridge / 2 * float(np.square(point).sum())
        gradient = np.concatenate([[float((residual * scaled).sum())], residual.sum(dim=0).numpy()])
        return value, gradient + ridge * point

    start = np.zeros(num_classes + 1)
    start[0] = 1.0
    limits = [(1e-3, 1e3)] + [(None, None)] * num_classes
    found = minimize(
        cost,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options={"maxiter": max_iterations, "gtol": 1e-9, "ftol": 1e-14},
    )
    return float(found.x[0]), torch.from_numpy(found.x[1:].copy())
