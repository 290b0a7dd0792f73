"""The named margins of the literature: class counts in, ``Margins`` out. A method is a few lines here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from longtail.margins.algebra import Margins
from longtail.prior import ClassPrior, check_prior

__all__ = [
    "BUILDERS",
    "adaptive",
    "class_temperatures",
    "equalized",
    "logit_adjusted",
    "logit_adjusted_adaptive",
    "max_scaled_adaptive",
    "none",
    "propensity_adjusted",
    "threshold_equalized",
    "two_temperature",
    "vector_scaling",
]

RARE_SHARE = 0.05
"""Share of the labels that the equalization loss's rare categories have together in LVIS."""


def none(prior: ClassPrior) -> Margins:
    """Cross-entropy without a margin: empirical risk minimization (ERM).

    Formula:
        Delta[y, y'] = 0, so the loss is log(1 + sum_{y' != y} exp(f[y'] - f[y])).

    Args:
        prior: the class counts; only their number matters.

    Use when:
        The test data has the label distribution of the training data and plain accuracy is what counts; or
        as stage one of a two-stage method, or before a post-hoc adjustment.
    Avoid when:
        Rare classes matter: the learned logits carry log pi of the training data.
    Special cases:
        ``logit_adjusted`` with tau = 0; the zero of margin addition.

    >>> none(ClassPrior.from_counts([3, 1])).dense().tolist()
    [[0.0, 0.0], [0.0, 0.0]]

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (1).
    """
    zeros = torch.zeros(prior.num_classes, dtype=torch.float64)
    return Margins(zeros, zeros.clone())


def logit_adjusted(prior: ClassPrior, tau: float = 1.0) -> Margins:
    """The logit-adjusted loss: cross-entropy on ``logits + tau * log pi``. At tau = 1, balanced softmax.

    Formula:
        Delta[y, y'] = tau * log(pi[y'] / pi[y])

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength; 1 is consistent for the balanced error.

    Use when:
        You train and want balanced accuracy. The first method to try.
    Avoid when:
        You adjust the model's logits post hoc as well: that would correct twice.
    Special cases:
        Cross-entropy at tau = 0; ``two_temperature`` with equal temperatures. For a linear model it learns what
        post-hoc adjustment of plain cross-entropy gives.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> round(float(logit_adjusted(prior).dense()[1, 0].exp()), 6)
    9.0

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (10). Ren et al., "Balanced Meta-Softmax",
        supplement eq. (10), is the case tau = 1.
    """
    adjustment = _finite(tau, "logit_adjusted: tau") * _log_probs(prior)
    return Margins(-adjustment, adjustment)


def propensity_adjusted(prior: ClassPrior, tau: float = 1.0, a: float = 0.55, b: float = 1.5) -> Margins:
    """The logit-adjusted loss with propensities in the place of the prior: training for propensity-scored precision.

    Formula:
        Delta[y, y'] = tau * log(p[y'] / p[y]), 1 / p[y] = 1 + (log N - 1) (b + 1)^a / (n[y] + b)^a

    Args:
        prior: the class counts n, of N samples.
        tau: strength; 1 is consistent for PSP@k.
        a: how steeply propensity grows with frequency.
        b: shift of the frequencies.

    A label is noticed with probability p[y], so what is seen is p[y] P(y | x): propensities are a prior, and the
    margin takes it back as ``logit_adjusted`` takes back pi. The logits then rank by P(y | x) / p[y], where P is of
    the labels that are seen, and that ranking is the best for propensity-scored precision. Weighting each true label
    by 1 / p[y], with ``class_weights=longtail.metrics.inverse_propensities``, has the same optimum; the margin has
    no large weights on few samples.

    Use when:
        PSP@k is what counts, or labels are missing, rare ones more often.
    Avoid when:
        Rare labels should do as well as frequent ones: propensities are much flatter than pi.
    Special cases:
        Cross-entropy at tau = 0; ``logit_adjusted`` where propensities are proportional to pi.

    >>> prior = ClassPrior.from_counts([1000, 1])
    >>> round(float(propensity_adjusted(prior).dense()[1, 0].exp()), 2)  # 6.91 / 1.22
    5.67

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4, for the propensities; Menon et al.,
        "Long-tail learning via logit adjustment", Theorem 1, for the margin of a prior.
    """
    adjustment = -_finite(tau, "propensity_adjusted: tau") * prior.inverse_propensities(a, b).log()
    return Margins(-adjustment, adjustment)


