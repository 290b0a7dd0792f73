"""Losses of one sigmoid per class, for one label or several per sample."""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import check_indicator, check_logits, check_value_range, one_hot
from longtail._core.numerics import focus, loss_dtype, widen
from longtail.losses._terms import check_class_terms, register_constant
from longtail.prior import ClassPrior

__all__ = [
    "sigmoid_offsets",
    "balanced_sigmoid",
    "BalancedSigmoid",
    "binary_cross_entropy",
    "binary_focal_loss",
    "asymmetric_loss",
    "distribution_balanced_loss",
    "MultilabelFunction",
    "MultilabelLoss",
    "DistributionBalancedLoss",
]


def sigmoid_offsets(prior: ClassPrior, keep_constant: bool = True) -> Tensor:
    """What ``balanced_sigmoid`` adds to each class's logit.

    Formula:
        offset[j] = log(n[j] / (n - n[j])) + log(k - 1), for k classes and n samples

    Args:
        prior: the class counts; every class needs samples, and none may be in all of them.
        keep_constant: whether the term log(k - 1), the same for all classes, stays. The paper drops it for detection
            heads, so as not to penalize the background.

    Returns:
        [C] float64.

    >>> sigmoid_offsets(ClassPrior.from_counts([50, 50])).tolist()
    [0.0, 0.0]

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement eq. (22) and the remark below eq. (23).
    """
    rates = _open_rates(prior, "sigmoid_offsets")
    if keep_constant and prior.num_classes < 2:
        raise ValueError("sigmoid_offsets: keep_constant needs at least 2 classes. Got 1.")
    constant = torch.log(torch.tensor(float(prior.num_classes - 1), dtype=rates.dtype)) if keep_constant else 0.0
    return torch.logit(rates) + constant


