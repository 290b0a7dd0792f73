"""Many labels, and several of them a sample: an estimator from sparse features to a ranking of labels."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from longtail.estimators._extreme_losses import DrawnNegatives, FullSoftmax, LabelBatch
from longtail.estimators._extreme_network import Network, as_rows, is_sparse
from longtail.margins import Margins, none
from longtail.negatives.distributions import Distribution
from longtail.negatives.head import SampledLinear
from longtail.negatives.rowwise import RowwiseAdam
from longtail.negatives.weightings import Weighting, targeting
from longtail.prior import ClassPrior

__all__ = ["ExtremeClassifier"]


IntArray = npt.NDArray[np.int64]


PathLike = str | os.PathLike[str]


ROW_SPARSE_FROM = 2**14
"""With as many features or more, a step updates the vectors of the features in the batch, and no others."""


FILE_FORMAT = 1


class ExtremeClassifier(BaseEstimator):  # type: ignore[misc]
    """A ranking of very many labels from sparse or dense features, trained with the loss that you choose.

    Formula:
        f[y] = <w[y], h> + b[y] + <a[y], x> (the last term by ``has_direct_path``), h = V x + c or relu(V x + c);
        loss = mean over samples and their labels y of
        alpha[y] log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])), or the same with drawn negatives

    Args:
        hidden_size: length of h.
        is_rectified: whether h goes through a ReLU. The paper's hidden layer is linear, which is the default.
        dropout: share of h that is left out in training.
        has_direct_path: whether a linear path from features to labels runs beside the hidden layer. It has features
            x labels parameters, and needs the full softmax.
        margins: a function from the ``ClassPrior`` to ``Margins``, such as ``longtail.margins.logit_adjusted``; None
            is cross-entropy.
        weights: a function from the ``ClassPrior`` to alpha [C], such as ``longtail.weights.balanced``; None is 1.
        distribution: a function from the ``ClassPrior`` to what negatives are drawn from, such as
            ``longtail.negatives.WithinBatch``. None is the full softmax: exact, and as fast for some thousand labels.
        weighting: how drawn negatives are weighted, such as ``longtail.negatives.constant``. It implies the margins,
            so give one of the two; None weights so that the margins given are implied.
        num_negatives: how many are drawn for a batch, at most labels - 1.
        excludes_other_labels: whether the other labels of a sample are no negatives of the one it is trained on. The
            papers count them, which is the default: then labels that occur together push each other down.
        epochs: passes over the samples; the most, with ``patience``.
        batch_size: samples a step.
        uses_bfloat16: whether logits over all labels are multiplied out in bfloat16 in training: several times
            as fast on processors that have instructions for it. Weights and the loss stay in float32.
        learning_rate: of Adam, at the start; it falls to 0 in a straight line.
        weight_decay: of Adam, decoupled from the gradient.
        patience: stop after so many epochs without a better P@1 on samples held out, and keep the best epoch's model.
            None trains all epochs, and holds nothing out.
        validation_fraction: share of the samples to hold out for that.
        verbose: whether a line on standard error shows the progress.
        device: where to train.
        random_state: start, order of samples, dropout and negatives; None differs from call to call.

    Attributes:
        prior_: the ``ClassPrior`` of the training labels. If a label has no sample, it is smoothed by 1.
        model_: the fitted ``torch.nn.Module``.
        history_: for each epoch its mean loss and, with ``patience``, P@1 on the samples held out.
        n_features_in_, num_labels_: sizes.

    A sample without labels has nothing to train with and is passed over. Vectors of features get row-sparse updates
    from 16,384 features on, and those of labels where negatives are drawn: no step then depends on either number.

    Use when:
        Samples have several of 10^3 to 10^7 labels, and either precision or recall of rare labels is to be chosen.
    Avoid when:
        Labels are a few dozen, or each sample has many features that interact: use a network of your own with
        ``longtail.negatives.SampledLinear``.
    Equals:
        Multinomial logistic regression for one label a sample, with ``is_rectified`` False and hidden_size at least
        the number of features.

    >>> X = np.eye(4, dtype=np.float32).repeat(20, axis=0)
    >>> Y = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]]).repeat(20, axis=0)
    >>> model = ExtremeClassifier(hidden_size=8, epochs=30, batch_size=16, random_state=0).fit(X, Y)
    >>> np.sort(model.predict_topk(np.eye(4), k=2)[[0, 3]]).tolist(), model.score(X, Y)
    ([[0, 1], [0, 2]], 1.0)

    Deviates:
        The paper samples (sample, label) pairs; here a batch has samples with all their labels, so that features and
        the log-sum-exp are computed once a sample. The objective is the same.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2 for the architecture; Menon et al.
        (2019), "Multilabel reductions: what is my loss optimising?", pick-all-labels.
    """

    prior_: ClassPrior
    model_: Network
    history_: list[dict[str, float]]
    n_features_in_: int
    num_labels_: int

    def __init__(
        self,
        *,
        hidden_size: int = 512,
        is_rectified: bool = False,
        dropout: float = 0.0,
        has_direct_path: bool = False,
        margins: Callable[[ClassPrior], Margins] | None = None,
        weights: Callable[[ClassPrior], Tensor] | None = None,
        distribution: Callable[[ClassPrior], Distribution] | None = None,
        weighting: Weighting | None = None,
        num_negatives: int = 256,
        excludes_other_labels: bool = False,
        epochs: int = 15,
        batch_size: int = 256,
        uses_bfloat16: bool = False,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.0,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        verbose: bool = False,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.is_rectified = is_rectified
        self.dropout = dropout
        self.has_direct_path = has_direct_path
        self.margins = margins
        self.weights = weights
        self.distribution = distribution
        self.weighting = weighting
        self.num_negatives = num_negatives
        self.excludes_other_labels = excludes_other_labels
        self.epochs = epochs
        self.batch_size = batch_size
        self.uses_bfloat16 = uses_bfloat16
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, Y: Any) -> ExtremeClassifier:
        """Learn from samples with labels.

        Args:
            X: [N, D] features, SciPy sparse or dense.
            Y: [N, C] zeros and ones, SciPy sparse or dense; or [N] whole numbers, one label a sample.

        Returns:
            The estimator itself.
        """
        self._check_settings()
        features = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
        truth = _checked_truth(Y, features.shape[0])
        self.num_labels_ = int(truth.shape[1])
        self.prior_ = _prior(truth)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        generators = _Generators(*(torch.Generator().manual_seed(int(seed)) for seed in seeds))

        kept, held = self._split(truth, generators.order)
        criterion = self._criterion()
        self.model_ = Network(
            features.shape[1], self.num_labels_, self.hidden_size, self.is_rectified, self.has_direct_path
        )
        self.model_.reset_parameters(self._initial_bias(criterion), _mean_square(features), generators.noise)
        self.model_.to(self.device)
        self._train(_Samples(features, truth, kept), _Samples(features, truth, held), criterion, generators)
        return self

    def predict_topk(self, X: Any, k: int = 5) -> IntArray:
        """[N, k] the labels with the largest logits, best first, in bounded memory."""
        features = self._checked_features(X)
        if not isinstance(k, Integral) or not 1 <= k <= self.num_labels_:
            raise ValueError(f"predict_topk: k must be in 1..{self.num_labels_}. Got {k}.")
        return self._topk(features, int(k))

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """[N, C] logits: for few labels, since all are held at once."""
        features = self._checked_features(X)
        parts = [part.cpu().numpy() for part in self._logits(features)]
        return np.concatenate(parts) if parts else np.zeros((0, self.num_labels_), dtype=np.float32)

    def score(self, X: Any, Y: Any) -> float:
        """P@1: for which share of the samples the best label is a true one.

        Args:
            X: [N, D] features.
            Y: [N, C] zeros and ones, or [N] labels.
        """
        features = self._checked_features(X)
        truth = _checked_truth(Y, features.shape[0], self.num_labels_)
        return _precision_at_1(self._topk(features, 1), truth)

    def save(self, path: PathLike) -> None:
        """Write the fitted model to a file that holds numbers alone, and can be loaded without trust.

        What was needed for training alone (margins, weights, distribution, weighting, random_state) is not kept.
        """
        check_is_fitted(self)
        content = {
            "format": FILE_FORMAT,
            "settings": json.dumps({name: getattr(self, name) for name in _SAVED}, default=methodcaller("item")),
            "counts": self.prior_.counts,
            "num_samples": self.prior_.num_samples,
            "pseudocount": self.prior_.pseudocount,
            "num_features": self.n_features_in_,
            "state": {name: value.cpu() for name, value in self.model_.state_dict().items()},
        }
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            torch.save(content, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: PathLike) -> ExtremeClassifier:
        """The fitted model that ``save`` wrote, on the CPU wherever it was trained; ``model_.to`` moves it."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:  # whatever a damaged archive makes PyTorch raise
            raise ValueError(
                f"{path} must be a file that ExtremeClassifier.save wrote. Got: {type(error).__name__}."
            ) from error
        return _restored(cls, content, path)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _check_settings(self) -> None:
        for name in ("hidden_size", "num_negatives", "epochs", "batch_size"):
            _check_whole(name, getattr(self, name))
        if self.patience is not None:
            _check_whole("patience", self.patience)
        _check_number("learning_rate", self.learning_rate, 0, math.inf, excludes_low=True)
        _check_number("weight_decay", self.weight_decay, 0, math.inf)
        _check_number("dropout", self.dropout, 0, 1)
        _check_number("validation_fraction", self.validation_fraction, 0, 1, excludes_low=True)
        if self.weighting is not None and self.distribution is None:
            raise ValueError("weighting is of drawn negatives; give a distribution too.")
        if self.weighting is not None and self.margins is not None:
            raise ValueError("weighting implies the margins; give one of the two.")
        if self.has_direct_path and self.distribution is not None:
            raise ValueError("has_direct_path needs the full softmax; leave distribution None.")

    def _split(self, truth: Any, generator: torch.Generator) -> tuple[IntArray, IntArray]:
        """Samples to train on, and those to hold out, of the samples that have labels."""
        labeled = np.flatnonzero(np.diff(truth.indptr))
        if self.patience is None:
            return labeled, labeled[:0]
        order = labeled[torch.randperm(len(labeled), generator=generator).numpy()]
        num_held = math.ceil(self.validation_fraction * len(order))
        if num_held >= len(order):
            raise ValueError(
                f"patience needs samples to hold out and samples to train on. Got {len(order)} with labels, and a "
                f"validation_fraction of {self.validation_fraction}."
            )
        return np.sort(order[num_held:]), order[:num_held]

    def _criterion(self) -> FullSoftmax | DrawnNegatives:
        margins = none(self.prior_) if self.margins is None else self.margins(self.prior_)
        weights = None if self.weights is None else self.weights(self.prior_).float().to(self.device)
        if self.distribution is None:
            return FullSoftmax(margins.to(self.device, torch.float32), weights, self.excludes_other_labels)
        distribution = self.distribution(self.prior_)
        weighting = targeting(margins) if self.weighting is None else self.weighting
        with torch.random.fork_rng(devices=[]):  # the start is drawn again, with a generator
            head = SampledLinear(
                self.hidden_size + 1,
                self.num_labels_,
                distribution,
                weighting,
                self.num_negatives,
                excludes_other_labels=self.excludes_other_labels,
            )
        return DrawnNegatives(head, weights)

    def _initial_bias(self, criterion: FullSoftmax | DrawnNegatives) -> Tensor:
        """[C] the best logits for a sample about which nothing is known."""
        log_probs = self.prior_.log_probs
        known = log_probs - criterion.implied_margins(self.prior_).negative
        return known - known.mean()

    def _train(
        self, samples: _Samples, held: _Samples, criterion: FullSoftmax | DrawnNegatives, generators: _Generators
    ) -> None:
        network = self.model_
        is_drawn = isinstance(criterion, DrawnNegatives)
        if isinstance(criterion, DrawnNegatives):
            criterion.share(network)
        network.uses_bfloat16 = self.uses_bfloat16
        network.is_row_sparse = is_sparse(samples.features) and samples.features.shape[1] >= ROW_SPARSE_FROM
        optimizers = _optimizers(network, is_drawn, self.learning_rate, self.weight_decay)
        batches_an_epoch = samples.num_batches(self.batch_size)
        num_steps = self.epochs * batches_an_epoch
        best = _Best()
        self.history_ = []
        for epoch in range(self.epochs):
            losses = []
            for number, batch in enumerate(samples.batches(self.batch_size, generators.order, self.device)):
                step = epoch * batches_an_epoch + number
                _set_learning_rate(optimizers, self.learning_rate * (1 - step / num_steps))
                embeddings = network.embed(batch.rows, self.dropout, generators.noise)
                loss = criterion(network, embeddings, batch, generators.noise)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for optimizer in optimizers:
                    optimizer.step()
                losses.append(loss.detach())
                self._show(epoch, (number + 1) / batches_an_epoch)
            self.history_.append({"loss": _finite_mean(losses)})
            if self.patience is not None:
                precision = _precision_at_1(self._topk(held.features[held.chosen], 1), held.truth[held.chosen])
                self.history_[-1]["validation_precision"] = precision
                if best.is_over(precision, network, self.patience):
                    break
        network.is_row_sparse = network.uses_bfloat16 = False
        best.restore(network)
        if self.verbose:
            sys.stderr.write("\n")

    def _show(self, epoch: int, done: float) -> None:
        if self.verbose:
            last = f"  loss {self.history_[-1]['loss']:.4f}" if self.history_ else ""
            bar = "#" * round(30 * done)
            sys.stderr.write(f"\repoch {epoch + 1}/{self.epochs} [{bar:30}]{last}")
            sys.stderr.flush()

    def _checked_features(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    @torch.no_grad()
    def _topk(self, features: Any, k: int) -> IntArray:
        parts = []
        for start in range(0, features.shape[0], PREDICTED_AT_ONCE):
            rows = as_rows(features[start : start + PREDICTED_AT_ONCE], self.model_.weight.device)
            parts.append(self.model_.topk(rows, k).cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, k), dtype=np.int64)

    @torch.no_grad()
    def _logits(self, features: Any) -> Iterator[Tensor]:
        for start in range(0, features.shape[0], PREDICTED_AT_ONCE):
            rows = as_rows(features[start : start + PREDICTED_AT_ONCE], self.model_.weight.device)
            yield self.model_.logits(rows, self.model_.embed(rows))


