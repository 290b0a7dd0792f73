"""Corrections of a model that is trained already: of its logits, its class vectors or its temperature; other heads.

A model trained with plain cross-entropy on skewed labels carries log pi of the training data in its logits. Taking it
out costs one subtraction and no training.

CORRECT ONCE. What follows are alternatives, never a sum:

- A model trained with a logit-adjusted loss, with class weights or with class-balanced sampling has its correction
  already. Do not adjust its logits, and do not normalize its class vectors.
- Adjust the logits OR normalize the class vectors.
- Temperature scaling does not correct the prior, and comes BEFORE the adjustment: fit it to raw logits, divide by it,
  then adjust. A tau that was chosen on other logits than those, scaled or not, does not fit.
- ``estimate_target_prior`` wants raw logits as well; its result goes into ``adjust_logits`` as the target.

``nearest_mean`` and ``nearest_neighbors`` leave the head alone and predict from embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._chunked import CHUNK_ELEMENTS, row_chunks
from longtail.prior import ClassPrior

__all__ = [
    "PriorEstimate",
    "TauSearch",
    "adjust_logits",
    "balanced_calibration_error",
    "balanced_error",
    "balanced_log_loss",
    "class_means",
    "cross_validated_tau",
    "estimate_target_prior",
    "nearest_mean",
    "nearest_neighbors",
    "normalize_weights",
    "normalize_weights_by_prior",
    "temperature_scale",
    "tune_tau",
]

FloatArray = npt.NDArray[np.floating[Any]]
Scores = Tensor | FloatArray
Labels = Tensor | npt.NDArray[np.integer[Any]]
PriorLike = ClassPrior | Tensor | FloatArray
"""Class counts, or [C] probabilities."""
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""logits [N, C], labels [N], weights [N] that sum to 1 -> [N], each sample's share of a score to minimize."""


