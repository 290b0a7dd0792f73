"""The optimizers of ExtremeClassifier."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LayerwiseAdam"]


class LayerwiseAdam(Optimizer):
    """Adam with one second moment for a whole parameter, for vectors of sparse features.

    Formula:
        v <- b2 v + (1 - b2) mean(g^2);  m <- b1 m + (1 - b1) g;
        w <- w - lr m / (sqrt(v / (1 - b2^t)) + eps); where gradients are row-sparse, m is g

    Args:
        params: parameters with dense or row-sparse gradients.
        lr: learning rate: about how far a number moves per step.
        betas: b1 and b2.
        eps: keeps the division finite.
        weight_decay: shrinks what is updated, decoupled from the gradient.

    Adam divides each number's gradient by its own size, so that the vector of a word of two texts moves as far as
    that of a word of a thousand, and is noise as large as the signal. Here a step is proportional to the gradient,
    as in gradient descent, and only its size is adapted. On Reuters-90's texts that is worth more than a point of
    P@1. It also has no state per row, which makes a step with row-sparse gradients cheaper.

    Reference:
        Ginsburg et al. (2019), "Stochastic gradient methods with layer-wise adaptive moments".
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-12,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, options: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.coalesce()
        values = (gradient.values() if gradient.is_sparse else gradient).flatten()
        mean_rate, square_rate = options["betas"]
        state["step"] = step = state.get("step", 0) + 1
        square = values.dot(values) / parameter.numel()
        state["square"] = square = square_rate * state.get("square", 0.0) + (1 - square_rate) * square
        rate = options["lr"] / (math.sqrt(float(square) / (1 - square_rate**step)) + options["eps"])
        kept = 1 - options["lr"] * options["weight_decay"]
        if gradient.is_sparse:
            if kept < 1:
                rows = gradient.indices()[0]
                parameter.index_copy_(0, rows, parameter[rows] * kept)
            parameter.add_(gradient, alpha=-rate)
            return
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        state["mean"].lerp_(gradient, 1 - mean_rate)
        parameter.mul_(kept).add_(state["mean"], alpha=-rate / (1 - mean_rate**step))
