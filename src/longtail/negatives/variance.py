"""How far a sampled loss is from the one it stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._core.numerics import loss_of_gap
from longtail.margins import Margins
from longtail.negatives._sampling import KnownDistribution, check_finite_weights, sampling_of_all
from longtail.negatives.weightings import Weighting

__all__ = ["sampling_variance", "expected_squared_error"]


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
    sampling = sampling_of_all(distribution, num_negatives)
    log_w = check_finite_weights(weighting(sampling), sampling)
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
    sampling = sampling_of_all(distribution, num_negatives)
    log_w = check_finite_weights(weighting(sampling), sampling)
    wide = logits.double()
    gaps = (wide - wide.gather(1, target[:, None])).scatter(1, target[:, None], -torch.inf)
    log_rho = _log_of_pairs(sampling.log_counts + log_w, target)
    log_mu = loss_of_gap((log_rho + gaps).logsumexp(dim=1, keepdim=True))
    # All relative to mu, so that no exponential is of a number above 0 where the error itself is small.
    shares = log_rho + gaps - log_mu
    squares = (shares + _log_of_pairs(log_w, target) + gaps - log_mu).exp().sum(dim=1)
    return (squares - shares.exp().sum(dim=1).square() / num_negatives).clamp_min(0)


def _log_of_pairs(margins: Margins, target: Tensor) -> Tensor:
    """[N, C] what margins are between each sample's label and every other."""
    return margins.positive[target][:, None] + margins.negative
