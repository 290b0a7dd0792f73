"""Where negatives come from: known probabilities, or the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from longtail._core.checks import at_least
from longtail._core.random import AliasTable
from longtail.negatives._sampling import log_others
from longtail.prior import ClassPrior

__all__ = [
    "Batch",
    "Draw",
    "Distribution",
    "LabelDistribution",
    "uniform",
    "prior_power",
    "log_uniform",
    "WithinBatch",
    "StreamingBatch",
]


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """What a distribution may look at: the true labels, and for a model-based one the model."""

    target: Tensor
    """[N] the true label of each sample."""
    labels: Tensor
    """[M] the labels that within-batch sampling takes: these, or with several processes those of all of them."""
    x: Tensor | None = None
    """[N, D] embeddings, without gradients."""
    class_vectors: Callable[[], Tensor] | None = None
    """Gives the [C, D] vectors whose inner products with ``x`` are the logits, without gradients."""


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """Negatives, and what weightings need to know about them."""

    labels: Tensor
    """[m] negatives that all samples share, or [N, m]."""
    log_probs: Tensor
    """log q of each of them, of the same shape."""
    positive_log_probs: Tensor
    """[N] log q of each sample's true label."""
    num_negatives: float
    """m, the number of negatives; where it is random, its expectation."""
    log_others: Tensor | None = None
    """[N] log(1 - q) of the true label, where it was excluded by domain."""


class Distribution(Protocol):
    """A distribution over labels to draw negatives from. Write one to make your own."""

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """Independent negatives for a batch. A draw may equal a true label; it then is given weight 0."""


class LabelDistribution:
    """Negatives with given probabilities, each draw in constant time, for up to tens of millions of labels.

    Formula:
        q[y'] = probs[y'] / sum(probs)

    Args:
        probs: [C] non-negative, not all 0. Draws are made on the device of this tensor.
        excludes_positive: False: all samples share the draws, and a draw that is a sample's own label has weight 0
            there. True: q[y] = 0; each sample draws its own negatives from the other labels, by drawing again what
            hits, or from a table of the others for a label with more than half of q. The implied margins differ by
            log(1 - q[y]), and the cost by a factor of the batch size.

    Draws are with replacement: a label may come twice, and then counts twice.

    >>> distribution = LabelDistribution(torch.tensor([1.0, 1.0, 2.0]))
    >>> distribution.log_probs.exp().tolist()
    [0.25, 0.25, 0.5]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 2.2; Remark 6 on the exclusion.
    """

    def __init__(self, probs: Tensor, excludes_positive: bool = False) -> None:
        self._table = AliasTable(probs)
        wide = probs.detach().double()
        self._log_probs = torch.log(wide / wide.sum())
        self._excludes_positive = excludes_positive
        if excludes_positive:
            self._prepare_exclusion(wide)

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""
        return len(self._log_probs)

    @property
    def log_probs(self) -> Tensor:
        """[C] float64 log q; minus infinity for a label that is never drawn."""
        return self._log_probs

    @property
    def excludes_positive(self) -> bool:
        """Whether each sample draws from the labels other than its own."""
        return self._excludes_positive

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """[m] negatives for all samples; [N, m], with each sample's own label left out, if that is excluded."""
        target = batch.target.to(self._log_probs.device)
        positive_log_probs = self._log_probs[target]
        if not self._excludes_positive:
            labels = self._table.draw([num_negatives], generator)
            return Draw(labels, self._log_probs[labels], positive_log_probs, num_negatives)
        labels = self._draw_others(target, num_negatives, generator)
        return Draw(labels, self._log_probs[labels], positive_log_probs, num_negatives, self._log_others[target])

    def _prepare_exclusion(self, probs: Tensor) -> None:
        if int((probs > 0).sum()) < 2:
            raise ValueError("LabelDistribution: one label has all the probability, so no negative is left to draw.")
        self._log_others = log_others(self._log_probs)
        top = int(probs.argmax())
        # A label with most of q would be hit again and again; it alone needs a table of the others.
        self._dominant = top if float(self._log_probs[top]) > -math.log(2) else None
        self._others = self._table if self._dominant is None else AliasTable(probs.index_fill(0, probs.argmax(), 0))

    def _draw_others(self, target: Tensor, num_negatives: int, generator: torch.Generator | None) -> Tensor:
        """[N, m] labels other than each sample's own, by drawing again what hits."""
        labels = self._table.draw([len(target), num_negatives], generator)
        hits = torch.nonzero(labels == target[:, None])
        if self._dominant is not None:
            rows, columns = hits[target[hits[:, 0]] == self._dominant].T
            labels[rows, columns] = self._others.draw([len(rows)], generator)
            hits = hits[target[hits[:, 0]] != self._dominant]
        while len(hits):  # each is one again with probability 1/2 at most
            rows, columns = hits.T
            labels[rows, columns] = self._table.draw([len(hits)], generator)
            hits = hits[labels[rows, columns] == target[rows]]
        return labels


