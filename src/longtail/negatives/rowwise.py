"""Optimizers for row-sparse gradients: a step touches the rows that were drawn, and nothing of the others.

Give them the head alone, and the rest of the model to any optimizer of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from longtail._core.numerics import widen
from longtail._core.shards import find_sharding

__all__ = ["RowwiseAdagrad", "RowwiseAdam", "RowwiseSGD"]

Closure = Callable[[], float]


class _RowwiseOptimizer(Optimizer):
    """What the row-wise optimizers share: the walk over drawn rows, and a state in float32 or wider."""

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """Update the drawn rows."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = self._coalesce(parameter.grad)
                    # Half precision has no room for small squares, nor for eps.
                    update = self._update(parameter, group, gradient.indices()[0], widen(gradient.values()))
                    _decay(parameter, group, gradient.indices()[0])
                    _add(parameter, gradient.indices()[0], update.to(parameter.dtype), -1.0)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of all rows; where a head is sharded, as DTensors that are shared out as its rows are."""
        state_dict = super().state_dict()
        for index, parameter in self._numbered(state_dict):
            sharding = find_sharding(parameter)
            if sharding is not None and index in state_dict["state"]:
                state = state_dict["state"][index]
                state_dict["state"][index] = {name: sharding.wrap(value) for name, value in state.items()}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state, in the precision that it was saved in, whatever that of the parameters."""
        numbered = self._numbered(state_dict)
        states = {index: dict(state) for index, state in state_dict["state"].items()}
        for index, parameter in numbered:
            sharding = find_sharding(parameter)
            if sharding is not None and index in states:
                states[index] = {name: sharding.unwrap(value) for name, value in states[index].items()}
        super().load_state_dict({**state_dict, "state": states})
        for index, parameter in numbered:
            for name, value in states.get(index, {}).items():
                self.state[parameter][name] = value.to(parameter.device, copy=True)

    def _numbered(self, state_dict: dict[str, Any]) -> list[tuple[int, Tensor]]:
        """The parameters with the numbers that a state has for them; as many as both have."""
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        return list(zip(saved, own, strict=False))  # torch says what is wrong where numbers differ

    def _coalesce(self, gradient: Tensor) -> Tensor:
        """The gradient with each row once."""
        if not gradient.is_sparse:
            raise TypeError(
                f"{type(self).__name__}: gradients must be row-sparse, as those of SampledLinear. "
                "Got a dense one; give that parameter to an optimizer of torch.optim."
            )
        return gradient.coalesce()

    def _update(self, parameter: Tensor, options: dict[str, Any], rows: Tensor, gradient: Tensor) -> Tensor:
        """What to subtract from the rows, which all differ; the gradient may not be changed."""
        raise NotImplementedError


class RowwiseSGD(_RowwiseOptimizer):
    """Stochastic gradient descent on the rows that have a gradient.

    Formula:
        w[y] <- (1 - lr weight_decay) w[y] - lr g[y], for drawn y

    Args:
        params: parameters whose gradients are row-sparse, such as ``SampledLinear.parameters()``.
        lr: learning rate.
        weight_decay: shrinks the drawn rows.

    It has no state, and so no memory beside the rows.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    >>> RowwiseSGD([weight], lr=0.5).step()
    >>> weight[:, 0].tolist()
    [0.0, -0.5, 0.0]
    """

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, _check_options({"lr": lr, "weight_decay": weight_decay}))

    def _update(self, parameter: Tensor, options: dict[str, Any], rows: Tensor, gradient: Tensor) -> Tensor:
        scaled: Tensor = options["lr"] * gradient
        return scaled


