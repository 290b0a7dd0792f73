"""MetaReweighter: weights per class or sample learned from the loss on a class-balanced set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longtail.sampling.class_rates import ClassRates

__all__ = ["MetaReweighter"]


class MetaReweighter:
    """Class weights that are learned: those with which a step makes a class-balanced loss least.

    Formula:
        weight[c] = 2 rate[c]; the loss is the mean of weight[y[i]] * loss[i]; after each step on a batch,
        rate <- Adam(rate, d meta_loss / d rate), through the step

    Args:
        num_classes: C.
        learning_rate: Adam's, for the rates.
        betas: Adam's.

    Use when:
        A sample has several instances or labels, so that classes can't be drawn one by one.
    Avoid when:
        A sample has one label: ``MetaSampler`` shows rare samples more often instead of taking larger steps on them.
    Special cases:
        The loss without weights, at its start.

    >>> reweighter = MetaReweighter(2)
    >>> reweighter(torch.tensor([3.0, 1.0]), torch.tensor([0, 1])).tolist()
    [3.0, 1.0]
    >>> reweighter.update(torch.tensor([0.1, -0.1]), torch.tensor([0, 1]))
    True
    >>> bool(reweighter.weights[0] < 1 < reweighter.weights[1])
    True

    Deviates:
        The reference does not say where weights start; here it is at 1, the largest being just below 2.

    Reference:
        Ren et al. (2020), "Balanced Meta-Softmax for long-tailed visual recognition", supplement, sections B.2, C.3.
    """

    def __init__(
        self, num_classes: int, *, learning_rate: float = 0.001, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        self._rates = ClassRates(num_classes, learning_rate, betas)

    @property
    def weights(self) -> Tensor:
        """[C] float64, the learned weights, in (0, 2)."""
        return 2 * self._rates.values

    @property
    def num_skipped(self) -> int:
        """Updates that were left out because the meta loss was not finite."""
        return self._rates.num_skipped

    def __call__(self, losses: Tensor, target: Tensor | None = None) -> Tensor:
        """Weighted losses.

        Args:
            losses: [M] losses of instances with classes ``target`` [M]; or [N, C] losses, one for each label of each
                sample, without ``target``.
            target: [M] classes, 0 .. C - 1.
        """
        self._check_call(losses, target)
        weights = self.weights.to(losses.device, losses.dtype)
        return losses * (weights if target is None else weights[target])

    def update(self, hyper_gradients: Tensor, target: Tensor | None = None) -> bool:
        """Learn from a step on weighted losses.

        Args:
            hyper_gradients: d meta loss / d weight of each loss, after the step; in the shape of the losses. Weights
                are no part of these: they come from the gradients of the losses before weighting.
            target: [M] classes, as for the losses.

        Returns:
            False, with a warning, if they are not finite: then the weights are left as they were.
        """
        self._check_call(hyper_gradients, target)
        slopes = hyper_gradients.detach().cpu().double()
        if target is None:
            gradient = slopes.sum(0)
        else:
            gradient = torch.zeros(len(self.weights), dtype=torch.float64).index_add_(0, target.cpu(), slopes)
        return self._rates.descend(2 * gradient)

    def state_dict(self) -> dict[str, Any]:
        """Where learning is; the same in all processes."""
        return self._rates.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        self._rates.load_state_dict(state)

    def _check_call(self, losses: Tensor, target: Tensor | None) -> None:
        num_classes = len(self.weights)
        is_right = losses.shape[1:] == (num_classes,) if target is None else losses.shape == target.shape
        if not is_right or losses.ndim != (2 if target is None else 1):
            got = None if target is None else tuple(target.shape)
            raise ValueError(
                f"MetaReweighter: losses must be [N, {num_classes}], or [M] with target [M]. "
                f"Got {tuple(losses.shape)} with target {got}."
            )
        if target is not None and target.numel():
            low, high = (int(value) for value in target.aminmax())
            if low < 0 or high >= num_classes:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"MetaReweighter: target must be classes 0..{num_classes - 1}; leave out what has none. "
                    f"Got {wrong}."
                )
