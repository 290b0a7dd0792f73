"""Methods that draw negatives: which labels, how many, and how they are weighted decides which loss is minimized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from longtail import negatives
from longtail._core.suggestions import look_up
from longtail.heads import CosineLinear
from longtail.methods.plan import HeadBuilder, Phase, Plan
from longtail.negatives import Distribution, SampledLoss, Weighting
from longtail.prior import ClassPrior

__all__ = [
    "DISTRIBUTIONS",
    "WEIGHTINGS",
    "sampled_contrastive",
    "sampled_hinge",
    "sampled_logistic",
    "sampled_softmax",
]

DISTRIBUTIONS: Mapping[str, Callable[[ClassPrior], Distribution]] = MappingProxyType(
    {
        "uniform": lambda prior: negatives.uniform(prior.num_classes),
        "prior": negatives.prior_power,
        "log_uniform": lambda prior: negatives.log_uniform(prior.num_classes),
        "within_batch": negatives.WithinBatch,
        "softmax": lambda prior: negatives.SoftmaxDistribution(prior.num_classes),
        "clustered": lambda prior: negatives.ClusteredDistribution(prior.num_classes),
    }
)
"""Name -> where negatives come from."""

WEIGHTINGS: Mapping[str, Callable[[ClassPrior], Weighting]] = MappingProxyType(
    {
        "importance": lambda prior: negatives.importance,
        "constant": lambda prior: negatives.constant,
        "unit": lambda prior: negatives.unit,
        "relative": lambda prior: negatives.relative,
        "tail": negatives.tail,
    }
)
"""Name -> how negatives are weighted."""


def sampled_softmax(
    prior: ClassPrior, distribution: str = "uniform", weighting: str = "importance", num_negatives: int = 256
) -> Plan:
    """Softmax cross-entropy against drawn negatives: a step costs what they cost, not what all labels would.

    Formula:
        l = log(1 + sum_{y' drawn from q} w[y, y'] exp(f[y'] - f[y])), which stands for the margin loss with
        Delta[y, y'] = log(m q[y']) + log w[y, y']

    Args:
        prior: the class counts; every class needs samples or smoothing.
        distribution: q, a name in ``DISTRIBUTIONS``: "uniform", "prior", "log_uniform", "within_batch", "softmax" or
            "clustered".
        weighting: w, a name in ``WEIGHTINGS``: "importance" stands for cross-entropy, "tail" for the logit-adjusted
            loss, "constant", "unit" and "relative" for margins that follow from q.
        num_negatives: m, how many are drawn for a batch; at most C - 1 are.

    Use when:
        Labels are 10^4 or more; or the trade-off between frequent and rare labels that sampling makes is to be seen.
    Avoid when:
        Labels are some thousand: ``cross_entropy`` or ``logit_adjusted`` are exact, and as fast.
    Special cases:
        ``cross_entropy`` with importance weighting, and ``logit_adjusted`` with tail weighting, as m grows.

    >>> plan = sampled_softmax(ClassPrior.from_counts([90, 9, 1]), weighting="tail", num_negatives=2)
    >>> plan.margins.dense()[2, 0].exp().round()
    tensor(90., dtype=torch.float64)

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (7), Lemma 2 and Table 2.
    """
    return _plan(prior, distribution, weighting, num_negatives, negatives.CROSS_ENTROPY)


def sampled_logistic(
    prior: ClassPrior, distribution: str = "uniform", weighting: str = "importance", num_negatives: int = 256
) -> Plan:
    """Logistic loss of the true label and of drawn negatives; for the arguments see ``sampled_softmax``."""
    return _plan(prior, distribution, weighting, num_negatives, negatives.LOGISTIC)


def sampled_hinge(
    prior: ClassPrior, distribution: str = "uniform", weighting: str = "importance", num_negatives: int = 256
) -> Plan:
    """Hinge loss of the true label and of drawn negatives; for the arguments see ``sampled_softmax``."""
    return _plan(prior, distribution, weighting, num_negatives, negatives.HINGE)


def sampled_contrastive(
    prior: ClassPrior, distribution: str = "uniform", weighting: str = "importance", num_negatives: int = 256
) -> Plan:
    """Contrastive loss on cosines with drawn negatives; for the arguments see ``sampled_softmax``."""
    head = partial(CosineLinear, scale=1.0)
    return _plan(prior, distribution, weighting, num_negatives, negatives.CONTRASTIVE, head)


def _plan(
    prior: ClassPrior,
    distribution: str,
    weighting: str,
    num_negatives: int,
    loss: SampledLoss,
    head: HeadBuilder | None = None,
) -> Plan:
    source = look_up(DISTRIBUTIONS, distribution, "distribution")(prior)
    weights = look_up(WEIGHTINGS, weighting, "weighting")(prior)
    number = min(num_negatives, prior.num_classes - 1)
    phase = Phase(negatives.SampledLinearLoss(source, weights, number, loss))
    if loss is not negatives.CROSS_ENTROPY:
        return Plan((phase,), head)
    if isinstance(source, negatives.LabelDistribution | negatives.WithinBatch):
        margins = negatives.implied_margins(source, weights, number)
        return Plan((phase,), head, margins=margins, is_margin_loss=True)
    return Plan((phase,), head)