PREDICTED_AT_ONCE = 1024
"""Samples to rank labels for at a time."""


_SAVED = (
    "hidden_size",
    "is_rectified",
    "dropout",
    "has_direct_path",
    "num_negatives",
    "excludes_other_labels",
    "epochs",
    "batch_size",
    "uses_bfloat16",
    "learning_rate",
    "weight_decay",
    "patience",
    "validation_fraction",
    "verbose",
    "device",
)


class _Generators(NamedTuple):
    order: torch.Generator
    noise: torch.Generator


class _Samples(NamedTuple):
    """Features and labels of some samples, by their indices."""

    features: Any
    truth: Any
    chosen: IntArray

    def __len__(self) -> int:
        return len(self.chosen)

    def num_batches(self, size: int) -> int:
        return math.ceil(len(self.chosen) / size)

    def batches(self, size: int, generator: torch.Generator, device: str) -> Iterator[LabelBatch]:
        order = self.chosen[torch.randperm(len(self.chosen), generator=generator).numpy()]
        for indices in np.array_split(order, self.num_batches(size)):  # no small one at the end
            truth = self.truth[indices]
            counts = torch.from_numpy(np.diff(truth.indptr).astype(np.int64))
            yield LabelBatch(
                as_rows(self.features[indices], device),
                torch.arange(len(indices)).repeat_interleave(counts).to(device),
                torch.from_numpy(truth.indices.astype(np.int64)).to(device),
            )


