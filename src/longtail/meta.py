"""Re-balancing that is learned: how often, or how strongly, each class should train a model, by one-step lookahead.

A step of SGD on a batch is linear in the weights s of the batch's samples. So the slope of a meta loss after the step
needs no second-order graph:

    d meta_loss(theta') / d s[i] = -step * <d meta_loss / d theta', d loss[i] / d theta> / N

For a linear head the inner product is a few matrix products (:func:`linear_hyper_gradients`); for any network it is
one forward-mode derivative (:func:`network_hyper_gradients`). What follows from these hyper-gradients is the business
of ``MetaSampler``, whose weights are draws, and of ``MetaReweighter``, whose weights are weights. The step is the one
that the optimizer really takes, with its momentum and weight decay (:func:`sgd_step_size`).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.samplers import _at_least, _ClassIndex, _process

__all__ = [
    "ClassRates",
    "HeadRecord",
    "MetaReweighter",
    "MetaSampler",
    "draw_classes",
    "linear_hyper_gradients",
    "network_hyper_gradients",
    "recording",
    "sgd_step_size",
    "straight_through_gradient",
]

LEAST_RATE = 1e-3
"""Rates stay this far from 0 and 1, so that a class can come back."""


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
    Equals:
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
            ``torch.func.functional_call`` of the model and a loss of one value a sample.
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
    Equals:
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
        gradients = [_mean_over_processes(gradient) for gradient in torch.autograd.grad(meta_loss, leaves)]
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


def draw_classes(
    log_weights: Tensor, size: int, temperature: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw classes by the Gumbel maximum, and say how near each of the others was.

    Formula:
        z = log_weights + g, g ~ Gumbel(0, 1); class = argmax z; shares = softmax(z / temperature)

    Args:
        log_weights: [C]; class c is drawn with probability proportional to exp(log_weights[c]). -inf is never drawn.
        size: how many to draw, independently.
        temperature: of the shares; the draws do not depend on it.
        generator: the source of randomness.

    Returns:
        [size] classes and [size, C] shares.

    >>> classes, shares = draw_classes(torch.tensor([0.0, -torch.inf]), 3)
    >>> classes.tolist(), shares[0].tolist()
    ([0, 0, 0], [1.0, 0.0])

    Deviates:
        Eq. (79) divides without exponentiating and has the noise inside the logarithm; this is what it means. It
        draws samples, with a noise for each of them. The largest noise of a class's n samples is one noise shifted by
        log n, so a noise for each class draws classes with the same probabilities. Shares differ: they are a class's,
        where those of eq. (79) are a sample's, of which the n of a class take nearly equal parts.

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement, eq. (79); Jang et al. (2017), "Categorical reparameterization
        with Gumbel-softmax".
    """
    # float64: noise of 24 bits would miss classes that are a millionth as likely as others.
    noise = torch.empty(size, len(log_weights), dtype=torch.float64).exponential_(generator=generator).log_()
    perturbed = noise.neg_().add_(log_weights)
    return perturbed.argmax(1), perturbed.div_(temperature).softmax(1)


def straight_through_gradient(
    classes: Tensor, shares: Tensor, hyper_gradients: Tensor, temperature: float = 1.0
) -> Tensor:
    """[C] the gradient of a meta loss at the log weights by which ``draw_classes`` drew.

    Formula:
        u[k] = sum_i h[i] * d shares[i, c[i]] / d log_weights[k] = sum_i h[i] s[i] (1[k = c[i]] - shares[i, k]) / t,
        with s[i] = shares[i, c[i]]

    Args:
        classes: c, [N].
        shares: [N, C].
        hyper_gradients: h, [N].
        temperature: t.

    A draw counts as weight 1 going forward and as its share going backward.

    >>> straight_through_gradient(torch.tensor([0]), torch.tensor([[0.5, 0.5]]), torch.tensor([-1.0])).tolist()
    [-0.25, 0.25]

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement, eqs. (79) to (81).
    """
    rows = torch.arange(len(classes))
    scaled = hyper_gradients.to(shares.dtype) * shares[rows, classes] / temperature
    drawn = torch.zeros_like(shares[0]).index_add_(0, classes, scaled)
    return drawn - scaled @ shares


