"""Methods with experts: one trunk, a head per margin, and their mean logit. Each function returns a plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import add

from longtail.heads import ExpertHead
from longtail.losses.experts import ExpertsCrossEntropy
from longtail.margins import Margins, is_consistent, logit_adjusted, none
from longtail.methods.plan import Phase, Plan
from longtail.prior import ClassPrior

__all__ = ["experts", "experts_with", "skill_diverse_experts"]


def experts_with(
    prior: ClassPrior, margins: Sequence[Margins], scale: float = 0.0, has_own_part: bool = False
) -> Plan:
    """Any experts: a head for each of the margins on a shared trunk, trained together, their logits averaged.

    Args:
        prior: what the margins are made of.
        margins: of each expert.
        scale: of cosine heads; 0 is linear heads.
        has_own_part: whether the encoder makes an embedding for each expert, side by side.

    Where every expert is calibrated, its logits are those of the data moved by its margins, and their mean is moved
    by the mean of the margins: the plan's ``margins``, of which its consistency follows.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> plan = experts_with(prior, [none(prior), logit_adjusted(prior, 2.0)])
    >>> plan.is_consistent, plan.head(4, 2).num_experts
    (True, 2)
    """
    head = partial(ExpertHead, num_experts=len(margins), scale=scale, is_split=has_own_part)
    mean = reduce(add, margins) * (1 / len(margins))
    phase = Phase(ExpertsCrossEntropy(margins))
    return Plan((phase,), head=head, margins=mean, is_consistent=is_consistent(mean, None, prior))


def experts(
    prior: ClassPrior, taus: Sequence[float] | None = None, scale: float = 0.0, has_own_part: bool = False
) -> Plan:
    """Balanced product of experts: a head for each strength of logit adjustment on one trunk, logits averaged.

    Formula:
        f = (1 / E) sum_e f_e, and f_e minimizes the logit-adjusted loss with taus[e]

    Args:
        prior: the class counts; every class needs samples or smoothing.
        taus: strength of each expert; None is 0, 1 and 2: one for frequent, one for all, one for rare classes.
        scale: of cosine heads; 0 is linear heads. Margins are added to the scaled cosines, as to any logit.
        has_own_part: whether the encoder makes an embedding for each expert, as ``branches`` of the small ResNets do.

    Use when:
        Two or three times the cost of a head, or with ``branches`` of the last stage, may be spent on a point or two.
    Avoid when:
        Experts are not calibrated: their mean is then not what the margins say. Mixup helps; the report shows the
        calibration of each.
    Special cases:
        ``logit_adjusted`` with one tau.

    >>> experts(ClassPrior.from_counts([90, 10])).is_consistent
    True

    Deviates:
        The authors also train with mixup, for calibration: set ``train.mixing``.

    Reference:
        Aimar et al. (2023), "Balanced product of calibrated experts for long-tailed recognition", eq. (8) and (11).
    """
    strengths = (0.0, 1.0, 2.0) if taus is None else taus
    return experts_with(prior, [logit_adjusted(prior, tau) for tau in strengths], scale, has_own_part)


def skill_diverse_experts(prior: ClassPrior, scale: float = 0.0, has_own_part: bool = False) -> Plan:
    """SADE's three experts, for the training prior, a uniform and the inverse one, on one trunk, logits averaged.

    Formula:
        Delta_e[y, y'] = a_e[y'] - a_e[y], with a = 0, log pi, and log pi - log pi_inverse

    Args:
        prior: the class counts; every class needs samples or smoothing.
        scale: of cosine heads; 0 is linear heads.
        has_own_part: whether the encoder makes an embedding for each expert, as ``branches`` of the small ResNets do.

    Use when:
        As ``experts``; profiles that are not exponential.
    Avoid when:
        Balanced accuracy alone counts and the profile is not exponential: the mean of the three margins is then not
        the consistent one. Take ``experts``.
    Special cases:
        ``experts`` where counts fall exponentially: the inverse prior is then one over the prior.

    >>> skill_diverse_experts(ClassPrior.from_counts([100, 10, 1])).is_consistent
    True

    Deviates:
        Without the paper's aggregation at test time, which learns weights of the experts from unlabeled test data:
        they are averaged.

    Reference:
        Zhang et al. (2022), "Self-supervised aggregation of diverse experts for test-agnostic long-tailed
        recognition", eq. (2)-(4).
    """
    log_probs = prior.log_probs
    ascending = log_probs.argsort(stable=True)
    inverse = log_probs.clone()
    inverse[ascending] = log_probs[ascending].flip(0)
    margins = [none(prior), logit_adjusted(prior), Margins(inverse - log_probs, log_probs - inverse)]
    return experts_with(prior, margins, scale, has_own_part)