@overload
def adjust_logits(
    logits: Tensor, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> Tensor: ...
@overload
def adjust_logits(
    logits: FloatArray, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> FloatArray: ...
def adjust_logits(
    logits: Tensor | FloatArray, prior: PriorLike, tau: float = 1.0, target_prior: PriorLike | None = None
) -> Tensor | FloatArray:
    """Post-hoc logit adjustment: take the training prior out of the logits, and put the wanted one in.

    Formula:
        g[y] = f[y] - tau * (log pi[y] - log pi_target[y])

    Args:
        logits: [..., C] f of a model trained with plain cross-entropy, or log-probabilities; a tensor or an array.
        prior: the training prior, as counts or [C] probabilities; every class needs samples or smoothing.
        tau: strength, >= 0. 1 is right for calibrated logits, 0 changes nothing; ``tune_tau`` chooses it.
        target_prior: the prior to predict for; None is uniform, which is optimal for the balanced error. A class of
            target probability 0 gets the logit -inf, so it is never predicted.

    Returns:
        [..., C] logits of the type, dtype and device given. Their softmax is the adjusted probability.

    Use when:
        The model is trained, and rare classes matter or the label frequencies have changed.
    Avoid when:
        The model was trained with a logit-adjusted loss, class weights or balanced sampling: that would correct
        twice. So would normalizing the class vectors as well.
    Equals:
        The logits themselves at tau = 0, or where the target prior is the training prior. At tau = 1 it undoes what
        ``margins.logit_adjusted`` adds in training.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> adjust_logits(np.log([[0.8, 0.2]]), prior).argmax(axis=1)
    array([1])

    Deviates:
        Eq. (9) is written without a target. A uniform one adds tau * log C to every logit, which changes no
        prediction and no probability.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (9).
    """
    if isinstance(logits, Tensor):
        _check_logits(logits)
        shift = _shift(prior, tau, target_prior, logits.shape[-1])
        return logits + shift.to(logits)
    array = np.asarray(logits)
    _check_logits(array)
    array_shift: FloatArray = _shift(prior, tau, target_prior, array.shape[-1]).numpy()
    return array + array_shift.astype(array.dtype)


def normalize_weights(weight: Tensor, prior: ClassPrior, tau: float = 1.0) -> Tensor:
    """Post-hoc weight normalization: class vectors of large norm, which frequent classes tend to have, are shortened.

    Formula:
        w[y] / ||w[y]||^tau

    Args:
        weight: [C, D] class vectors of a trained linear head. Drop its bias, or make the bias a column.
        prior: the class counts; only their number matters.
        tau: strength; 1 gives every class a vector of length 1.

    Returns:
        [C, D] class vectors. A vector of length 0 stays as it is.

    Use when:
        Comparing with the literature; the head was trained by SGD with momentum, where norms follow frequencies.
    Avoid when:
        The head was trained by Adam: norms then do not follow frequencies. Logit adjustment is consistent for the
        balanced error and this is not; never use both.
    Equals:
        The weights themselves at tau = 0; cosine logits, times the embedding's length, at tau = 1.

    >>> normalize_weights(torch.tensor([[3.0, 4.0], [0.6, 0.8]]), ClassPrior.from_counts([9, 1])).norm(dim=1)
    tensor([1., 1.])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (3); Kang et al. (2020), "Decoupling
        representation and classifier for long-tailed recognition", section 4, "tau-normalized classifier".
    """
    _check_weight(weight, prior)
    norms = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    divisors = torch.where(norms > 0, norms, torch.ones_like(norms)) ** _strength(tau)
    return weight / divisors


def normalize_weights_by_prior(weight: Tensor, prior: ClassPrior, tau: float = 1.0) -> Tensor:
    """Post-hoc weight normalization by class frequency: class vectors of rare classes are lengthened.

    Formula:
        w[y] / pi[y]^tau

    Args:
        weight: [C, D] class vectors of a trained linear head. Drop its bias, or make the bias a column.
        prior: the class counts; every class needs samples or smoothing.
        tau: strength.

    Returns:
        [C, D] class vectors.

    Use when:
        Comparing with the literature; unlike ``normalize_weights`` it does not depend on the optimizer.
    Avoid when:
        Rare classes have negative logits: a factor makes these more negative, so such a class never wins. Logit
        adjustment has neither flaw; never use both.
    Equals:
        The weights themselves at tau = 0.

    >>> normalize_weights_by_prior(torch.ones(2, 1), ClassPrior.from_counts([3, 1])).flatten()
    tensor([1.3333, 4.0000])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (3) and section 4.2; Kim & Kim (2019), "Adjusting
        decision boundary for class imbalanced learning"; Ye et al. (2020).
    """
    _check_weight(weight, prior)
    return weight * torch.exp(-_strength(tau) * prior.log_probs).to(weight)[:, None]


def balanced_error(logits: Scores, labels: Labels, weights: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced error, the mean of the classes' error rates.

    Formula:
        BER = 1/K sum_y P(argmax f(x) != y | y), over the K classes that occur

    Args:
        logits: [N, C], any scores whose largest is the prediction.
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is the balanced error.

    >>> balanced_error(torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0, 1])).sum()
    tensor(0.5000, dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """
    scores, index, shares = _objective_inputs(logits, labels, weights)
    return shares * (scores.argmax(dim=1) != index)


def balanced_log_loss(logits: Scores, labels: Labels, weights: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced log loss, the mean of the classes' cross-entropies.

    Smooth in the logits, so a holdout says more about it than about the error; but it asks for calibrated
    probabilities, and the tau that is best for these need not be best for predictions.

    Args:
        logits: [N, C].
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is the balanced log loss.

    >>> balanced_log_loss(torch.zeros(3, 2), torch.tensor([0, 0, 1])).sum().exp().round()
    tensor(2., dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.1, names it for the choice of tau.
    """
    scores, index, shares = _objective_inputs(logits, labels, weights)
    return shares * F.cross_entropy(scores, index, reduction="none").double()


def balanced_calibration_error(
    logits: Scores, labels: Labels, weights: Tensor | None = None, bins: int = 15
) -> Tensor:
    """Each sample's share of the expected calibration error on balanced classes.

    Formula:
        ECE = sum_b |sum_{i in b} w[i] * (confidence[i] - correct[i])|, over equal bins b of the confidence

    Args:
        logits: [N, C].
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.
        bins: number of bins in [0, 1].

    Returns:
        [N] float64; the sum is the calibration error. A share is negative where the sample's own gap is against
        that of its bin.

    >>> balanced_calibration_error(torch.zeros(2, 2), torch.tensor([0, 1])).sum()
    tensor(0., dtype=torch.float64)

    Deviates:
        Samples are weighted, so that the error is that on a balanced holdout.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3); Menon et al., section 4.1, names it
        for the choice of tau.
    """
    if bins < 1:
        raise ValueError(f"balanced_calibration_error: bins must be at least 1. Got {bins}.")
    scores, index, shares = _objective_inputs(logits, labels, weights)
    confidence, predicted = scores.softmax(dim=1).max(dim=1)
    gaps = shares * (confidence.double() - (predicted == index).double())
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap_of_bin = gaps.new_zeros(bins).index_add_(0, bin_of, gaps)
    return gaps * gap_of_bin.sign()[bin_of]


@dataclass(frozen=True, eq=False, slots=True)
class TauSearch:
    """How well each tau did on a holdout, and which one to take."""

    tau: float
    """The tau to use: of those in doubt, the one nearest to 1."""
    interval: tuple[float, float]
    """The smallest and largest tau in doubt: those less than one standard error worse than the best score."""
    taus: Tensor
    """[T] float64, what was tried, in rising order."""
    scores: Tensor
    """[T] float64, the objective at each tau; less is better."""
    standard_errors: Tensor
    """[T] float64, the standard error of each score; infinite if every class has a single sample."""
    missing_classes: Tensor
    """int64, the classes without samples in the holdout: they have no say."""


def tune_tau(
    logits: Scores,
    labels: Labels,
    prior: PriorLike,
    taus: Sequence[float] | Tensor | FloatArray | None = None,
    objective: Objective = balanced_error,
    target_prior: PriorLike | None = None,
    sample_weight: Tensor | FloatArray | None = None,
) -> TauSearch:
    """Choose the strength of ``adjust_logits`` on a holdout, which may be long-tailed itself.

    Each class counts with its probability in the target prior, whatever its share of the holdout. The model must not
    have seen the holdout in training.

    A tail class with three samples moves the balanced error in steps of a third of its share, so the lowest point of
    the curve is mostly luck. Theory says 1 for calibrated logits. So the choice is the tau nearest to 1 that is not
    worse than the best one by more than a standard error. That is the standard error of their difference, in which
    samples that both get right, or both wrong, cancel; it is much less than that of the scores. A class's variance is
    averaged with the mean variance of all classes as if that were one more sample, so a class with one or two samples
    does not look certain.

    Args:
        logits: [N, C] of the model, not adjusted.
        labels: [N] class indices.
        prior: the prior of the model's training data.
        taus: what to try; default: 0 to 3 by 0.05. If the interval ends where these end, try further.
        objective: what to minimize: ``balanced_error``, ``balanced_log_loss``, ``balanced_calibration_error`` or a
            function of (logits, labels, weights) like these.
        target_prior: the prior to predict for; None is uniform.
        sample_weight: [N] how many samples each one stands for; None is 1.

    Returns:
        The choice, its uncertainty, and the curve.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> search = tune_tau(logits, torch.tensor([0, 0, 0, 1, 1, 1]), prior)
    >>> search.tau, search.interval
    (0.9, (0.5, 0.9))

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.1 and figure 3.
    """
    weights = None if sample_weight is None else [sample_weight]
    return cross_validated_tau([(logits, labels, prior)], taus, objective, target_prior, weights)


def cross_validated_tau(
    folds: Sequence[tuple[Scores, Labels, PriorLike]],
    taus: Sequence[float] | Tensor | FloatArray | None = None,
    objective: Objective = balanced_error,
    target_prior: PriorLike | None = None,
    sample_weights: Sequence[Tensor | FloatArray] | None = None,
) -> TauSearch:
    """``tune_tau`` on the held-out parts of a cross-validation, pooled.

    Pooling before scoring lets a class with fewer samples than folds count as in one holdout.

    Args:
        folds: (logits [N, C], labels [N], prior) of each held-out part, where the prior is that of the part which the
            fold's model was trained on.
        taus: what to try; default: 0 to 3 by 0.05.
        objective: what to minimize.
        target_prior: the prior to predict for; None is uniform.
        sample_weights: for each fold [N]; None is 1.

    Returns:
        As ``tune_tau``.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> fold = (torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), prior)
    >>> cross_validated_tau([fold, fold], taus=[0.0, 0.7, 1.0]).scores
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    if not folds:
        raise ValueError("cross_validated_tau: there must be at least one fold. Got none.")
    grid = _tau_grid(taus)
    num_classes = _as_tensor(folds[0][0]).shape[-1]
    target = _target_probabilities(target_prior, num_classes)
    parts = _held_out_parts(folds, sample_weights, target)
    index, count = torch.cat([part.index for part in parts]), torch.cat([part.count for part in parts])
    weights = _class_weights(index, count, target)

    shares: list[Tensor] = []
    for tau in grid.tolist():
        adjusted = [part.scores + _shift(part.prior, tau, target, num_classes).to(part.scores) for part in parts]
        shares.append(_checked_shares(objective(torch.cat(adjusted), index, weights), len(index)))
    return _choose(grid, shares, index.cpu(), count.cpu(), weights.cpu(), target)


def temperature_scale(
    logits: Scores, labels: Labels, weights: Tensor | FloatArray | None = None, label_smoothing: float = 0.0
) -> float:
    """The temperature that makes ``logits / temperature`` fit held-out labels best.

    Formula:
        argmin_T sum_i w[i] * -log softmax(f[i] / T)[y[i]]

    Args:
        logits: [N, C] of the model, not adjusted: the temperature comes before the adjustment.
        labels: [N] class indices, with the label distribution of the training data.
        weights: [N] how much each sample counts; None is 1.
        label_smoothing: in [0, 1), mixes the labels with the uniform distribution. About 1 / N keeps the
            probabilities of separable samples within what N samples can say.

    Returns:
        The temperature, > 0; above 1 for an overconfident model. It is kept within a factor 1,000 of the logits' own
        spread, where labels that are always, or never, right would drive it to 0 or infinity.

    Use when:
        The model is overconfident and probabilities matter; or before ``adjust_logits`` with tau = 1.
    Avoid when:
        Only predictions matter and tau is tuned: dividing by T and multiplying tau by T are the same there.
    Equals:
        1 for calibrated logits.

    >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> round(temperature_scale(logits, torch.tensor([0, 0, 0, 1])) * math.log(3), 6)
    1.0

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", section 4.2; Menon et al., "Long-tail learning
        via logit adjustment", section 4.1, on its relation to tau.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"temperature_scale: label_smoothing must be in [0, 1). Got {label_smoothing}.")
    scores = _as_scores(logits).double()
    index = _as_labels(labels, scores)
    count = _sample_counts(weights, index)
    if not count.any():
        raise ValueError("temperature_scale: there must be at least one sample with a weight. Got none.")
    share = count / count.sum()
    centered = scores - scores.mean(dim=1, keepdim=True)
    spread = float((share @ centered.square().mean(dim=1)).sqrt())
    if spread == 0:
        return 1.0
    scaled = centered / spread
    wanted = (1 - label_smoothing) * float(share @ scaled.gather(1, index[:, None])[:, 0])
    return spread / _inverse_temperature(scaled, share, wanted)


@dataclass(frozen=True, eq=False, slots=True)
class PriorEstimate:
    """A label distribution estimated from unlabeled samples."""

    probs: Tensor
    """[C] float64, sums to 1: the ``target_prior`` of ``adjust_logits``."""
    iterations: int
    """How many steps were taken."""
    converged: bool
    """Whether the last step moved the estimate by less than the tolerance."""


def estimate_target_prior(
    logits: Scores, prior: PriorLike, max_iterations: int = 1000, tolerance: float = 1e-6
) -> PriorEstimate:
    """The label distribution of unlabeled samples, by expectation maximization over the model's own outputs.

    Formula:
        q[i, y] is proportional to softmax(f[i])[y] * p[y] / pi[y], then p[y] = mean_i q[i, y], until p stays

    Args:
        logits: [N, C] of a model trained with plain cross-entropy, on samples from where it will be used.
        prior: the training prior; every class needs samples or smoothing.
        max_iterations: most steps to take.
        tolerance: stop when the probabilities move by less than this, in sum.

    Returns:
        The probabilities, and whether they converged.

    Use when:
        Label frequencies where the model is used are unknown, differ from those in training, and labels look the
        same there: P(x | y) has not changed.
    Avoid when:
        The model is badly calibrated (scale by the temperature first), or inputs have changed too.
    Equals:
        The training prior, nearly, on samples from the training distribution.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]])
    >>> estimate_target_prior(logits, prior).probs.round(decimals=2)
    tensor([0.2500, 0.7500], dtype=torch.float64)

    Reference:
        Saerens et al. (2002), "Adjusting the outputs of a classifier to new a priori probabilities: a simple
        procedure", on unknown new priors.
    """
    if max_iterations < 1 or not tolerance > 0:
        raise ValueError(
            "estimate_target_prior: max_iterations must be at least 1 and tolerance above 0. "
            f"Got {max_iterations} and {tolerance}."
        )
    scores = _as_scores(logits).double()
    if len(scores) == 0:
        raise ValueError("estimate_target_prior: there must be at least one sample. Got none.")
    shifted = scores - _log_prior(prior, scores.shape[1]).to(scores)
    # P(x | y) up to a factor of each row: the one thing about x that the steps use.
    likelihoods = torch.exp(shifted - shifted.max(dim=1, keepdim=True).values)
    probs = _prior_probabilities(prior, scores.shape[1], "prior").to(scores)
    iterations, moved = 0, math.inf
    while moved >= tolerance and iterations < max_iterations:
        updated = probs * ((1 / (likelihoods @ probs)) @ likelihoods) / len(scores)
        moved = float((updated - probs).abs().sum())
        probs = updated
        iterations += 1
    return PriorEstimate((probs / probs.sum()).cpu(), iterations, moved < tolerance)


def class_means(embeddings: Scores, labels: Labels, num_classes: int) -> Tensor:
    """The mean embedding of each class.

    Args:
        embeddings: [N, D].
        labels: [N] class indices.
        num_classes: C.

    Returns:
        [C, D], at least float32; NaN for a class without samples.

    >>> class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), num_classes=2).tolist()
    [[1.0], [5.0]]
    """
    points = _as_embeddings(embeddings, "embeddings")
    index = _as_class_indices(labels, points, num_classes)
    counts = torch.bincount(index, minlength=num_classes)
    sums = torch.zeros(num_classes, points.shape[1], dtype=torch.float64, device=points.device)
    means = sums.index_add_(0, index, points.double()) / counts[:, None]
    return means.to(points.dtype)


def nearest_mean(embeddings: Scores, means: Scores) -> Tensor:
    """Predict the class whose mean embedding is nearest.

    Formula:
        argmin_y ||x - mu[y]||

    Args:
        embeddings: [N, D] of the samples to predict.
        means: [C, D], as ``class_means`` makes them of training samples; a class without any is never predicted.

    Returns:
        [N] class indices.

    Use when:
        The question is how good embeddings are, whatever head was trained on them: every class weighs the same here.
    Avoid when:
        A class has several clusters: its mean lies between them.
    Equals:
        A linear head with class vectors mu[y] and biases -||mu[y]||^2 / 2.

    >>> nearest_mean(torch.tensor([[1.5], [4.0]]), means=torch.tensor([[1.0], [5.0]])).tolist()
    [0, 1]

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 4.
    """
    centers = _as_tensor(means)
    points = _as_embeddings(embeddings, "embeddings")
    known = torch.isfinite(centers).all(dim=1) if centers.ndim == 2 else torch.ones(0, dtype=torch.bool)
    if centers.ndim != 2 or centers.shape[1] != points.shape[1] or not known.any():
        got = tuple(centers.shape)
        raise ValueError(f"means must be [C, {points.shape[1]}], one class at least not NaN. Got {got}.")
    classes = torch.nonzero(known)[:, 0]
    return classes[_nearest(points, centers[known].to(points), k=1)[:, 0]]


def nearest_neighbors(
    embeddings: Scores, train_embeddings: Scores, train_labels: Labels, num_neighbors: int = 10
) -> Tensor:
    """Predict the class that most of the nearest training samples have.

    Formula:
        argmax_y #{x+ among the k nearest training samples : its class is y}

    Args:
        embeddings: [N, D] of the samples to predict.
        train_embeddings: [M, D].
        train_labels: [M] class indices.
        num_neighbors: k, at most M.

    Returns:
        [N] class indices. Of classes with equally many votes, the one with the nearest sample.

    Use when:
        Classes have several clusters, and the question is whether like lies near like.
    Avoid when:
        The training samples are long-tailed and every class counts: a class with fewer than k / 2 samples hardly
        ever has the most votes. ``nearest_mean`` weighs classes equally.
    Equals:
        The class of the nearest sample for k = 1 or 2.

    >>> train, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> nearest_neighbors(torch.tensor([[4.0]]), train, labels, num_neighbors=1).tolist()
    [1]
    >>> nearest_neighbors(torch.tensor([[4.0]]), train, labels, num_neighbors=3).tolist()
    [0]
    """
    points, known = _as_embeddings(embeddings, "embeddings"), _as_embeddings(train_embeddings, "train_embeddings")
    if known.shape[1] != points.shape[1]:
        raise ValueError(f"train_embeddings must be [M, {points.shape[1]}]. Got {tuple(known.shape)}.")
    if not 1 <= num_neighbors <= len(known):
        raise ValueError(f"num_neighbors must be in 1..{len(known)}, the training samples. Got {num_neighbors}.")
    index = _as_class_indices(train_labels, known)
    classes = index.to(points.device)[_nearest(points, known.to(points), num_neighbors)]
    votes = torch.zeros_like(classes)
    for neighbor in range(num_neighbors):
        votes += classes == classes[:, neighbor : neighbor + 1]
    # One vote outweighs any place in the order of distance.
    ranks = torch.arange(num_neighbors, device=classes.device)
    chosen = (votes * num_neighbors - ranks).argmax(dim=1, keepdim=True)
    return classes.gather(1, chosen)[:, 0]


def _nearest(points: Tensor, known: Tensor, k: int) -> Tensor:
    """[N, k] which of ``known`` [M, D] are nearest to each point, nearest first; some rows at a time."""
    center = known.mean(dim=0)  # large common offsets would cancel
    points, known = points - center, known - center
    norms = known.square().sum(dim=1)
    found = torch.empty(len(points), k, dtype=torch.int64, device=points.device)
    for rows in row_chunks(len(points), len(known), CHUNK_ELEMENTS):
        found[rows] = torch.addmm(norms, points[rows], known.T, alpha=-2).topk(k, dim=1, largest=False).indices
    return found


def _inverse_temperature(scaled: Tensor, share: Tensor, wanted: float) -> float:
    """The beta at which the softmax of beta * scaled expects the score wanted: the root of a rising function."""
    low, high = 1e-3, 1e3
    beta = 1.0
    for _ in range(100):
        probs = (beta * scaled).softmax(dim=1)
        means = (probs * scaled).sum(dim=1)
        slope = float(share @ ((probs * scaled.square()).sum(dim=1) - means.square()))
        gap = float(share @ means) - wanted
        low, high = (beta, high) if gap < 0 else (low, beta)
        # Newton's step where it stays in the bracket, else the bracket's middle on the scale of logarithms.
        newton = beta - gap / slope if slope > 0 else math.inf
        updated = newton if low < newton < high else math.sqrt(low * high)
        # For separable samples the gap falls below rounding long before beta reaches its bound.
        if abs(gap) <= 1e-15 or abs(updated - beta) <= 1e-12 * beta:
            break
        beta = updated
    return beta


@dataclass(frozen=True, eq=False, slots=True)
class _HeldOut:
    """What a model says about samples that it was not trained on, and how many samples each one stands for."""

    scores: Tensor
    index: Tensor
    count: Tensor
    prior: PriorLike


def _held_out_parts(
    folds: Sequence[tuple[Scores, Labels, PriorLike]],
    sample_weights: Sequence[Tensor | FloatArray] | None,
    target: Tensor,
) -> list[_HeldOut]:
    if sample_weights is not None and len(sample_weights) != len(folds):
        raise ValueError(f"sample_weights must be one vector a fold, {len(folds)}. Got {len(sample_weights)}.")
    parts = []
    for position, (logits, labels, prior) in enumerate(folds):
        scores = _as_scores(logits)
        if scores.shape[1] != len(target):
            raise ValueError(f"folds must have the same classes. Got {len(target)} and {scores.shape[1]}.")
        index = _as_labels(labels, scores)
        count = _sample_counts(None if sample_weights is None else sample_weights[position], index)
        # Samples that do not count would bring 0 * inf.
        kept = (count > 0) & (target.to(index.device)[index] > 0)
        parts.append(_HeldOut(scores[kept], index[kept], count[kept], prior))
    return parts


def _choose(
    taus: Tensor, shares: list[Tensor], index: Tensor, count: Tensor, weights: Tensor, target: Tensor
) -> TauSearch:
    scores = torch.stack([share.sum() for share in shares])
    excess = scores - scores.min()
    rounding = 1e-9 * scores.abs().max()
    # Of several best ones, which rounding alone tells apart, the nearest to 1 is what the others are compared with.
    best = shares[int(torch.where(excess <= rounding, (taus - 1).abs(), math.inf).argmin())]

    def standard_errors(terms: list[Tensor]) -> Tensor:
        return torch.stack([_standard_error(term / weights, index, count, target) for term in terms])

    in_doubt = excess <= standard_errors([share - best for share in shares]) + rounding
    candidates = taus[in_doubt].tolist()
    ranked = sorted(
        (abs(tau - 1), score, tau) for tau, score in zip(candidates, scores[in_doubt].tolist(), strict=True)
    )
    missing = (torch.bincount(index, minlength=len(target)) == 0) & (target > 0)
    return TauSearch(
        tau=ranked[0][-1],
        interval=(min(candidates), max(candidates)),
        taus=taus,
        scores=scores,
        standard_errors=standard_errors(shares),
        missing_classes=torch.nonzero(missing)[:, 0],
    )


def _standard_error(values: Tensor, index: Tensor, count: Tensor, target: Tensor) -> Tensor:
    """Of sum_y target[y] * (mean of the values of class y), where a sample stands for ``count`` samples."""
    sizes = torch.zeros_like(target).index_add_(0, index, count)
    present, several = sizes > 0, sizes > 1
    if not several.any():
        return torch.tensor(math.inf, dtype=torch.float64)
    divisors = torch.where(present, sizes, 1.0)
    means = torch.zeros_like(target).index_add_(0, index, count * values) / divisors
    squares = torch.zeros_like(target).index_add_(0, index, count * (values - means[index]).square())
    freedom = (sizes - 1).clamp_min(0)
    typical = (squares[several] / freedom[several]).mean()
    variances = (squares + typical) / (freedom + 1)
    share = torch.where(present, target, 0.0)
    return ((share / share.sum()).square() * variances / divisors).sum().sqrt()


def _class_weights(index: Tensor, count: Tensor, target: Tensor) -> Tensor:
    """[N] float64 that sum to 1: each class that occurs has its share of the target, divided among its samples."""
    target = target.to(index.device)
    sizes = torch.zeros_like(target).index_add_(0, index, count)
    present = sizes > 0
    if not present.any():
        raise ValueError("there must be at least one labeled sample with a weight. Got none.")
    share = torch.where(present, target, 0.0)
    return (share / share.sum() / sizes)[index] * count


def _objective_inputs(logits: Scores, labels: Labels, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    scores = _as_tensor(logits)
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(f"logits must be floating-point [N, C]. Got {scores.dtype} {tuple(scores.shape)}.")
    index = _as_labels(labels, scores)
    if weights is not None:
        return _widened(scores), index, weights
    uniform = _target_probabilities(None, scores.shape[1])
    return _widened(scores), index, _class_weights(index, _sample_counts(None, index), uniform)


def _checked_shares(shares: Tensor, length: int) -> Tensor:
    if shares.shape != (length,):
        raise ValueError(
            f"objective must return [{length}], one share of the score for each sample. Got {tuple(shares.shape)}."
        )
    shares = shares.detach().cpu().double()
    if not torch.isfinite(shares).all():
        raise ValueError("objective must return finite numbers. Got NaN or an infinity.")
    return shares


def _tau_grid(taus: Sequence[float] | Tensor | FloatArray | None) -> Tensor:
    if taus is None:
        return torch.arange(61, dtype=torch.float64) / 20
    grid = _as_tensor(taus).to("cpu", torch.float64)
    if grid.ndim != 1 or len(grid) == 0 or not bool((torch.isfinite(grid) & (grid >= 0)).all()):
        raise ValueError(f"taus must be a vector of finite numbers of at least 0. Got {taus!r}.")
    return torch.tensor(sorted(set(grid.tolist())), dtype=torch.float64)


def _sample_counts(weights: Tensor | FloatArray | None, index: Tensor) -> Tensor:
    if weights is None:
        return torch.ones(len(index), dtype=torch.float64, device=index.device)
    count = _as_tensor(weights).to(index.device, torch.float64)
    if count.shape != index.shape or not bool((torch.isfinite(count) & (count >= 0)).all()):
        raise ValueError(f"sample weights must be [{len(index)}] finite numbers of at least 0. Got {weights!r}.")
    return count


def _shift(prior: PriorLike, tau: float, target_prior: PriorLike | None, num_classes: int) -> Tensor:
    """[C] float64, what to add to the logits."""
    log_prior = _log_prior(prior, num_classes)
    target = _target_probabilities(target_prior, num_classes)
    # At tau = 0 even a target of 0 changes nothing, where 0 * -inf would be NaN.
    return tau * (target.log() - log_prior) if _strength(tau) > 0 else torch.zeros_like(log_prior)


def _log_prior(prior: PriorLike, num_classes: int) -> Tensor:
    probs = _prior_probabilities(prior, num_classes, "prior")
    if isinstance(prior, ClassPrior):
        prior.log_probs  # noqa: B018  (raises where a class has no samples)
    if not (probs > 0).all():
        raise ValueError(f"prior must be above 0 for every class. Got 0 for class {int(probs.argmin())}; drop it.")
    return probs.log()


def _target_probabilities(target_prior: PriorLike | None, num_classes: int) -> Tensor:
    if target_prior is None:
        return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    return _prior_probabilities(target_prior, num_classes, "target_prior")


def _prior_probabilities(prior: PriorLike, num_classes: int, name: str) -> Tensor:
    """[C] float64 on the CPU, checked."""
    if isinstance(prior, ClassPrior):
        probs = prior.probs
    else:
        probs = _as_tensor(prior).to("cpu", torch.float64)
        if probs.ndim != 1 or not bool((probs >= 0).all()) or not math.isclose(float(probs.sum()), 1, abs_tol=1e-4):
            raise ValueError(f"{name} must be a ClassPrior or [C] probabilities that sum to 1. Got {prior!r}.")
        probs = probs / probs.sum()
    if len(probs) != num_classes:
        raise ValueError(f"{name} is for {len(probs)} classes, but logits have {num_classes}.")
    return probs


def _strength(tau: float) -> float:
    if not (math.isfinite(tau) and tau >= 0):
        raise ValueError(f"tau must be a finite number of at least 0. Got {tau}.")
    return float(tau)


def _as_scores(logits: Scores) -> Tensor:
    """[N, C] of at least float32, checked."""
    scores = _as_tensor(logits)
    if scores.ndim != 2:
        raise ValueError(f"logits must be floating-point [N, C]. Got {scores.dtype} {tuple(scores.shape)}.")
    _check_logits(scores)
    return _widened(scores)


def _as_labels(labels: Labels, scores: Tensor) -> Tensor:
    return _as_class_indices(labels, scores, scores.shape[1])


def _as_embeddings(values: Scores, name: str) -> Tensor:
    """[N, D] of at least float32, checked."""
    points = _as_tensor(values)
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"{name} must be floating-point [N, D]. Got {points.dtype} {tuple(points.shape)}.")
    if not torch.isfinite(points).all():
        raise ValueError(f"{name} must be finite. Got NaN or an infinity.")
    return _widened(points)


def _as_class_indices(labels: Labels, points: Tensor, num_classes: int | None = None) -> Tensor:
    index = _as_tensor(labels).to(points.device)
    if index.shape != points.shape[:1] or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(f"labels must be [{len(points)}] class indices. Got {index.dtype} {tuple(index.shape)}.")
    index = index.long()
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, 0)
    if low < 0 or (num_classes is not None and high >= num_classes):
        wanted = "at least 0" if num_classes is None else f"in 0..{num_classes - 1}"
        raise ValueError(f"labels must be {wanted}. Got {low if low < 0 else high}.")
    return index


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    # A tensor may not share the memory of a read-only array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _widened(scores: Tensor) -> Tensor:
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def _check_logits(logits: Tensor | FloatArray) -> None:
    if isinstance(logits, Tensor):
        is_floating = logits.is_floating_point()
        # Elsewhere a look at the values would wait for the device.
        can_look = logits.device.type == "cpu" and not torch.compiler.is_compiling()
        is_finite = not can_look or bool(torch.isfinite(logits).all())
    else:
        is_floating = logits.dtype.kind == "f"
        is_finite = is_floating and bool(np.isfinite(logits).all())
    if logits.ndim == 0 or not is_floating:
        raise ValueError(f"logits must be floating-point [..., C]. Got {logits.dtype} {tuple(logits.shape)}.")
    if not is_finite:
        raise ValueError("logits must be finite. Got NaN or an infinity; clip probabilities before their logarithm.")


def _check_weight(weight: Tensor, prior: ClassPrior) -> None:
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(f"weight must be floating-point [C, D]. Got {weight.dtype} {tuple(weight.shape)}.")
    if len(weight) != prior.num_classes:
        raise ValueError(f"prior is for {prior.num_classes} classes, but weight has {len(weight)} rows.")
