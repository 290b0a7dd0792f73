"""MetaSampler: class rates learned from the loss on a class-balanced set."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.collectives import gather_everywhere, num_processes, process_rank
from longtail._core.random import mix_seed
from longtail.sampling.base import ClassIndex
from longtail.sampling.class_rates import ClassRates, draw_classes, score_function_gradient

__all__ = ["MetaSampler"]


class MetaSampler:
    """Draws batches by class rates that it learns: those after which a class-balanced loss is least.

    Formula:
        p[c] = n[c] rate[c] / sum_c' n[c'] rate[c'], then a sample of the class uniformly; after each step on a batch,
        rate <- Adam(rate, g), g[k] = N / (N - 1) * sum_{i: c[i] = k} (h[i] - mean of h) / rate[k], whose expectation
        is the gradient of the meta loss expected after a step; h[i] = d meta_loss / d weight of sample i in the step

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        num_classes: C; default: the largest label + 1. A class without samples is never drawn, and keeps its rate.
        meta_labels: labels of samples kept out of training, from which the meta set is drawn; default: the training
            samples.
        meta_size: samples of the class-balanced meta set, drawn anew for each step.
        learning_rate: Adam's, for the rates.
        betas: Adam's.
        seed: the same in all processes.
        num_replicas: the number of processes, as for ``EpochSampler``.
        rank: this process.

    Use when:
        A head is trained again on frozen features, and class-balanced sampling on top of balanced softmax balances
        too much.
    Avoid when:
        Balanced softmax alone does: a meta step costs about as much as the training step. Where the encoder was
        trained on the same samples, it separates the rare ones better than it will separate new ones; the meta loss
        takes them for learned and their rates fall. Then give it ``meta_labels``. For multi-label data:
        ``MetaReweighter``.
    Special cases:
        ``InstanceSampler``, but with replacement, before its first update.

    A draw and what is learned from it cost O(C + batch size); all samples count only for the list of them by class.
    Draws are a function of seed, step and rank, so a run that is resumed continues with the same batches.

    >>> sampler = MetaSampler([0] * 90 + [1] * 10, meta_size=4)
    >>> batch, meta = sampler.draw(8), sampler.draw_meta()
    >>> sampler.update(torch.zeros(8)), len(batch), (meta >= 90).sum().item(), sampler.rates.tolist()
    (True, 8, 2, [0.5, 0.5])

    Deviates:
        The reference takes a step on trial, learns from it, takes it back, and draws again. Here the step that
        training takes is the one to learn from. Its draw of the meta set is independent; here every class comes
        equally often, up to one. Its gradient goes straight through a Gumbel-softmax, which is biased; here
        it is that of the score function, against the mean of the batch: see ``score_function_gradient``.

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
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.num_replicas, self.rank = process_rank(num_replicas, rank)
        self.meta_size = at_least(meta_size, 1, "meta_size")
        self.seed = at_least(seed, 0, "seed")
        self.step = 0
        self._index = ClassIndex.of(labels, num_classes)
        classes = len(self._index.counts)
        self._meta_index = self._index if meta_labels is None else ClassIndex.of(meta_labels, classes)
        self._present = torch.nonzero(self._meta_index.counts).flatten()
        self._rates = ClassRates(classes, learning_rate, betas)
        self._drawn: Tensor | None = None
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
        weights = self._index.counts * self.rates
        return weights / weights.sum()

    @property
    def num_skipped(self) -> int:
        """Updates that were left out because the meta loss was not finite."""
        return self._rates.num_skipped

    def draw(self, size: int) -> Tensor:
        """[size] indices of samples to train on. :meth:`update` learns from the last draw."""
        generator = self._generator(0)
        self._drawn = draw_classes(self.class_probs, at_least(size, 1, "size"), generator)
        return self._index.draw(self._drawn, generator)

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
        classes = self._drawn
        if hyper_gradients.shape != classes.shape:
            raise ValueError(
                f"MetaSampler: hyper_gradients must be one for each of the {len(classes)} samples drawn. "
                f"Got shape {tuple(hyper_gradients.shape)}."
            )
        self._drawn = None
        self.step += 1
        # What a draw is compared with is the batch of all processes; each slope is that of its own process's mean.
        classes, slopes = gather_everywhere(classes), gather_everywhere(hyper_gradients.detach().cpu())
        gradient = score_function_gradient(classes, slopes, len(self.rates)) / num_processes()
        return self._rates.descend(gradient / self.rates)

    def state_dict(self) -> dict[str, Any]:
        """Where this sampler is; the same in all processes."""
        return {"seed": self.seed, "step": self.step, "rates": self._rates.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``: the same rates, and the same draws."""
        wanted = {"seed", "step", "rates"}
        if set(state) != wanted:
            raise ValueError(f"MetaSampler: the state must hold {sorted(wanted)}. Got {sorted(state)}.")
        self._rates.load_state_dict(state["rates"])
        self.seed, self.step = at_least(state["seed"], 0, "seed"), at_least(state["step"], 0, "step")
        self._drawn = None

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix_seed(self.seed, self.step, self.rank, stream))

    def _warn_of_missing_classes(self) -> None:
        missing = torch.nonzero(self._meta_index.counts == 0).flatten()
        if len(missing):
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            warnings.warn(
                f"MetaSampler: class {int(missing[0])}{others} has no samples: the meta set lacks it, "
                "and is balanced over the others.",
                stacklevel=3,
            )