class RowwiseAdagrad(_RowwiseOptimizer):
    """Adagrad with one accumulator per row instead of one per number.

    Formula:
        G[y] <- G[y] + mean(g[y]^2);  w[y] <- w[y] - lr g[y] / (sqrt(G[y]) + eps), for drawn y

    Args:
        params: parameters whose gradients are row-sparse.
        lr: learning rate.
        eps: keeps the division finite.
        weight_decay: shrinks the drawn rows.

    Rare labels keep large steps, and the state is one number per label, float32 or wider: the choice for very many
    labels.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    >>> RowwiseAdagrad([weight], lr=0.5).step()
    >>> weight[:, 0].tolist()
    [0.0, -0.5, 0.0]

    Reference:
        Duchi et al. (2011), "Adaptive subgradient methods"; one accumulator per row as in recommender systems, Naumov
        et al. (2019), "Deep learning recommendation model".
    """

    def __init__(self, params: Any, lr: float = 0.1, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        super().__init__(params, _check_options({"lr": lr, "eps": eps, "weight_decay": weight_decay}))

    def _update(self, parameter: Tensor, options: dict[str, Any], rows: Tensor, gradient: Tensor) -> Tensor:
        state = self.state[parameter]
        squares = gradient.square()
        if not state:
            state["sum"] = squares.new_zeros(len(parameter))
        sums = state["sum"].index_add_(0, rows, squares.mean(dim=1) if squares.ndim > 1 else squares)[rows]
        return _per_row(options["lr"] / (sums.sqrt() + options["eps"]), gradient) * gradient


class RowwiseAdam(_RowwiseOptimizer):
    """Adam on the rows that have a gradient; each row counts its own steps.

    Formula:
        m[y] <- b1 m[y] + (1 - b1) g[y];  v[y] <- b2 v[y] + (1 - b2) g[y]^2;  t[y] <- t[y] + 1;
        w[y] <- (1 - lr weight_decay) w[y] - lr (m[y] / (1 - b1^t[y])) / (sqrt(v[y] / (1 - b2^t[y])) + eps), drawn y

    Args:
        params: parameters whose gradients are row-sparse.
        lr: learning rate.
        betas: b1 and b2.
        eps: keeps the division finite.
        weight_decay: shrinks the drawn rows, decoupled from the gradient.

    Its state is float32 or wider, also for weights in half precision.

    Where all rows are drawn in every step it is ``torch.optim.AdamW``. Unlike ``torch.optim.SparseAdam`` it corrects
    the start of each row by that row's own steps, so that a label drawn first after a thousand steps starts right.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    >>> RowwiseAdam([weight], lr=0.5).step()
    >>> weight[:, 0].tolist()
    [0.0, -0.5, 0.0]

    Reference:
        Kingma and Ba (2015), "Adam", Algorithm 1; Loshchilov and Hutter (2019) for the weight decay.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"RowwiseAdam: betas must be in [0, 1). Got {betas}.")
        super().__init__(
            params, _check_options({"lr": lr, "eps": eps, "weight_decay": weight_decay}) | {"betas": betas}
        )

    def _update(self, parameter: Tensor, options: dict[str, Any], rows: Tensor, gradient: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
            state["mean"] = torch.zeros_like(parameter, dtype=gradient.dtype)
            state["square"] = torch.zeros_like(parameter, dtype=gradient.dtype)
        steps = state["step"].index_add_(0, rows, torch.ones_like(rows))[rows].double()
        mean_rate, square_rate = options["betas"]
        mean, square = (state[name].index_select(0, rows) for name in ("mean", "square"))
        _move(state["mean"], rows, mean, gradient, 1 - mean_rate)
        _move(state["square"], rows, square, gradient.square(), 1 - square_rate)
        root = square.sqrt_().mul_(_per_row((1 - square_rate**steps).rsqrt(), square)).add_(options["eps"])
        update: Tensor = mean.div_(root).mul_(_per_row(options["lr"] / (1 - mean_rate**steps), mean))
        return update


def _move(table: Tensor, rows: Tensor, values: Tensor, goal: Tensor, share: float) -> None:
    """Move values, and the rows of a table that they are, this share of the way to a goal."""
    way = goal - values
    values.add_(way, alpha=share)
    _add(table, rows, way, share)


def _add(table: Tensor, rows: Tensor, values: Tensor, scale: float) -> None:
    """Add ``scale * values`` to different rows of a table. On processors faster than ``index_add_``."""
    size = (len(table), *values.shape[1:])
    table.add_(
        torch.sparse_coo_tensor(rows[None], values, size, is_coalesced=True, check_invariants=False), alpha=scale
    )


def _decay(parameter: Tensor, options: dict[str, Any], rows: Tensor) -> None:
    if options["weight_decay"]:
        parameter.index_copy_(0, rows, parameter[rows] * (1 - options["lr"] * options["weight_decay"]))


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    """[K] values, to multiply rows [K, ...] with."""
    return values.to(like).view(-1, *[1] * (like.ndim - 1))


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be a finite number of at least 0. Got {value}.")
    return options
