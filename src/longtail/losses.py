"""Losses over class logits that take margins and class weights, one value per sample, and their modules.

The margin loss, eq. (11) of "Long-tail learning via logit adjustment", is

    l(y, f) = alpha[y] * log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])).

With ``Delta[y, y'] = positive[y] + negative[y']`` it is plain cross-entropy on ``f + negative`` once the target's own
logit is ``f[y] - positive[y]``: one addition and N scattered numbers, nothing of size C x C. On CPUs even that
addition is saved; ``_scaled_softmax`` says how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longtail._chunked import (
    LINEAR_CHUNK_ELEMENTS,
    LINEAR_WHOLE_ELEMENTS,
    MeanLinearCrossEntropy,
    row_chunks,
    shift_target,
)
from longtail._scaled_softmax import ScaledSoftmaxCrossEntropy, loss_of_gap, margin_factors
from longtail.margins import Margins
from longtail.prior import ClassPrior

__all__ = [
    "BalancedSigmoid",
    "DecoupledLoss",
    "FocalLoss",
    "LinearMarginCrossEntropy",
    "MarginCrossEntropy",
    "balanced_sigmoid",
    "cosine_contrastive",
    "decoupled_hinge",
    "decoupled_logistic",
    "focal_loss",
    "linear_margin_cross_entropy",
    "margin_cross_entropy",
    "mean_linear_margin_cross_entropy",
    "sigmoid_offsets",
]


def margin_cross_entropy(
    logits: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy with a margin between the true label and every other.

    Formula:
        l = alpha[y] * log(1 + sum_{y' != y} exp(positive[y] + negative[y'] + f[y'] - f[y]))

    Args:
        logits: [N, C] f, any floating dtype. Half precision is computed in float32.
        target: [N] class indices, or [N, C] probabilities (mixup).
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.
        ignore_index: a target with this index has loss 0 and no gradient.
        label_smoothing: in [0, 1], mixes the target with the uniform distribution.

    Returns:
        [N] losses in the dtype of ``logits`` (float32 under autocast).

    A target distribution t, given or made by smoothing, costs sum_y t[y] * l(y, f): each label in it asks for its own
    margin and carries its own weight. For margins with positive = -negative that is cross-entropy between t and the
    softmax of ``logits + negative``.

    >>> from longtail import ClassPrior, margins
    >>> prior = ClassPrior.from_counts([90, 10])
    >>> margin_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), margins.logit_adjusted(prior)).exp().round()
    tensor([10.])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    return _margin_losses(logits, target, _terms(margins, weights, ignore_index, label_smoothing), take_mean=False)


def linear_margin_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """``margin_cross_entropy(F.linear(x, weight, bias), target, ...)`` without the [N, C] matrix.

    The negative part of the margin rides in the bias, so a margin costs nothing. Large problems go a few rows at a
    time and are computed again in the backward pass; for the mean, ``mean_linear_margin_cross_entropy`` avoids that.

    Args:
        x: [N, D] embeddings.
        weight: [C, D] class vectors.
        target: [N] class indices, or [N, C] probabilities.
        margins: Delta; None is 0.
        bias: [C]; None is 0.
        weights: [C] alpha; None is 1.
        ignore_index: a target with this index has loss 0 and no gradient.
        label_smoothing: in [0, 1].

    Returns:
        [N] losses.

    >>> x, weight = torch.ones(2, 3), torch.zeros(4, 3)
    >>> linear_margin_cross_entropy(x, weight, torch.tensor([0, 3])).exp()
    tensor([4., 4.])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    terms = _terms(margins, weights, ignore_index, label_smoothing)
    return _all_linear_losses(x, weight, target, bias, terms)