def balanced_sigmoid(
    logits: Tensor,
    target: Tensor,
    offsets: Tensor,
    foreground: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Balanced softmax's counterpart for independent sigmoids (multiple binary logistic regression).

    Formula:
        l = sum_j BCE(sigmoid(f[j] + offset[j]), target[j]); background samples have offset 0

    Args:
        logits: [N, C].
        target: [N] class indices, or [N, C] of 0 and 1. With indices, a background sample's is not looked at.
        offsets: [C] from ``sigmoid_offsets``.
        foreground: [N] bool; False marks samples of no class, as detection heads see them. None: all foreground.
        mask: [N, C] bool, False where a label does not count, as ``PartialLabelMasking`` makes it. None: all count.

    Returns:
        [N] losses, summed over classes.

    Use when:
        A sigmoid head, of one label or several per sample, should treat rare and frequent classes alike; predictions
        then use the logits without offsets.
    Avoid when:
        Probabilities under the training distribution are needed.
    Special cases:
        Binary cross-entropy summed over classes, for a uniform prior of one label per sample.

    >>> offsets = sigmoid_offsets(ClassPrior.from_counts([90, 10]))
    >>> balanced_sigmoid(torch.zeros(1, 2), torch.tensor([1]), offsets).exp().round()
    tensor([100.])

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement eq. (12)-(14), (23) and the remark below it.
    """
    check_logits(logits)
    wide = widen(logits)
    if target.ndim == 1:
        target = one_hot(target, wide, foreground)
    if target.shape != logits.shape:
        raise ValueError(
            f"balanced_sigmoid: target must be [N] indices or [N, C]. Got {tuple(target.shape)} "
            f"for logits {tuple(logits.shape)}."
        )
    shift = offsets.to(wide)
    if shift.shape != logits.shape[1:]:
        raise ValueError(f"balanced_sigmoid: expected {logits.shape[1]} offsets. Got shape {tuple(shift.shape)}.")
    if foreground is not None:
        shift = shift * foreground[:, None]
    weight = None if mask is None else mask.to(wide)
    losses = F.binary_cross_entropy_with_logits(wide + shift, target.to(wide), weight, reduction="none")
    return losses.sum(dim=1).to(loss_dtype(logits))


class BalancedSigmoid(nn.Module):
    """``balanced_sigmoid`` for a prior, averaged over samples.

    Args:
        prior: the class counts.
        keep_constant: False for detection heads, as the paper advises.

    >>> BalancedSigmoid(ClassPrior.from_counts([90, 10]))(torch.zeros(2, 2), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    offsets: Tensor

    def __init__(self, prior: ClassPrior, keep_constant: bool = True) -> None:
        super().__init__()
        offsets = sigmoid_offsets(prior, keep_constant)
        self.register_buffer("offsets", offsets.to(torch.get_default_dtype()))

    def forward(
        self, logits: Tensor, target: Tensor, foreground: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The mean loss of logits [N, C] and target [N] or [N, C]: a scalar."""
        losses = balanced_sigmoid(logits, target, self.offsets, foreground, mask)
        return losses.mean()


def binary_cross_entropy(
    logits: Tensor, target: Tensor, class_weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy of independent sigmoids, summed over classes.

    Formula:
        l = sum_c g[c] * w[c] * (y[c] * softplus(-f[c]) + (1 - y[c]) * softplus(f[c]))

    Args:
        logits: [N, C] f, any floating dtype. Half precision is computed in float32.
        target: [N, C] y, of 0 and 1 (or probabilities), or [N] class indices.
        class_weights: [C] w; None is 1. With ``effective_number`` it is the class-balanced loss.
        mask: [N, C] g, bool, False where a label does not count; None: all count.

    Returns:
        [N] losses in the dtype of ``logits`` (float32 under autocast).

    Use when:
        The data are multi-label, and probabilities should be those of the data.
    Avoid when:
        Rare labels matter and predictions are made at 0.5: nearly all of what it sees of them are negatives.
    Special cases:
        ``binary_focal_loss`` at gamma = 0; ``decoupled_logistic`` for one label per sample.

    >>> binary_cross_entropy(torch.zeros(1, 3), torch.tensor([[1, 0, 1]])).exp().round()
    tensor([8.])

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (1), (2) and (8).
    """
    _check_mask(logits, mask)
    wide = widen(logits)
    labels = _labels(wide, target, may_be_soft=True)
    losses = F.binary_cross_entropy_with_logits(
        wide, labels, _element_weights(wide, class_weights, mask), reduction="none"
    )
    return losses.sum(dim=1).to(loss_dtype(logits))


def binary_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    class_weights: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Focal loss of independent sigmoids, summed over classes: labels that are already right count less.

    Formula:
        l = sum_c g[c] * w[c] * (1 - p[c])^gamma * -log p[c], with p the probability of the true label, 0 or 1

    Args:
        logits: [N, C].
        target: [N, C] of 0 and 1, or [N] class indices.
        gamma: focusing strength, >= 0.
        class_weights: [C] w; None is 1.
        mask: [N, C] g, bool, False where a label does not count; None: all count.

    Returns:
        [N] losses.

    Use when:
        Easy negatives outnumber everything else, as in detection.
    Avoid when:
        Probabilities must be calibrated, or rare labels must be predicted at 0.5.
    Special cases:
        ``binary_cross_entropy`` at gamma = 0; ``asymmetric_loss`` with equal gammas and no shift.

    >>> binary_focal_loss(torch.zeros(1, 2), torch.tensor([[1, 0]]), gamma=1.0).item() / 0.5
    1.3862943649291992

    Deviates:
        The factor alpha of Lin et al., one for positives and one for negatives, is left out, as in the PLM paper.

    Reference:
        Lin et al. (2017), "Focal loss for dense object detection", eq. (4).
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(f"binary_focal_loss: gamma must be at least 0 and finite. Got {gamma}.")
    _check_mask(logits, mask)
    wide = widen(logits)
    cross_entropy = F.binary_cross_entropy_with_logits(wide, _labels(wide, target), reduction="none")
    return _total(focus(cross_entropy, gamma), class_weights, mask).to(loss_dtype(logits))


def asymmetric_loss(
    logits: Tensor,
    target: Tensor,
    positive_gamma: float = 0.0,
    negative_gamma: float = 4.0,
    shift: float = 0.05,
    class_weights: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """ASL: focal loss that forgives negatives more than positives, and drops the easiest negatives.

    Formula:
        l = sum_c w[c] * (1 - p[c])^positive_gamma * -log p[c] over positives
          + sum_c w[c] * q[c]^negative_gamma * -log(1 - q[c]) over negatives, with q = max(p - shift, 0)

    Args:
        logits: [N, C].
        target: [N, C] of 0 and 1, or [N] class indices.
        positive_gamma: focusing of positives, >= 0.
        negative_gamma: focusing of negatives, >= 0; larger is more lenient.
        shift: m in [0, 1): negatives with a probability up to m do not count.
        class_weights: [C] w; None is 1.
        mask: [N, C] bool, False where a label does not count; None: all count.

    Returns:
        [N] losses.

    Use when:
        Samples have few of many labels, and mean average precision counts.
    Avoid when:
        Probabilities are needed: they are far too high, and 0.5 is no natural threshold.
    Special cases:
        ``binary_focal_loss`` with equal gammas and shift = 0; ``binary_cross_entropy`` with both 0 as well.

    >>> asymmetric_loss(torch.tensor([[0.0, -4.0]]), torch.tensor([[1, 0]])).exp().round()
    tensor([2.])

    Deviates:
        The authors' code can treat the focusing factor as a constant; here it has its gradient, as in their paper.

    Reference:
        Ridnik et al. (2021), "Asymmetric loss for multi-label classification", eq. (4)-(7).
    """
    if not (0 <= positive_gamma < math.inf and 0 <= negative_gamma < math.inf and 0 <= shift < 1):
        raise ValueError(
            "asymmetric_loss: gammas must be at least 0 and finite, and shift in [0, 1). "
            f"Got {positive_gamma=}, {negative_gamma=}, {shift=}."
        )
    _check_mask(logits, mask)
    wide = widen(logits)
    is_positive = check_indicator(wide, target)
    positive = focus(F.softplus(-wide), positive_gamma)
    if shift == 0:
        negative = focus(F.softplus(wide), negative_gamma)
    else:  # 1 - q is at least the shift, so its logarithm is safe
        negative = focus(-torch.log1p(-(wide.sigmoid() - shift).clamp_min(0)), negative_gamma)
    return _total(torch.where(is_positive, positive, negative), class_weights, mask).to(loss_dtype(logits))


def distribution_balanced_loss(
    logits: Tensor,
    target: Tensor,
    rates: Tensor,
    floor: float = 0.1,
    slope: float = 10.0,
    center: float = 0.2,
    bias_scale: float = 0.05,
    negative_scale: float = 2.0,
    gamma: float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Weights that undo how labels occur together, and negatives that stop pushing once they are low.

    Formula:
        l = sum_c w[c] * (softplus(-z[c]) if y[c] else softplus(lambda * z[c]) / lambda), with
        z[c] = f[c] - kappa * log(1 / rate[c] - 1),
        w[c] = floor + sigmoid(slope * (s[c] - center)),  s[c] = (1 / rate[c]) / sum_{j: y[j] = 1} 1 / rate[j]

    Args:
        logits: [N, C] f.
        target: [N, C] of 0 and 1, or [N] class indices. A row without labels has s = infinity: full weights.
        rates: [C] share of samples with each label, in (0, 1), as ``ClassPrior.rates``.
        floor: the least weight; alpha in the paper.
        slope: of the map from s to weights; beta in the paper.
        center: of that map; mu in the paper (0.2 for COCO-MLT, 0.3 for VOC-MLT).
        bias_scale: kappa, how much of the log-odds is taken off the logits.
        negative_scale: lambda >= 1, how soon negatives are left alone (2 for COCO-MLT, 5 for VOC-MLT).
        gamma: focusing strength on top; 2 in the authors' configurations.
        mask: [N, C] bool, False where a label does not count; None: all count.

    Returns:
        [N] losses, summed over classes.

    Use when:
        Samples are drawn class by class (``RepeatFactorSampler``, class-aware sampling), and labels occur together.
    Avoid when:
        Labels hardly occur together, or 0.5 must mean something.
    Special cases:
        ``binary_cross_entropy`` with weights 1, at floor = 0.5, slope = 0, bias_scale = 0 and negative_scale = 1.

    >>> logits, target, rates = torch.zeros(1, 2), torch.tensor([[1, 0]]), torch.tensor([0.5, 0.5])
    >>> distribution_balanced_loss(logits, target, rates, floor=0.5, slope=0.0, negative_scale=1.0).exp().round()
    tensor([4.])

    Deviates:
        The paper averages over classes, here they are summed, as in the other losses. Its code divides kappa by
        lambda and doubles the focal form; here formulas are the paper's.

    Reference:
        Wu et al. (2020), "Distribution-balanced loss for multi-label classification in long-tailed datasets",
        section 3.
    """
    if not (0 <= gamma < math.inf and 0 < negative_scale < math.inf):
        raise ValueError(
            "distribution_balanced_loss: gamma must be at least 0 and negative_scale above 0, both finite. "
            f"Got {gamma=}, {negative_scale=}."
        )
    _check_mask(logits, mask)
    wide = widen(logits)
    is_positive = check_indicator(wide, target)
    rates = rates.to(wide)
    shifted = wide - bias_scale * torch.log(1 / rates - 1)
    inverse = 1 / rates
    # A row without labels divides by 0: its shares are infinite, and its weights floor + 1.
    shares = inverse / torch.where(is_positive, inverse, 0).sum(dim=1, keepdim=True)
    balance = floor + torch.sigmoid(slope * (shares - center)) if slope else shares.new_tensor(floor + 0.5)
    positive = focus(F.softplus(-shifted), gamma)
    negative = focus(F.softplus(negative_scale * shifted), gamma) / negative_scale
    return _total(balance * torch.where(is_positive, positive, negative), None, mask).to(loss_dtype(logits))


class MultilabelFunction(Protocol):
    """A loss that ``MultilabelLoss`` can call, such as ``binary_cross_entropy``, or a ``partial`` of another."""

    def __call__(
        self, logits: Tensor, target: Tensor, *, class_weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """[N] losses."""


class MultilabelLoss(nn.Module):
    """The mean over samples of a loss over independent sigmoids.

    Args:
        function: ``binary_cross_entropy``, ``binary_focal_loss``, ``asymmetric_loss``, or a function with their
            arguments; set others with ``functools.partial``.
        class_weights: [C] w; None is 1.

    >>> MultilabelLoss()(torch.zeros(2, 3), torch.tensor([[1, 0, 1], [0, 0, 0]])).exp().round()
    tensor(8.)
    """

    class_weights: Tensor | None

    def __init__(
        self, function: MultilabelFunction = binary_cross_entropy, class_weights: Tensor | None = None
    ) -> None:
        super().__init__()
        self.function = function
        register_constant(self, "class_weights", class_weights)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N, C] or [N]: a scalar."""
        return self.function(logits, target, class_weights=self.class_weights, mask=mask).mean()


class DistributionBalancedLoss(nn.Module):
    """``distribution_balanced_loss`` for a prior, averaged over samples.

    Args:
        prior: counts of positives and of samples; every class needs some of both.
        floor: see the function.
        slope: see the function.
        center: see the function.
        bias_scale: see the function.
        negative_scale: see the function.
        gamma: see the function.

    >>> prior = ClassPrior.from_indicator([[1, 0], [0, 1], [1, 0]])
    >>> DistributionBalancedLoss(prior)(torch.zeros(2, 2), torch.tensor([[1, 0], [0, 0]])).shape
    torch.Size([])
    """

    rates: Tensor

    def __init__(
        self,
        prior: ClassPrior,
        floor: float = 0.1,
        slope: float = 10.0,
        center: float = 0.2,
        bias_scale: float = 0.05,
        negative_scale: float = 2.0,
        gamma: float = 0.0,
    ) -> None:
        super().__init__()
        rates = _open_rates(prior, "DistributionBalancedLoss")
        self.register_buffer("rates", rates.to(torch.get_default_dtype()))
        self.settings = (floor, slope, center, bias_scale, negative_scale, gamma)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean loss of logits [N, C] and target [N, C] or [N]: a scalar."""
        return distribution_balanced_loss(logits, target, self.rates, *self.settings, mask=mask).mean()


def _labels(wide: Tensor, target: Tensor, may_be_soft: bool = False) -> Tensor:
    """[N, C] target in the dtype of the logits."""
    if may_be_soft and target.is_floating_point() and target.shape == wide.shape:
        check_value_range(target, "target", "in [0, 1]")
        return target.to(wide)
    return check_indicator(wide, target).to(wide)


def _check_mask(logits: Tensor, mask: Tensor | None) -> None:
    check_logits(logits)
    if mask is not None and mask.shape != logits.shape:
        raise ValueError(f"mask must be {tuple(logits.shape)}, as the logits. Got {tuple(mask.shape)}.")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool. Got {mask.dtype}.")


def _element_weights(wide: Tensor, class_weights: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """[N, C] or [C], what each loss is multiplied with; None is 1."""
    if class_weights is None:
        return None if mask is None else mask.view(torch.uint8).to(wide)  # bool itself is slow to convert
    check_class_terms(wide.shape[1], None, class_weights)
    return class_weights.to(wide) if mask is None else mask.view(torch.uint8).to(wide) * class_weights.to(wide)


def _total(losses: Tensor, class_weights: Tensor | None, mask: Tensor | None) -> Tensor:
    factors = _element_weights(losses, class_weights, mask)
    return (losses if factors is None else losses * factors).sum(dim=1)


def _open_rates(prior: ClassPrior, name: str) -> Tensor:
    """[C] the share of samples with each label, if none of them is 0 or 1."""
    prior.log_probs  # noqa: B018  (raises where a class has no samples)
    rates = prior.rates
    always = torch.nonzero(rates >= 1)
    if always.numel():
        raise ValueError(f"{name}: class {int(always[0])} is in every sample, so its odds are infinite.")
    return rates