def adaptive(prior: ClassPrior, scale: float = 1.0) -> Margins:
    """The adaptive margin on plain logits: rarer positives must win by more.

    Formula:
        Delta[y, y'] = scale * pi[y]^(-1/4)

    Args:
        prior: the class counts; every class needs samples or smoothing.
        scale: factor on the margin; 1 is the form used beside logit adjustment.

    Use when:
        Classes separate well, or added to ``logit_adjusted``.
    Avoid when:
        Classes overlap: it is not consistent for the balanced error. With cosine logits use
        ``max_scaled_adaptive``.
    Special cases:
        Cross-entropy at scale = 0.

    >>> adaptive(ClassPrior.from_counts([15, 1])).positive[1].item()
    2.0

    Deviates:
        LDAM itself fixes the largest margin instead of the factor; that is ``max_scaled_adaptive``.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (5) and (11); Cao et al. (2019).
    """
    positive = _finite(scale, "adaptive: scale") * torch.exp(-0.25 * _log_probs(prior))
    return Margins(positive, torch.zeros_like(positive))


def max_scaled_adaptive(prior: ClassPrior, largest: float = 0.5, logit_scale: float = 30.0) -> Margins:
    """LDAM's own margin, for logits that are ``logit_scale`` times a cosine.

    Formula:
        Delta[y, y'] = logit_scale * largest * (n[y] / n_min)^(-1/4)

    Args:
        prior: the class counts; every class needs samples or smoothing.
        largest: the margin of the rarest class, in units of the cosine.
        logit_scale: what the cosines are multiplied by to give logits.

    Use when:
        The head is a cosine head (normalized weights and embeddings), as in LDAM.
    Avoid when:
        Logits are unbounded inner products: use ``adaptive``.
    Special cases:
        ``adaptive`` with scale = logit_scale * largest * pi_min^(1/4).

    >>> max_scaled_adaptive(ClassPrior.from_counts([16, 1])).positive.tolist()
    [7.5, 15.0]

    Reference:
        Cao et al. (2019), "Learning imbalanced datasets with label-distribution-aware margin loss", section 3.
    """
    log_probs = _log_probs(prior)
    largest_margin = _finite(largest, "max_scaled_adaptive: largest") * _finite(logit_scale, "logit_scale")
    positive = largest_margin * torch.exp(-0.25 * (log_probs - log_probs.min()))
    return Margins(positive, torch.zeros_like(positive))


def equalized(prior: ClassPrior, tau: float = 1.0) -> Margins:
    """The equalized margin: rare classes are pushed down less when they are the negative.

    Formula:
        Delta[y, y'] = log F(pi[y']), with F(z) = z^tau

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: exponent of F.

    Use when:
        Comparing with the literature; it is what within-batch negatives with constant weights optimize.
    Avoid when:
        You want balanced error: it ignores the frequency of the positive, and is not consistent. With many classes
        F(pi) is small, and gradients with it: raise the learning rate, or take tau = 0.5.
    Special cases:
        Cross-entropy at tau = 0; ``two_temperature`` with positive_tau = 0.

    >>> equalized(ClassPrior.from_counts([1, 1])).negative.exp().tolist()
    [0.5, 0.5]

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (6) and (11); Tan et al. (2020).
    """
    negative = _finite(tau, "equalized: tau") * _log_probs(prior)
    return Margins(torch.zeros_like(negative), negative)


