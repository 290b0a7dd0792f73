"""Class vectors scaled by their length, or by how frequent their class is."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.numerics import widen
from longtail.posthoc._inputs import check_strength
from longtail.prior import ClassPrior

__all__ = ["normalize_weights", "normalize_weights_by_prior"]


def normalize_weights(linear_weight: Tensor, prior: ClassPrior, tau: float = 1.0) -> Tensor:
    """Post-hoc weight normalization: class vectors of large norm, which frequent classes tend to have, are shortened.

    Formula:
        w[y] / ||w[y]||^tau

    Args:
        linear_weight: [C, D] class vectors of a trained linear head. Drop its bias, which would weigh more next to
            shortened vectors. The method ``weight_normalized`` sets it to 0.
        prior: the class counts; only their number matters.
        tau: strength; 1 gives every class a vector of length 1.

    Returns:
        [C, D] class vectors. A vector of length 0 stays as it is.

    Use when:
        Comparing with the literature; the head was trained by SGD with momentum, where norms follow frequencies.
    Avoid when:
        The head was trained by Adam: norms then do not follow frequencies. Logit adjustment is consistent for the
        balanced error and this is not; never use both.
    Special cases:
        The weights themselves at tau = 0; cosine logits, times the embedding's length, at tau = 1.

    >>> normalize_weights(torch.tensor([[3.0, 4.0], [0.6, 0.8]]), ClassPrior.from_counts([9, 1])).norm(dim=1)
    tensor([1., 1.])

    Deviates:
        Menon et al. allow a bias as one more column of w; without one, as in Kang et al., the length is that of the
        class vector alone.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (3); Kang et al. (2020), "Decoupling
        representation and classifier for long-tailed recognition", section 4, "tau-normalized classifier".
    """
    _check_weight(linear_weight, prior)
    wide = widen(linear_weight)  # lengths in float16 end at 65,504
    norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    divisors = torch.where(norms > 0, norms, torch.ones_like(norms)) ** check_strength(tau)
    return (wide / divisors).to(linear_weight.dtype)


def normalize_weights_by_prior(linear_weight: Tensor, prior: ClassPrior, tau: float = 1.0) -> Tensor:
    """Post-hoc weight normalization by class frequency: class vectors of rare classes are lengthened.

    Formula:
        w[y] / pi[y]^tau

    Args:
        linear_weight: [C, D] class vectors of a trained linear head. A bias is one more column, so that the whole
            logit is divided; the method ``prior_normalized`` does that.
        prior: the class counts; every class needs samples or smoothing.
        tau: strength.

    Returns:
        [C, D] class vectors.

    Use when:
        Comparing with the literature; unlike ``normalize_weights`` it does not depend on the optimizer.
    Avoid when:
        Rare classes have negative logits: a factor makes these more negative, so such a class never wins. Logit
        adjustment has neither flaw; never use both.
    Special cases:
        The weights themselves at tau = 0.

    >>> normalize_weights_by_prior(torch.ones(2, 1), ClassPrior.from_counts([3, 1])).flatten()
    tensor([1.3333, 4.0000])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (3) and section 4.2; Kim & Kim (2019), "Adjusting
        decision boundary for class imbalanced learning"; Ye et al. (2020).
    """
    _check_weight(linear_weight, prior)
    wide = widen(linear_weight)
    factors = torch.exp(-check_strength(tau) * prior.log_probs).to(wide)
    return (wide * factors[:, None]).to(linear_weight.dtype)


def _check_weight(weight: Tensor, prior: ClassPrior) -> None:
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(f"linear_weight must be floating-point [C, D]. Got {weight.dtype} {tuple(weight.shape)}.")
    if len(weight) != prior.num_classes:
        raise ValueError(f"prior is for {prior.num_classes} classes, but linear_weight has {len(weight)} rows.")
