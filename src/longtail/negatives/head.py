"""SampledLinear: a head for extreme classification, trained against drawn negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core import collectives
from longtail._core.checks import at_least
from longtail._core.labels import NO_LABEL
from longtail._core.numerics import loss_dtype, widen
from longtail._core.random import mix_seed
from longtail._core.shards import RowSharding, mark_rows
from longtail.negatives.distributions import Batch, Distribution, Draw, StreamingBatch, WithinBatch
from longtail.negatives.linear import (
    Negatives,
    check_batch,
    check_sampling,
    check_scale,
    draw_negatives,
    embed,
    label_pairs,
    rows_at,
    sampled_linear_losses,
    use_rows,
)
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss
from longtail.negatives.weightings import Weighting, check_scheme

__all__ = ["TopK", "SampledLinear"]


SCORES_AT_ONCE = 2**22
"""How many scores ``SampledLinear.topk`` holds at a time."""
ROWS_PER_SEED = 2**14
"""Sharded class vectors that are drawn together, so that a start does not depend on the number of processes."""


class TopK(NamedTuple):
    """The best labels of each sample, best first."""

    values: Tensor
    """[N, k] logits."""
    indices: Tensor
    """[N, k] labels."""


class SampledLinear(nn.Module):
    """A head for extreme classification, trained against drawn negatives at a cost independent of the labels.

    Formula:
        f[y] = <x, w[y]>, or scale * cosine(x, w[y]); loss = mean over samples of
        log(1 + sum_{y' drawn from q} w[y, y'] exp(f[y'] - f[y])), or another ``SampledLoss``

    Args:
        in_features: D, the length of an embedding.
        num_classes: C.
        distribution: q, such as ``negatives.uniform(C)`` or ``negatives.WithinBatch(prior)``.
        weighting: w, such as ``negatives.importance`` or ``negatives.targeting(margins)``.
        num_negatives: m, at most C - 1 where draws are independent of the batch. Within-batch sampling takes the
            labels of the batch, at most this many.
        loss: what to do with the logits of the positive and the negatives.
        scale: None: logits are inner products; a number: that many times the cosine.
        excludes_other_labels: where a sample has several labels, whether they are left out of its negatives.
        is_sharded: whether each process of ``group`` holds C / R of the rows, as DTensor's ``Shard(0)`` deals them
            out. Embeddings and labels travel, and sums over negatives are reduced; all processes get one loss,
            the mean over the samples of all.
        group: the process group; default: all processes.

    The gradient of ``weight`` is row-sparse: it holds the rows of true labels and negatives. The optimizers of
    ``longtail.negatives`` (``RowwiseAdam`` and others) take it, and those of PyTorch that allow sparse gradients.
    Nothing in a step is O(C).

    There is no bias: append a 1 to the embeddings for one. Gradients of sharded rows are complete on their process:
    keep the head out of ``DistributedDataParallel`` and ``fully_shard``. Gradients of embeddings are scaled so that
    averaging over processes, which these do for the rest of the model, gives those of the mean loss. The
    ``state_dict`` of a sharded head has ``weight`` as a DTensor [C, D]; ``load_state_dict`` takes one, or the whole
    [C, D] of an unsharded head. Where sharded rows start depends on the seed of the first process alone, not on how
    many there are.

    Use when:
        Labels are 10^4 or more, or the head/tail trade-off of negative sampling should be chosen.
    Avoid when:
        Labels are some thousand: ``LinearMarginCrossEntropy`` is exact, and as fast.
    Special cases:
        ``LinearMarginCrossEntropy`` with ``negatives.implied_margins``, as m grows.

    >>> from longtail import negatives
    >>> head = SampledLinear(8, 100, negatives.uniform(100), negatives.importance, num_negatives=20)
    >>> loss = head(torch.randn(4, 8), torch.tensor([3, 1, 4, 1]))
    >>> loss.backward()
    >>> head.weight.grad.is_sparse, head.topk(torch.randn(4, 8), k=5).indices.shape
    (True, torch.Size([4, 5]))

    Deviates:
        The paper counts a sample's other labels as negatives; ``excludes_other_labels=False`` does so too.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (7) and (8).
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        distribution: Distribution,
        weighting: Weighting,
        num_negatives: int,
        *,
        loss: SampledLoss = CROSS_ENTROPY,
        scale: float | None = None,
        excludes_other_labels: bool = True,
        is_sharded: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = at_least(in_features, 1, "SampledLinear: in_features")
        self.num_classes = at_least(num_classes, 2, "SampledLinear: num_classes")
        self.num_negatives = check_sampling(distribution, num_negatives, num_classes, "SampledLinear")
        is_cap = isinstance(distribution, WithinBatch | StreamingBatch)
        if num_negatives > num_classes - 1 and not is_cap:
            raise ValueError(
                f"SampledLinear: num_negatives must be at most num_classes - 1 = {num_classes - 1}. "
                f"Got {num_negatives}; with as many, LinearMarginCrossEntropy is exact and costs no more."
            )
        if not callable(weighting):
            raise TypeError(
                "SampledLinear: weighting must be one of longtail.negatives, such as negatives.tail(prior). "
                f"Got {weighting!r}."
            )
        check_scheme(distribution, weighting, num_negatives)
        self.distribution, self.weighting, self.loss = distribution, weighting, loss
        self.scale, self.excludes_other_labels = check_scale(scale, "SampledLinear"), excludes_other_labels
        self.is_sharded, self.group = is_sharded, group
        if is_sharded and not collectives.is_initialized():
            raise ValueError("SampledLinear: sharded rows need a process group; call init_process_group first.")
        self.first_row, self.end_row = self._sharding.own_rows() if is_sharded else (0, num_classes)
        self.weight = nn.Parameter(torch.empty(self.end_row - self.first_row, in_features))
        if is_sharded:
            mark_rows(self.weight, self._sharding)
            self.register_state_dict_post_hook(_wrap_weight)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_unwrap_weight)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_post_hook(_mark_weight)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class vectors; where they are sharded, every process must ask for it."""
        deviation = self.in_features**-0.5
        if not self.is_sharded:
            nn.init.normal_(self.weight, std=deviation)
            return
        seed = collectives.common_seed(None, self.group, self.weight.device)
        for block in range(self.first_row // ROWS_PER_SEED, -(-self.end_row // ROWS_PER_SEED)):
            start = block * ROWS_PER_SEED
            first, end = max(start, self.first_row), min(start + ROWS_PER_SEED, self.end_row)
            generator = torch.Generator().manual_seed(mix_seed(seed, block))
            drawn = torch.randn(ROWS_PER_SEED, self.in_features, generator=generator)
            with torch.no_grad():
                own = self.weight[first - self.first_row : end - self.first_row]
                own.copy_(drawn[first - start : end - start].mul_(deviation))

    def forward(self, x: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mean of ``losses``: a scalar, 0 if no sample has a label."""
        losses = self.losses(x, target, generator)
        return losses.sum() / max(1, len(losses))

    def losses(self, x: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One loss for each true label of each sample.

        Args:
            x: [N, D] embeddings.
            target: [N] labels, or [N, L] with up to L labels per sample; -100 stands for none.
            generator: draws the negatives; default: PyTorch's global one.

        Returns:
            [P] losses in the order of the labels that are not -100; where rows are sharded, those of all processes.
        """
        if self.is_sharded:
            return self._sharded_losses(x, target, generator)
        return sampled_linear_losses(
            x,
            self.weight,
            target,
            self.distribution,
            self.weighting,
            self.num_negatives,
            loss=self.loss,
            scale=self.scale,
            excludes_other_labels=self.excludes_other_labels,
            sparse=True,
            generator=generator,
            group=self.group,
        )

    def logits(self, x: Tensor) -> Tensor:
        """[N, C] logits of embeddings [N, D]: for few labels."""
        if self.is_sharded:
            raise ValueError("SampledLinear.logits: rows are sharded over processes; use topk.")
        return F.linear(embed(x, self.scale), use_rows(self.weight, self.scale))

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> TopK:
        """The k labels with the largest logits, exactly, a few million scores at a time.

        Args:
            x: [N, D] embeddings. Where rows are sharded, every process asks for its own.
            k: how many, at most C.

        Returns:
            [N, k] logits and labels, best first.
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"SampledLinear.topk: k must be in 1..{self.num_classes}. Got {k}.")
        check_batch(x, None, self.in_features, self.num_classes, "SampledLinear")
        if not self.is_sharded:
            return self._own_topk(embed(x, self.scale), k)
        rank, _ = collectives.world(self.group)
        owners = collectives.gather_rows(torch.full((len(x),), rank, device=x.device), self.group)
        own = self._own_topk(embed(collectives.gather_rows(x, self.group), self.scale), k)
        missing = k - own.values.shape[1]
        values = collectives.gather_parts(F.pad(own.values, (0, missing), value=-math.inf), self.group)
        labels = collectives.gather_parts(F.pad(own.indices, (0, missing)), self.group)
        values, labels = (part[:, owners == rank].transpose(0, 1).flatten(1) for part in (values, labels))
        best = values.topk(k, dim=1)
        return TopK(best.values, labels.gather(1, best.indices))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        rows = f", rows={self.first_row}..{self.end_row - 1}" if self.is_sharded else ""
        sizes = f"in_features={self.in_features}, num_classes={self.num_classes}"
        return f"{sizes}, num_negatives={self.num_negatives}{rows}"

    @property
    def _sharding(self) -> RowSharding:
        return RowSharding(self.num_classes, self.group)

    def _own_topk(self, x: Tensor, k: int) -> TopK:
        """The best of this process's rows, which may be fewer than k."""
        k = min(k, len(self.weight))
        num_rows = max(1, min(len(x), SCORES_AT_ONCE // 1024))
        parts = [self._topk_of_rows(x[start : start + num_rows], k) for start in range(0, len(x), num_rows)]
        if not parts:
            return TopK(x.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=x.device))
        return TopK(torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts]))

    def _topk_of_rows(self, x: Tensor, k: int) -> TopK:
        best = best_labels(x, self.weight, k, partial(use_rows, scale=self.scale))
        return TopK(best.values, best.indices + self.first_row)

    def _sharded_losses(self, x: Tensor, target: Tensor, generator: torch.Generator | None) -> Tensor:
        """The losses of all processes' samples, where each has some of the rows."""
        check_batch(x, target, self.in_features, self.num_classes, "SampledLinear")
        pairs = label_pairs(self._gather_target(target))
        x = collectives.gather_rows(x, self.group)
        generator = torch.Generator().manual_seed(collectives.common_seed(generator, self.group, x.device))
        if len(pairs.labels) == 0:
            return x.sum(dim=1)[:0]
        x = embed(x, self.scale)
        with torch.no_grad():
            batch = Batch(pairs.labels, pairs.labels, rows_at(x.detach(), pairs.samples), _refuse_class_vectors)
            drawn = draw_negatives(
                batch,
                pairs,
                _OwnShare(self.distribution, self.first_row, self.end_row),
                self.weighting,
                self.num_negatives,
                self.excludes_other_labels,
                self.num_classes,
                generator,
            )
        return self._reduce(*self._own_logits_of(x, pairs.samples, pairs.labels, drawn), drawn)

    def _own_logits_of(
        self, x: Tensor, samples: Tensor | None, labels: Tensor, drawn: Negatives
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [P] of positives, 0 where another process has the row; those of negatives, with log weights."""
        negatives, weights = drawn.labels, drawn.log_weights
        is_own = (negatives >= self.first_row) & (negatives < self.end_row)
        own_pairs = torch.nonzero((labels >= self.first_row) & (labels < self.end_row)).flatten()
        wanted = torch.cat([labels[own_pairs], negatives[is_own]]) - self.first_row
        rows = use_rows(F.embedding(wanted, self.weight, sparse=True), self.scale)
        of_labels, of_negatives = rows[: len(own_pairs)], rows[len(own_pairs) :]
        of_samples = rows_at(x, samples)
        own_positive = (of_samples.index_select(0, own_pairs) * of_labels).sum(dim=1)
        positive = own_positive.new_zeros(len(labels)).index_copy(0, own_pairs, own_positive)
        if negatives.ndim == 1:  # all of them are this process's
            negative = F.linear(x, of_negatives)
            return positive, negative if drawn.samples is not None else rows_at(negative, samples), weights
        pairs, _ = torch.nonzero(is_own, as_tuple=True)
        own_negative = (of_samples.index_select(0, pairs) * of_negatives).sum(dim=1)
        places = torch.nonzero(is_own.flatten()).flatten()
        negative = own_negative.new_zeros(is_own.numel()).index_copy(0, places, own_negative).view_as(is_own)
        return positive, negative, weights.masked_fill(~is_own, -math.inf)

    def _reduce(self, positive: Tensor, negative: Tensor, weights: Tensor, drawn: Negatives) -> Tensor:
        """[P] losses of all processes' samples from this process's logits."""
        wide = widen(negative)
        totals = collectives.gather_parts(self.loss.total(wide, weights), self.group)
        positive = collectives.sum_parts(positive.to(wide), self.group)
        total = drawn.weigh(self.loss, self.loss.merge(totals))
        return self.loss.finish(positive, total).to(loss_dtype(negative))

    def _gather_target(self, target: Tensor) -> Tensor:
        if target.ndim == 2:
            width = collectives.largest(target.shape[1], self.group, target.device)
            target = F.pad(target, (0, width - target.shape[1]), value=NO_LABEL)
        return collectives.gather_rows(target, self.group)


class _OwnShare(NamedTuple):
    """A distribution of which a process looks at its own labels alone, where all samples share the draws."""

    distribution: Distribution
    first_row: int
    end_row: int

    @property
    def num_classes(self) -> int:
        return self.distribution.num_classes

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        draw = self.distribution.draw(batch, num_negatives, generator)
        if draw.labels.ndim == 2:
            return draw
        is_own = (draw.labels >= self.first_row) & (draw.labels < self.end_row)
        return replace(draw, labels=draw.labels[is_own], log_probs=draw.log_probs[is_own])


def _wrap_weight(head: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    state[f"{prefix}weight"] = head._sharding.wrap(state[f"{prefix}weight"])


def _unwrap_weight(head: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    if (name := f"{prefix}weight") in state:
        state[name] = head._sharding.unwrap(state[name])


def _mark_weight(head: Any, keys: Any) -> None:
    mark_rows(head.weight, head._sharding)  # it is another parameter if it was assigned


def _refuse_class_vectors() -> Tensor:
    raise ValueError(
        "SampledLinear: model-based negatives need all rows in one process. Got sharded rows; "
        "use uniform, prior_power or WithinBatch."
    )


def best_labels(x: Tensor, weight: Tensor, k: int, prepare: Callable[[Tensor], Tensor] | None = None) -> TopK:
    """The k rows of ``weight`` with the largest inner products, exactly, a few million products at a time.

    Args:
        x: [N, D] embeddings, few enough for N * k products.
        weight: [C, D] class vectors.
        k: how many, at most C.
        prepare: what to do with class vectors first, some at a time; None uses them as they are.

    Returns:
        [N, k] products and rows, best first.
    """
    width = max(k, SCORES_AT_ONCE // len(x))
    found = TopK(x.new_empty(len(x), 0), torch.empty(len(x), 0, dtype=torch.int64, device=x.device))
    for start in range(0, len(weight), width):
        rows = weight[start : start + width]
        scores = F.linear(x, rows if prepare is None else prepare(rows))
        best = scores.topk(min(k, scores.shape[1]), dim=1)
        values = torch.cat([found.values, best.values], dim=1)
        labels = torch.cat([found.indices, best.indices + start], dim=1)
        best = values.topk(min(k, values.shape[1]), dim=1)
        found = TopK(best.values, labels.gather(1, best.indices))
    return found
