"""The sampled loss of a linear layer, for any weight: only the rows of true labels and negatives are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._core import collectives
from longtail._core.checks import at_least
from longtail._core.labels import NO_LABEL
from longtail._core.numerics import loss_dtype, unit_vectors, widen
from longtail.negatives.distributions import Batch, Distribution
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss, split_log_weights
from longtail.negatives.weightings import Weighting

__all__ = [
    "LabelPairs",
    "Negatives",
    "check_batch",
    "check_sampling",
    "check_scale",
    "draw_negatives",
    "embed",
    "label_pairs",
    "rows_at",
    "sampled_linear_losses",
    "use_rows",
]


def sampled_linear_losses(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    distribution: Distribution,
    weighting: Weighting,
    num_negatives: int,
    *,
    bias: Tensor | None = None,
    loss: SampledLoss = CROSS_ENTROPY,
    scale: float | None = None,
    excludes_other_labels: bool = True,
    sparse: bool = False,
    generator: torch.Generator | None = None,
    group: Any = None,
) -> Tensor:
    """The sampled loss of a linear layer on embeddings, for any weight, without the logits of all labels.

    Formula:
        f[y] = <x, W[y]> + b[y], or scale * cosine(x, W[y]) + b[y];
        l = log(1 + sum_{y' drawn from q} w[y, y'] exp(f[y'] - f[y])), or another ``SampledLoss``

    Args:
        x: [N, D] embeddings.
        linear_weight: [C, D] W, as ``nn.Linear`` has it.
        target: [N] labels, or [N, L] with up to L labels per sample; -100 stands for none.
        distribution: q, such as ``negatives.uniform(C)`` or ``negatives.WithinBatch(prior)``.
        weighting: w, such as ``negatives.importance`` or ``negatives.targeting(margins)``.
        num_negatives: m. Within-batch sampling takes the labels of the batch, at most this many.
        bias: [C] b; None is 0.
        loss: what to do with the logits of the positive and the negatives.
        scale: None: logits are inner products; a number: that many times the cosine.
        excludes_other_labels: where a sample has several labels, whether they are left out of its negatives.
        sparse: whether the gradients of ``linear_weight`` and ``bias`` are row-sparse. Then nothing in a step is
            O(C), and ``RowwiseAdam`` and the like take them; dense ones suit every optimizer.
        generator: draws the negatives; default: PyTorch's global one.
        group: with several processes, the group whose labels within-batch sampling takes; default: all of them.

    Returns:
        [P] losses in the order of the labels that are not -100.

    Use when:
        The last layer of a model of your own is to be trained against negatives.
    Avoid when:
        Labels are some thousand: ``linear_margin_cross_entropy`` is exact, and as fast.
    Special cases:
        ``linear_margin_cross_entropy`` with ``negatives.implied_margins``, as m grows.

    >>> layer = torch.nn.Linear(8, 100)
    >>> x, target = torch.randn(4, 8), torch.tensor([3, 1, 4, 1])
    >>> sampled_linear_losses(x, layer.weight, target, uniform(100), importance, 20, bias=layer.bias).shape
    torch.Size([4])

    Deviates:
        The paper counts a sample's other labels as negatives; ``excludes_other_labels=False`` does so too.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (7) and (8).
    """
    name, num_classes = "sampled_linear_losses", len(linear_weight)
    check_sampling(distribution, num_negatives, num_classes, name)
    check_scale(scale, name)
    check_batch(x, target, linear_weight.shape[1], num_classes, name)
    pairs = label_pairs(target)
    labels_of_all = collectives.gather_rows(pairs.labels, group) if collectives.is_initialized() else pairs.labels
    if len(pairs.labels) == 0:
        return x.sum(dim=1)[:0]
    x = embed(x, scale)

    def class_vectors() -> Tensor:
        vectors = use_rows(linear_weight.detach(), scale)
        return vectors if bias is None else torch.cat([vectors, bias.detach()[:, None].to(vectors)], dim=1)

    with torch.no_grad():
        seen = x.detach() if bias is None else F.pad(x.detach(), (0, 1), value=1.0)
        batch = Batch(pairs.labels, labels_of_all, rows_at(seen, pairs.samples), class_vectors)
        drawn = draw_negatives(
            batch, pairs, distribution, weighting, num_negatives, excludes_other_labels, num_classes, generator
        )

    def logits_of_rows(wanted: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = use_rows(F.embedding(wanted, linear_weight, sparse=sparse), scale)
        return rows, None if bias is None else torch.gather(bias, 0, wanted, sparse_grad=sparse)

    positive, negative = _logits_of(x, pairs, drawn, logits_of_rows)
    wide = widen(negative)
    total = drawn.weigh(loss, loss.total(wide, drawn.log_weights))
    return loss.finish(positive.to(wide), total).to(loss_dtype(negative))


class LabelPairs(NamedTuple):
    """(sample, label) pairs of a batch, one for each label that is not -100."""

    samples: Tensor | None
    """[P] rows of the batch; None where every sample has exactly one label, so that nothing needs to be copied."""
    labels: Tensor
    """[P]."""
    target: Tensor
    """[N] or [N, L], what they were made of."""


class Negatives(NamedTuple):
    """Negatives drawn for a batch, with weights log w[y, y'] = log_factors[y] + log_weights[y'].

    Where the pairs of a sample share what counts against them, they share its sum over negatives as well: [N, m] is
    all there is, however many labels a sample has.
    """

    labels: Tensor
    """[m] shared by all pairs, or [P, m]."""
    log_factors: Tensor
    """[P] of the true labels."""
    log_weights: Tensor
    """[N, m] or [P, m] of the negatives; minus infinity where one does not count."""
    samples: Tensor | None
    """[P] the row of each pair, where there is one for each sample; None: one for each pair."""

    def weigh(self, loss: SampledLoss, totals: Tensor) -> Tensor:
        """[P] sums over negatives with all of their weight, of sums for each row of ``log_weights``."""
        return loss.weigh(rows_at(totals, self.samples), self.log_factors)


def label_pairs(target: Tensor) -> LabelPairs:
    """The pairs of target [N] or [N, L]."""
    if target.ndim == 1 and bool((target != NO_LABEL).all()):
        return LabelPairs(None, target.long(), target)
    is_label = target != NO_LABEL
    return LabelPairs(torch.nonzero(is_label)[:, 0], target[is_label].long(), target)


def draw_negatives(
    batch: Batch,
    pairs: LabelPairs,
    distribution: Distribution,
    weighting: Weighting,
    num_negatives: int,
    excludes_other_labels: bool,
    num_classes: int,
    generator: torch.Generator | None,
) -> Negatives:
    """Negatives for pairs, with their weights; on the device of the embeddings, which the batch must have."""
    assert batch.x is not None
    draw = distribution.draw(batch, num_negatives, generator)
    factors, weights = split_log_weights(weighting, draw, pairs.labels, widen(batch.x[:0]).dtype)
    factors, weights, labels = (part.to(batch.x.device) for part in (factors, weights, draw.labels))
    leaves_out_all = excludes_other_labels and pairs.samples is not None and pairs.target.ndim == 2
    is_positive = (
        _are_labels_of(pairs, labels, num_classes)
        if leaves_out_all
        else labels == pairs.labels.to(labels.device)[:, None]
    )
    samples = pairs.samples if leaves_out_all and labels.ndim == 1 else None
    return Negatives(labels, factors, weights.expand(is_positive.shape).masked_fill(is_positive, -math.inf), samples)


def embed(x: Tensor, scale: float | None) -> Tensor:
    """Embeddings as the logits use them: as they are, or of length ``scale``."""
    return x if scale is None else scale * unit_vectors(x)


def use_rows(rows: Tensor, scale: float | None) -> Tensor:
    """Class vectors as the logits use them: as they are, or of length 1 where there is a scale."""
    return rows if scale is None else unit_vectors(rows)


def rows_at(rows: Tensor, samples: Tensor | None) -> Tensor:
    """The rows of these samples; where every sample has one label they are all, and nothing is copied."""
    return rows if samples is None else rows.index_select(0, samples)


def check_sampling(distribution: Distribution, num_negatives: int, num_classes: int, name: str) -> int:
    """m, if it is one and the distribution is over the labels of the layer."""
    if isinstance(distribution, str):
        raise TypeError(
            f"{name}: distribution must be one of longtail.negatives, such as negatives.uniform({num_classes}). "
            f"Got {distribution!r}."
        )
    if distribution.num_classes != num_classes:
        raise ValueError(
            f"{name}: the distribution must be over {num_classes} labels. Got {distribution.num_classes}."
        )
    return at_least(num_negatives, 1, f"{name}: num_negatives")


def check_scale(scale: float | None, name: str) -> float | None:
    """The scale, if it is None or a finite number above 0."""
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"{name}: scale must be a finite number above 0, or None. Got {scale}.")
    return scale


def check_batch(x: Tensor, target: Tensor | None, in_features: int, num_classes: int, name: str) -> None:
    """Raise unless embeddings, and labels where given, fit a layer of these sizes."""
    if x.ndim != 2 or x.shape[1] != in_features or not x.is_floating_point():
        raise ValueError(f"{name}: x must be floating-point [N, {in_features}]. Got {x.dtype} {tuple(x.shape)}.")
    if target is not None and (
        target.ndim not in (1, 2) or len(target) != len(x) or target.dtype not in (torch.int64, torch.int32)
    ):
        raise ValueError(
            f"{name}: target must be whole numbers [{len(x)}] or [{len(x)}, L]. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    if x.device.type != "cpu":  # elsewhere a look at the values would wait for the device
        return
    # A finite sum says that all numbers are finite, and fast; one that is not may have overflowed.
    if not (bool(x.sum().isfinite()) or bool(x.isfinite().all())):
        raise ValueError(f"{name}: embeddings must be finite. Got NaN or infinity.")
    if target is not None:
        bad = target[(target != NO_LABEL) & ((target < 0) | (target >= num_classes))]
        if len(bad):
            raise ValueError(
                f"{name}: target must be in 0..{num_classes - 1}, or {NO_LABEL} for none. Got {int(bad[0])}."
            )


def _logits_of(
    x: Tensor, pairs: LabelPairs, drawn: Negatives, rows_of: Callable[[Tensor], tuple[Tensor, Tensor | None]]
) -> tuple[Tensor, Tensor]:
    """Logits [P] of positives and [N, m] or [P, m] of negatives, as their weights are.

    ``rows_of`` labels [K] gives vectors [K, D] and biases [K].
    """
    num_pairs, negatives = len(pairs.labels), drawn.labels
    rows, biases = rows_of(torch.cat([pairs.labels, negatives.flatten()]))
    of_labels, of_negatives = rows[:num_pairs], rows[num_pairs:]
    of_samples = rows_at(x, pairs.samples)
    positive = (of_samples * of_labels).sum(dim=1)
    if negatives.ndim == 1:
        negative = F.linear(x, of_negatives)
        negative = negative if drawn.samples is not None else rows_at(negative, pairs.samples)
    else:
        negative = (of_samples[:, None] * of_negatives.view(*negatives.shape, -1)).sum(dim=2)
    if biases is None:
        return positive, negative
    return positive + biases[:num_pairs], negative + biases[num_pairs:].view(negatives.shape)


def _are_labels_of(pairs: LabelPairs, negatives: Tensor, num_classes: int) -> Tensor:
    """[N, m] whether a shared negative is any of the labels of a sample; [P, m] where each pair has its own."""
    samples = pairs.samples
    assert samples is not None
    known = (samples * num_classes + pairs.labels).sort().values
    if negatives.ndim == 1:
        wanted = torch.arange(len(pairs.target), device=samples.device)[:, None] * num_classes + negatives
    else:
        wanted = samples[:, None] * num_classes + negatives
    place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    return known[place] == wanted
