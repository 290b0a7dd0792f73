"""Clouded logits: rare classes get a random handicap in training, so that their samples must reach farther."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longtail._core.numerics import loss_dtype, widen
from longtail.losses._terms import mean_of_counted, register_constant
from longtail.losses.softmax import margin_cross_entropy
from longtail.prior import ClassPrior

__all__ = ["CloudedCrossEntropy", "clouded_cross_entropy"]

DEVIATION = 1 / 3
"""Of the normal noise, which is cut off at 1."""

MEAN_NOISE = DEVIATION * math.sqrt(2 / math.pi) * (1 - math.exp(-4.5)) + math.erfc(3 / math.sqrt(2))
"""The mean of what ``draw_noise`` draws: DEVIATION is a third of where it is cut off."""


def clouded_cross_entropy(
    logits: Tensor, target: Tensor, clouds: Tensor, noise: Tensor | None = None, *, ignore_index: int = -100
) -> Tensor:
    """Gaussian clouded logits: cross-entropy on logits that noise pulls down, those of rare classes most.

    Formula:
        l = cross_entropy(f - clouds * noise, y), with noise = min(|epsilon|, 1), epsilon ~ N(0, 1/9), and
        clouds[c] = logit_scale * size * (log n_max - log n[c]) / (log n_max - log n_min)

    Args:
        logits: [N, C] f.
        target: [N] class indices, or [N, C] probabilities.
        clouds: [C] how far noise can pull each class's logit down.
        noise: [N, C] in [0, 1]; None is its mean, and the loss then a margin loss with negative = -clouds * mean.
        ignore_index: a target with this index has loss 0.

    Returns:
        [N] losses in the dtype of ``logits`` (float32 under autocast).

    As the method ``gaussian_clouded``, on a cosine head with ``logit_scale`` and noise of ``size`` in its units.

    Use when:
        Samples of rare classes crowd at the decision boundary: noise in place of a fixed margin keeps it from being
        learned by heart.
    Avoid when:
        Probabilities are needed: neither the noise nor its mean is consistent for the balanced error. On plain
        logits use ``logit_adjusted``.
    Special cases:
        Cross-entropy at size = 0; ``logit_adjusted`` on average, with tau = mean noise * logit_scale * size over
        log(n_max / n_min).

    >>> clouded_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0.0, 1.0]), torch.ones(1, 2))
    tensor([1.3133])

    Deviates:
        The authors train the head anew afterwards, on re-sampled data; combine it with ``decoupled``.

    Reference:
        Li et al. (2022), "Long-tailed visual recognition via Gaussian clouded logit adjustment", section 3; size 0.5
        and logit_scale 30 as in the authors' code for CIFAR.
    """
    wide = widen(logits)
    pulled = clouds.to(wide) * (MEAN_NOISE if noise is None else noise.to(wide))
    losses = margin_cross_entropy(wide - pulled, target, ignore_index=ignore_index)
    return losses.to(loss_dtype(logits))


class CloudedCrossEntropy(nn.Module):
    """``clouded_cross_entropy``, averaged over the samples that are not ignored; in evaluation, with the mean noise.

    Args:
        prior: the class counts; every class needs samples or smoothing.
        size: how far noise can pull the rarest class down, in units of a cosine.
        logit_scale: what the cosines are multiplied by to give logits.
        ignore_index: a target with this index does not count.

    Noise is drawn from PyTorch's generator of the logits' device, as dropout is.

    >>> loss = CloudedCrossEntropy(ClassPrior.from_counts([90, 10]))
    >>> loss.clouds.tolist()
    [0.0, 15.0]
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    clouds: Tensor

    def __init__(
        self, prior: ClassPrior, size: float = 0.5, logit_scale: float = 30.0, *, ignore_index: int = -100
    ) -> None:
        super().__init__()
        for name, value in {"size": size, "logit_scale": logit_scale}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"CloudedCrossEntropy: {name} must be at least 0 and finite. Got {value}.")
        rarity = prior.log_probs.max() - prior.log_probs
        largest = logit_scale * size
        register_constant(self, "clouds", largest * rarity / rarity.max().clamp_min(torch.finfo(rarity.dtype).tiny))
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N] or [N, C]: a scalar."""
        noise = draw_noise(logits) if self.training else None
        losses = clouded_cross_entropy(logits, target, self.clouds, noise, ignore_index=self.ignore_index)
        return mean_of_counted(losses, target, self.ignore_index)


def draw_noise(like: Tensor) -> Tensor:
    """min(|epsilon|, 1) in the shape of ``like``, float32: the same draws whatever the precision of training."""
    noise = torch.randn(like.shape, dtype=torch.float32, device=like.device)
    return (noise * DEVIATION).abs().clamp_max(1)