class _Best:
    """The best model so far, and how long ago it was."""

    def __init__(self) -> None:
        self.precision, self.num_worse = -math.inf, 0
        self.state: dict[str, Tensor] = {}

    def is_over(self, precision: float, network: nn.Module, patience: int) -> bool:
        if precision > self.precision:
            self.precision, self.num_worse = precision, 0
            self.state = {name: value.detach().clone() for name, value in network.state_dict().items()}
        else:
            self.num_worse += 1
        return self.num_worse >= patience

    def restore(self, network: nn.Module) -> None:
        if self.state:
            network.load_state_dict(self.state)


def _optimizers(
    network: Network, is_drawn: bool, learning_rate: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Row-wise Adam for what has row-sparse gradients, and PyTorch's for the rest."""
    rowwise = [network.vectors] * network.is_row_sparse + [network.weight] * is_drawn
    others = [parameter for parameter in network.parameters() if all(parameter is not row for row in rowwise)]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=learning_rate, weight_decay=weight_decay, fused=True)
    ]
    if rowwise:
        found.append(RowwiseAdam(rowwise, lr=learning_rate, weight_decay=weight_decay))
    return found


def _set_learning_rate(optimizers: list[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def _finite_mean(losses: list[Tensor]) -> float:
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise ValueError(f"training must have a finite loss. Got {mean}; lower learning_rate, or scale the features.")
    return mean


def _precision_at_1(best: IntArray, truth: Any) -> float:
    return float(truth[np.arange(len(best)), best[:, 0]].mean()) if len(best) else math.nan


def _prior(truth: Any) -> ClassPrior:
    prior = ClassPrior.from_indicator(truth)
    return prior if bool((prior.counts > 0).all()) else prior.smoothed(1)


def _mean_square(features: Any) -> float:
    """Mean over samples of the squared length."""
    total = float(np.square(features.data if is_sparse(features) else features, dtype=np.float64).sum())
    return total / features.shape[0] or 1.0


def _checked_truth(Y: Any, num_samples: int, num_labels: int | None = None) -> Any:
    """[N, C] CSR of bool, without explicit zeros."""
    truth = _one_hot(Y, num_labels) if not is_sparse(Y) and np.ndim(Y) == 1 else Y
    if not is_sparse(truth):
        truth = check_array(truth, dtype=None, input_name="Y")
        if truth.dtype.kind not in "biuf":
            raise ValueError(f"Y must be zeros and ones, or whole numbers. Got {truth.dtype}.")
    truth = csr_array(truth, copy=True)
    truth.sum_duplicates()
    if not np.isin(truth.data, (0, 1)).all():
        raise ValueError("Y must be zeros and ones [N, C], or whole numbers [N]. Got another number.")
    truth = truth.astype(np.bool_)
    truth.eliminate_zeros()
    if truth.shape[0] != num_samples:
        raise ValueError(f"X and Y must have one length. Got {num_samples} and {truth.shape[0]}.")
    if num_labels is None and (truth.shape[1] < 2 or truth.nnz == 0):
        raise ValueError(
            f"Y must have two labels or more, and samples that have one. Got {truth.shape[1]} labels "
            f"and {truth.nnz} positives."
        )
    if num_labels is not None and truth.shape[1] != num_labels:
        raise ValueError(f"Y must have the {num_labels} labels of training. Got {truth.shape[1]}.")
    return truth


def _one_hot(labels: Any, num_labels: int | None) -> Any:
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise ValueError(f"Y must be zeros and ones [N, C], or whole numbers [N]. Got {array.dtype} [{len(array)}].")
    size = int(array.max(initial=0)) + 1 if num_labels is None else num_labels
    if array.size and not (array.min() >= 0 and array.max() < size):
        wanted = "at least 0" if num_labels is None else f"in 0..{size - 1}"
        raise ValueError(f"Y must be {wanted}. Got {array.min() if array.min() < 0 else array.max()}.")
    return csr_array((np.ones(len(array)), array, np.arange(len(array) + 1)), shape=(len(array), size))


def _check_whole(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1. Got {value!r}.")


def _check_number(name: str, value: Any, low: float, high: float, excludes_low: bool = False) -> None:
    is_inside = isinstance(value, Real) and low <= float(value) < high and not (excludes_low and value == low)
    if not is_inside:
        raise ValueError(
            f"{name} must be a number {'above' if excludes_low else 'of at least'} {low:g} "
            f"and below {high:g}. Got {value!r}."
        )


def _restored(cls: type[ExtremeClassifier], content: Any, path: PathLike) -> ExtremeClassifier:
    try:
        if content["format"] != FILE_FORMAT:
            raise ValueError(f"format {content['format']}")
        settings = json.loads(content["settings"])
        estimator = cls(**{name: settings[name] for name in _SAVED})
        estimator._check_settings()
        counts, state = content["counts"], content["state"]
        sizes = (int(content["num_features"]), len(counts), int(estimator.hidden_size))
        network = Network(*(0, 0, 0), bool(estimator.is_rectified), bool(estimator.has_direct_path))
        _check_state(state, network, sizes)
        for name, value in state.items():
            setattr(network, name, nn.Parameter(value))
        prior = ClassPrior.from_counts(counts)
        estimator.prior_ = ClassPrior(prior._counts, int(content["num_samples"]), float(content["pseudocount"]))
        estimator.n_features_in_, estimator.num_labels_ = sizes[:2]
        estimator.model_, estimator.history_ = network, []
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} must be a file that ExtremeClassifier.save wrote. Got: {error}.") from error
    return estimator


def _check_state(state: dict[str, Tensor], network: nn.Module, sizes: tuple[int, int, int]) -> None:
    num_features, num_labels, hidden_size = sizes
    shapes = {
        "vectors": (num_features, hidden_size),
        "offset": (hidden_size,),
        "weight": (num_labels, hidden_size + 1),
        "direct": (num_features, num_labels),
    }
    for name in network.state_dict():
        if tuple(state[name].shape) != shapes[name] or state[name].dtype != torch.float32:
            raise ValueError(f"{name} {tuple(state[name].shape)}")
    if set(state) != set(network.state_dict()):
        raise ValueError("other arrays")
