"""ExtremeClassifier: extreme classification, from sparse features to a ranking of labels, any number per sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array, vstack
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from longtail.correction import Correction
from longtail.errors import DamagedFileError
from longtail.estimators.extreme.calibration import LOOKED_AT, Calibration, calibrate, compute_probabilities
from longtail.estimators.extreme.class_means import add_class_means
from longtail.estimators.extreme.data import (
    Samples,
    check_sample_weight,
    count_labels,
    mean_square,
    precision_at_1,
    smooth_if_empty,
    split_rows,
    split_samples,
)
from longtail.estimators.extreme.features import FeatureScaling, are_counts, choose_scaling, count_rows
from longtail.estimators.extreme.files import PathLike, build_model, collect_model, read_model, write_model
from longtail.estimators.extreme.labels import as_names, find_columns, read_labels
from longtail.estimators.extreme.losses import Criterion, DrawnNegatives
from longtail.estimators.extreme.network import (
    Network,
    compute_logits,
    embed_rows,
    is_sparse,
    join_networks,
    rank_labels,
)
from longtail.estimators.extreme.objective import describe_correction, initial_bias, make_criterion
from longtail.estimators.extreme.one_vs_rest import add_one_vs_rest
from longtail.estimators.extreme.parameters import CONSTRAINTS, NOT_SAVED, check_all_parameters
from longtail.estimators.extreme.settings import (
    MANY_SAMPLES,
    DataShape,
    NetworkSettings,
    choose_class_mean_weight,
    choose_loss,
    choose_network,
    choose_one_vs_rest_weight,
    choose_settings,
    tau_of,
)
from longtail.estimators.extreme.streams import (
    Stream,
    StreamedSamples,
    is_path,
    open_stream,
    read_statistics,
    take_first,
)
from longtail.estimators.extreme.training import Generators, Place, Progress, Source, Trainer, train
from longtail.margins import Margins
from longtail.negatives.distributions import Distribution
from longtail.negatives.index import LabelIndex
from longtail.negatives.linear import use_rows
from longtail.negatives.losses import CROSS_ENTROPY, SampledLoss
from longtail.negatives.weightings import Weighting
from longtail.prior import ClassPrior

__all__ = ["ExtremeClassifier"]


class ExtremeClassifier(BaseEstimator):  # type: ignore[misc]
    """Extreme classification: a ranking of labels from sparse or dense features, with the loss that you choose.

    Formula:
        f[y] = <w[y], h> + b[y] + <a[y], x> (the last term by ``skip_connection`` or ``one_vs_rest_weight``),
        h = V x + c or relu(V x + c);
        loss = mean over samples and their labels y of
        alpha[y] log(1 + sum_{y' != y} exp(Delta[y, y'] + f[y'] - f[y])), or
        alpha[y] (phi(f[y]) + sum_{y' != y} exp(Delta[y, y']) psi(f[y'])), as ``loss`` says; or with drawn negatives

    Args:
        emphasis: what counts: "precision", "balanced" or "tail", which are 0, 0.2 and 0.5 as the tau of
            ``longtail.margins.logit_adjusted``; or tau itself. ``margins`` takes its place.
        class_mean_weight: how much rare labels lean on the mean of their samples: after training, the vector of a
            label of n samples gets longer in the direction of their mean, by class_mean_weight * 5 / (5 + n) times
            how long vectors have become in these directions by training. None: 0.5 with ``CROSS_ENTROPY``, 0.09 with
            ``LOGISTIC``, and 0 with other losses, where precision is emphasized, where ``margins`` or ``weighting``
            ask for another objective, or ``scale`` is given.
            ``partial_fit`` has no class means.
        one_vs_rest_weight: how much a linear support vector machine for each label counts beside the network: logits
            become the mean of its and theirs, of which those of rare labels count up to twice. None: 0.4, or
            0.1 with ``LOGISTIC``, where sparse features are 2,000 or more and samples 5,000 or more, as of texts,
            labels are not so many that the machines take over some minutes, and nothing asks for another objective;
            else 0. Files and ``partial_fit`` have none.
        hidden_size: length of h. None, here and below, is chosen from the data's shape: see ``settings_``.
        activation: "relu", or "identity" as in the paper: what h goes through.
        dropout: share of h that is left out in training.
        skip_connection: whether a linear path from features to labels runs beside the hidden layer. It has features
            x labels parameters, and needs the full softmax.
        uses_tfidf: whether values become log(1 + value) times their inverse document frequency. None: where the
            features are sparse counts.
        normalizes_rows: whether rows are scaled to length 1. None: where they are tf-idf.
        n_estimators: networks to train, from different starts. Their logits are averaged, in one network that is as
            many times as wide. None: 4 below 10,000 samples, 2 from there on, 1 from 300,000 on. ``partial_fit``
            trains one.
        loss: ``longtail.negatives.CROSS_ENTROPY``, or one that scores each label by itself, ``LOGISTIC``, ``HINGE``
            or ``CONTRASTIVE``: over all labels, or over drawn negatives. None: ``LOGISTIC`` for 30,000 samples or
            more that have several labels each, and ``CROSS_ENTROPY`` for others, in ``partial_fit``, and where
            ``margins``, ``distribution`` or ``scale`` are given.
        scale: None: logits are inner products; a number: that many times the cosine. ``CONTRASTIVE`` takes 1.
        margins: a function from the ``ClassPrior`` to ``Margins``, such as ``longtail.margins.logit_adjusted``; None
            is the one of ``emphasis``.
        class_weights: alpha: a function from the ``ClassPrior`` to [C], such as ``longtail.weights.balanced``, or
            numbers [C], or a mapping from labels to numbers, 1 for those it lacks; None is 1.
        distribution: a function from the ``ClassPrior`` to what negatives are drawn from, such as
            ``longtail.negatives.WithinBatch``. None is the full softmax: exact, and as fast for some thousand labels.
        weighting: how drawn negatives are weighted, such as ``longtail.negatives.constant``. It implies the margins,
            so give one of the two; None weights so that the margins are implied.
        num_negatives: how many are drawn for a batch, at most labels - 1 where they do not come from the batch.
        excludes_other_labels: whether the other labels of a sample are no negatives of the one it is trained on. If
            they are, labels that occur together push each other down.
        epochs: passes over the samples; the most, with ``n_iter_no_change``.
        batch_size: samples per step.
        buffer_size: samples that are shuffled with each other where ``fit`` reads a file.
        uses_bfloat16: whether logits over all labels are multiplied out in bfloat16 in training: several times
            as fast on processors that have instructions for it. Weights and the loss stay in float32.
        learning_rate: of Adam, at the start; it falls to 0 in a straight line.
        uses_layerwise_rate: whether vectors of features move in proportion to their gradients, three times as fast as
            the rest, instead of by Adam, which moves the vector of a word of two texts as far as any.
        weight_decay: of Adam, decoupled from the gradient.
        n_iter_no_change: stop after so many epochs without a better P@1 on samples held out, and keep the best
            epoch's model. None trains all epochs, and holds nothing out.
        validation_fraction: share of the samples to hold out for that.
        verbose: whether a line on standard error shows the progress and the time left.
        device: where to train.
        random_state: start, order of samples, dropout and negatives; None differs from call to call.

    Attributes:
        classes_: [C] what the labels are called: 0..C-1 where ``y`` has no names.
        label_prior_: the ``ClassPrior`` of the training labels. If a label has no sample, it is smoothed by 1.
        model_: the fitted ``torch.nn.Module``.
        settings_: what training took, with all that was left open chosen.
        correction_: the ``Correction``: the prior, what the loss does about it, and by which strength.
        history_: for each epoch its mean loss and, with ``n_iter_no_change``, P@1 on the samples held out.
        n_features_in_, n_labels_: sizes.
        feature_names_in_: [D] names of the columns of ``X``, where it was a table whose columns have names.

    A sample without labels has nothing to train with and is passed over. Vectors of features get row-sparse updates
    from 8,192 features on, and those of labels where negatives are drawn: no step then depends on either number.

    Use when:
        Samples have several of 10^3 to 10^7 labels, and either precision or recall of rare labels is to be chosen.
    Avoid when:
        Labels are a few dozen, or each sample has many features that interact: use a network of your own with
        ``longtail.negatives.SampledLinear``.
    Special cases:
        Multinomial logistic regression for one label per sample, with the identity as ``activation``, an
        ``emphasis`` of 0 and hidden_size at least the number of features.

    >>> X = np.eye(4, dtype=np.float32).repeat(20, axis=0)
    >>> y = [["news", "sports"], ["sports"], ["weather"], ["news", "weather"]]
    >>> model = ExtremeClassifier(epochs=30, random_state=0).fit(X, [row for row in y for _ in range(20)])
    >>> np.sort(model.predict_topk(np.eye(4), k=2)[[0, 3]]).tolist()
    [['news', 'sports'], ['news', 'weather']]

    Deviates:
        The paper samples (sample, label) pairs; here a batch has samples with all their labels, so that features and
        the log-sum-exp are computed once per sample. The objective is the same. The papers count a sample's other
        labels as its negatives, as ``excludes_other_labels=False`` does; leaving them out gains precision where
        samples have many labels (1.7 points of P@1 on Delicious), so that is the default, as in ``SampledLinear``.

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2 for the architecture; Menon et al.
        (2019), "Multilabel reductions: what is my loss optimising?", pick-all-labels.
    """

    classes_: npt.NDArray[Any]
    label_prior_: ClassPrior
    scaling_: FeatureScaling
    calibration_: Calibration
    shift_: Tensor
    model_: Network
    settings_: dict[str, Any]
    history_: list[dict[str, float]]
    correction_: Correction
    trainer_: Trainer
    generators_: Generators
    seen_prior_: ClassPrior
    n_features_in_: int
    feature_names_in_: npt.NDArray[Any]
    n_labels_: int

    def __init__(
        self,
        *,
        emphasis: str | float = "balanced",
        class_mean_weight: float | None = None,
        one_vs_rest_weight: float | None = None,
        hidden_size: int | None = None,
        activation: str = "relu",
        dropout: float | None = None,
        skip_connection: bool = False,
        uses_tfidf: bool | None = None,
        normalizes_rows: bool | None = None,
        n_estimators: int | None = None,
        loss: SampledLoss | None = None,
        scale: float | None = None,
        margins: Callable[[ClassPrior], Margins] | None = None,
        class_weights: Any = None,
        distribution: Callable[[ClassPrior], Distribution] | None = None,
        weighting: Weighting | None = None,
        num_negatives: int = 256,
        excludes_other_labels: bool = True,
        epochs: int | None = None,
        batch_size: int | None = None,
        buffer_size: int = 65_536,
        uses_bfloat16: bool = True,
        learning_rate: float | None = None,
        uses_layerwise_rate: bool = True,
        weight_decay: float = 0.0,
        n_iter_no_change: int | None = None,
        validation_fraction: float = 0.1,
        verbose: bool = False,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.emphasis = emphasis
        self.class_mean_weight = class_mean_weight
        self.one_vs_rest_weight = one_vs_rest_weight
        self.hidden_size = hidden_size
        self.activation = activation
        self.dropout = dropout
        self.skip_connection = skip_connection
        self.uses_tfidf = uses_tfidf
        self.normalizes_rows = normalizes_rows
        self.n_estimators = n_estimators
        self.loss = loss
        self.scale = scale
        self.margins = margins
        self.class_weights = class_weights
        self.distribution = distribution
        self.weighting = weighting
        self.num_negatives = num_negatives
        self.excludes_other_labels = excludes_other_labels
        self.epochs = epochs
        self.batch_size = batch_size
        self.buffer_size = buffer_size
        self.uses_bfloat16 = uses_bfloat16
        self.learning_rate = learning_rate
        self.uses_layerwise_rate = uses_layerwise_rate
        self.weight_decay = weight_decay
        self.n_iter_no_change = n_iter_no_change
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ExtremeClassifier:
        """Learn from samples with labels.

        Args:
            X: [N, D] features: SciPy sparse or dense, or a table of pandas or polars. Or the path of a file that has
                features and labels: text as of the extreme-classification repository (``.gz`` too), Parquet, or a
                folder of Parquet files, with columns of lists "labels", "features" and "values". Files are read in
                chunks: ``buffer_size`` samples are shuffled at a time, and memory does not grow with the file.
            y: [N, C] zeros and ones, SciPy sparse, dense, or a table whose columns are labels; [N] whole numbers or
                names, one label per sample; or one list or set of these per sample. Lists of zeros and ones that
                all have one length are a matrix; sets never are.
            sample_weight: [N] how much each sample counts; None: all alike.

        Returns:
            The estimator itself.
        """
        check_all_parameters(self)
        self.__dict__.pop("trainer_", None)  # partial_fit begins anew after this
        if is_path(X):
            if y is not None or sample_weight is not None:
                raise ValueError("X is a file, which has the labels; leave y and sample_weight None.")
            if self.one_vs_rest_weight:
                raise ValueError("X is a file, and machines need all samples at once; leave one_vs_rest_weight None.")
            return self._fit_stream(open_stream(X))
        if y is None:
            raise ValueError("y must be the labels, unless X is a file that has them. Got None.")
        features = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
        labels = read_labels(y, features.shape[0])
        self._take_labels(labels.names, count_labels(labels.rows))
        self.scaling_ = choose_scaling(self, are_counts(features), count_rows(features), features)
        scaled, generators = self.scaling_.apply(features), self._make_generators()
        share = None if self.n_iter_no_change is None else self.validation_fraction
        chosen, held_out = split_samples(labels.rows, share, generators.order)
        weights = check_sample_weight(sample_weight, features.shape[0])
        samples = Samples(scaled, labels.rows, chosen, weights)
        num_pairs = int(np.diff(labels.rows.indptr)[chosen].sum())
        has_rows, num_values = is_sparse(features), int(features.nnz if is_sparse(features) else features.size)
        shape = DataShape(len(chosen), num_pairs, features.shape[1], self.n_labels_, has_rows, num_values)
        unseen = Samples(scaled, labels.rows, held_out)
        criterion = self._train(samples, unseen, shape, mean_square(scaled), generators)
        looked_at = held_out if len(held_out) else generators.order_of(chosen)
        self._finish(criterion, scaled[looked_at], labels.rows[looked_at], labels.is_single)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> ExtremeClassifier:
        """Learn from some more samples, in one pass over them, at a learning rate that stays what it is.

        The first call decides the features, their scaling and the labels; the counts of labels, and with them the
        margins, are those of all samples seen so far.

        Args:
            X: [N, D] features.
            y: labels, in any of the forms that ``fit`` takes.
            classes: all labels there will be, where the first samples may lack some: their number, or their names.
            sample_weight: [N] how much each sample counts; None: all alike.
        """
        check_all_parameters(self)
        is_first = not hasattr(self, "trainer_")
        features = validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=is_first)
        known = as_names(classes) if is_first else self.classes_
        labels = read_labels(y, features.shape[0], known)
        if not is_first and labels.rows.nnz == 0:
            return self  # samples without labels are passed over, also where a whole part has none
        seen = ClassPrior.from_indicator(labels.rows)
        self.seen_prior_ = seen if is_first else self.seen_prior_ + seen
        self._take_labels(labels.names, smooth_if_empty(self.seen_prior_))
        if is_first:
            self.scaling_ = choose_scaling(self, are_counts(features), count_rows(features), features)
        scaled = self.scaling_.apply(features)
        criterion = make_criterion(self, self.loss or CROSS_ENTROPY, self.label_prior_, self.classes_)
        if is_first:
            self._begin(scaled, criterion)
        weights = check_sample_weight(sample_weight, features.shape[0])
        chosen, _ = split_samples(labels.rows, None, self.generators_.order)
        samples, settings = Samples(scaled, labels.rows, chosen, weights), self.trainer_.settings
        progress = Progress(1, samples.num_batches(settings.batch_size), settings.verbose)
        loss = self.trainer_.train_epoch(criterion, samples, self.generators_, progress, decays=False)
        progress.end()
        self.history_.append({"loss": loss})
        self._finish(criterion, scaled[chosen], labels.rows[chosen], labels.is_single)
        return self

    def predict(self, X: Any) -> Any:
        """The labels: [N] the best one where ``y`` had one per sample; else [N, C] CSR of 0 and 1.

        With any number of labels per sample, those whose probability is at least a half.
        """
        features = self._check_features(X)
        if self.calibration_.is_single:
            return self.classes_[rank_labels(self.model_, features, 1)[:, 0]]
        columns = np.arange(self.n_labels_)
        parts = [
            csr_array(compute_probabilities(self.model_, part, columns, self.shift_, self.calibration_) >= 0.5)
            for part in split_rows(features)
        ]
        return vstack(parts, format="csr").astype(np.int64)

    def predict_topk(self, X: Any, k: int = 5, index: LabelIndex | None = None) -> npt.NDArray[Any]:
        """[N, k] the labels with the largest logits, best first, in bounded memory.

        Args:
            X: [N, D] features.
            k: how many.
            index: ``LabelIndex(model.label_vectors())``, which looks at few labels; None is exact.
        """
        features = self._check_features(X)
        if not isinstance(k, Integral) or not 1 <= k <= self.n_labels_:
            raise ValueError(f"predict_topk: k must be in 1..{self.n_labels_}. Got {k}.")
        if index is None:
            return self.classes_[rank_labels(self.model_, features, int(k))]
        return self.classes_[index.topk(embed_rows(self.model_, features), int(k)).indices.numpy()]

    def label_vectors(self) -> Tensor:
        """[C, H + 1] vectors whose inner products with ``embed(X)`` are the logits: for an index, or to export."""
        check_is_fitted(self)
        if self.model_.direct is not None:
            raise ValueError(
                "label_vectors: logits with a linear path are no inner products; fit with skip_connection=False and "
                "one_vs_rest_weight=0."
            )
        return use_rows(self.model_.weight.detach(), self.model_.scale)

    def embed(self, X: Any) -> Tensor:
        """[N, H + 1] what the hidden layer makes of samples, and a 1 for the bias."""
        return embed_rows(self.model_, self._check_features(X))

    def predict_proba(self, X: Any, labels: Any = None) -> npt.NDArray[np.float32]:
        """[N, K] probabilities of labels, whatever the emphasis; None: of all.

        Where ``y`` had one label per sample they are a softmax. Where samples have any number, each is the chance
        that the label is one of the sample's: a sigmoid of the logit, or of the softmax with ``CROSS_ENTROPY``,
        fitted on the samples that ``n_iter_no_change`` holds out, else on training samples, and then somewhat too
        sure.

        Args:
            X: [N, D] features.
            labels: [K] some of ``classes_``.
        """
        features = self._check_features(X)
        columns = np.arange(self.n_labels_) if labels is None else find_columns(labels, self.classes_)
        return compute_probabilities(self.model_, features, columns, self.shift_, self.calibration_)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """[N, C] logits: for few labels, since all are held at once."""
        return compute_logits(self.model_, self._check_features(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """P@1: for which share of the samples the best label is a true one.

        Args:
            X: [N, D] features.
            y: labels, in any of the forms that ``fit`` takes. One that training had no sample of, as happens to rare
                labels in cross-validation, is one that nobody can find.
            sample_weight: [N] how much each sample counts; None: all alike.
        """
        features = self._check_features(X)
        labels = read_labels(y, features.shape[0], self.classes_, accepts_unknown=True)
        weights = check_sample_weight(sample_weight, features.shape[0])
        return precision_at_1(rank_labels(self.model_, features, 1), labels.rows, weights)

    def save(self, path: PathLike) -> None:
        """Write the fitted model to a safetensors file, which holds numbers and text alone, with a checksum.

        Its metadata have the prior, the method and its tau, and whether that corrected the prior. What was needed
        for training alone (margins, class_weights, distribution, weighting, loss, random_state) is not kept.
        """
        check_is_fitted(self)
        write_model(path, collect_model(self))

    @classmethod
    def load(cls, path: PathLike) -> ExtremeClassifier:
        """The fitted model that ``save`` wrote, on the CPU wherever it was trained; ``model_.to`` moves it.

        A file that is damaged, or another's, is a ``DamagedFileError``.
        """
        try:
            saved = read_model(path)
            estimator = cls(**{name: saved.settings[name] for name in CONSTRAINTS if name not in NOT_SAVED})
            check_all_parameters(estimator)
            loaded = build_model(saved, estimator.activation, bool(estimator.skip_connection), estimator.scale)
        except DamagedFileError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DamagedFileError(
                f"{path} must be a file that ExtremeClassifier.save wrote. Got: {error}."
            ) from error
        estimator.model_, estimator.shift_ = loaded.network, loaded.shift
        estimator.scaling_, estimator.calibration_ = loaded.scaling, loaded.calibration
        estimator.classes_, estimator.label_prior_ = loaded.names, saved.label_prior
        estimator.history_, estimator.settings_ = [], {}
        estimator.correction_ = loaded.correction
        estimator.n_features_in_, estimator.n_labels_ = saved.num_features, saved.label_prior.num_classes
        if loaded.feature_names is not None:
            estimator.feature_names_in_ = loaded.feature_names
        return estimator

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(multi_label=True)
        return tags

    def _check_features(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.scaling_.apply(validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False))

    def _fit_stream(self, stream: Stream) -> ExtremeClassifier:
        """``fit`` from files: one pass to count, and then the epochs."""
        found = read_statistics(stream)
        if len(found.label_counts) < 2 or found.num_labeled == 0:
            raise ValueError(f"files must have two labels or more. Got {len(found.label_counts)}.")
        prior = replace(ClassPrior.from_counts(found.label_counts), num_samples=found.num_samples)
        self.n_features_in_ = len(found.rows_with)
        self.__dict__.pop("feature_names_in_", None)  # of a table, in an earlier fit
        self._take_labels(np.arange(len(found.label_counts)), smooth_if_empty(prior))
        first, generators = take_first(stream, LOOKED_AT), self._make_generators()
        self.scaling_ = choose_scaling(self, found.are_counts, found.rows_with, first.features, found.num_samples)
        scaled, num_held_out = self.scaling_.apply(first.features), 0
        if self.n_iter_no_change is not None:
            num_held_out = min(math.ceil(self.validation_fraction * found.num_labeled), scaled.shape[0])
        num_trained = found.num_labeled - num_held_out
        if num_trained < 1:
            raise ValueError("n_iter_no_change needs samples to train on. Got files that have too few.")
        source = StreamedSamples(stream, self.scaling_, num_trained, num_held_out, self.buffer_size)
        held_out = Samples(scaled, first.labels, np.arange(num_held_out))
        square = 1.0 if self.scaling_.normalizes_rows else found.square
        num_pairs = round(int(found.label_counts.sum()) * num_trained / found.num_labeled)
        shape = DataShape(num_trained, num_pairs, self.n_features_in_, self.n_labels_, True)
        criterion = self._train(source, held_out, shape, square, generators)
        self._finish(criterion, scaled, first.labels, False)
        return self

    def _take_labels(self, names: npt.NDArray[Any], prior: ClassPrior) -> None:
        self.classes_, self.n_labels_, self.label_prior_ = names, len(names), prior

    def _finish(self, criterion: Criterion, features: Any, labels: Any, is_single: bool) -> None:
        """What predictions need beside the network, from some samples."""
        self.shift_ = criterion.implied_margins(self.label_prior_).negative.float()
        is_decoupled = criterion.loss is not CROSS_ENTROPY
        self.calibration_ = calibrate(self.model_, features, labels, self.shift_, is_single, is_decoupled)
        self.correction_ = describe_correction(self, self.label_prior_, criterion)

    def _make_generators(self) -> Generators:
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        return Generators(*(torch.Generator().manual_seed(int(seed)) for seed in seeds))

    def _train(
        self, source: Source, held_out: Samples, shape: DataShape, mean_square: float, generators: Generators
    ) -> Criterion:
        """Train the networks and join them; gives what they were trained with."""
        settings, chosen, loss = choose_settings(self, shape), choose_network(self, shape), choose_loss(self, shape)
        criterion = make_criterion(self, loss, self.label_prior_, self.classes_)
        class_mean_weight = choose_class_mean_weight(self, loss)
        self.settings_ = settings._asdict() | chosen._asdict() | {"tau": tau_of(self.emphasis), "loss": loss}
        one_vs_rest_weight = choose_one_vs_rest_weight(self, loss, shape)
        self.settings_ |= {"class_mean_weight": class_mean_weight, "one_vs_rest_weight": one_vs_rest_weight}
        networks, self.history_ = [], []
        for number in range(1, chosen.n_estimators + 1):
            network = self._make_network(chosen, shape.num_features, criterion, mean_square, generators)
            trainer = Trainer(network, isinstance(criterion, DrawnNegatives), shape.is_sparse, settings)
            place = Place(number, chosen.n_estimators)
            self.history_ += train(trainer, criterion, source, held_out, generators, place)
            networks.append(network)
        self.model_ = join_networks(networks)
        if class_mean_weight:
            add_class_means(self.model_, source, class_mean_weight, settings)
        if one_vs_rest_weight and isinstance(source, Samples):
            add_one_vs_rest(self.model_, source, one_vs_rest_weight, settings.verbose)
        return criterion

    def _begin(self, features: Any, criterion: Criterion) -> None:
        """A network that ``partial_fit`` trains, as for many samples: more may come."""
        shape = DataShape(MANY_SAMPLES, MANY_SAMPLES, features.shape[1], self.n_labels_, is_sparse(features))
        chosen, settings = choose_network(self, shape)._replace(n_estimators=1), choose_settings(self, shape)
        self.settings_ = settings._asdict() | chosen._asdict() | {"tau": tau_of(self.emphasis)}
        self.generators_, self.history_ = self._make_generators(), []
        square = mean_square(features)
        self.model_ = self._make_network(chosen, shape.num_features, criterion, square, self.generators_)
        self.trainer_ = Trainer(self.model_, isinstance(criterion, DrawnNegatives), shape.is_sparse, settings)

    def _make_network(
        self,
        chosen: NetworkSettings,
        num_features: int,
        criterion: Criterion,
        mean_square: float,
        generators: Generators,
    ) -> Network:
        sizes = (num_features, self.n_labels_, chosen.hidden_size)
        network = Network(*sizes, self.activation, self.skip_connection, self.scale)
        bias = initial_bias(self.label_prior_, criterion)
        network.reset_parameters(bias, mean_square, generators.noise, chosen.hidden_start, chosen.label_start)
        return network.to(self.device)
