"""Optimizers for row-sparse gradients: a step touches the rows that were drawn, and nothing of the others.

Give them the head alone, and the rest of the model to any optimizer of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from longtail._core.numerics import widen

__all__ = ["RowwiseAdagrad", "RowwiseAdam", "RowwiseSGD"]

Closure = Callable[[], float]


class RowwiseSGD(Optimizer):
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
        super().__init__(params, _checked({"lr": lr, "weight_decay": weight_decay}))

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """Update the drawn rows."""
        loss = _evaluated(closure)
        for parameter, options, rows, gradient in _drawn(self):
            _decay(parameter, options, rows)
            _add(parameter, rows, gradient, -options["lr"])
        return loss


class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator a row instead of one a number.

    Formula:
        G[y] <- G[y] + mean(g[y]^2);  w[y] <- w[y] - lr g[y] / (sqrt(G[y]) + eps), for drawn y

    Args:
        params: parameters whose gradients are row-sparse.
        lr: learning rate.
        eps: keeps the division finite.
        weight_decay: shrinks the drawn rows.

    Rare labels keep large steps, and the state is one number a label: the choice for very many labels.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    >>> RowwiseAdagrad([weight], lr=0.5).step()
    >>> weight[:, 0].tolist()
    [0.0, -0.5, 0.0]

    Reference:
        Duchi et al. (2011), "Adaptive subgradient methods"; one accumulator a row as in recommender systems, Naumov
        et al. (2019), "Deep learning recommendation model".
    """

    def __init__(self, params: Any, lr: float = 0.1, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        super().__init__(params, _checked({"lr": lr, "eps": eps, "weight_decay": weight_decay}))

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """Update the drawn rows."""
        loss = _evaluated(closure)
        for parameter, options, rows, gradient in _drawn(self):
            state = self.state[parameter]
            squares = widen(gradient).square()
            if not state:
                state["sum"] = squares.new_zeros(len(parameter))
            state["sum"] = state["sum"].to(squares)  # ``load_state_dict`` makes it the dtype of the parameter
            sums = state["sum"].index_add_(0, rows, squares.mean(dim=1) if squares.ndim > 1 else squares)[rows]
            step_size = options["lr"] / (sums.sqrt() + options["eps"])
            _decay(parameter, options, rows)
            _add(parameter, rows, _per_row(step_size, gradient) * gradient, -1.0)
        return loss


class RowwiseAdam(Optimizer):
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
        super().__init__(params, _checked({"lr": lr, "eps": eps, "weight_decay": weight_decay}) | {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """Update the drawn rows."""
        loss = _evaluated(closure)
        for parameter, options, rows, gradient in _drawn(self):
            state = self.state[parameter]
            if not state:
                # Of all names, ``load_state_dict`` leaves the dtype of this one alone.
                state["step"] = torch.zeros(len(parameter), dtype=torch.int64)
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.zeros_like(parameter)
            state["step"] = state["step"].to(parameter.device)
            steps = state["step"].index_add_(0, rows, torch.ones_like(rows))[rows].double()
            mean_rate, square_rate = options["betas"]
            mean, square = (state[name].index_select(0, rows) for name in ("mean", "square"))
            _move(state["mean"], rows, mean, gradient, 1 - mean_rate)
            _move(state["square"], rows, square, gradient.square(), 1 - square_rate)
            root = square.sqrt_().mul_(_per_row((1 - square_rate**steps).rsqrt(), square)).add_(options["eps"])
            update = mean.div_(root).mul_(_per_row(options["lr"] / (1 - mean_rate**steps), mean))
            _decay(parameter, options, rows)
            _add(parameter, rows, update, -1.0)
        return loss


def _drawn(optimizer: Optimizer) -> Iterator[tuple[Tensor, dict[str, Any], Tensor, Tensor]]:
    """Each parameter with its options, the rows that have a gradient, each once, and their gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if not parameter.grad.is_sparse:
                raise TypeError(
                    f"{type(optimizer).__name__}: gradients must be row-sparse, as those of SampledLinear. "
                    "Got a dense one; give that parameter to an optimizer of torch.optim."
                )
            gradient = parameter.grad.coalesce()
            yield parameter, group, gradient.indices()[0], gradient.values()


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


def _evaluated(closure: Closure | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be a finite number of at least 0. Got {value}.")
    return options
