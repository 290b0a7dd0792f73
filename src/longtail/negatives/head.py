"""SampledLinear: a head for extreme classification, trained against drawn negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core import collectives
from longtail._core.checks import at_least
from longtail._core.numerics import loss_dtype, unit_vectors, widen
from longtail.negatives.distributions import Batch, Distribution, LabelDistribution, WithinBatch
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss, log_weights
from longtail.negatives.weightings import Weighting, implied_margins

__all__ = ["TopK", "SampledLinear"]


IGNORED = -100
"""The label that stands for none, as in PyTorch's losses."""


SCORES_AT_ONCE = 2**22
"""How many scores ``SampledLinear.topk`` holds at a time."""


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
        num_negatives: m, at most C - 1. Within-batch sampling takes the labels of the batch, at most this many.
        loss: what to do with the logits of the positive and the negatives.
        scale: None: logits are inner products; a number: that many times the cosine.
        excludes_other_labels: where a sample has several labels, whether they are left out of its negatives.
        is_sharded: whether each process of ``group`` holds C / R of the rows. Embeddings and labels then travel, and
            the sums over negatives are reduced; all processes get the same loss, the mean over the samples of all.
        group: the process group; default: all processes.

    The gradient of ``weight`` is row-sparse: it holds the rows of true labels and negatives. The optimizers of
    ``longtail.negatives`` (``RowwiseAdam`` and others) take it, and those of PyTorch that allow sparse gradients.
    Nothing in a step is O(C).

    There is no bias: append a 1 to the embeddings for one. Gradients of sharded rows are complete on their process:
    keep the head out of ``DistributedDataParallel``. Gradients of embeddings are scaled so that averaging over
    processes, which that does for the rest of the model, gives those of the mean loss.

    Use when:
        Labels are 10^4 or more, or the head/tail trade-off of negative sampling should be chosen.
    Avoid when:
        Labels are some thousand: ``LinearMarginCrossEntropy`` is exact, and as fast.
    Equals:
        ``LinearMarginCrossEntropy`` with ``negatives.implied_margins``, as m grows.

    >>> from longtail import negatives
    >>> head = SampledLinear(8, 100, negatives.uniform(100), negatives.importance, num_negatives=20)
    >>> loss = head(torch.randn(4, 8), torch.tensor([3, 1, 4, 1]))
    >>> loss.backward()
    >>> head.weight.grad.is_sparse, head.topk(torch.randn(4, 8), k=5).indices.shape
    (True, torch.Size([4, 5]))

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
        self.num_negatives = at_least(num_negatives, 1, "SampledLinear: num_negatives")
        if distribution.num_classes != num_classes:
            raise ValueError(
                f"SampledLinear: the distribution must be over {num_classes} labels. Got {distribution.num_classes}."
            )
        if num_negatives > num_classes - 1:
            raise ValueError(
                f"SampledLinear: num_negatives must be at most num_classes - 1 = {num_classes - 1}. "
                f"Got {num_negatives}; with as many, LinearMarginCrossEntropy is exact and costs no more."
            )
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"SampledLinear: scale must be a finite number above 0, or None. Got {scale}.")
        if isinstance(distribution, LabelDistribution | WithinBatch):
            implied_margins(distribution, weighting, num_negatives)  # raises where a weight would not be finite
        self.distribution, self.weighting, self.loss = distribution, weighting, loss
        self.scale, self.excludes_other_labels = scale, excludes_other_labels
        self.is_sharded, self.group = is_sharded, group
        if is_sharded and not collectives.is_initialized():
            raise ValueError("SampledLinear: sharded rows need a process group; call init_process_group first.")
        rank, size = collectives.world(group) if is_sharded else (0, 1)
        if size > num_classes:
            raise ValueError(
                f"SampledLinear: there must be at least as many labels as processes. Got {num_classes} and {size}."
            )
        self.first_row, self.end_row = num_classes * rank // size, num_classes * (rank + 1) // size
        self.weight = nn.Parameter(torch.empty(self.end_row - self.first_row, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class vectors."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)

    def forward(self, x: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mean of ``losses``: a scalar, 0 if no sample has a label."""
        losses = self.losses(x, target, generator)
        return losses.sum() / max(1, len(losses))

    def losses(self, x: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One loss for each true label of each sample.

        Args:
            x: [N, D] embeddings.
            target: [N] labels, or [N, L] with up to L labels a sample; -100 stands for none.
            generator: draws the negatives; default: PyTorch's global one.

        Returns:
            [P] losses in the order of the labels that are not -100; where rows are sharded, those of all processes.
        """
        self._check(x, target)
        if self.is_sharded:
            target = self._gathered_target(target)
            x = collectives.gather_rows(x, self.group)
            generator = torch.Generator().manual_seed(collectives.common_seed(generator, self.group, x.device))
        samples, labels = (None, target.long()) if _is_one_label_each(target) else _pairs(target)
        is_local = self.is_sharded or not collectives.is_initialized()
        labels_of_all = labels if is_local else collectives.gather_rows(labels, self.group)
        if len(labels) == 0:
            return x.sum(dim=1)[:0]
        x = self._embedded(x)
        with torch.no_grad():
            batch = Batch(labels, labels_of_all, _rows_at(x.detach(), samples), self._class_vectors)
            draw = self.distribution.draw(batch, self.num_negatives, generator)
            weights = log_weights(self.weighting, draw, labels, widen(x[:0]).dtype).to(x.device)
            negatives = draw.labels.to(x.device)
            if self.excludes_other_labels and target.ndim == 2 and samples is not None:
                weights.masked_fill_(_are_labels_of(samples, negatives, target, self.num_classes), -math.inf)
        if not self.is_sharded:
            return self.loss(*self._logits_of(x, samples, labels, negatives), weights)
        positive, negative, is_own = self._own_logits_of(x, samples, labels, negatives)
        return self._reduced(positive, negative, weights.masked_fill(~is_own, -math.inf))

    def logits(self, x: Tensor) -> Tensor:
        """[N, C] logits of embeddings [N, D]: for few labels."""
        if self.is_sharded:
            raise ValueError("SampledLinear.logits: rows are sharded over processes; use topk.")
        return F.linear(self._embedded(x), self._rows_as_used(self.weight))

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
        self._check(x)
        if not self.is_sharded:
            return self._own_topk(self._embedded(x), k)
        rank, _ = collectives.world(self.group)
        owners = collectives.gather_rows(torch.full((len(x),), rank, device=x.device), self.group)
        own = self._own_topk(self._embedded(collectives.gather_rows(x, self.group)), k)
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

    def _own_topk(self, x: Tensor, k: int) -> TopK:
        """The best of this process's rows, which may be fewer than k."""
        k = min(k, len(self.weight))
        num_rows = max(1, min(len(x), SCORES_AT_ONCE // 1024))
        parts = [self._topk_of_rows(x[start : start + num_rows], k) for start in range(0, len(x), num_rows)]
        if not parts:
            return TopK(x.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=x.device))
        return TopK(torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts]))

    def _topk_of_rows(self, x: Tensor, k: int) -> TopK:
        best = best_labels(x, self.weight, k, self._rows_as_used)
        return TopK(best.values, best.indices + self.first_row)

    def _logits_of(
        self, x: Tensor, samples: Tensor | None, labels: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [P] of positives and [P, m] of negatives."""
        wanted = torch.cat([labels, negatives.flatten()])
        rows = self._rows_as_used(F.embedding(wanted, self.weight, sparse=True))
        of_labels, of_negatives = torch.split(rows, [len(labels), negatives.numel()])
        of_samples = _rows_at(x, samples)
        positive = (of_samples * of_labels).sum(dim=1)
        if negatives.ndim == 1:
            return positive, _rows_at(F.linear(x, of_negatives), samples)
        return positive, (of_samples[:, None] * of_negatives.view(*negatives.shape, -1)).sum(dim=2)

    def _own_logits_of(
        self, x: Tensor, samples: Tensor | None, labels: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [P] of positives, [P, m] of negatives, 0 where another process has the row; and where not."""
        is_own = (negatives >= self.first_row) & (negatives < self.end_row)
        own_pairs = torch.nonzero((labels >= self.first_row) & (labels < self.end_row)).flatten()
        wanted = torch.cat([labels[own_pairs], negatives[is_own]]) - self.first_row
        rows = self._rows_as_used(F.embedding(wanted, self.weight, sparse=True))
        of_labels, of_negatives = rows[: len(own_pairs)], rows[len(own_pairs) :]
        of_samples = _rows_at(x, samples)
        own_positive = (of_samples.index_select(0, own_pairs) * of_labels).sum(dim=1)
        positive = own_positive.new_zeros(len(labels)).index_copy(0, own_pairs, own_positive)
        if negatives.ndim == 1:
            own_negative = _rows_at(F.linear(x, of_negatives), samples)
            columns = torch.nonzero(is_own).flatten()
            negative = own_negative.new_zeros(len(labels), len(negatives)).index_copy(1, columns, own_negative)
        else:
            pairs, _ = torch.nonzero(is_own, as_tuple=True)
            own_negative = (of_samples.index_select(0, pairs) * of_negatives).sum(dim=1)
            places = torch.nonzero(is_own.flatten()).flatten()
            negative = own_negative.new_zeros(is_own.numel()).index_copy(0, places, own_negative).view_as(is_own)
        return positive, negative, is_own

    def _reduced(self, positive: Tensor, negative: Tensor, weights: Tensor) -> Tensor:
        """[P] losses of all processes' samples from this process's logits."""
        wide = widen(negative)
        totals = collectives.gather_parts(self.loss.total(wide, weights), self.group)
        positive = collectives.sum_parts(positive.to(wide), self.group)
        return self.loss.finish(positive, self.loss.merge(totals)).to(loss_dtype(negative))

    def _embedded(self, x: Tensor) -> Tensor:
        return x if self.scale is None else self.scale * unit_vectors(x)

    def _rows_as_used(self, rows: Tensor) -> Tensor:
        return rows if self.scale is None else unit_vectors(rows)

    def _class_vectors(self) -> Tensor:
        if self.is_sharded:
            raise ValueError(
                "SampledLinear: model-based negatives need all rows in one process. Got sharded rows; "
                "use uniform, prior_power or WithinBatch."
            )
        return self._rows_as_used(self.weight.detach())

    def _gathered_target(self, target: Tensor) -> Tensor:
        if target.ndim == 2:
            width = collectives.largest(target.shape[1], self.group, target.device)
            target = F.pad(target, (0, width - target.shape[1]), value=IGNORED)
        return collectives.gather_rows(target, self.group)

    def _check(self, x: Tensor, target: Tensor | None = None) -> None:
        if x.ndim != 2 or x.shape[1] != self.in_features or not x.is_floating_point():
            raise ValueError(
                f"SampledLinear: x must be floating-point [N, {self.in_features}]. Got {x.dtype} {tuple(x.shape)}."
            )
        if target is not None and (
            target.ndim not in (1, 2) or len(target) != len(x) or target.dtype not in (torch.int64, torch.int32)
        ):
            raise ValueError(
                f"SampledLinear: target must be whole numbers [{len(x)}] or [{len(x)}, L]. "
                f"Got {target.dtype} {tuple(target.shape)}."
            )
        if x.device.type != "cpu":  # elsewhere a look at the values would wait for the device
            return
        # A finite sum says that all numbers are finite, and fast; one that is not may have overflowed.
        if not (bool(x.sum().isfinite()) or bool(x.isfinite().all())):
            raise ValueError("SampledLinear: embeddings must be finite. Got NaN or infinity.")
        if target is not None:
            bad = target[(target != IGNORED) & ((target < 0) | (target >= self.num_classes))]
            if len(bad):
                raise ValueError(
                    f"SampledLinear: target must be in 0..{self.num_classes - 1}, or {IGNORED} for none. "
                    f"Got {int(bad[0])}."
                )


def _is_one_label_each(target: Tensor) -> bool:
    return target.ndim == 1 and bool((target != IGNORED).all())


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


def _pairs(target: Tensor) -> tuple[Tensor, Tensor]:
    """[P] samples and [P] labels, one pair for each label that is one."""
    is_label = target != IGNORED
    return torch.nonzero(is_label)[:, 0], target[is_label].long()


def _rows_at(rows: Tensor, samples: Tensor | None) -> Tensor:
    """The rows of these samples; where every sample has one label they are all, and nothing is copied."""
    return rows if samples is None else rows.index_select(0, samples)


def _are_labels_of(samples: Tensor, negatives: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """[P, m] whether a negative is any of the labels [N, L] of its pair's sample."""
    of_samples, labels = _pairs(target)
    known = (of_samples * num_classes + labels).sort().values
    if negatives.ndim == 1:
        wanted = torch.arange(len(target), device=target.device)[:, None] * num_classes + negatives
    else:
        wanted = samples[:, None] * num_classes + negatives
    place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    found = known[place] == wanted
    return found[samples] if negatives.ndim == 1 else found
