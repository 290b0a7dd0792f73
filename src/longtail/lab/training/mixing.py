"""Mixing samples and their labels: mixup and what grew out of it for imbalanced classes, and the prior that is left.

A mixed sample has two labels. Where rare ones are drawn more often, or favored, the labels that a model sees have
another prior than the data. ``seen_prior`` is the one place that says which; plans are built from it, and so is every
margin, weight and adjustment in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor

from longtail.prior import ClassPrior

__all__ = ["MIXINGS", "Mixing", "mix", "seen_prior"]

REMIX_RATIO = 3.0
"""Remix: from which ratio of counts on the rarer label may take all."""
REMIX_SHARE = 0.5
"""Remix: below which share of the frequent one."""


class Mixing(NamedTuple):
    """One way to mix a sample with a partner."""

    draw: Callable[[float], tuple[float, float]]
    """alpha -> the two numbers of the Beta distribution of the sample's own share."""
    join: Callable[[Tensor, Tensor, Tensor, torch.Generator | None], tuple[Tensor, Tensor]]
    """inputs, partners, own shares [N] -> mixed inputs, and what the shares [N] have become."""
    relabel: Callable[[Tensor, Tensor, Tensor], Tensor]
    """own shares [N], counts of own classes [N], of partners' classes [N] -> own shares of the label [N]."""
    prior: Callable[[Tensor, float], Tensor]
    """pi [C], alpha -> expected shares of the labels [C]."""
    has_balanced_partners: bool = False
    """Whether partners are drawn from the training set, every class alike; else they are the batch, shuffled."""