def uniform(num_classes: int, excludes_positive: bool = False) -> LabelDistribution:
    """Uniform negatives: every label is drawn alike.

    Formula:
        q[y'] = 1 / C

    Args:
        num_classes: C.
        excludes_positive: see ``LabelDistribution``; if so, the implied factor is 1 / (C - 1) instead of 1 / C.

    Returns:
        The distribution.

    Use when:
        Nothing is known about the labels, or results should follow plain cross-entropy.
    Avoid when:
        Labels are very many and scores differ much: most draws are then easy, and teach little.
    Special cases:
        ``prior_power`` with exponent 0.

    >>> uniform(4).log_probs.exp().tolist()
    [0.25, 0.25, 0.25, 0.25]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1.
    """
    size = at_least(num_classes, 2, "uniform: num_classes")
    return LabelDistribution(torch.ones(size, dtype=torch.float64), excludes_positive)


def prior_power(prior: ClassPrior, exponent: float = 1.0, excludes_positive: bool = False) -> LabelDistribution:
    """Negatives by how frequent they are, to a power.

    Formula:
        q[y'] is proportional to pi[y']^exponent

    Args:
        prior: pi, the class counts; every class needs samples or smoothing.
        exponent: 1 is the training distribution, 0.75 the choice of word2vec, 0 uniform.
        excludes_positive: see ``LabelDistribution``.

    Returns:
        The distribution.

    Use when:
        Negatives like those of a batch are wanted, of any number and independent of the batch.
    Avoid when:
        Rare labels are confused with each other: as negatives they hardly ever meet.
    Special cases:
        ``uniform`` at exponent 0; at 1 what ``WithinBatch`` is in expectation.

    >>> prior_power(ClassPrior.from_counts([9, 1]), exponent=0.5).log_probs.exp().numpy().round(6).tolist()
    [0.75, 0.25]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1; Mikolov et al. (2013) for 0.75.
    """
    if not math.isfinite(exponent):
        raise ValueError(f"prior_power: exponent must be a finite number. Got {exponent}.")
    return LabelDistribution(torch.softmax(exponent * prior.log_probs, dim=0), excludes_positive)


def log_uniform(num_classes: int, excludes_positive: bool = False) -> LabelDistribution:
    """Log-uniform (Zipfian) negatives, for labels that are numbered from the most frequent to the rarest.

    Formula:
        q[y'] = log((y' + 2) / (y' + 1)) / log(C + 1)

    Args:
        num_classes: C.
        excludes_positive: see ``LabelDistribution``.

    Returns:
        The distribution.

    Use when:
        Only the order of the labels by frequency is known, as in a vocabulary.
    Avoid when:
        Counts are known: use ``prior_power``. Or labels are numbered in another order.
    Special cases:
        ``prior_power`` with exponent 1, where frequencies follow this law.

    >>> q = log_uniform(7).log_probs.exp()
    >>> round((q[0] / q[1]).item(), 4)
    1.7095

    Reference:
        The candidate sampler of that name in TensorFlow's documentation.
    """
    size = at_least(num_classes, 2, "log_uniform: num_classes")
    ranks = torch.arange(1, size + 1, dtype=torch.float64)
    return LabelDistribution(torch.log1p(1 / ranks), excludes_positive)


