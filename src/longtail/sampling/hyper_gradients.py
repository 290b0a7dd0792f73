"""How a loss after one step of SGD depends on the weight of each sample in that step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longtail._core.collectives import mean_over_processes

__all__ = ["sgd_step_size", "linear_hyper_gradients", "network_hyper_gradients", "HeadRecord", "recording"]


def sgd_step_size(optimizer: torch.optim.Optimizer) -> float:
    """How far the next step of SGD moves a weight against one unit of gradient. Call it before the step.

    Formula:
        lr * (1 - dampening), lr in the first step with momentum, lr * (1 + momentum) with Nesterov's

    Args:
        optimizer: ``torch.optim.SGD``. Weight decay and the momentum of earlier steps move the weights too, but not
            with the batch, so they do not count.

    >>> sgd_step_size(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9, nesterov=True))
    0.19
    """
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"sgd_step_size: the optimizer must be SGD, whose step is linear in the gradient. "
            f"Got {type(optimizer).__name__}."
        )
    sizes = {_group_step_size(group, optimizer) for group in optimizer.param_groups}
    if len(sizes) != 1:
        raise ValueError(f"sgd_step_size: all parameter groups must take equal steps. Got {sorted(sizes)}.")
    return sizes.pop()


def linear_hyper_gradients(
    x: Tensor,
    logit_gradients: Tensor,
    weight_gradient: Tensor,
    bias_gradient: Tensor | None = None,
    step_size: float = 1.0,
) -> Tensor:
    """How the meta loss after a step of a linear head depends on the weight of each sample in that step.

    Formula:
        h[i] = -step_size * sum_c r[i, c] * (G[c] . x[i] + g[c])

    Args:
        x: [N, D] embeddings of the batch.
        logit_gradients: r, [N, C]: the gradient of the batch's mean loss at its logits, before the step.
        weight_gradient: G, [C, D]: the gradient of the meta loss at the head's weight, after the step.
        bias_gradient: g, [C]: the same at its bias, if it has one.
        step_size: what ``sgd_step_size`` says.

    Returns:
        [N] d meta loss / d s[i], where the step minimized the mean of s[i] * loss[i] at s = 1.

    Use when:
        Only a linear head is trained. The encoder is neither differentiated nor run again.
    Avoid when:
        More is trained than the head: ``network_hyper_gradients``.
    Special cases:
        Differentiating through the step with a second-order graph, at the cost of one more forward pass of the head.

    >>> x, r = torch.eye(2), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    >>> linear_hyper_gradients(x, r, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), step_size=0.5).tolist()
    [-0.5, -0.0]

    Reference:
        Ren et al. (2018), "Learning to reweight examples for robust deep learning", section 3.3, for a linear head.
    """
    if x.shape[:-1] != logit_gradients.shape[:-1] or weight_gradient.shape != (
        logit_gradients.shape[-1],
        x.shape[-1],
    ):
        raise ValueError(
            "linear_hyper_gradients: x, logit_gradients and weight_gradient must be [N, D], [N, C] and [C, D]. "
            f"Got {tuple(x.shape)}, {tuple(logit_gradients.shape)} and {tuple(weight_gradient.shape)}."
        )
    bias = None if bias_gradient is None else bias_gradient.to(weight_gradient.dtype)
    along = nn.functional.linear(x.to(weight_gradient.dtype), weight_gradient, bias)
    return -step_size * (logit_gradients.to(along.dtype) * along).sum(-1)


def network_hyper_gradients(
    losses_of: Callable[[dict[str, Tensor]], Tensor],
    parameters: Mapping[str, Tensor],
    meta_gradients: Mapping[str, Tensor],
    step_size: float = 1.0,
) -> Tensor:
    """How the meta loss after a step of any network depends on the weight of each sample in that step.

    Formula:
        h[i] = -step_size / N * d/de loss[i](theta + e G) at e = 0: one forward-mode derivative

    Args:
        losses_of: parameters -> [N] losses of the batch, of which the step minimized the mean; usually
            ``torch.func.functional_call`` of the model and a loss of one value per sample.
        parameters: theta, before the step, by name.
        meta_gradients: G, the gradient of the meta loss at the parameters after the step, by the same names.
        step_size: what ``sgd_step_size`` says.

    Returns:
        d meta loss / d s[i], in the shape of the losses.

    Use when:
        More than a linear head is trained.
    Avoid when:
        Batch normalization is in training mode: what it writes to its statistics can't be differentiated. Put it in
        evaluation mode, as a frozen encoder is anyway.
    Special cases:
        ``linear_hyper_gradients`` for a linear model.

    >>> x, parameters = torch.eye(2), {"weight": torch.zeros(2)}
    >>> def losses_of(p): return (x @ p["weight"] - 1) ** 2
    >>> network_hyper_gradients(losses_of, parameters, {"weight": torch.tensor([1.0, 0.0])}, 0.5).tolist()
    [0.5, 0.0]

    Reference:
        Ren et al. (2018), "Learning to reweight examples for robust deep learning", eq. (12), as one directional
        derivative.
    """
    if parameters.keys() != meta_gradients.keys():
        differing = sorted(parameters.keys() ^ meta_gradients.keys())
        raise ValueError(
            f"network_hyper_gradients: parameters and meta_gradients must have the same names. Got {differing[0]!r} "
            "in one of them only."
        )
    detached = {name: value.detach() for name, value in parameters.items()}
    tangents = {name: meta_gradients[name].detach() for name in detached}
    slopes: Tensor = torch.func.jvp(losses_of, (detached,), (tangents,))[1]
    return -step_size / len(slopes) * slopes


@dataclass
class HeadRecord:
    """What a linear head took and gave in one forward and backward pass: all that its hyper-gradients need."""

    x: Tensor | None = None
    logits: Tensor | None = None

    def hyper_gradients(self, head: nn.Linear, meta_loss: Tensor, step_size: float) -> Tensor:
        """[N] hyper-gradients of the recorded batch, given the meta loss of the head after the step.

        In a group of processes the meta loss is the mean over all of them.
        """
        if self.x is None or self.logits is None or self.logits.grad is None:
            raise RuntimeError("HeadRecord: run the head and the backward pass inside the recording first.")
        leaves = [head.weight] if head.bias is None else [head.weight, head.bias]
        gradients = [mean_over_processes(gradient) for gradient in torch.autograd.grad(meta_loss, leaves)]
        bias_gradient = None if head.bias is None else gradients[1]
        return linear_hyper_gradients(self.x, self.logits.grad, gradients[0], bias_gradient, step_size)


@contextmanager
def recording(head: nn.Linear) -> Iterator[HeadRecord]:
    """Record what ``head`` takes and gives in this block.

    >>> head = nn.Linear(3, 2)
    >>> with recording(head) as record:
    ...     head(torch.ones(4, 3)).sum().backward()
    >>> record.hyper_gradients(head, head(torch.ones(1, 3)).sum(), step_size=0.1).shape
    torch.Size([4])
    """
    if not isinstance(head, nn.Linear):
        raise TypeError(f"recording: the head must be nn.Linear. Got {type(head).__name__}.")
    record = HeadRecord()

    def keep(module: nn.Module, inputs: tuple[Any, ...], logits: Tensor) -> None:
        record.x, record.logits = inputs[0].detach(), logits
        logits.retain_grad()

    handle = head.register_forward_hook(keep)
    try:
        yield record
    finally:
        handle.remove()


def _group_step_size(group: Mapping[str, Any], optimizer: torch.optim.SGD) -> float:
    size = float(group["lr"]) * (-1 if group["maximize"] else 1)
    if group["momentum"] == 0:
        return size
    if group["nesterov"]:
        return size * (1 + float(group["momentum"]))
    is_first = not any("momentum_buffer" in optimizer.state[p] for p in group["params"])
    return size if is_first else size * (1 - float(group["dampening"]))