class ClassRates:
    """One rate in (0, 1) for each class, learned by Adam from gradients: what the meta sampler and reweighter share.

    Args:
        num_classes: C.
        learning_rate: Adam's.
        betas: Adam's.

    Rates start at 0.5 and stay 0.001 away from 0 and 1. A rate is the sigmoid of what Adam moves.

    >>> rates = ClassRates(2, learning_rate=0.01)
    >>> rates.descend(torch.tensor([1.0, -1.0])), rates.values[0] < 0.5 < rates.values[1]
    (True, tensor(True))
    """

    def __init__(self, num_classes: int, learning_rate: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise ValueError(f"learning_rate must be a finite number above 0. Got {learning_rate}.")
        self.logits = torch.zeros(_at_least(num_classes, 1, "num_classes"), dtype=torch.float64)
        self.optimizer = torch.optim.Adam([self.logits], lr=learning_rate, betas=betas)
        self.num_skipped = 0

    @property
    def values(self) -> Tensor:
        """[C] float64, the rates."""
        return self.logits.sigmoid()

    def descend(self, gradient: Tensor) -> bool:
        """One step of Adam against [C] d meta loss / d rates; the mean over all processes, so that these stay equal.

        Returns:
            False, with a warning, if the gradient is not finite: then the rates are left as they were.
        """
        if gradient.shape != self.logits.shape:
            raise ValueError(f"gradient must be {tuple(self.logits.shape)}. Got {tuple(gradient.shape)}.")
        rates = self.values
        mean = _mean_over_processes(gradient.detach().cpu().double())
        if not mean.isfinite().all():
            self.num_skipped += 1
            warnings.warn("the meta loss is not finite; the rates are left as they were.", stacklevel=3)
            return False
        self.logits.grad = mean * rates * (1 - rates)
        self.optimizer.step()
        bound = math.log((1 - LEAST_RATE) / LEAST_RATE)
        self.logits.clamp_(-bound, bound)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where learning is; the same in all processes."""
        return {
            "logits": self.logits.clone(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        wanted = {"logits", "optimizer", "num_skipped"}
        if set(state) != wanted or state["logits"].shape != self.logits.shape:
            raise ValueError(f"the state must hold {sorted(wanted)} of {len(self.logits)} classes. Got another.")
        self.logits.copy_(state["logits"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_skipped = state["num_skipped"]


class MetaSampler:
    """Draws batches by class rates that it learns: those after which a class-balanced loss is least.

    Formula:
        p[c] = n[c] rate[c] / sum_c' n[c'] rate[c'], then a sample of the class uniformly; after each step on a batch,
        rate <- Adam(rate, d meta_loss / d rate), through the step and straight through the draw

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        num_classes: C; default: the largest label + 1. A class without samples is never drawn, and keeps its rate.
        meta_labels: labels of samples kept out of training, from which the meta set is drawn; default: the training
            samples.
        meta_size: samples of the class-balanced meta set, drawn anew for each step.
        learning_rate: Adam's, for the rates.
        betas: Adam's.
        temperature: of the Gumbel-softmax.
        seed: the same in all processes.
        num_replicas: the number of processes, as for ``EpochSampler``.
        rank: this process.

    Use when:
        A head is trained again on frozen features, and class-balanced sampling on top of balanced softmax balances
        too much.
    Avoid when:
        Balanced softmax alone does: a meta step costs about as much as the training step. Where the encoder was
        trained on the same samples, it separates the rare ones better than it will separate new ones; the meta loss
        takes them for learned and their rates fall. Then give it ``meta_labels``. For several labels a sample:
        ``MetaReweighter``.
    Equals:
        ``InstanceSampler``, but with replacement, before its first update.

    What it learns grows with C, a draw with batch size * C; N counts only for the list of samples by class. Draws are
    a function of seed, step and rank, so a run that is resumed goes on with the same batches.

    >>> sampler = MetaSampler([0] * 90 + [1] * 10, meta_size=4)
    >>> batch, meta = sampler.draw(8), sampler.draw_meta()
    >>> sampler.update(torch.zeros(8)), len(batch), (meta >= 90).sum().item(), sampler.rates.tolist()
    (True, 8, 2, [0.5, 0.5])

    Deviates:
        The reference takes a step on trial, learns from it, takes it back, and draws again. Here the step that
        training takes is the one to learn from. Its draw of the meta set is independent; here every class comes
        equally often, up to one. The Gumbel noise is drawn for classes, not for samples: see ``draw_classes``.

    Reference:
        Ren et al. (2020), "Balanced Meta-Softmax for long-tailed visual recognition", supplement, sections B.1, C.3.
    """

    def __init__(
        self,
        labels: Any,
        num_classes: int | None = None,
        *,
        meta_labels: Any = None,
        meta_size: int = 512,
        learning_rate: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        temperature: float = 1.0,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"MetaSampler: temperature must be a finite number above 0. Got {temperature}.")
        self.num_replicas, self.rank = _process(num_replicas, rank)
        self.meta_size = _at_least(meta_size, 1, "meta_size")
        self.temperature = temperature
        self.seed = _at_least(seed, 0, "seed")
        self.step = 0
        self._index = _ClassIndex.of(labels, num_classes)
        self._log_counts = self._index.counts.double().log()
        self._meta_index = self._index if meta_labels is None else _ClassIndex.of(meta_labels, len(self._log_counts))
        self._present = torch.nonzero(self._meta_index.counts).flatten()
        self._rates = ClassRates(len(self._log_counts), learning_rate, betas)
        self._drawn: tuple[Tensor, Tensor] | None = None
        self._warn_of_missing_classes()

    def __len__(self) -> int:
        """Draws of this process that make an epoch: as many as there are samples, over all processes."""
        return math.ceil(len(self._index.order) / self.num_replicas)

    @property
    def rates(self) -> Tensor:
        """[C] float64, the learned rates, in (0, 1)."""
        return self._rates.values

    @property
    def class_probs(self) -> Tensor:
        """[C] float64, how likely a draw is of each class."""
        return self._log_weights().softmax(0)

    @property
    def num_skipped(self) -> int:
        """Updates that were left out because the meta loss was not finite."""
        return self._rates.num_skipped

    def draw(self, size: int) -> Tensor:
        """[size] indices of samples to train on. :meth:`update` learns from the last draw."""
        generator = self._generator(0)
        self._drawn = draw_classes(self._log_weights(), _at_least(size, 1, "size"), self.temperature, generator)
        return self._index.draw(self._drawn[0], generator)

    def draw_meta(self) -> Tensor:
        """[meta_size] indices of a class-balanced set, among the samples that ``meta_labels`` are of, if given.

        A class beyond meta_size has its turn in another step.
        """
        generator = self._generator(1)
        order = self._present[torch.randperm(len(self._present), generator=generator)]
        classes = order.repeat(math.ceil(self.meta_size / len(order)))[: self.meta_size]
        return self._meta_index.draw(classes, generator)

    def update(self, hyper_gradients: Tensor) -> bool:
        """Learn from the step on the last draw, and go on to the next.

        Args:
            hyper_gradients: [size] d meta loss / d weight of each drawn sample, after the step.

        Returns:
            False, with a warning, if they are not finite: then the rates are left as they were.
        """
        if self._drawn is None:
            raise RuntimeError("MetaSampler: draw a batch before the update.")
        classes, shares = self._drawn
        if hyper_gradients.shape != classes.shape:
            raise ValueError(
                f"MetaSampler: hyper_gradients must be one for each of the {len(classes)} samples drawn. "
                f"Got shape {tuple(hyper_gradients.shape)}."
            )
        self._drawn = None
        self.step += 1
        slopes = straight_through_gradient(classes, shares, hyper_gradients.detach().cpu(), self.temperature)
        return self._rates.descend(slopes / self.rates)

    def state_dict(self) -> dict[str, Any]:
        """Where this sampler is; the same in all processes."""
        return {"seed": self.seed, "step": self.step, "rates": self._rates.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: the same rates, and the same draws."""
        wanted = {"seed", "step", "rates"}
        if set(state) != wanted:
            raise ValueError(f"MetaSampler: the state must hold {sorted(wanted)}. Got {sorted(state)}.")
        self._rates.load_state_dict(state["rates"])
        self.seed, self.step = _at_least(state["seed"], 0, "seed"), _at_least(state["step"], 0, "step")
        self._drawn = None

    def _log_weights(self) -> Tensor:
        return self._log_counts + self.rates.log()

    def _generator(self, stream: int) -> torch.Generator:
        key = (self.seed, self.step, self.rank, stream)
        return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))

    def _warn_of_missing_classes(self) -> None:
        missing = torch.nonzero(self._meta_index.counts == 0).flatten()
        if len(missing):
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            warnings.warn(
                f"MetaSampler: class {int(missing[0])}{others} has no samples: the meta set lacks it, "
                "and is balanced over the others.",
                stacklevel=3,
            )


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
    Equals:
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
            target: [M] classes.
        """
        self._check_shapes(losses, target)
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
        self._check_shapes(hyper_gradients, target)
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
        """Go on from ``state``."""
        self._rates.load_state_dict(state)

    def _check_shapes(self, losses: Tensor, target: Tensor | None) -> None:
        num_classes = len(self.weights)
        is_right = losses.shape[1:] == (num_classes,) if target is None else losses.shape == target.shape
        if not is_right or losses.ndim != (2 if target is None else 1):
            got = None if target is None else tuple(target.shape)
            raise ValueError(
                f"MetaReweighter: losses must be [N, {num_classes}], or [M] with target [M]. "
                f"Got {tuple(losses.shape)} with target {got}."
            )


def _group_step_size(group: Mapping[str, Any], optimizer: torch.optim.SGD) -> float:
    size = float(group["lr"]) * (-1 if group["maximize"] else 1)
    if group["momentum"] == 0:
        return size
    if group["nesterov"]:
        return size * (1 + float(group["momentum"]))
    is_first = not any("momentum_buffer" in optimizer.state[p] for p in group["params"])
    return size if is_first else size * (1 - float(group["dampening"]))


def _mean_over_processes(value: Tensor) -> Tensor:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"  # NCCL knows no other
    total = value.detach().clone().to(device)
    distributed.all_reduce(total)
    return (total / distributed.get_world_size()).to(value.device)
