"""How drawn negatives are weighted, and which loss that optimizes.

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

import torch

from longtail.margins import Margins, logit_adjusted
from longtail.negatives._sampling import KnownDistribution, Sampling, check_finite_weights, sampling_of_all
from longtail.negatives.distributions import LabelDistribution, WithinBatch
from longtail.prior import ClassPrior

__all__ = [
    "Weighting",
    "implied_margins",
    "check_scheme",
    "constant",
    "unit",
    "importance",
    "relative",
    "targeting",
    "tail",
]


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
    sampling = sampling_of_all(distribution, num_negatives)
    return sampling.log_counts + check_finite_weights(weighting(sampling), sampling)


def check_scheme(distribution: object, weighting: Weighting, num_negatives: int) -> None:
    """Raise where q is known beforehand and a label's weight would not be finite."""
    if isinstance(distribution, LabelDistribution | WithinBatch):
        implied_margins(distribution, weighting, num_negatives)


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
    Special cases:
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
    Special cases:
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
    Special cases:
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
    Special cases:
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
    Special cases:
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
    Special cases:
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
    margins.check_additive("negatives")
    labels = sampling.labels.to(margins.positive.device)
    if len(labels) and int(labels.max()) >= margins.num_classes:
        raise ValueError(
            f"targeting: the margins are for {margins.num_classes} labels. Got a label {int(labels.max())}."
        )
    return Margins(margins.positive[labels], margins.negative[labels]).to(sampling.log_probs)
