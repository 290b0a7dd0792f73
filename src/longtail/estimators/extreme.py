"""ExtremeClassifier: extreme classification, from sparse features to a ranking of labels, any number per sample."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from longtail._core.labels import IntArray
from longtail.errors import DamagedFileError
from longtail.estimators._extreme_data import (
    Samples,
    count_labels,
    mean_square,
    precision_at_1,
    read_labels,
    split_samples,
)
from longtail.estimators._extreme_files import PathLike, SavedModel, build_model, read_model, write_model
from longtail.estimators._extreme_losses import DrawnNegatives, FullSoftmax
from longtail.estimators._extreme_network import Network, compute_logits, rank_labels
from longtail.estimators._extreme_training import Generators, TrainingSettings, train
from longtail.estimators._parameters import (
    ANYTHING,
    FLAG,
    FUNCTION,
    NOTHING,
    WHOLE,
    Constraints,
    check_parameters,
    number,
    text,
)
from longtail.margins import Margins, none
from longtail.negatives.distributions import Distribution
from longtail.negatives.head import SampledLinear
from longtail.negatives.weightings import Weighting, targeting
from longtail.prior import ClassPrior

__all__ = ["ExtremeClassifier"]


class ExtremeClassifier(BaseEstimator):  # type: ignore[misc]
    """Extreme classification: a ranking of labels from sparse or dense features, with the loss that you choose.

    Formula:
        f[y] = <w[y], h> + b[y] + <a[y], x> (the last term by ``skip_connection``), h = V x + c or relu(V x + c);
        loss = mean over samples and their labels y of
        alpha[y] log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])), or the same with drawn negatives

    Args:
        hidden_size: length of h.
        activation: "identity", as in the paper, or "relu": what h goes through.
        dropout: share of h that is left out in training.
        skip_connection: whether a linear path from features to labels runs beside the hidden layer. It has features
            x labels parameters, and needs the full softmax.
        margins: a function from the ``ClassPrior`` to ``Margins``, such as ``longtail.margins.logit_adjusted``; None
            is cross-entropy.
        class_weights: a function from the ``ClassPrior`` to alpha [C], such as ``longtail.weights.balanced``; None
            is 1.
        distribution: a function from the ``ClassPrior`` to what negatives are drawn from, such as
            ``longtail.negatives.WithinBatch``. None is the full softmax: exact, and as fast for some thousand labels.
        weighting: how drawn negatives are weighted, such as ``longtail.negatives.constant``. It implies the margins,
            so give one of the two; None weights so that the margins given are implied.
        num_negatives: how many are drawn for a batch, at most labels - 1 where they do not come from the batch.
        excludes_other_labels: whether the other labels of a sample are no negatives of the one it is trained on. If
            they are, labels that occur together push each other down.
        epochs: passes over the samples; the most, with ``n_iter_no_change``.
        batch_size: samples per step.
        uses_bfloat16: whether logits over all labels are multiplied out in bfloat16 in training: several times
            as fast on processors that have instructions for it. Weights and the loss stay in float32.
        learning_rate: of Adam, at the start; it falls to 0 in a straight line.
        weight_decay: of Adam, decoupled from the gradient.
        n_iter_no_change: stop after so many epochs without a better P@1 on samples held out, and keep the best
            epoch's model. None trains all epochs, and holds nothing out.
        validation_fraction: share of the samples to hold out for that.
        verbose: whether a line on standard error shows the progress.
        device: where to train.
        random_state: start, order of samples, dropout and negatives; None differs from call to call.

    Attributes:
        label_prior_: the ``ClassPrior`` of the training labels. If a label has no sample, it is smoothed by 1.
        model_: the fitted ``torch.nn.Module``.
        history_: for each epoch its mean loss and, with ``n_iter_no_change``, P@1 on the samples held out.
        n_features_in_, n_labels_: sizes.

    A sample without labels has nothing to train with and is passed over. Vectors of features get row-sparse updates
    from 16,384 features on, and those of labels where negatives are drawn: no step then depends on either number.

    Use when:
        Samples have several of 10^3 to 10^7 labels, and either precision or recall of rare labels is to be chosen.
    Avoid when:
        Labels are a few dozen, or each sample has many features that interact: use a network of your own with
        ``longtail.negatives.SampledLinear``.
    Special cases:
        Multinomial logistic regression for one label per sample, with the identity as ``activation`` and hidden_size
        at least the number of features.

    >>> X = np.eye(4, dtype=np.float32).repeat(20, axis=0)
    >>> y = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]]).repeat(20, axis=0)
    >>> model = ExtremeClassifier(hidden_size=8, epochs=30, batch_size=16, random_state=0).fit(X, y)
    >>> np.sort(model.predict_topk(np.eye(4), k=2)[[0, 3]]).tolist(), model.score(X, y)
    ([[0, 1], [0, 2]], 1.0)

    Deviates:
        The paper samples (sample, label) pairs; here a batch has samples with all their labels, so that features and
        the log-sum-exp are computed once per sample. The objective is the same. The papers count a sample's other
        labels as its negatives, as ``excludes_other_labels=False`` does; leaving them out gains precision where
        samples have many labels (1.7 points of P@1 on Delicious), so that is the default, as in ``SampledLinear``.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2 for the architecture; Menon et al.
        (2019), "Multilabel reductions: what is my loss optimising?", pick-all-labels.
    """

    label_prior_: ClassPrior
    model_: Network
    history_: list[dict[str, float]]
    n_features_in_: int
    n_labels_: int

    def __init__(
        self,
        *,
        hidden_size: int = 512,
        activation: str = "identity",
        dropout: float = 0.0,
        skip_connection: bool = False,
        margins: Callable[[ClassPrior], Margins] | None = None,
        class_weights: Callable[[ClassPrior], Tensor] | None = None,
        distribution: Callable[[ClassPrior], Distribution] | None = None,
        weighting: Weighting | None = None,
        num_negatives: int = 256,
        excludes_other_labels: bool = True,
        epochs: int = 15,
        batch_size: int = 256,
        uses_bfloat16: bool = False,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.0,
        n_iter_no_change: int | None = None,
        validation_fraction: float = 0.1,
        verbose: bool = False,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.activation = activation
        self.dropout = dropout
        self.skip_connection = skip_connection
        self.margins = margins
        self.class_weights = class_weights
        self.distribution = distribution
        self.weighting = weighting
        self.num_negatives = num_negatives
        self.excludes_other_labels = excludes_other_labels
        self.epochs = epochs
        self.batch_size = batch_size
        self.uses_bfloat16 = uses_bfloat16
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_iter_no_change = n_iter_no_change
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> ExtremeClassifier:
        """Learn from samples with labels.

        Args:
            X: [N, D] features, SciPy sparse or dense.
            y: [N, C] zeros and ones, SciPy sparse or dense; or [N] whole numbers, one label per sample.

        Returns:
            The estimator itself.
        """
        self._check_parameters()
        features = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
        labels = read_labels(y, features.shape[0])
        self.n_labels_ = int(labels.shape[1])
        self.label_prior_ = count_labels(labels)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        generators = Generators(*(torch.Generator().manual_seed(int(seed)) for seed in seeds))

        share = None if self.n_iter_no_change is None else self.validation_fraction
        chosen, held_out = split_samples(labels, share, generators.order)
        criterion = self._make_criterion()
        self.model_ = Network(
            features.shape[1], self.n_labels_, self.hidden_size, self.activation, self.skip_connection
        )
        self.model_.reset_parameters(self._initial_bias(criterion), mean_square(features), generators.noise)
        self.model_.to(self.device)
        self.history_ = train(
            self.model_,
            criterion,
            Samples(features, labels, chosen),
            Samples(features, labels, held_out),
            TrainingSettings(*(getattr(self, name) for name in TrainingSettings._fields)),
            generators,
        )
        return self

    def predict_topk(self, X: Any, k: int = 5) -> IntArray:
        """[N, k] the labels with the largest logits, best first, in bounded memory."""
        features = self._check_features(X)
        if not isinstance(k, Integral) or not 1 <= k <= self.n_labels_:
            raise ValueError(f"predict_topk: k must be in 1..{self.n_labels_}. Got {k}.")
        return rank_labels(self.model_, features, int(k))

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """[N, C] logits: for few labels, since all are held at once."""
        return compute_logits(self.model_, self._check_features(X))

    def score(self, X: Any, y: Any) -> float:
        """P@1: for which share of the samples the best label is a true one.

        Args:
            X: [N, D] features.
            y: [N, C] zeros and ones, or [N] labels.
        """
        features = self._check_features(X)
        labels = read_labels(y, features.shape[0], self.n_labels_)
        return precision_at_1(rank_labels(self.model_, features, 1), labels)

    def save(self, path: PathLike) -> None:
        """Write the fitted model to a safetensors file, which holds numbers and text alone, with a checksum.

        What was needed for training alone (margins, class_weights, distribution, weighting, random_state) is not
        kept.
        """
        check_is_fitted(self)
        settings = {name: value for name, value in self.get_params(deep=False).items() if name not in _NOT_SAVED}
        write_model(path, SavedModel(settings, self.label_prior_, self.n_features_in_, self.model_.state_dict()))

    @classmethod
    def load(cls, path: PathLike) -> ExtremeClassifier:
        """The fitted model that ``save`` wrote, on the CPU wherever it was trained; ``model_.to`` moves it.

        A file that is damaged, or another's, is a ``DamagedFileError``.
        """
        try:
            saved = read_model(path)
            estimator = cls(**{name: saved.settings[name] for name in CONSTRAINTS if name not in _NOT_SAVED})
            estimator._check_parameters()
            shape = (int(estimator.hidden_size), estimator.activation, bool(estimator.skip_connection))
            estimator.model_ = build_model(saved, *shape)
        except DamagedFileError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DamagedFileError(
                f"{path} must be a file that ExtremeClassifier.save wrote. Got: {error}."
            ) from error
        estimator.label_prior_, estimator.history_ = saved.label_prior, []
        estimator.n_features_in_, estimator.n_labels_ = saved.num_features, saved.label_prior.num_classes
        return estimator

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _check_parameters(self) -> None:
        check_parameters(self, CONSTRAINTS)
        if self.weighting is not None and self.distribution is None:
            raise ValueError("weighting is of drawn negatives; give a distribution too.")
        if self.weighting is not None and self.margins is not None:
            raise ValueError("weighting implies the margins; give one of the two.")
        if self.skip_connection and self.distribution is not None:
            raise ValueError("skip_connection needs the full softmax; leave distribution None.")

    def _check_features(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _make_criterion(self) -> FullSoftmax | DrawnNegatives:
        prior = self.label_prior_
        margins = none(prior) if self.margins is None else self.margins(prior)
        class_weights = None if self.class_weights is None else self.class_weights(prior).float().to(self.device)
        if self.distribution is None:
            return FullSoftmax(margins.to(self.device, torch.float32), class_weights, self.excludes_other_labels)
        weighting = targeting(margins) if self.weighting is None else self.weighting
        with torch.random.fork_rng(devices=[]):  # the start is drawn again, with a generator
            head = SampledLinear(
                self.hidden_size + 1,
                self.n_labels_,
                self.distribution(prior),
                weighting,
                self.num_negatives,
                excludes_other_labels=self.excludes_other_labels,
            )
        return DrawnNegatives(head, class_weights)

    def _initial_bias(self, criterion: FullSoftmax | DrawnNegatives) -> Tensor:
        """[C] the best logits for a sample about which nothing is known."""
        known = self.label_prior_.log_probs - criterion.implied_margins(self.label_prior_).negative
        return known - known.mean()


CONSTRAINTS: Constraints = {
    "hidden_size": (WHOLE,),
    "activation": (text("identity", "relu"),),
    "dropout": (number(0, 1),),
    "skip_connection": (FLAG,),
    "margins": (FUNCTION, NOTHING),
    "class_weights": (FUNCTION, NOTHING),
    "distribution": (FUNCTION, NOTHING),
    "weighting": (FUNCTION, NOTHING),
    "num_negatives": (WHOLE,),
    "excludes_other_labels": (FLAG,),
    "epochs": (WHOLE,),
    "batch_size": (WHOLE,),
    "uses_bfloat16": (FLAG,),
    "learning_rate": (number(0, excludes_low=True),),
    "weight_decay": (number(0),),
    "n_iter_no_change": (WHOLE, NOTHING),
    "validation_fraction": (number(0, 1, excludes_low=True),),
    "verbose": (FLAG,),
    "device": (ANYTHING,),
    "random_state": (ANYTHING,),
}
"""What the parameters of ExtremeClassifier may be."""

_NOT_SAVED = ("margins", "class_weights", "distribution", "weighting", "random_state")
"""Functions, and what nobody needs to predict."""