class WithinBatch:
    """Negatives from the batch: the labels of its other samples, which come by the training distribution.

    Formula:
        q = pi

    Args:
        prior: pi, the class counts; every class needs samples or smoothing.

    A sample's own label is not a draw, and whenever it occurs it has weight 0. All labels of the batch serve; with
    fewer negatives than that, a random part of them. With several processes they are the labels of all of them.

    Use when:
        Label vectors are at hand anyway, as in two-tower models; with ``importance`` it then is cross-entropy.
    Avoid when:
        Batches are small or sorted by label: their labels are then no draw from pi. Or rare labels are what it is
        for: weights lift them, and ``tail`` on uniform negatives does so at a lower price overall.
    Special cases:
        ``prior_power`` with exponent 1, in expectation.

    >>> batch = Batch(target=torch.tensor([0, 1, 0]), labels=torch.tensor([0, 1, 0]))
    >>> WithinBatch(ClassPrior.from_counts([2, 1])).draw(batch, num_negatives=3).labels.tolist()
    [0, 1, 0]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 2.2.
    """

    excludes_positive = False

    def __init__(self, prior: ClassPrior) -> None:
        self._log_probs = prior.log_probs

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""
        return len(self._log_probs)

    @property
    def log_probs(self) -> Tensor:
        """[C] float64 log pi."""
        return self._log_probs

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """The labels of the batch, or ``num_negatives`` of them."""
        labels, expected = _part_of_batch(batch, num_negatives, generator)
        return Draw(labels, self._log_probs[labels.cpu()], self._log_probs[batch.target.cpu()], expected)


class StreamingBatch(nn.Module):
    """Negatives from the batch where no prior is known: q is how often each label has been seen so far.

    Formula:
        q[y'] = n[y'] / sum(n), counts n over all batches so far, including this one

    Args:
        num_classes: C.

    It counts in training mode only. The counts are a buffer: they are saved with the head.

    Use when:
        Data comes as a stream, so that labels can't be counted beforehand.
    Avoid when:
        Counts are known: ``WithinBatch`` has no noise in q.
    Special cases:
        ``WithinBatch`` after many batches.

    >>> stream = StreamingBatch(3)
    >>> labels = torch.tensor([0, 0, 2, 0])
    >>> draw = stream.draw(Batch(target=labels, labels=labels), num_negatives=4)
    >>> draw.log_probs.exp()
    tensor([0.7500, 0.7500, 0.2500, 0.7500], dtype=torch.float64)

    Deviates:
        Yi et al. average the steps between two occurrences of a label, which forgets old data; counts have less noise
        where the stream does not change, and are the same whatever the batch size.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 2.2; Yi et al. (2019) for the setting.
    """

    excludes_positive = False
    counts: Tensor
    total: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        size = at_least(num_classes, 2, "StreamingBatch: num_classes")
        # Integers, which survive a change of the model to half precision.
        self.register_buffer("counts", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    @property
    def num_classes(self) -> int:
        """C, the number of labels."""
        return len(self.counts)

    @property
    def log_probs(self) -> Tensor:
        """[C] float64 log q as of now; minus infinity for labels not seen yet."""
        return self._log_probs_at(torch.arange(len(self.counts), device=self.counts.device))

    def draw(self, batch: Batch, num_negatives: int, generator: torch.Generator | None = None) -> Draw:
        """Count the labels of the batch, and give them back, or ``num_negatives`` of them."""
        if self.training:
            seen = batch.labels.to(self.counts.device)
            self.counts.index_add_(0, seen, torch.ones_like(seen))
            self.total += len(seen)
        labels, expected = _part_of_batch(batch, num_negatives, generator)
        device = self.counts.device
        log_probs, positive_log_probs = (self._log_probs_at(part.to(device)) for part in (labels, batch.target))
        if not (self.training or bool(torch.cat([log_probs, positive_log_probs]).isfinite().all())):
            raise ValueError(
                "StreamingBatch: outside training, all labels of a batch must have been seen in training."
            )
        return Draw(labels, log_probs, positive_log_probs, expected)

    def _log_probs_at(self, labels: Tensor) -> Tensor:
        return self.counts[labels].double().log() - self.total.double().log()


def _part_of_batch(batch: Batch, num_negatives: int, generator: torch.Generator | None) -> tuple[Tensor, float]:
    """Labels of the batch, and how many draws of other samples each sample can expect among them."""
    num_labels = len(batch.labels)
    if num_negatives >= num_labels:
        # The only label of a batch is its sample's own and has weight 0; a count of 1 keeps weights finite.
        return batch.labels, max(1, num_labels - 1)
    part = torch.randperm(num_labels, generator=generator)[:num_negatives]
    # A sample's own label is in the part with probability m / M, and is no draw.
    return batch.labels[part.to(batch.labels.device)], num_negatives * (num_labels - 1) / num_labels
