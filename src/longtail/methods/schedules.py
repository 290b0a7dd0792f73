"""Methods in phases: deferred re-weighting and re-sampling, and decoupled training. Each function returns a plan."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.data import Sampler

from longtail import margins as margin_builders
from longtail import weights as weight_builders
from longtail.heads import CosineLinear, fresh_head, scaled_head
from longtail.losses.softmax import MarginCrossEntropy
from longtail.margins import Margins
from longtail.methods.plan import HeadBuilder, Phase, Plan, SamplerFactory, class_balanced_sampler, instance_sampler
from longtail.prior import ClassPrior
from longtail.sampling.classes import ProgressiveSampler, SquareRootSampler, TargetSampler

__all__ = [
    "deferred_reweighting",
    "ldam_drw",
    "defer",
    "deferred_resampling",
    "class_balanced_sampling",
    "square_root_sampling",
    "progressive_sampling",
    "classifier_retraining",
    "learned_weight_scaling",
    "retrained_balanced_softmax",
    "decoupled",
]


def deferred_reweighting(prior: ClassPrior, scale: float = 1.0, beta: float = 0.9999, start: float = 0.8) -> Plan:
    """Adaptive margin throughout, class-balanced weights only in the last part: LDAM-DRW's schedule.

    Formula:
        Delta[y, y'] = scale * pi[y]^(-1/4); alpha = 1 before ``start``, effective-number weights after

    Args:
        prior: the class counts; every class needs samples.
        scale: factor on the adaptive margin; 0 is plain cross-entropy with deferred weights.
        beta: of the effective number.
        start: the share of training after which weights count.

    Use when:
        Weights from the first step on hurt the features, as they do with large models.
    Avoid when:
        Training is too short for two parts.
    Special cases:
        ``adaptive`` as start tends to 1.

    >>> [phase.share for phase in deferred_reweighting(ClassPrior.from_counts([9, 1])).phases]
    [0.8, 0.2]

    Deviates:
        LDAM computes the margin on cosine logits and at its own scale: see ``ldam_drw``.

    Reference:
        Cao et al. (2019), "Learning imbalanced datasets with label-distribution-aware margin loss", algorithm 1.
    """
    return defer(margin_builders.adaptive(prior, scale), weight_builders.effective_number(prior, beta), start)


def ldam_drw(
    prior: ClassPrior, largest: float = 0.5, logit_scale: float = 30.0, beta: float = 0.9999, start: float = 0.8
) -> Plan:
    """LDAM-DRW as its authors train it: a cosine head, their margin at its scale, weights in the last part.

    Formula:
        f[y] = logit_scale * cosine(x, w[y]); Delta[y, y'] = logit_scale * largest * (n[y] / min n)^(-1/4);
        alpha = 1 before ``start``, effective-number weights after

    Args:
        prior: the class counts; every class needs samples.
        largest: the margin of the rarest class, as a cosine.
        logit_scale: largest possible logit of the head, and factor on the margin.
        beta: of the effective number.
        start: the share of training after which weights count.

    Use when:
        The published LDAM-DRW is to be compared with, or embeddings are searched by cosine.
    Avoid when:
        Training is too short for two parts.
    Special cases:
        ``max_scaled_adaptive`` on a cosine head as start tends to 1.

    >>> plan = ldam_drw(ClassPrior.from_counts([9, 1]))
    >>> plan.head(4, 2), [phase.share for phase in plan.phases]
    (CosineLinear(in_features=4, num_classes=2, scale=30), [0.8, 0.2])

    Reference:
        Cao et al. (2019), "Learning imbalanced datasets with label-distribution-aware margin loss", eq. (13) and
        algorithm 1; the scale as in the authors' code.
    """
    margins = margin_builders.max_scaled_adaptive(prior, largest, logit_scale)
    class_weights = weight_builders.effective_number(prior, beta)
    return defer(margins, class_weights, start, partial(CosineLinear, scale=logit_scale))


def defer(margins: Margins | None, class_weights: Tensor, start: float, head: HeadBuilder | None = None) -> Plan:
    """Two phases with the same margins; ``class_weights`` [C] count from ``start`` on.

    >>> len(defer(None, torch.ones(3), 0.5).phases)
    2
    """
    before, after = _split_at(start)
    phases = (
        Phase(MarginCrossEntropy(margins), share=before),
        Phase(MarginCrossEntropy(margins, class_weights), share=after),
    )
    return Plan(phases, head)


def deferred_resampling(prior: ClassPrior, start: float = 0.8) -> Plan:
    """Plain cross-entropy, with class-balanced sampling only in the last part.

    Formula:
        samples uniformly before ``start``, classes uniformly after

    Args:
        prior: the class counts; only their number matters.
        start: the share of training after which classes are drawn equally often.

    Use when:
        Class-balanced sampling from the first step on would overfit the rare classes.
    Avoid when:
        Rare classes have so few samples that even a short balanced part repeats each many times.
    Special cases:
        ``class_balanced_sampling`` as start tends to 0.

    >>> [phase.share for phase in deferred_resampling(ClassPrior.from_counts([9, 1]), start=0.5).phases]
    [0.5, 0.5]

    Reference:
        Cao et al. (2019), section 3.3, with re-sampling in place of re-weighting (their "DRS").
    """
    before, after = _split_at(start)
    loss = MarginCrossEntropy()
    return Plan((Phase(loss, share=before), Phase(loss, class_balanced_sampler, share=after)))


def class_balanced_sampling(prior: ClassPrior) -> Plan:
    """Plain cross-entropy on batches in which every class is drawn equally often.

    Formula:
        probability of class y in a draw = 1 / C, then one of its samples uniformly

    Args:
        prior: the class counts; only their number matters.

    Use when:
        A baseline is wanted; or for the head alone, as ``classifier_retraining`` does.
    Avoid when:
        The model is large: it sees the few samples of rare classes again and again.
    Special cases:
        ``balanced_loss`` in expectation.

    >>> len(class_balanced_sampling(ClassPrior.from_counts([9, 1])).phases)
    1

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 3, q = 0.
    """
    return Plan((Phase(MarginCrossEntropy(), class_balanced_sampler),))


def square_root_sampling(prior: ClassPrior) -> Plan:
    """Plain cross-entropy on batches in which a class is drawn in proportion to the root of its count.

    Formula:
        probability of class y in a draw = sqrt(n[y]) / sum_y' sqrt(n[y'])

    Args:
        prior: the class counts; only their number matters.

    Use when:
        Class-balanced sampling overfits the rare classes.
    Avoid when:
        Balanced error is the aim and a margin can be used.
    Special cases:
        ``power_weighted`` with exponent 0.5 in expectation.

    >>> len(square_root_sampling(ClassPrior.from_counts([9, 1])).phases)
    1

    Reference:
        Kang et al. (2020), section 3, q = 1/2.
    """
    return Plan((Phase(MarginCrossEntropy(), lambda labels, seed, epochs: SquareRootSampler(labels, seed=seed)),))


def progressive_sampling(prior: ClassPrior) -> Plan:
    """Plain cross-entropy on batches that move from the data's distribution to a balanced one over training.

    Formula:
        probability of class y at epoch t of T = (1 - t / T) * pi[y] + (t / T) / C

    Args:
        prior: the class counts; only their number matters.

    Use when:
        Class-balanced sampling is wanted, but features should be learned on the data as they are.
    Avoid when:
        A margin loss can be used; it is simpler and does more.
    Special cases:
        Nearly ``class_balanced_sampling`` in its last epochs.

    >>> len(progressive_sampling(ClassPrior.from_counts([9, 1])).phases)
    1

    Reference:
        Kang et al. (2020), section 3, eq. (2).
    """

    def sampler(labels: Tensor, seed: int, epochs: int) -> Sampler[int]:
        return ProgressiveSampler(labels, epochs=epochs, seed=seed)

    return Plan((Phase(MarginCrossEntropy(), sampler),))


def classifier_retraining(prior: ClassPrior, share: float = 0.5) -> Plan:
    """cRT: features by plain training, then a new head on frozen features with class-balanced sampling.

    Formula:
        stage one: cross-entropy, every sample once; stage two: cross-entropy, every class equally often, new head

    Args:
        prior: the class counts; only their number matters.
        share: length of stage two, as a share of stage one. The papers' 0.1 is of long schedules; a new head on a
            short one needs more.

    Use when:
        Features of plain training are good, as they often are, and only the head favors frequent classes.
    Avoid when:
        A post-hoc adjustment does as well: it needs no second stage.
    Special cases:
        ``cross_entropy`` in stage one.

    >>> [phase.share for phase in classifier_retraining(ClassPrior.from_counts([9, 1])).phases]
    [1.0, 0.5]

    Reference:
        Kang et al. (2020), section 4.1 (cRT).
    """
    loss = MarginCrossEntropy()
    return Plan((Phase(loss), Phase(loss, class_balanced_sampler, share, new_head=fresh_head)))


def learned_weight_scaling(prior: ClassPrior, share: float = 0.5) -> Plan:
    """LWS: features and head by plain training, then only the lengths of the class vectors, class-balanced.

    Formula:
        stage two learns scale[y] in f[y] = scale[y] * (w[y] . x + b[y])

    Args:
        prior: the class counts; only their number matters.
        share: length of stage two, as a share of stage one. The papers' 0.1 is of long schedules; a new head on a
            short one needs more.

    Use when:
        ``weight_normalized`` helps, and its tau should be learned for each class.
    Avoid when:
        Logits of rare classes are often negative: no scale lifts those.
    Special cases:
        ``weight_normalized`` where scale[y] = 1 / ||w[y]||^tau.

    >>> [phase.share for phase in learned_weight_scaling(ClassPrior.from_counts([9, 1])).phases]
    [1.0, 0.5]

    Reference:
        Kang et al. (2020), section 4.2 (LWS).
    """
    loss = MarginCrossEntropy()
    return Plan((Phase(loss), Phase(loss, class_balanced_sampler, share, new_head=scaled_head)))


def retrained_balanced_softmax(prior: ClassPrior, tau: float = 1.0, share: float = 0.5) -> Plan:
    """Features by plain training, then a new head on frozen features with balanced softmax.

    Formula:
        stage two: Delta[y, y'] = tau * log(pi[y'] / pi[y]), every sample once per epoch, new head

    Args:
        prior: the class counts; every class needs samples or smoothing.
        tau: strength of the adjustment in stage two.
        share: length of stage two, as a share of stage one. The papers' 0.1 is of long schedules; a new head on a
            short one needs more.

    Use when:
        Decoupled training is wanted without drawing rare samples over and over.
    Avoid when:
        The whole model can be trained with ``logit_adjusted``.
    Special cases:
        For a head trained to convergence without regularization, post-hoc adjustment of stage one's head.

    >>> [phase.share for phase in retrained_balanced_softmax(ClassPrior.from_counts([9, 1])).phases]
    [1.0, 0.5]

    Reference:
        Ren et al., "Balanced Meta-Softmax", Table 3 of the supplement: softmax features, balanced softmax head.
    """
    second = MarginCrossEntropy(margin_builders.logit_adjusted(prior, tau))
    return Plan((Phase(MarginCrossEntropy()), Phase(second, share=share, new_head=fresh_head)))


def decoupled(
    prior: ClassPrior,
    feature_tau: float = 0.0,
    feature_power: float = 1.0,
    tau: float = 1.0,
    power: float = 1.0,
    share: float = 0.5,
) -> Plan:
    """Features one way, then a new head on frozen features another way: any two strengths of margin and sampling.

    Formula:
        Delta[y, y'] = tau * log(pi[y'] / pi[y]), class y drawn in proportion to n[y]^power; each stage has its own

    Args:
        prior: the class counts; every class needs samples or smoothing where a tau is not 0.
        feature_tau: strength of the adjustment in stage one: 0 is softmax, 1 balanced softmax.
        feature_power: sampling in stage one: 1 takes every sample once per epoch, 0 is class-balanced sampling (CBS).
        tau: strength of the adjustment in stage two.
        power: sampling in stage two.
        share: length of stage two, as a share of stage one. The papers' 0.1 is of long schedules; a new head on a
            short one needs more.

    Use when:
        It is to be seen which stage gains what: 0 or 1 for each option gives all of the reference's table.
    Avoid when:
        One of the named pairs will do.
    Special cases:
        ``classifier_retraining`` at tau = power = 0; ``retrained_balanced_softmax`` as it stands.

    >>> plan = decoupled(ClassPrior.from_counts([9, 1]), feature_tau=1.0, tau=0.0, power=0.0)
    >>> [phase.share for phase in plan.phases]
    [1.0, 0.5]

    Reference:
        Ren et al., "Balanced Meta-Softmax", Table 3 of the supplement.
    """
    first, second = (MarginCrossEntropy(adjustment(prior, strength)) for strength in (feature_tau, tau))
    features = Phase(first, _power_sampler(prior, feature_power))
    return Plan((features, Phase(second, _power_sampler(prior, power), share, new_head=fresh_head)))


def adjustment(prior: ClassPrior, tau: float) -> Margins | None:
    """The margins of logit adjustment; None at tau = 0, so that a class without samples does no harm."""
    return None if tau == 0 else margin_builders.logit_adjusted(prior, tau)


def _power_sampler(prior: ClassPrior, power: float) -> SamplerFactory:
    """Classes in proportion to their size to this power; at 1, every sample once per epoch."""
    if power == 1:
        return instance_sampler
    counts = prior.counts.double()
    probs = torch.where(counts > 0, counts**power, 0.0)
    return lambda labels, seed, epochs: TargetSampler(labels, probs, seed=seed)


def _split_at(start: float) -> tuple[float, float]:
    if not 0 < start < 1:
        raise ValueError(f"start must be between 0 and 1. Got {start}.")
    return start, round(1 - start, 12)
