"""Negative sampling: which labels to contrast with the true one, how to weight them, and which loss that optimizes.

Draw m negatives from q and weight them by w. In expectation, label y' then counts ``m q[y'] w[y, y']`` times against
the true label y, and the loss behind the sampling is the margin loss with the logarithm of that as its margin:

    implied margins = log(m q) + log w                   (Lemma 2)
    log w for a wanted margin = margin - log(m q)        (Proposition 4)

Both log(m q) and log w are ``Margins``, so the first is an addition and the second a subtraction, and they are
written that way below. Equations are those of Rawat et al., "Disentangling sampling and labeling bias".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._clusters import Clusters
from longtail.losses import _loss_dtype, _raise_if_out_of_range, _widened, margin_cross_entropy
from longtail.margins import Margins, logit_adjusted
from longtail.prior import ClassPrior
from longtail.samplers import AliasTable, _at_least

__all__ = [
    "Batch",
    "ClusteredDistribution",
    "Distribution",
    "Draw",
    "KnownDistribution",
    "LabelDistribution",
    "NegativeSamplingLoss",
    "SampledLoss",
    "Sampling",
    "SoftmaxDistribution",
    "StreamingBatch",
    "Weighting",
    "WithinBatch",
    "CONTRASTIVE",
    "CROSS_ENTROPY",
    "HINGE",
    "LOGISTIC",
    "constant",
    "expected_squared_error",
    "implied_margins",
    "importance",
    "log_uniform",
    "log_weights",
    "prior_power",
    "relative",
    "sampled_contrastive",
    "sampled_cross_entropy",
    "sampled_hinge",
    "sampled_logistic",
    "sampling_variance",
    "tail",
    "targeting",
    "uniform",
    "unit",
]


# The two terms: log(m q) and log w


@dataclass(frozen=True, eq=False, slots=True)
class Sampling:
    """How often some labels are expected among the negatives: m, and q of each of them.

    A weighting is a function from this to ``log w``. It gets all C labels to say which loss is implied, and in a
    training step only the labels at hand.
    """

    labels: Tensor
    """[K] the labels it is about."""
    log_probs: Tensor
    """[K] log q of these labels."""
    num_negatives: float
    """m, the number of negatives; where it is random, its expectation."""
    log_others: Tensor | None = None
    """[K] log(1 - q), where the true label is excluded by domain: its sample draws from q over the others."""

    @property
    def log_counts(self) -> Margins:
        """log(m q[y']), or log(m q[y'] / (1 - q[y])) where y is excluded by domain."""
        negative = self.log_probs + math.log(self.num_negatives)
        return Margins(torch.zeros_like(negative) if self.log_others is None else -self.log_others, negative)


Weighting = Callable[[Sampling], Margins]
"""``log w[y, y']`` as a sum of a part for the true label and a part for the negative one."""


def implied_margins(distribution: KnownDistribution, weighting: Weighting, num_negatives: int) -> Margins:
    """The margins of the loss that a sampling scheme optimizes.

    Formula:
        Delta[y, y'] = log(m q[y']) + log w[y, y']

    Args:
        distribution: q, known for all labels.
        weighting: w.
        num_negatives: m.

    Returns:
        float64 margins: those of the loss (11) for softmax cross-entropy, an upper bound that sampling approaches as
        m grows, and those of (9), exactly, for a decoupled loss.

    Where q excludes the true label by domain, its negatives share its probability, and q[y'] / (1 - q[y]) takes the
    place of q[y'].

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> implied_margins(WithinBatch(prior), constant, num_negatives=8).negative.exp()
    tensor([0.9000, 0.1000], dtype=torch.float64)

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Lemmas 1 and 2; Tables 2 and 3 are its values.
    """
    sampling = _sampling_of_all(distribution, num_negatives)
    return sampling.log_counts + _finite_weights(weighting(sampling), sampling)


def constant(sampling: Sampling) -> Margins:
    """Constant weighting: every negative counts the same, and q itself becomes the margin.

    Formula:
        w[y, y'] = 1 / m

    Args:
        sampling: m, and q of the labels at hand.

    Returns:
        log w.

    Use when:
        Negatives come from the batch and rare labels matter: it then is the equalized loss. With uniform negatives
        it is cross-entropy with weaker negatives.
    Avoid when:
        Cross-entropy is the aim: use ``importance``.
    Equals:
        ``targeting`` with the margin log q[y'].

    >>> implied_margins(uniform(4), constant, num_negatives=8).negative.exp().tolist()
    [0.25, 0.25, 0.25, 0.25]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1.
    """
    zeros = torch.zeros_like(sampling.log_probs)
    return Margins(zeros, zeros - math.log(sampling.num_negatives))


def unit(sampling: Sampling) -> Margins:
    """Unit weighting: softmax cross-entropy over the true label and its negatives, as it is usually written.

    Formula:
        w[y, y'] = 1

    Args:
        sampling: q of the labels at hand.

    Returns:
        log w, which is 0.

    Use when:
        Code is to be matched that takes ``F.cross_entropy`` over the true logit and those of the negatives. Where
        logits are bounded, as cosines over a temperature are, it learns more than ``constant``, whose loss is near 0
        once the true label stands out from the average negative.
    Avoid when:
        The loss should not depend on the number of negatives, which is a factor of the margin here.
    Equals:
        ``constant`` with m times the weight: ``targeting`` with the margin log(m q[y']).

    >>> implied_margins(uniform(4), unit, num_negatives=8).negative.exp().round().tolist()
    [2.0, 2.0, 2.0, 2.0]

    Deviates:
        The paper's constant is 1 / m, "typically".

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 2.2, "Constant".
    """
    zeros = torch.zeros_like(sampling.log_probs)
    return Margins(zeros, zeros)


def importance(sampling: Sampling) -> Margins:
    """Importance weighting: no margin is left, so sampling stands for the loss over all labels.

    Formula:
        w[y, y'] = 1 / (m q[y'])

    Args:
        sampling: m, and q of the labels at hand; none may be 0.

    Returns:
        log w.

    Use when:
        The full loss is wanted and too expensive. Decoupled losses, and the sum inside the logarithm of
        cross-entropy, are estimated without bias, and so are their gradients.
    Avoid when:
        q is far from the scores: few negatives then carry most of the weight.
    Equals:
        ``targeting`` with no margin; ``constant`` times the number of labels, for uniform negatives.

    >>> implied_margins(log_uniform(5), importance, num_negatives=8).dense().abs().max().item() < 1e-12
    True

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1 and the remark below Lemma 2; Bengio and
        Senecal (2008).
    """
    return -sampling.log_counts


def relative(sampling: Sampling) -> Margins:
    """Relative weighting: importance weighting that corrects the true label's logit as well.

    Formula:
        w[y, y'] = q[y] / q[y']

    Args:
        sampling: m, and q of the labels at hand; none may be 0.

    Returns:
        log w.

    Use when:
        Frequent labels are what counts, with negatives from the batch.
    Avoid when:
        Rare labels matter: the implied margin m q[y] asks less of them than of frequent ones.
    Equals:
        ``targeting`` with the margin log(m q[y]). Times a constant ``importance``, for uniform negatives.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> implied_margins(WithinBatch(prior), relative, num_negatives=10).dense().exp().round()
    tensor([[1., 9.],
            [1., 1.]], dtype=torch.float64)

    Deviates:
        Eq. (14) prints the margin pi[y']; by Lemma 2 it is m pi[y], as Table 2 has it.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1; Yi et al. (2019).
    """
    return Margins(sampling.log_probs, -sampling.log_probs)


def targeting(margins: Margins) -> Weighting:
    """The weighting under which sampling optimizes the margin loss you name.

    Formula:
        log w[y, y'] = Delta[y, y'] - log(m q[y'])

    Args:
        margins: Delta, any margins or sum of margins.

    Returns:
        A weighting, for any distribution without zeros.

    Use when:
        You know the loss you want: sampled logit adjustment plus adaptive margins is
        ``targeting(logit_adjusted(prior) + adaptive(prior))``.
    Avoid when:
        All labels fit into a batch: ``MarginCrossEntropy`` has no sampling noise.
    Equals:
        ``importance`` for no margins; ``tail`` for ``logit_adjusted``.

    >>> wanted = logit_adjusted(ClassPrior.from_counts([90, 10]))
    >>> found = implied_margins(uniform(2), targeting(wanted), num_negatives=8)
    >>> bool((found - wanted).dense().abs().max() < 1e-12)
    True

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Proposition 4, eq. (15).
    """
    return _Targeting(margins)


def tail(prior: ClassPrior, tau: float = 1.0) -> Weighting:
    """Tail weighting: sampling optimizes the logit-adjusted loss.

    Formula:
        w[y, y'] = (pi[y'] / pi[y])^tau / (m q[y'])

    Args:
        prior: pi, the class counts; every class needs samples or smoothing.
        tau: strength; 1 is consistent for the balanced error.

    Returns:
        A weighting.

    Use when:
        Rare labels should do as well as frequent ones, and labels are too many for the full loss.
    Avoid when:
        Logits are adjusted post hoc as well: that would correct twice.
    Equals:
        ``targeting(logit_adjusted(prior, tau))``; ``importance`` at tau = 0.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> round(implied_margins(uniform(2), tail(prior), num_negatives=8).dense()[1, 0].exp().item(), 6)
    9.0

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (16).
    """
    return targeting(logit_adjusted(prior, tau))


@dataclass(frozen=True, eq=False)
class _Targeting:
    margins: Margins

    def __call__(self, sampling: Sampling) -> Margins:
        return _margins_at(self.margins, sampling) - sampling.log_counts


def _margins_at(margins: Margins, sampling: Sampling) -> Margins:
    """These margins for the labels at hand: nothing here is as long as there are labels."""
    labels = sampling.labels.to(margins.positive.device)
    if len(labels) and int(labels.max()) >= margins.num_classes:
        raise ValueError(
            f"targeting: the margins are for {margins.num_classes} labels. Got a label {int(labels.max())}."
        )
    return Margins(margins.positive[labels], margins.negative[labels]).to(sampling.log_probs)


def _sampling_of_all(distribution: KnownDistribution, num_negatives: int) -> Sampling:
    if not hasattr(distribution, "log_probs"):
        raise TypeError(
            "the implied loss can be said only where q is the same for all samples. "
            f"Got {type(distribution).__name__}; under targeting(margins) it has these margins whatever q is."
        )
    log_probs = distribution.log_probs
    return Sampling(
        torch.arange(len(log_probs), device=log_probs.device),
        log_probs,
        _at_least(num_negatives, 1, "num_negatives"),
        _log_others(log_probs) if distribution.excludes_positive else None,
    )


def _finite_weights(weights: Margins, sampling: Sampling) -> Margins:
    """``weights``, where no label's weight divides by 0."""
    for part in (weights.positive, weights.negative):
        bad = torch.nonzero(~part.isfinite()).flatten()
        if len(bad):
            label, prob = int(sampling.labels[bad[0]]), float(sampling.log_probs[bad[0]].exp())
            raise ValueError(
                f"the weighting is not finite for label {label}, which is drawn with probability {prob:g}; "
                "use a distribution that can draw every label (a smoothed prior), or constant weighting."
            )
    return weights


def _log_others(log_probs: Tensor) -> Tensor:
    return torch.log1p(-log_probs.exp())


# Where negatives come from


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


class KnownDistribution(Protocol):
    """A distribution that is the same for all samples, so that the implied loss can be said."""

    @property
    def log_probs(self) -> Tensor:
        """[C] float64 log q."""

    @property
    def excludes_positive(self) -> bool:
        """Whether each sample draws from the labels other than its own; if not, its own gets weight 0."""


class LabelDistribution:
    """Negatives with given probabilities, each draw in constant time, for up to tens of millions of labels.

    Formula:
        q[y'] = probs[y'] / sum(probs)

    Args:
        probs: [C] non-negative, not all 0. Draws are made on the device of this tensor.
        excludes_positive: False: all samples share the draws, and a draw that is a sample's own label has weight 0
            there. True: q[y] = 0; each sample draws its own negatives from the other labels, by drawing again what
            hits. The implied margins differ by log(1 - q[y]), and the cost by a factor of the batch size.

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
        if excludes_positive and bool((self._log_probs >= 0).any()):
            raise ValueError("LabelDistribution: one label has all the probability, so no negative is left to draw.")

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
        labels = self._table.draw([len(target), num_negatives], generator)
        hits = torch.nonzero(labels == target[:, None])
        while len(hits):
            rows, columns = hits.T
            labels[rows, columns] = self._table.draw([len(hits)], generator)
            hits = hits[labels[rows, columns] == target[rows]]
        return Draw(
            labels, self._log_probs[labels], positive_log_probs, num_negatives, _log_others(positive_log_probs)
        )


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
    Equals:
        ``prior_power`` with exponent 0.

    >>> uniform(4).log_probs.exp().tolist()
    [0.25, 0.25, 0.25, 0.25]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1.
    """
    size = _at_least(num_classes, 2, "uniform: num_classes")
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
    Equals:
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
    Equals:
        ``prior_power`` with exponent 1, where frequencies follow this law.

    >>> q = log_uniform(7).log_probs.exp()
    >>> round((q[0] / q[1]).item(), 4)
    1.7095

    Reference:
        The candidate sampler of that name in TensorFlow's documentation.
    """
    size = _at_least(num_classes, 2, "log_uniform: num_classes")
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
        Label vectors are at hand anyway, as in two-tower models; with constant weighting it lifts rare labels.
    Avoid when:
        Batches are small or sorted by label: their labels are then no draw from pi.
    Equals:
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
    Equals:
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
        size = _at_least(num_classes, 2, "StreamingBatch: num_classes")
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
    if num_labels < 2:
        raise ValueError(f"within-batch negatives need a batch of at least 2 labels. Got {num_labels}.")
    if num_negatives >= num_labels:
        return batch.labels, num_labels - 1
    part = torch.randperm(num_labels, generator=generator)[:num_negatives]
    # A sample's own label is in the part with probability m / M, and is no draw.
    return batch.labels[part.to(batch.labels.device)], num_negatives * (num_labels - 1) / num_labels


class SoftmaxDistribution:
    """Model-based negatives, exactly: labels by how much they add to the sample's loss. O(C) a sample.

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
    Equals:
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
        self._num_classes = _at_least(num_classes, 2, "SoftmaxDistribution: num_classes")
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
        scores = scores if self._log_loss is None else _floored(self._log_loss(scores))
        scores = scores if self._margins is None else scores + self._margins.negative.to(scores)
        others = scores.scatter(1, batch.target[:, None], -math.inf)
        whole, rest = scores.logsumexp(dim=1, keepdim=True), others.logsumexp(dim=1, keepdim=True)
        labels = torch.multinomial((others - rest).exp(), num_negatives, replacement=True, generator=generator)
        log_probs = scores - whole
        positive_log_probs = log_probs.gather(1, batch.target[:, None])[:, 0]
        return Draw(labels, log_probs.gather(1, labels), positive_log_probs, num_negatives, (rest - whole).squeeze(1))


def _floored(log_losses: Tensor) -> Tensor:
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
    Equals:
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
        self._num_classes = _at_least(num_classes, 2, "ClusteredDistribution: num_classes")
        clusters = 2 ** round(math.log2(num_classes) / 2) if num_clusters is None else num_clusters
        if not 1 <= clusters <= num_classes or clusters & (clusters - 1):
            raise ValueError(
                f"ClusteredDistribution: num_clusters must be a power of 2, up to {num_classes}. Got {clusters}."
            )
        if not 0 < even_share <= 1:
            raise ValueError(f"ClusteredDistribution: even_share must be in (0, 1]. Got {even_share}.")
        self._depth = clusters.bit_length() - 1
        self._refresh_every = _at_least(refresh_every, 1, "ClusteredDistribution: refresh_every")
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
        scores = scores if self._log_loss is None else _floored(self._log_loss(scores))
        chosen = (scores + clusters.log_mass).softmax(dim=1)
        probs = torch.lerp(chosen, clusters.log_mass.softmax(dim=0).expand_as(chosen), self._even_share)
        probs = probs if self._per_sample else probs.mean(dim=0, keepdim=True)
        drawn = torch.multinomial(probs, num_negatives, replacement=True, generator=generator)
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


def _model_of(batch: Batch, name: str, is_whole: bool = True) -> tuple[Tensor, Tensor]:
    if batch.x is None or batch.class_vectors is None:
        raise ValueError(f"{name}: the batch must have embeddings and class vectors; use it in SampledLinear.")
    return batch.x, batch.class_vectors() if is_whole else batch.x[:0]


def _margins_for(num_classes: int, margins: Margins | None, name: str) -> Margins | None:
    if margins is not None and margins.num_classes != num_classes:
        raise ValueError(f"{name}: the margins must be for {num_classes} labels. Got {margins.num_classes}.")
    return margins


# Sampled losses


@dataclass(frozen=True)
class SampledLoss:
    """A loss that knows the negatives through one sum over them, which can be taken part by part.

    Called with the logits of the positive [N] and the negatives [N, m] and ``log w`` [N, m], it gives [N] losses in
    the dtype of the logits (float32 under autocast). A negative with ``log w`` of minus infinity does not count.
    """

    total: Callable[[Tensor, Tensor], Tensor]
    """Negatives [N, m] and log w [N, m] -> [N], the sum over negatives or its logarithm."""
    merge: Callable[[Tensor], Tensor]
    """[R, N] totals of R parts of the negatives -> [N], the total of all of them."""
    finish: Callable[[Tensor, Tensor], Tensor]
    """Positives [N] and total [N] -> [N], the loss."""

    def __call__(self, positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
        """[N] losses."""
        _check_sampled(positive, negative, log_weights)
        wide = _widened(negative)
        total = self.total(wide, log_weights.to(wide))
        return self.finish(positive.to(wide), total).to(_loss_dtype(negative))


# Named functions, for a head that holds them can then be pickled.
def _log_sum(negative: Tensor, log_weights: Tensor) -> Tensor:
    # A finite floor instead of minus infinity: where nothing counts, gradients are 0 and not NaN.
    floor = torch.finfo(negative.dtype).min / 4
    return torch.logsumexp(negative + log_weights.clamp_min(floor), dim=1)


def _merge_log_sums(totals: Tensor) -> Tensor:
    return totals.logsumexp(dim=0)


def _log_one_plus(positive: Tensor, total: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(total), total - positive)


def _decoupled(pair: Callable[[Tensor, bool], Tensor]) -> SampledLoss:
    return SampledLoss(partial(_weighted_sum, pair), _merge_sums, partial(_plus_positive, pair))


def _weighted_sum(pair: Callable[[Tensor, bool], Tensor], negative: Tensor, log_weights: Tensor) -> Tensor:
    return (log_weights.exp() * pair(negative, False)).sum(dim=1)


def _merge_sums(totals: Tensor) -> Tensor:
    return totals.sum(dim=0)


def _plus_positive(pair: Callable[[Tensor, bool], Tensor], positive: Tensor, total: Tensor) -> Tensor:
    return pair(positive, True) + total


def _logistic(logits: Tensor, is_positive: bool) -> Tensor:
    return F.softplus(-logits if is_positive else logits)


def _hinge(logits: Tensor, is_positive: bool) -> Tensor:
    return F.relu(1 - logits if is_positive else 1 + logits)


def _contrastive(cosines: Tensor, is_positive: bool) -> Tensor:
    return (1 - cosines if is_positive else F.relu(cosines)).square()


CROSS_ENTROPY = SampledLoss(_log_sum, _merge_log_sums, _log_one_plus)
"""The parts of ``sampled_cross_entropy``."""
LOGISTIC = _decoupled(_logistic)
"""The parts of ``sampled_logistic``."""
HINGE = _decoupled(_hinge)
"""The parts of ``sampled_hinge``."""
CONTRASTIVE = _decoupled(_contrastive)
"""The parts of ``sampled_contrastive``."""


def sampled_cross_entropy(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Softmax cross-entropy against drawn negatives.

    Formula:
        l = log(1 + sum_{y' drawn} w[y, y'] exp(f[y'] - f[y]))

    Args:
        positive: [N] logits f[y] of the true labels.
        negative: [N, m] logits of the negatives.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses. Where no negative counts, 0 with gradient 0.

    Use when:
        Exactly one label is right, and labels are too many to score them all.
    Avoid when:
        C is moderate: ``margin_cross_entropy`` has no sampling noise.
    Equals:
        ``margin_cross_entropy`` with ``implied_margins``, as m grows; at any m, where negatives are drawn by the
        model's softmax over the other labels and weighted by importance.

    >>> sampled_cross_entropy(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3)).exp()
    tensor([4.])

    Deviates:
        Remark 4 prints the corrected logit as f - log w; by eq. (7) it is f + log w.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (7).
    """
    return CROSS_ENTROPY(positive, negative, log_weights)


def sampled_logistic(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Logistic loss of the true label and of drawn negatives, each by itself.

    Formula:
        l = softplus(-f[y]) + sum_{y' drawn} w[y, y'] softplus(f[y'])

    Args:
        positive: [N] logits f[y] of the true labels.
        negative: [N, m] logits of the negatives.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses.

    Use when:
        Several labels may be right, or probabilities of single labels are wanted.
    Avoid when:
        Exactly one label is right: ``sampled_cross_entropy`` ranks better.
    Equals:
        ``decoupled_logistic`` with ``implied_margins``, in expectation, at any m.

    >>> round(sampled_logistic(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3)).item() / 4, 4)
    0.6931

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8).
    """
    return LOGISTIC(positive, negative, log_weights)


def sampled_hinge(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Hinge loss of the true label and of drawn negatives, each by itself.

    Formula:
        l = [1 - f[y]]_+ + sum_{y' drawn} w[y, y'] [1 + f[y']]_+

    Args:
        positive: [N] logits f[y] of the true labels.
        negative: [N, m] logits of the negatives.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses.

    Use when:
        Easy negatives should have no gradient at all.
    Avoid when:
        Probabilities are needed.
    Equals:
        ``decoupled_hinge`` with ``implied_margins``, in expectation, at any m.

    >>> sampled_hinge(torch.ones(1), torch.zeros(1, 3), torch.zeros(1, 3)).item()
    3.0

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8).
    """
    return HINGE(positive, negative, log_weights)


def sampled_contrastive(positive: Tensor, negative: Tensor, log_weights: Tensor) -> Tensor:
    """Contrastive loss on cosines with drawn negatives.

    Formula:
        l = (1 - z[y])^2 + sum_{y' drawn} w[y, y'] [z[y']]_+^2

    Args:
        positive: [N] cosines z[y] with the vectors of the true labels.
        negative: [N, m] cosines with the negatives' vectors.
        log_weights: [N, m] log w; minus infinity leaves a negative out.

    Returns:
        [N] losses.

    Use when:
        Embeddings are searched by cosine.
    Avoid when:
        Rare labels matter most; the paper finds cross-entropy better there.
    Equals:
        ``cosine_contrastive`` with ``implied_margins``, in expectation, at any m.

    >>> sampled_contrastive(torch.ones(1), torch.full((1, 2), 0.5), torch.zeros(1, 2)).item()
    0.5

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (8) and section 5.1.
    """
    return CONTRASTIVE(positive, negative, log_weights)


def log_weights(weighting: Weighting, draw: Draw, target: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """``log w`` of drawn negatives; minus infinity where a negative is the true label itself.

    Args:
        weighting: w.
        draw: negatives, shared [m] or one row a sample [N, m].
        target: [N] true labels.
        dtype: of the result; its two terms are computed in float64.

    Returns:
        [N, m]. It costs O(N m), whatever the number of labels.

    >>> labels = torch.tensor([0, 1])
    >>> draw = WithinBatch(ClassPrior.from_counts([1, 1])).draw(Batch(labels, labels), num_negatives=2)
    >>> log_weights(constant, draw, labels)
    tensor([[-inf, 0.],
            [0., -inf]], dtype=torch.float64)

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Table 1 and Remark 6.
    """
    device, num_samples = draw.labels.device, len(target)
    target = target.to(device)
    log_others = None
    if draw.log_others is not None:
        log_others = torch.cat([draw.log_others.to(device), torch.zeros(draw.labels.numel(), device=device)])
    sampling = Sampling(
        torch.cat([target, draw.labels.flatten()]),
        torch.cat([draw.positive_log_probs.to(device), draw.log_probs.to(device).flatten()]),
        draw.num_negatives,
        log_others,
    )
    weights = weighting(sampling)
    positive, negative = (part.to(dtype) for part in (weights.positive[:num_samples], weights.negative[num_samples:]))
    values = positive[:, None] + negative.view(draw.labels.shape)
    return values.masked_fill_(draw.labels == target[:, None], -math.inf)


class NegativeSamplingLoss(nn.Module):
    """A sampled loss on logits of all labels: what a sampling scheme does, where labels are few enough to see it.

    Args:
        distribution: q.
        weighting: w.
        num_negatives: m.
        loss: ``CROSS_ENTROPY``, ``LOGISTIC``, ``HINGE`` or ``CONTRASTIVE``.

    It saves no time: use ``SampledLinear`` for that. Forward gives the mean over samples.

    >>> loss = NegativeSamplingLoss(uniform(5), importance, num_negatives=3)
    >>> loss(torch.zeros(2, 5), torch.tensor([0, 4])).shape
    torch.Size([])
    """

    def __init__(
        self,
        distribution: Distribution,
        weighting: Weighting,
        num_negatives: int,
        loss: SampledLoss = CROSS_ENTROPY,
    ) -> None:
        super().__init__()
        self.distribution, self.weighting, self.loss = distribution, weighting, loss
        self.num_negatives = _at_least(num_negatives, 1, "num_negatives")

    def forward(self, logits: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        if logits.ndim != 2 or logits.shape[1] != self.distribution.num_classes or target.shape != logits.shape[:1]:
            raise ValueError(
                f"NegativeSamplingLoss: expected logits [N, {self.distribution.num_classes}] and target [N]. "
                f"Got {tuple(logits.shape)} and {tuple(target.shape)}."
            )
        _raise_if_out_of_range(target, logits.shape[1])
        # The logits are inner products of themselves with the unit vectors, which is what a model-based q asks for.
        width = logits.shape[1]
        batch = Batch(target, target, logits.detach(), lambda: torch.eye(width, device=logits.device))
        draw = self.distribution.draw(batch, self.num_negatives, generator)
        weights = log_weights(self.weighting, draw, target).to(logits.device)
        positive = logits.gather(1, target[:, None])[:, 0]
        negative = logits.gather(1, draw.labels.to(logits.device).expand(weights.shape))
        losses = self.loss(positive, negative, weights)
        return losses.sum() / max(1, len(losses))


# How far a sampled loss is from the one it stands for


def sampling_variance(
    negative_losses: Tensor,
    target: Tensor,
    distribution: KnownDistribution,
    weighting: Weighting,
    num_negatives: int,
) -> Tensor:
    """The variance of a sampled decoupled loss over draws of its negatives.

    Formula:
        V = sum_{y' != y} w rho phi^2 - (sum_{y' != y} rho phi)^2 / m, with rho[y, y'] = m q[y'] w[y, y']

    Args:
        negative_losses: [N, C] phi, what each label costs as a negative, such as ``softplus(logits)``.
        target: [N] true labels.
        distribution: q.
        weighting: w.
        num_negatives: m.

    Returns:
        [N] variances, float64.

    >>> losses = torch.ones(1, 4, dtype=torch.float64)
    >>> sampling_variance(losses, torch.tensor([0]), uniform(4), importance, 2).item()
    1.5

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (10).
    """
    sampling = _sampling_of_all(distribution, num_negatives)
    log_w = _finite_weights(weighting(sampling), sampling)
    rho = sampling.log_counts + log_w
    values = negative_losses.double().scatter(1, target[:, None], 0.0)
    squares = (values.square() @ (rho + log_w).negative.exp()) * (rho + log_w).positive.exp()[target]
    mean = (values @ rho.negative.exp()) * rho.positive.exp()[target]
    return (squares - mean.square() / num_negatives).clamp_min(0)


def expected_squared_error(
    logits: Tensor, target: Tensor, distribution: KnownDistribution, weighting: Weighting, num_negatives: int
) -> Tensor:
    """How far sampled cross-entropy is from the loss it implies: the mean square, to first order in 1 / m.

    Formula:
        E = sigma^2 / (m mu^2), with mu = exp(f[y]) + E_q[eta exp(f)], sigma^2 = Var_q[eta exp(f)], eta = m w

    Args:
        logits: [N, C].
        target: [N] true labels.
        distribution: q.
        weighting: w.
        num_negatives: m.

    Returns:
        [N] mean squared errors, float64.

    >>> q = uniform(3, excludes_positive=True)
    >>> expected_squared_error(torch.zeros(1, 3), torch.tensor([0]), q, importance, 5).item() < 1e-12
    True

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", Theorem 3, eq. (12).
    """
    wide = logits.double()
    gaps = wide - wide.gather(1, target[:, None])
    variance = sampling_variance(gaps.exp(), target, distribution, weighting, num_negatives)
    margins = implied_margins(distribution, weighting, num_negatives)
    return variance * torch.exp(-2 * margin_cross_entropy(wide, target, margins))


def _check_sampled(positive: Tensor, negative: Tensor, log_weights: Tensor) -> None:
    is_right = positive.ndim == 1 and negative.ndim == 2 and negative.shape == log_weights.shape
    if not (is_right and len(positive) == len(negative)):
        raise ValueError(
            "sampled losses: expected positive [N], negative [N, m] and log_weights [N, m]. "
            f"Got {tuple(positive.shape)}, {tuple(negative.shape)} and {tuple(log_weights.shape)}."
        )