def mix(
    mixing: Mixing,
    inputs: Tensor,
    labels: Tensor,
    partners: Tensor,
    partner_labels: Tensor,
    prior: ClassPrior,
    alpha: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Mix every sample with its partner, inputs and labels.

    Formula:
        t = s onehot(y[i]) + (1 - s) onehot(y[j]), and x' has the share lam of x[i], where s = lam but for Remix

    Args:
        mixing: a row of ``MIXINGS``.
        inputs: [N, ...] floating-point; normalize images first.
        labels: [N] class indices.
        partners: [N, ...].
        partner_labels: [N].
        prior: of the training data.
        alpha: > 0 of the Beta distribution of lam; small values mix little.
        generator: source of randomness; None is PyTorch's global one.

    Returns:
        The mixed inputs and [N, C] probabilities as targets, in the dtype of the inputs.

    >>> one, two = torch.tensor([0, 1]), torch.tensor([1, 0])
    >>> prior = ClassPrior.from_counts([1, 1])
    >>> inputs, target = mix(MIXINGS["mixup"], torch.eye(2), one, torch.eye(2)[two], two, prior)
    >>> bool((inputs - target).abs().max() < 1e-6)
    True

    Deviates:
        Each sample has its own lam, as in the papers' formulas; their code draws one for the whole batch.

    Reference:
        Zhang et al. (2018), "mixup: beyond empirical risk minimization", eq. (1).
    """
    if not inputs.is_floating_point():
        raise TypeError(f"mix: inputs must be floating-point; normalize images first. Got {inputs.dtype}.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"mix: alpha must be a finite number above 0. Got {alpha}.")
    # PyTorch has no Beta draw that takes a generator; NumPy has one that takes a seed.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    drawn = np.random.default_rng(seed).beta(*mixing.draw(alpha), len(inputs))
    mixed, share = mixing.join(inputs, partners, torch.from_numpy(drawn).to(inputs), generator)
    share = mixing.relabel(share, prior.counts[labels], prior.counts[partner_labels])
    own, other = (F.one_hot(y, prior.num_classes).to(inputs) for y in (labels, partner_labels))
    return mixed, _lerp(other, own, share)


def seen_prior(prior: ClassPrior, mixing: str = "none", alpha: float = 1.0) -> ClassPrior:
    """The prior of the labels that a model sees when samples are mixed: what its margins must be made of.

    Without it a margin takes back more than the data asks for. With CMO half of each label is of a class drawn alike:
    of two classes with 5,000 and 50 samples the model sees a ratio of 3. Margins of the data's ratio, 100, would make
    up for it 34 times too strongly.

    Args:
        prior: of the training data.
        mixing: a name in ``MIXINGS``.
        alpha: of the Beta distribution.

    Returns:
        The expected counts of labels in an epoch that has every sample once, to whole samples, at least 1 where there
        was one. The prior itself for "none", "mixup" and "cutmix": partners there are as the data are.

    >>> seen_prior(ClassPrior.from_counts([5000, 50]), "cmo").counts.tolist()
    [3762, 1288]

    Batches of another sampler than one that has every sample once are not accounted for: for those that are balanced
    there is nothing to adjust.
    """
    probs = prior.probs
    seen = MIXINGS[mixing].prior(probs, alpha)
    if torch.equal(seen, probs):
        return prior
    counts = torch.where(prior.counts > 0, (seen * prior.counts.sum()).round().clamp_min(1), 0)
    return ClassPrior.from_counts(counts.long())


def _symmetric(alpha: float) -> tuple[float, float]:
    return alpha, alpha


def _mostly_own(alpha: float) -> tuple[float, float]:
    """The partner's share is Beta(alpha, 1)."""
    return 1.0, alpha


def _blend(
    inputs: Tensor, partners: Tensor, share: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    return _lerp(partners, inputs, share), share


def _paste(
    inputs: Tensor, partners: Tensor, share: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """A window of the partner, of the images' own shape and wholly inside, so that its share is the one drawn."""
    if inputs.ndim != 4:
        raise ValueError(f"cutmix needs images [N, channels, H, W]. Got {tuple(inputs.shape)}.")
    is_inside = []
    side = (1 - share.float()).clamp_min(0).sqrt()
    for length, place in zip(inputs.shape[2:], torch.rand(2, len(inputs), generator=generator), strict=True):
        size = (side * length).round()
        start = (place.to(size) * (length - size + 1)).floor().clamp_max(length - 1)[:, None]
        positions = torch.arange(length, device=inputs.device)
        is_inside.append((positions >= start) & (positions < start + size[:, None]))
    is_pasted = is_inside[0][:, None, :, None] & is_inside[1][:, None, None, :]
    actual = 1 - is_pasted.flatten(1).float().mean(dim=1)
    return torch.where(is_pasted, partners, inputs), actual.to(share)


def _keep(share: Tensor, own_counts: Tensor, partner_counts: Tensor) -> Tensor:
    return share


def _favor_rare(share: Tensor, own_counts: Tensor, partner_counts: Tensor) -> Tensor:
    """The rarer of two labels takes all where it is much rarer and the other's share is small."""
    ratio = own_counts / partner_counts
    share = torch.where((ratio >= REMIX_RATIO) & (share < REMIX_SHARE), 0.0, share)
    return torch.where((ratio <= 1 / REMIX_RATIO) & (1 - share < REMIX_SHARE), 1.0, share)


def _same_prior(probs: Tensor, alpha: float) -> Tensor:
    return probs


def _remixed_prior(probs: Tensor, alpha: float) -> Tensor:
    """pi[i] * (sum over comparable j of pi[j] + 2 a sum over rarer + 2 (1 - a) sum over more frequent).

    a = E[lam; lam >= the share below which a frequent label yields].
    """
    kept = 0.5 * (1 - float(special.betainc(alpha + 1, alpha, REMIX_SHARE)))
    ordered = probs.sort().values
    sums = F.pad(ordered.cumsum(0), (1, 0))
    # A ratio of exactly 3 counts as one, also after rounding.
    rarer = sums[torch.searchsorted(ordered, probs / REMIX_RATIO * (1 + 1e-12), right=True)]
    frequent = 1 - sums[torch.searchsorted(ordered, probs * REMIX_RATIO * (1 - 1e-12))]
    return probs * (1 + (2 * kept - 1) * rarer + (1 - 2 * kept) * frequent)


def _half_balanced(probs: Tensor, alpha: float) -> Tensor:
    return _toward_uniform(probs, 0.5)


def _partly_balanced(probs: Tensor, alpha: float) -> Tensor:
    return _toward_uniform(probs, alpha / (1 + alpha))


def _toward_uniform(probs: Tensor, amount: float) -> Tensor:
    is_there = (probs > 0).double()
    return torch.lerp(probs, is_there / is_there.sum(), amount)


def _lerp(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    return torch.lerp(start, end, share.view(-1, *[1] * (end.ndim - 1)))


MIXINGS: Mapping[str, Mixing] = MappingProxyType(
    {
        "none": Mixing(_symmetric, _blend, _keep, _same_prior),
        # Zhang et al. (2018), "mixup: beyond empirical risk minimization", eq. (1).
        "mixup": Mixing(_symmetric, _blend, _keep, _same_prior),
        # Yun et al. (2019), "CutMix", eq. (1); there windows may leave the image, and shares are what is left.
        "cutmix": Mixing(_symmetric, _paste, _keep, _same_prior),
        # Chou et al. (2020), "Remix: rebalanced mixup", eq. (5)-(7), with kappa = 3 and tau = 0.5.
        "remix": Mixing(_symmetric, _blend, _favor_rare, _remixed_prior),
        # Galdran et al. (2021), "Balanced-MixUp for highly imbalanced medical image classification", eq. (3).
        "balanced_mixup": Mixing(_mostly_own, _blend, _keep, _partly_balanced, has_balanced_partners=True),
        # Park et al. (2022), "The majority can help the minority", Algorithm 1 with r = 1: CMO.
        "cmo": Mixing(_symmetric, _paste, _keep, _half_balanced, has_balanced_partners=True),
    }
)
"""Every way to mix by the name that ``train.mixing`` has for it."""