def mean_linear_margin_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    margins: Margins | None = None,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The mean of ``linear_margin_cross_entropy`` over samples that are not ignored, in less time and memory.

    Knowing the reduction, it takes gradients in the forward pass, chunk by chunk, so large problems hold neither the
    [N, C] logits nor their gradient and compute nothing twice. That route allows one plain ``backward`` and no
    forward-mode or second derivatives; take ``linear_margin_cross_entropy(...).mean()`` for those. Small problems,
    half precision, autocast, ``torch.compile``, probability targets and label smoothing take that form by themselves.

    Args:
        x: [N, D] embeddings.
        weight: [C, D] class vectors.
        target: [N] class indices, or [N, C] probabilities.
        margins: Delta; None is 0.
        bias: [C]; None is 0.
        weights: [C] alpha; None is 1. The mean divides by the number of samples, not by the sum of weights.
        ignore_index: a target with this index does not count.
        label_smoothing: in [0, 1].

    Returns:
        A scalar; NaN if no sample counts, as PyTorch has it.

    >>> x, weight = torch.ones(2, 3), torch.zeros(4, 3)
    >>> mean_linear_margin_cross_entropy(x, weight, torch.tensor([0, 3])).exp()
    tensor(4.)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (11).
    """
    terms = _terms(margins, weights, ignore_index, label_smoothing)
    return _mean_linear_loss(x, weight, target, bias, terms)


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    margins: Margins | None = None,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -100,
) -> Tensor:
    """Softmax focal loss: samples that are already right count less.

    Formula:
        l = alpha[y] * (1 - p)^gamma * -log p, where -log p is the margin cross-entropy

    Args:
        logits: [N, C].
        target: [N] class indices.
        gamma: focusing strength, >= 0.
        margins: Delta inside p; None is 0.
        weights: [C] alpha; None is 1. With ``effective_number`` it is the class-balanced focal loss.
        ignore_index: a target with this index has loss 0.

    Returns:
        [N] losses.

    Use when:
        Easy samples dominate the gradient.
    Avoid when:
        Calibrated probabilities or balanced error are the aim: by itself it does not correct the prior.
    Equals:
        ``margin_cross_entropy`` at gamma = 0.

    >>> focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0).item() / 0.5
    0.6931471824645996

    Deviates:
        Lin et al. define it on independent sigmoids; for one label a sample the softmax form is usual.

    Reference:
        Lin et al. (2017), "Focal loss for dense object detection", eq. (4).
    """
    if not gamma >= 0:
        raise ValueError(f"focal_loss: gamma must be at least 0. Got {gamma}.")
    cross_entropy = margin_cross_entropy(_widened(logits), target, margins, ignore_index=ignore_index)
    losses = _focused(cross_entropy, gamma)
    losses = losses if weights is None else losses * weights.to(losses)[_safe(target, ignore_index)]
    return losses.to(_loss_dtype(logits))


def decoupled_logistic(
    logits: Tensor, target: Tensor, margins: Margins | None = None, weights: Tensor | None = None
) -> Tensor:
    """One-against-the-rest logistic loss with margins as weights on the negatives.

    Formula:
        l = alpha[y] * (softplus(-f[y]) + sum_{y' != y} exp(Delta[y, y']) * softplus(f[y']))

    Args:
        logits: [N, C].
        target: [N] class indices.
        margins: Delta; None is 0, all negatives count 1.
        weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        Labels are scored independently, as in retrieval; sampled negatives then estimate it without bias.
    Avoid when:
        Exactly one label is right and C is moderate: softmax cross-entropy is better there.
    Equals:
        Binary cross-entropy summed over classes, with no margins.

    >>> round(decoupled_logistic(torch.zeros(1, 3), torch.tensor([0])).item() / 3, 4)
    0.6931

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (5) and (9).
    """
    return _decoupled(logits, target, lambda z: F.softplus(-z), F.softplus, margins, weights)


def decoupled_hinge(
    logits: Tensor, target: Tensor, margins: Margins | None = None, weights: Tensor | None = None
) -> Tensor:
    """One-against-the-rest hinge loss with margins as weights on the negatives.

    Formula:
        l = alpha[y] * ([1 - f[y]]_+ + sum_{y' != y} exp(Delta[y, y']) * [1 + f[y']]_+)

    Args:
        logits: [N, C].
        target: [N] class indices.
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        A support-vector flavor is wanted: samples beyond the margin have no gradient.
    Avoid when:
        Probabilities are needed.
    Equals:
        The one-against-the-rest linear SVM's loss, with no margins.

    >>> decoupled_hinge(torch.tensor([[2.0, -2.0]]), torch.tensor([0])).item()
    0.0

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", eq. (5).
    """
    return _decoupled(logits, target, lambda z: F.relu(1 - z), lambda z: F.relu(1 + z), margins, weights)


def cosine_contrastive(
    similarities: Tensor, target: Tensor, margins: Margins | None = None, weights: Tensor | None = None
) -> Tensor:
    """Contrastive loss on cosines: the true label's to 1, the others' to at most 0.

    Formula:
        l = alpha[y] * ((1 - z[y])^2 + sum_{y' != y} exp(Delta[y, y']) * [z[y']]_+^2)

    Args:
        similarities: [N, C] cosines z between embeddings and class vectors.
        target: [N] class indices.
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.

    Returns:
        [N] losses.

    Use when:
        Embeddings are searched by cosine.
    Avoid when:
        Balanced accuracy is the aim; the papers find softmax cross-entropy better on tails.
    Equals:
        The paper's contrastive baseline, with no margins.

    >>> cosine_contrastive(torch.tensor([[1.0, -0.5]]), torch.tensor([0])).item()
    0.0

    Deviates:
        The paper's eq. (5) writes the negative's loss at -f; its pair is meant on f itself, as here.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.1.
    """
    return _decoupled(
        similarities, target, lambda z: (1 - z).square(), lambda z: F.relu(z).square(), margins, weights
    )


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
        A sigmoid head, one label or several a sample, should treat rare and frequent classes alike; predictions then
        use the logits without offsets.
    Avoid when:
        Probabilities under the training distribution are needed.
    Equals:
        Binary cross-entropy summed over classes, for a uniform prior of one label a sample.

    >>> offsets = sigmoid_offsets(ClassPrior.from_counts([90, 10]))
    >>> balanced_sigmoid(torch.zeros(1, 2), torch.tensor([1]), offsets).exp().round()
    tensor([100.])

    Reference:
        Ren et al., "Balanced Meta-Softmax", supplement eq. (12)-(14), (23) and the remark below it.
    """
    _check_logits(logits)
    wide = _widened(logits)
    if target.ndim == 1:
        target = _one_hot(target, wide, foreground)
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
    return losses.sum(dim=1).to(_loss_dtype(logits))


class MarginCrossEntropy(nn.Module):
    """``margin_cross_entropy``, averaged over the samples that are not ignored.

    Args:
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1. The mean divides by the number of samples, where PyTorch's own class weights
            divide by the sum of weights.
        ignore_index: a target with this index does not count.
        label_smoothing: in [0, 1].

    The margins and weights are buffers: they move with ``.to`` and are part of ``state_dict``.

    >>> from longtail import ClassPrior, MarginCrossEntropy, margins
    >>> prior = ClassPrior.from_labels([0, 0, 0, 1])
    >>> loss = MarginCrossEntropy(margins.logit_adjusted(prior))
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    positive: Tensor | None
    negative: Tensor | None
    weights: Tensor | None
    target_shift: Tensor | None
    factors: Tensor | None

    def __init__(
        self,
        margins: Margins | None = None,
        weights: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        _register_buffers(self, margins, weights)
        for keep in (_keep_target_shift, _keep_factors):
            keep(self)
            self.register_load_state_dict_post_hook(keep)  # type: ignore[no-untyped-call]
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N] or [N, C]: a scalar, NaN if no sample counts."""
        return _margin_losses(logits, target, _kept_terms(self, self.factors), take_mean=True)


class LinearMarginCrossEntropy(nn.Module):
    """``mean_linear_margin_cross_entropy`` of embeddings and a head: the loss for large C.

    Args:
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.
        ignore_index: a target with this index does not count.
        label_smoothing: in [0, 1].

    >>> head = nn.Linear(8, 5)
    >>> LinearMarginCrossEntropy()(torch.randn(4, 8), head.weight, torch.tensor([0, 1, 2, 3]), head.bias).shape
    torch.Size([])
    """

    positive: Tensor | None
    negative: Tensor | None
    weights: Tensor | None
    target_shift: Tensor | None

    def __init__(
        self,
        margins: Margins | None = None,
        weights: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        _register_buffers(self, margins, weights)
        _keep_target_shift(self)
        self.register_load_state_dict_post_hook(_keep_target_shift)  # type: ignore[no-untyped-call]
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """The mean loss of embeddings x [N, D] under the head ``weight`` [C, D], ``bias`` [C]: a scalar."""
        return _mean_linear_loss(x, weight, target, bias, _kept_terms(self, factors=None))


class FocalLoss(nn.Module):
    """``focal_loss``, averaged over the samples that are not ignored.

    Args:
        gamma: focusing strength, >= 0.
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.
        ignore_index: a target with this index does not count.

    >>> FocalLoss()(torch.zeros(2, 3), torch.tensor([0, 1])).shape
    torch.Size([])
    """

    positive: Tensor | None
    negative: Tensor | None
    weights: Tensor | None

    def __init__(
        self,
        gamma: float = 2.0,
        margins: Margins | None = None,
        weights: Tensor | None = None,
        *,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        _register_buffers(self, margins, weights)
        self.gamma = gamma
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = focal_loss(
            logits, target, self.gamma, _margins_of(self), self.weights, ignore_index=self.ignore_index
        )
        return _mean(losses, target, self.ignore_index)


DecoupledFunction = Callable[[Tensor, Tensor, Margins | None, Tensor | None], Tensor]


class DecoupledLoss(nn.Module):
    """The mean of ``decoupled_logistic``, ``decoupled_hinge`` or ``cosine_contrastive``.

    Args:
        function: one of those three, or a function with their arguments.
        margins: Delta; None is 0.
        weights: [C] alpha; None is 1.

    >>> DecoupledLoss(decoupled_hinge)(torch.zeros(2, 3), torch.tensor([0, 1])).item()
    3.0
    """

    positive: Tensor | None
    negative: Tensor | None
    weights: Tensor | None

    def __init__(
        self, function: DecoupledFunction, margins: Margins | None = None, weights: Tensor | None = None
    ) -> None:
        super().__init__()
        _register_buffers(self, margins, weights)
        self.function = function

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of logits [N, C] and target [N]: a scalar."""
        losses = self.function(logits, target, _margins_of(self), self.weights)
        return losses.mean()


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


def _open_rates(prior: ClassPrior, name: str) -> Tensor:
    """[C] the share of samples with each label, if none of them is 0 or 1."""
    prior.log_probs  # noqa: B018  (raises where a class has no samples)
    rates = prior.rates
    always = torch.nonzero(rates >= 1)
    if always.numel():
        raise ValueError(f"{name}: class {int(always[0])} is in every sample, so its odds are infinite.")
    return rates


def _register_buffers(module: nn.Module, margins: Margins | None, weights: Tensor | None) -> None:
    """Margins and weights as buffers of the default dtype, apart from the caller's; zero margins are left out."""
    dtype = torch.get_default_dtype()
    if margins is not None and not (margins.positive.any() or margins.negative.any()):
        margins = None
    module.register_buffer("positive", None if margins is None else margins.positive.to(dtype, copy=True))
    module.register_buffer("negative", None if margins is None else margins.negative.to(dtype, copy=True))
    module.register_buffer("weights", None if weights is None else weights.to(dtype, copy=True))


def _keep_target_shift(module: nn.Module, _: object = None) -> None:
    """Keep what the margins add at the target beside them, None where it is 0: so symmetric margins skip a step."""
    margins = _margins_of(module)
    shift = None if margins is None else _target_shift(margins)
    is_symmetric = shift is None or not shift.any()
    module.register_buffer("target_shift", None if is_symmetric else shift, persistent=False)


def _keep_factors(module: nn.Module, _: object = None) -> None:
    """Keep what the margins multiply probabilities with beside them."""
    margins = _margins_of(module)
    factors = None if margins is None else margin_factors(margins.negative)
    module.register_buffer("factors", factors, persistent=False)


def _target_shift(margins: Margins) -> Tensor:
    return -(margins.positive + margins.negative)


def _margins_of(module: nn.Module) -> Margins | None:
    positive, negative = module.positive, module.negative
    return None if positive is None or negative is None else Margins(positive, negative)  # type: ignore[arg-type]


class _Terms(NamedTuple):
    """What a margin loss depends on beside logits and target."""

    negative: Tensor | None
    """[C] what comes to every logit: the negative part of the margins; None is 0."""
    target_shift: Tensor | None
    """[C] what comes to the target's logit after that; None is 0, as for symmetric margins."""
    factors: Tensor | None
    """[C] ``margin_factors`` of the negative part where they are at hand, else None."""
    weights: Tensor | None
    ignore_index: int
    label_smoothing: float


def _terms(margins: Margins | None, weights: Tensor | None, ignore_index: int, label_smoothing: float) -> _Terms:
    negative, shift = (None, None) if margins is None else (margins.negative, _target_shift(margins))
    return _Terms(negative, shift, None, weights, ignore_index, label_smoothing)


def _kept_terms(module: MarginCrossEntropy | LinearMarginCrossEntropy, factors: Tensor | None) -> _Terms:
    kept = module.negative, module.target_shift, factors, module.weights
    return _Terms(*kept, module.ignore_index, module.label_smoothing)


def _margin_losses(logits: Tensor, target: Tensor, terms: _Terms, take_mean: bool) -> Tensor:
    """``margin_cross_entropy``, or its mean, which PyTorch takes in fewer passes when it knows."""
    _check_shapes(logits, target, terms)
    wide, target = _widened(logits), _indices(target)
    negative = None if terms.negative is None else terms.negative.to(wide)
    losses = None
    if negative is not None and _has_short_way(wide, target, terms):
        losses = _scaled_losses(wide, target, negative, terms, take_mean)
    if losses is None:
        losses = _losses_of_shifted(wide if negative is None else wide + negative, target, terms, take_mean)
    return losses if losses.dtype == logits.dtype else losses.to(_loss_dtype(logits))


def _all_linear_losses(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, terms: _Terms) -> Tensor:
    """``linear_margin_cross_entropy``."""
    _check_linear(x, weight, bias)
    target = _indices(target)
    if target.is_floating_point() or len(x) * len(weight) <= LINEAR_WHOLE_ELEMENTS:
        return _linear_losses(x, weight, bias, target, terms, take_mean=False)
    _check_target_length(len(x), target)
    parts = [
        checkpoint(
            _linear_losses,
            x[rows],
            weight,
            bias,
            target[rows],
            terms,
            take_mean=False,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for rows in row_chunks(len(x), len(weight), LINEAR_CHUNK_ELEMENTS)
    ]
    return torch.cat(parts)


def _mean_linear_loss(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, terms: _Terms) -> Tensor:
    """``mean_linear_margin_cross_entropy``."""
    _check_linear(x, weight, bias)
    target = _indices(target)
    if len(x) * len(weight) <= LINEAR_WHOLE_ELEMENTS:
        return _linear_losses(x, weight, bias, target, terms, take_mean=True)
    needs_general_form = (
        target.is_floating_point()
        or terms.label_smoothing > 0
        or _is_half(x)
        or torch.compiler.is_compiling()
        or _is_learned(terms)
    )
    if needs_general_form:
        return _mean(_all_linear_losses(x, weight, target, bias, terms), target, terms.ignore_index)
    _check_target_length(len(x), target)
    valid, safe = target != terms.ignore_index, _safe(target, terms.ignore_index)
    _raise_if_out_of_range(safe, len(weight))
    scale = valid.to(x.dtype) if terms.weights is None else valid * terms.weights.to(x)[safe]
    scale = scale / valid.sum()
    shift = torch.zeros_like(scale) if terms.target_shift is None else terms.target_shift.to(x)[safe]
    shifted_bias = _shifted_bias(weight, bias, terms.negative)
    if shifted_bias is None:
        shifted_bias = weight.new_zeros(len(weight))
    tensors = (x, weight, shifted_bias, safe, shift, scale)
    return MeanLinearCrossEntropy.apply(*tensors, torch.is_grad_enabled())  # type: ignore[no-any-return, no-untyped-call]


def _linear_losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, terms: _Terms, take_mean: bool
) -> Tensor:
    """``_margin_losses`` of a linear head. The negative part of the margin rides in its bias, unless that is half."""
    rides = not _is_half(x)
    logits = F.linear(x, weight, _shifted_bias(weight, bias, terms.negative) if rides else bias)
    _check_shapes(logits, target, terms)
    shifted = _widened(logits)
    if terms.negative is not None and not rides:
        shifted = shifted + terms.negative.to(shifted)
    losses = _losses_of_shifted(shifted, target, terms, take_mean)
    return losses if losses.dtype == logits.dtype else losses.to(_loss_dtype(logits))


def _is_half(x: Tensor) -> bool:
    """Whether products of x are half precision, by their type or by autocast."""
    return x.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(x.device.type)


def _losses_of_shifted(shifted: Tensor, target: Tensor, terms: _Terms, take_mean: bool) -> Tensor:
    """[N] losses, or their mean, from ``logits + negative``, which is overwritten where the target is shifted."""
    if target.is_floating_point() or terms.label_smoothing > 0:
        losses = _expected_losses(shifted, target, terms)
        return _mean(losses, target, terms.ignore_index) if take_mean else losses
    weights = None if terms.weights is None else terms.weights.to(shifted)
    # PyTorch's own mean divides by the weights, so with weights it is taken here.
    reduction = "mean" if take_mean and weights is None else "none"
    try:
        if terms.target_shift is not None:
            shifted = _with_target_shifted(shifted, target, terms.target_shift)
        losses = F.cross_entropy(shifted, target, weights, ignore_index=terms.ignore_index, reduction=reduction)
    except (IndexError, RuntimeError):
        _raise_if_out_of_range(_safe(target, terms.ignore_index), shifted.shape[1])
        raise
    return _mean(losses, target, terms.ignore_index) if take_mean and weights is not None else losses


def _with_target_shifted(shifted: Tensor, target: Tensor, target_shift: Tensor) -> Tensor:
    """Add the shift of each target to its logit, in place."""
    # An ignored target may be no class at all: any class will do for it.
    safe = target.clamp(0, shifted.shape[1] - 1)
    shift = target_shift.index_select(0, safe).to(shifted)
    if shift.requires_grad:
        return shift_target(shifted, safe, shift)
    # A constant leaves the gradient as it is, so autograd need not know: that saves a pass backward.
    shift_target(shifted.detach(), safe, shift)
    return shifted


def _scaled_losses(logits: Tensor, target: Tensor, negative: Tensor, terms: _Terms, take_mean: bool) -> Tensor | None:
    """``_margin_losses`` by ``ScaledSoftmaxCrossEntropy``; None where it can't, and for targets out of range."""
    # Kept factors of a half-precision module would be too coarse, and small ones 0.
    is_kept = terms.factors is not None and terms.factors.dtype == logits.dtype
    factors = terms.factors if is_kept else margin_factors(negative)
    shift = None if terms.target_shift is None else terms.target_shift.to(logits)
    try:
        all_count = not _may_be_ignored(target, terms.ignore_index)
        safe = target if all_count else _safe(target, terms.ignore_index)
        is_plain_mean = take_mean and all_count and terms.weights is None
        losses: Tensor = ScaledSoftmaxCrossEntropy.apply(logits, safe, factors, shift, is_plain_mean)  # type: ignore[no-untyped-call]
    except (FloatingPointError, IndexError, RuntimeError):
        return None
    if is_plain_mean:
        return losses
    if terms.weights is not None:
        losses = losses * terms.weights.to(losses).index_select(0, safe)
    losses = losses if all_count else losses.masked_fill(target == terms.ignore_index, 0)
    return _mean(losses, target, terms.ignore_index) if take_mean else losses


def _may_be_ignored(target: Tensor, ignore_index: int) -> bool:
    """Whether some target is ignored, or may be: a look at the smallest is all it takes to say no."""
    return ignore_index >= 0 or int(target.min()) < 0


def _expected_losses(shifted: Tensor, target: Tensor, terms: _Terms) -> Tensor:
    """[N] sum_y t[y] * alpha[y] * l(y, f) for a target distribution t."""
    num_classes = shifted.shape[1]
    ignored: Tensor | None = None
    if not target.is_floating_point():
        ignored = target == terms.ignore_index
        target = _safe(target, terms.ignore_index)
        _raise_if_out_of_range(target, num_classes)
        target = F.one_hot(target, num_classes)
    target = target.to(shifted) * (1 - terms.label_smoothing) + terms.label_smoothing / num_classes
    per_label = torch.logsumexp(shifted, dim=1, keepdim=True) - shifted
    if terms.target_shift is not None:
        gap = _gap(per_label).scatter(1, *_leading_gap(shifted))
        per_label = loss_of_gap(gap - terms.target_shift.to(shifted))
    if terms.weights is not None:
        target = target * terms.weights.to(shifted)
    losses = (target * per_label).sum(dim=1)
    return losses if ignored is None else losses.masked_fill(ignored, 0)


def _leading_gap(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 1] the class of the largest logit and [N, 1] its gap, for which its cross-entropy has too few digits."""
    top = logits.argmax(dim=1, keepdim=True)
    others = logits.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return top, others - logits.gather(1, top)


def _gap(cross_entropy: Tensor) -> Tensor:
    """log(exp(ce) - 1): how far all others together are ahead of a label that does not lead."""
    positive = cross_entropy.clamp_min(torch.finfo(cross_entropy.dtype).eps)
    return positive + torch.log(-torch.expm1(-positive))


def _decoupled(
    logits: Tensor,
    target: Tensor,
    positive_loss: Callable[[Tensor], Tensor],
    negative_loss: Callable[[Tensor], Tensor],
    margins: Margins | None,
    weights: Tensor | None,
) -> Tensor:
    _check_shapes(logits, target, _terms(margins, weights, ignore_index=-100, label_smoothing=0.0))
    if target.is_floating_point():
        raise TypeError("decoupled losses: target must be class indices. Got probabilities.")
    _raise_if_out_of_range(target, logits.shape[1])
    wide, target = _widened(logits), _indices(target)
    index = target[:, None]
    negatives = negative_loss(wide).scatter(1, index, 0.0)
    if margins is None:
        pushed = negatives.sum(dim=1)
    else:
        margins = margins.to(wide)
        # No matrix product: autocast would take it in half precision.
        pushed = (negatives * margins.negative.exp()).sum(dim=1) * margins.positive.exp()[target]
    losses = positive_loss(wide.gather(1, index)[:, 0]) + pushed
    losses = losses if weights is None else losses * weights.to(losses)[target]
    return losses.to(_loss_dtype(logits))


def _focused(cross_entropy: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma * -log p, from -log p."""
    # The clamp keeps the derivative of x^gamma finite at x = 0 for gamma < 1.
    miss = (-torch.expm1(-cross_entropy)).clamp_min(torch.finfo(cross_entropy.dtype).tiny)
    return miss**gamma * cross_entropy


def _has_short_way(logits: Tensor, target: Tensor, terms: _Terms) -> bool:
    """Whether to try ``_scaled_losses``: elsewhere its look at values would wait for the device or break a graph."""
    return (
        logits.device.type == "cpu"
        and not target.is_floating_point()
        and terms.label_smoothing == 0
        and not torch.compiler.is_compiling()
        and not _is_learned(terms)
    )


def _is_learned(terms: _Terms) -> bool:
    return any(part is not None and part.requires_grad for part in (terms.negative, terms.target_shift))


def _shifted_bias(weight: Tensor, bias: Tensor | None, negative: Tensor | None) -> Tensor | None:
    if negative is None:
        return bias
    negative = negative.to(weight)
    return negative if bias is None else bias + negative


def _indices(target: Tensor) -> Tensor:
    """Class indices as int64: a byte selects like a mask, and equals -100 where it is 156."""
    return target if target.is_floating_point() else target.long()


def _safe(target: Tensor, ignore_index: int) -> Tensor:
    """Class indices in which the ignored ones point at class 0."""
    target = _indices(target)
    return target.masked_fill(target == ignore_index, 0)


def _one_hot(target: Tensor, like: Tensor, foreground: Tensor | None) -> Tensor:
    safe = target if foreground is None else torch.where(foreground, target, 0)
    _raise_if_out_of_range(safe, like.shape[1])
    one_hot = F.one_hot(safe.long(), like.shape[1]).to(like)
    return one_hot if foreground is None else one_hot * foreground[:, None]


def _mean(losses: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """The mean over samples that count, whatever their weights."""
    if target.is_floating_point():
        return losses.mean()
    wide = torch.promote_types(losses.dtype, torch.float32)  # a sum in float16 would overflow
    return (losses.sum(dtype=wide) / (_indices(target) != ignore_index).sum()).to(losses.dtype)


def _widened(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _loss_dtype(logits: Tensor) -> torch.dtype:
    is_half = logits.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if is_half and torch.is_autocast_enabled(logits.device.type) else logits.dtype


def _check_logits(logits: Tensor) -> None:
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point [N, C]. Got {logits.dtype} {tuple(logits.shape)}.")


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x must be [N, D] and weight [C, D]. Got {tuple(x.shape)} and {tuple(weight.shape)}.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}]. Got {tuple(bias.shape)}.")


def _check_target_length(num_rows: int, target: Tensor) -> None:
    if target.shape != (num_rows,):
        raise ValueError(f"target must be [{num_rows}] class indices. Got {tuple(target.shape)}.")


def _check_shapes(logits: Tensor, target: Tensor, terms: _Terms) -> None:
    _check_logits(logits)
    num_classes = logits.shape[1]
    wanted = logits.shape if target.is_floating_point() else logits.shape[:1]
    if target.shape != wanted:
        raise ValueError(
            f"target must be [N] class indices or [N, C] probabilities for logits {tuple(logits.shape)}. "
            f"Got {target.dtype} {tuple(target.shape)}."
        )
    if terms.negative is not None and len(terms.negative) != num_classes:
        raise ValueError(f"margins are for {len(terms.negative)} classes, but logits have {num_classes}.")
    if terms.weights is not None and terms.weights.shape != (num_classes,):
        raise ValueError(f"weights must be [{num_classes}]. Got {tuple(terms.weights.shape)}.")
    if not 0 <= terms.label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]. Got {terms.label_smoothing}.")


def _raise_if_out_of_range(target: Tensor, num_classes: int) -> None:
    """On CPUs only: elsewhere a look at the values would wait for the device."""
    if target.device.type != "cpu" or target.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= num_classes:
        raise ValueError(f"target must be in 0..{num_classes - 1} (or ignore_index). Got {low if low < 0 else high}.")