def threshold_equalized(prior: ClassPrior, threshold: float | None = None, keep: float = 0.1) -> Margins:
    """The equalization loss's thresholded F: classes rarer than a threshold hardly count as negatives.

    Formula:
        Delta[y, y'] = log F(pi[y']), with F(z) = keep if z < threshold else 1

    Args:
        prior: the class counts.
        threshold: share pi below which a class is rare; None: the rarest classes are, as far as they have 5 % of the
            samples together. A warning tells where no class is.
        keep: expected share of a rare class's negative gradient that remains, in (0, 1].

    Use when:
        Very many classes whose rare ones drown in negative gradient (detection, segmentation).
    Avoid when:
        Classes are few, or frequencies have no natural threshold.
    Special cases:
        Cross-entropy at keep = 1 or threshold = 0.

    >>> threshold_equalized(ClassPrior.from_counts([999, 1]), threshold=0.01, keep=0.5).negative.exp().tolist()
    [1.0, 0.5]

    Deviates:
        The authors drop a rare negative at random with probability gamma = 1 - keep; here its exponential is
        weighted by keep, which is that in expectation (Lemma 2 of Rawat et al.), and deterministic. Their threshold,
        0.00177, is for the 1,230 categories of LVIS v0.5, where it is about 100 images: categories of up to so many
        have 5 % of the labels of LVIS v1. The share is taken over, as no threshold suits any number of classes: with
        10 of them 0.00177 would call none rare. Their frequencies are shares of images, here of labels.

    Reference:
        Tan et al. (2020), "Equalization loss for long-tailed object recognition", eq. (6)-(8); threshold for LVIS
        v0.5 from its section 4.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"threshold_equalized: keep must be in (0, 1]. Got {keep}.")
    if threshold is None:
        is_rare = _find_rarest(prior, RARE_SHARE)
    else:
        is_rare = prior.probs < _finite(threshold, "threshold_equalized: threshold")
    if threshold != 0 and keep < 1 and prior.imbalance > 1 and not is_rare.any():
        warnings.warn(
            f"threshold_equalized: no class is rare, so this is cross-entropy; the rarest has a share of "
            f"{float(prior.probs.min()):g}. Set a threshold above that.",
            stacklevel=2,
        )
    negative = is_rare.double() * math.log(keep)
    return Margins(torch.zeros_like(negative), negative)


def _find_rarest(prior: ClassPrior, share: float) -> Tensor:
    """[C] whether a class and all that are as rare or rarer have at most this share of the samples together."""
    ordered, places = prior.probs.sort()
    last = torch.searchsorted(ordered, ordered, right=True) - 1  # classes of one count go together
    is_rare = torch.zeros_like(places, dtype=torch.bool)
    is_rare[places] = ordered.cumsum(dim=0)[last] <= share * (1 + 1e-9)
    return is_rare


def two_temperature(prior: ClassPrior, positive_tau: float = 1.0, negative_tau: float = 1.0) -> Margins:
    """Logit adjustment with one strength for the positive and another for the negative label.

    Formula:
        Delta[y, y'] = -positive_tau * log pi[y] + negative_tau * log pi[y']

    Args:
        prior: the class counts; every class needs samples or smoothing.
        positive_tau: strength for the true label.
        negative_tau: strength for the other labels.

    Use when:
        Tuning between logit adjustment and the equalized margin.
    Avoid when:
        There is no holdout to tune on.
    Special cases:
        ``logit_adjusted`` when both are equal; ``equalized`` at positive_tau = 0.

    >>> prior = ClassPrior.from_counts([9, 1])
    >>> bool((two_temperature(prior, 1, 1).dense() == logit_adjusted(prior).dense()).all())
    True

    Deviates:
        Section 5.2 of the paper prints both signs the other way round, which would favor frequent classes.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 5.2.
    """
    log_probs = _log_probs(prior)
    return Margins(
        -_finite(positive_tau, "two_temperature: positive_tau") * log_probs,
        _finite(negative_tau, "two_temperature: negative_tau") * log_probs,
    )


def logit_adjusted_adaptive(prior: ClassPrior, tau: float = 1.0, scale: float = 1.0) -> Margins:
    """Logit adjustment plus the adaptive margin.

    Formula:
        Delta[y, y'] = tau * log(pi[y'] / pi[y]) + scale * pi[y]^(-1/4)

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength of the logit adjustment.
        scale: factor on the adaptive margin.

    Use when:
        Very many classes (it is the paper's best on iNaturalist), or a holdout says so.
    Avoid when:
        Probabilities are needed: the extra margin is not consistent.
    Special cases:
        ``logit_adjusted`` at scale = 0; ``adaptive`` at tau = 0.

    >>> prior = ClassPrior.from_counts([15, 1])
    >>> logit_adjusted_adaptive(prior, tau=0).positive.tolist() == adaptive(prior).positive.tolist()
    True

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 6.2.
    """
    return logit_adjusted(prior, tau) + adaptive(prior, scale)


def vector_scaling(prior: ClassPrior, tau: float = 1.0, gamma: float = 0.15) -> Margins:
    """The vector-scaling loss: logit adjustment, and logits of rare classes scaled down in training.

    Formula:
        Delta[y, y'] = tau * log(pi[y'] / pi[y]) on logits scale[y] * f[y], with scale[y] = (n[y] / n_max)^gamma

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength of the additive part.
        gamma: strength of the multiplicative part, at least 0.

    Use when:
        The network fits every training sample: additive margins then lose their effect late in training, and factors
        keep it, for a scaled-down logit must grow larger to win.
    Avoid when:
        Probabilities are needed, or classes overlap: it is not consistent for the balanced error. Or the network does
        not fit its training samples: plain logits then favor rare classes too much, and scaled ones are right.
    Special cases:
        ``logit_adjusted`` at gamma = 0; ``class_temperatures`` at tau = 0.

    >>> margins = vector_scaling(ClassPrior.from_counts([16, 1]), gamma=0.5)
    >>> margins.scale.tolist()
    [1.0, 0.25]

    Reference:
        Kini et al. (2021), "Label-imbalanced and group-sensitive classification under overparameterization", eq. (2)
        and section 3.
    """
    if gamma < 0:
        raise ValueError(f"vector_scaling: gamma must be a finite number of at least 0. Got {gamma}.")
    log_probs = _log_probs(prior)
    scale = torch.exp(_finite(gamma, "vector_scaling: gamma") * (log_probs - log_probs.max()))
    additive = logit_adjusted(prior, _finite(tau, "vector_scaling: tau"))
    return Margins(additive.positive, additive.negative, scale)


def class_temperatures(prior: ClassPrior, gamma: float = 0.2) -> Margins:
    """Class-dependent temperatures: logits of rare classes scaled down in training, so that they must grow larger.

    Formula:
        Delta[y, y'] = 0 on logits scale[y] * f[y], with scale[y] = (n[y] / n_max)^gamma

    Args:
        prior: the class counts; every class needs samples or smoothing.
        gamma: strength, at least 0.

    Use when:
        Features of rare classes deviate between training and test, and the network fits every training sample.
    Avoid when:
        A consistent loss is wanted: take ``logit_adjusted``.
    Special cases:
        Cross-entropy at gamma = 0; ``vector_scaling`` at tau = 0.

    >>> class_temperatures(ClassPrior.from_counts([16, 1]), gamma=0.25).scale.tolist()
    [1.0, 0.5]

    Reference:
        Ye et al. (2020), "Identifying and compensating for feature deviation in imbalanced deep learning", eq. (5).
    """
    return vector_scaling(prior, 0.0, gamma)


BUILDERS: Mapping[str, Callable[..., Margins]] = MappingProxyType(
    {
        "none": none,
        "logit_adjusted": logit_adjusted,
        "adaptive": adaptive,
        "max_scaled_adaptive": max_scaled_adaptive,
        "equalized": equalized,
        "threshold_equalized": threshold_equalized,
        "two_temperature": two_temperature,
        "propensity_adjusted": propensity_adjusted,
        "logit_adjusted_adaptive": logit_adjusted_adaptive,
        "vector_scaling": vector_scaling,
        "class_temperatures": class_temperatures,
    }
)
"""Every margin by its name: prior, **options -> margins."""


def _log_probs(prior: ClassPrior) -> Tensor:
    """[C] log pi, of what must be a prior."""
    check_prior(prior)
    return prior.log_probs


def _finite(value: float, name: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number. Got {value!r}.")
    return value
