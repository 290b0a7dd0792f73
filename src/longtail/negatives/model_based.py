"""Negatives that the model itself finds hard: exactly, or by clusters of label vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail.margins import Margins
from longtail.negatives.clusters import Clusters
from longtail.negatives.distributions import Batch, Draw

__all__ = ["SoftmaxDistribution", "ClusteredDistribution"]


class SoftmaxDistribution:
    """Model-based negatives, exactly: labels by how much they add to the sample's loss. O(C) per sample.

    Formula:
        q(y' | x, y) is proportional to exp(negative[y']) * phi(f[y']) for y' != y

    Args:
        num_classes: C.
        margins: those of the loss that sampling should stand for; their negative part shifts q. None is 0.
        log_loss: log phi, the logarithm of a negative's loss at its logit; None is the logit itself, so that q is the
            model's softmax.

    Use when:
        C is small: as the reference for approximations. With ``importance`` or ``targeting(margins)`` weights, one
        draw has no variance in the sum over negatives.
    Avoid when:
        C is large: it evaluates the loss that sampling should save. Use ``ClusteredDistribution``.
    Special cases:
        ``uniform`` for equal logits and no margins.

    >>> batch = Batch(torch.tensor([0]), torch.tensor([0]), torch.ones(1, 1), lambda: torch.tensor([[9.0], [0], [0]]))
    >>> SoftmaxDistribution(3).draw(batch, num_negatives=50).labels.unique().tolist()
    [1, 2]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Proposition 5, eq. (17).
    """

    def __init__(
        self,
        num_classes: int,
        margins: Margins | None = None,
        log_loss: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._num_classes = at_least(num_classes, 2, "SoftmaxDistribution: num_classes")
        self._margins = _margins_for(num_classes, margins, "SoftmaxDistribution")
        self._log_loss = log_loss

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""
        return self._num_classes

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """[N, m] negatives, each sample's own label left out."""
        x, vectors = _model_of(batch, "SoftmaxDistribution")
        scores = x.double() @ vectors.double().T
        scores = scores if self._log_loss is None else _floor_logarithms(self._log_loss(scores))
        scores = scores if self._margins is None else scores + self._margins.negative.to(scores)
        others = scores.scatter(1, batch.target[:, None], -math.inf)
        whole, rest = scores.logsumexp(dim=1, keepdim=True), others.logsumexp(dim=1, keepdim=True)
        labels = _draw_columns((others - rest).exp(), num_negatives, generator)
        log_probs = scores - whole
        positive_log_probs = log_probs.gather(1, batch.target[:, None])[:, 0]
        return Draw(labels, log_probs.gather(1, labels), positive_log_probs, num_negatives, (rest - whole).squeeze(1))


def _floor_logarithms(log_losses: Tensor) -> Tensor:
    """Where nothing costs anything, all logarithms are -inf and have no softmax: as a number they are equal."""
    return log_losses.clamp_min(torch.finfo(log_losses.dtype).min / 4)


class ClusteredDistribution:
    """Model-based negatives for many labels: first a cluster of label vectors by its center, then a label in it.

    Formula:
        q(y' | x) = ((1 - s) softmax_k(log R[k] + log phi(<x, center[k]>)) + s R[k] / sum(R)) * r[y'] / R[k],
        with y' in cluster k, r[y'] = exp(negative[y']), R[k] the sum of r over cluster k and s ``even_share``

    Args:
        num_classes: C.
        num_clusters: K, a power of 2; default: the one nearest to sqrt(C). A draw costs O(D K), not O(D C).
        refresh_every: draws after which the clusters are made anew from the current label vectors.
        margins: those of the loss that sampling should stand for; their negative part is r. None is 0.
        log_loss: log phi, the logarithm of a negative's loss at its logit; None is the logit itself.
        even_share: in (0, 1], the part of draws that does not look at the model: it bounds the weights.
        per_sample: False: all samples share negatives drawn from the batch's mean of q, which is then the known q of
            every draw. True: each sample draws its own, at the batch size's multiple of the cost.

    The clusters may be stale and the centers rough: that costs variance, never correctness, for q is exact for what
    is drawn. Clusters come from halving the labels log2(K) times along the direction between two means, in
    at most 32 random projections, and are of equal size up to 1.

    Use when:
        Uniform negatives have become too easy, and labels are too many for ``SoftmaxDistribution``.
    Avoid when:
        Rows are sharded over processes, or steps are so cheap that O(D K) shows.
    Special cases:
        ``SoftmaxDistribution`` where the labels of a cluster have equal vectors and even_share tends to 0; at
        even_share = 1 ``uniform`` (``LabelDistribution`` of r).

    >>> vectors = torch.tensor([[9.0], [9.0], [-9.0], [-9.0]])
    >>> batch = Batch(torch.tensor([0]), torch.tensor([0]), torch.ones(1, 1), lambda: vectors)
    >>> draw = ClusteredDistribution(4, num_clusters=2, even_share=0.2).draw(batch, num_negatives=5)
    >>> sorted(set(draw.log_probs.exp().mul(100).round().tolist()) | {45.0, 5.0})
    [5.0, 45.0]

    Deviates:
        The paper leaves an efficient form of eq. (17) to future work.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Proposition 5, eq. (17) and the remark below it.
    """

    def __init__(
        self,
        num_classes: int,
        num_clusters: int | None = None,
        refresh_every: int = 1000,
        margins: Margins | None = None,
        log_loss: Callable[[Tensor], Tensor] | None = None,
        even_share: float = 0.1,
        per_sample: bool = False,
    ) -> None:
        self._num_classes = at_least(num_classes, 2, "ClusteredDistribution: num_classes")
        clusters = 2 ** round(math.log2(num_classes) / 2) if num_clusters is None else num_clusters
        if not 1 <= clusters <= num_classes or clusters & (clusters - 1):
            raise ValueError(
                f"ClusteredDistribution: num_clusters must be a power of 2, up to {num_classes}. Got {clusters}."
            )
        if not 0 < even_share <= 1:
            raise ValueError(f"ClusteredDistribution: even_share must be in (0, 1]. Got {even_share}.")
        self._depth = clusters.bit_length() - 1
        self._refresh_every = at_least(refresh_every, 1, "ClusteredDistribution: refresh_every")
        self._margins = _margins_for(num_classes, margins, "ClusteredDistribution")
        self._log_loss = log_loss
        self._even_share, self._per_sample = even_share, per_sample
        self._clusters: Clusters | None = None
        self._age = 0

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""
        return self._num_classes

    def refresh(self, class_vectors: Tensor, generator: torch.Generator | None = None) -> None:
        """Make the clusters from these vectors [C, D] now."""
        if len(class_vectors) != self._num_classes:
            raise ValueError(
                f"ClusteredDistribution: expected vectors of {self._num_classes} labels. Got {len(class_vectors)}; "
                "it can't be used where the labels are sharded over processes."
            )
        shares = torch.zeros(self._num_classes) if self._margins is None else self._margins.negative
        self._clusters = Clusters.of(class_vectors, shares.to(class_vectors.device), self._depth, generator)
        self._age = 0

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """[m] negatives for the whole batch, or [N, m]."""
        x, vectors = _model_of(batch, "ClusteredDistribution", is_whole=self._is_stale)
        if self._is_stale:
            self.refresh(vectors, generator)
        self._age += 1
        clusters = self._clusters
        assert clusters is not None
        scores = (x @ clusters.centers.to(x).T).double()
        scores = scores if self._log_loss is None else _floor_logarithms(self._log_loss(scores))
        chosen = (scores + clusters.log_mass).softmax(dim=1)
        even = clusters.log_mass.softmax(dim=0)
        probs = torch.lerp(chosen, even.expand_as(chosen), self._even_share)
        if not self._per_sample:
            probs = probs.mean(dim=0, keepdim=True) if len(x) else even[None]
        drawn = _draw_columns(probs, num_negatives, generator)
        labels = clusters.draw_within(drawn, generator)
        log_probs = probs.log().gather(1, drawn) + clusters.log_share[labels]
        of_target = clusters.cluster_of[batch.target]
        log_probs_of_target = probs.log().expand(len(x), -1).gather(1, of_target[:, None])[:, 0]
        positive_log_probs = log_probs_of_target + clusters.log_share[batch.target]
        if not self._per_sample:
            labels, log_probs = labels[0], log_probs[0]
        return Draw(labels, log_probs, positive_log_probs, num_negatives)

    @property
    def _is_stale(self) -> bool:
        return self._clusters is None or self._age >= self._refresh_every


def _draw_columns(probs: Tensor, num_negatives: int, generator: torch.Generator | None) -> Tensor:
    """[N, m] columns of probs [N, K], with replacement; also of no rows, which ``torch.multinomial`` refuses."""
    if len(probs) == 0:
        return torch.empty(0, num_negatives, dtype=torch.int64, device=probs.device)
    return torch.multinomial(probs, num_negatives, replacement=True, generator=generator)


def _model_of(batch: Batch, name: str, is_whole: bool = True) -> tuple[Tensor, Tensor]:
    if batch.x is None or batch.class_vectors is None:
        raise ValueError(f"{name}: the batch must have embeddings and class vectors; use it in SampledLinear.")
    return batch.x, batch.class_vectors() if is_whole else batch.x[:0]


def _margins_for(num_classes: int, margins: Margins | None, name: str) -> Margins | None:
    if margins is not None and margins.num_classes != num_classes:
        raise ValueError(f"{name}: the margins must be for {num_classes} labels. Got {margins.num_classes}.")
    return margins
