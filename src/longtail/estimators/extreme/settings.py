"""What ExtremeClassifier takes where a setting is left open: from the shape of the data."""

from __future__ import annotations

from typing import Any, NamedTuple

from longtail.estimators.extreme.training import TrainingSettings
from longtail.negatives.losses import CROSS_ENTROPY, LOGISTIC, SampledLoss

__all__ = [
    "EMPHASES",
    "MANY_SAMPLES",
    "DataShape",
    "NetworkSettings",
    "choose_class_mean_weight",
    "choose_loss",
    "choose_network",
    "choose_one_vs_rest_weight",
    "choose_settings",
    "tau_of",
]

EMPHASES = {"precision": 0.0, "balanced": 0.2, "tail": 0.5}
"""tau of the logit-adjusted margin, by what is to be emphasized."""


class DataShape(NamedTuple):
    """What the choice of settings looks at."""

    num_samples: int
    """Samples to train on, those that have labels."""
    num_pairs: int
    """Labels of all these samples together."""
    num_features: int
    num_labels: int
    is_sparse: bool
    num_values: int | None = None
    """Values of the features that are stored; None: they are read from a file, or come in parts."""


def tau_of(emphasis: str | float) -> float:
    """The strength of the margin."""
    return EMPHASES[emphasis] if isinstance(emphasis, str) else float(emphasis)


def choose_loss(model: Any, shape: DataShape) -> SampledLoss:
    """The logistic loss for very many samples of several labels; else, or with another objective, the softmax.

    A softmax compares labels with each other, which helps rare ones where samples are few. With very many, scoring
    each label by itself gains precision, and sets of labels that fit better.
    """
    if model.loss is not None:
        return model.loss  # type: ignore[no-any-return]
    has_several = shape.num_pairs >= SEVERAL_LABELS * shape.num_samples
    is_large = has_several and shape.num_samples >= VERY_MANY_SAMPLES
    return LOGISTIC if is_large and _is_open(model) and model.distribution is None else CROSS_ENTROPY


def choose_class_mean_weight(model: Any, loss: SampledLoss) -> float:
    """How much rare labels lean on class means: not at all where precision or another objective is asked for."""
    if model.class_mean_weight is not None:
        return float(model.class_mean_weight)
    if not _is_open(model) or tau_of(model.emphasis) == 0:
        return 0.0
    return CLASS_MEAN_WEIGHTS.get(loss, 0.0)


def choose_one_vs_rest_weight(model: Any, loss: SampledLoss, shape: DataShape) -> float:
    """How much a linear machine for each label counts beside the network.

    Of many features most are rare, and machines make more of them than a network. From few samples they learn too
    little themselves, and with many labels they take longer than the network.
    """
    if model.one_vs_rest_weight is not None:
        return float(model.one_vs_rest_weight)
    if shape.num_values is None or not (_is_open(model) and model.distribution is None):
        return 0.0
    is_asked_for = model.loss is not None or model.class_weights is not None
    is_rare = shape.is_sparse and shape.num_features >= MANY_FEATURES and shape.num_samples >= SAMPLES_OF_MACHINES
    operations, size = shape.num_values * shape.num_labels, shape.num_features * shape.num_labels
    is_small = operations <= OPERATIONS_OF_MACHINES and size <= SIZE_OF_MACHINES
    return ONE_VS_REST_WEIGHTS.get(loss, 0.0) if is_rare and is_small and not is_asked_for else 0.0


def _is_open(model: Any) -> bool:
    """Whether nothing asks for another objective than the one of ``emphasis``."""
    return model.margins is None and model.weighting is None and model.scale is None


class NetworkSettings(NamedTuple):
    """What a network is made with."""

    hidden_size: int
    n_estimators: int
    hidden_start: float
    """Standard deviation of hidden values at the start."""
    label_start: float
    """Length of label vectors at the start."""


def choose_network(model: Any, shape: DataShape) -> NetworkSettings:
    """Two wide networks for many samples, one from 300,000 on; for few of them four narrow ones.

    With many features most are rare, and what the start gives to rare ones is noise that training does not remove.
    With many labels their vectors had better start long: hidden values then learn to tell labels apart by directions
    that are drawn, before the vectors of labels with few samples have moved. Where negatives are drawn, most vectors
    move too seldom for that.
    """
    has_many = shape.num_samples >= MANY_SAMPLES
    is_rare = shape.is_sparse and shape.num_features >= MANY_FEATURES and model.uses_layerwise_rate
    return NetworkSettings(
        model.hidden_size or (1024 if has_many else 256),
        model.n_estimators or _choose_number(model, shape),
        0.03 if is_rare else 0.3,
        2.0 if shape.num_labels >= MANY_LABELS and model.distribution is None else 0.3,
    )


def choose_settings(model: Any, shape: DataShape) -> TrainingSettings:
    """The training settings of an estimator, with what is None in them chosen."""
    has_many = shape.num_samples >= MANY_SAMPLES
    return TrainingSettings(
        epochs=model.epochs or (20 if _is_large(shape) else 15 if has_many else 10),
        batch_size=model.batch_size or (256 if has_many else min(64, max(8, shape.num_samples // 32))),
        learning_rate=model.learning_rate or (2e-3 if _is_large(shape) else 3e-3),
        feature_rate=FEATURE_RATE if model.uses_layerwise_rate else None,
        weight_decay=model.weight_decay,
        dropout=_choose_dropout(shape) if model.dropout is None else model.dropout,
        uses_bfloat16=bool(model.uses_bfloat16),
        n_iter_no_change=model.n_iter_no_change,
        verbose=model.verbose,
        device=model.device,
    )


def _choose_number(model: Any, shape: DataShape) -> int:
    """How many networks; cosines can't be averaged in one network."""
    if model.scale is not None:
        return 1
    if shape.num_samples >= AMPLE_SAMPLES:
        return 1
    return 2 if shape.num_samples >= MANY_SAMPLES else 4


def _is_large(shape: DataShape) -> bool:
    """Whether longer training gains, and samples are not so many that it takes hours."""
    return VERY_MANY_SAMPLES <= shape.num_samples < AMPLE_SAMPLES


def _choose_dropout(shape: DataShape) -> float:
    """More for the wide network, until there are samples enough that it does not overfit."""
    return 0.7 if MANY_SAMPLES <= shape.num_samples < VERY_MANY_SAMPLES else 0.5


MANY_SAMPLES = 10_000
"""From as many on, more hidden units gain, with more dropout; below it, small batches do."""


VERY_MANY_SAMPLES = 30_000
"""From as many on, less dropout, a longer training and the logistic loss gain: EURLEX57K, with 45,000, wants all of
them, the sets with 13,000 to 22,000 do not."""


AMPLE_SAMPLES = 300_000
"""From as many on, one network with fewer epochs, so that training is not hours. Its price was not measured."""


MANY_LABELS = 2_000
"""From as many on, more than hidden units."""


MANY_FEATURES = 2_000
"""From as many on, most are rare."""


FEATURE_RATE = 3.0
"""How many times as fast vectors of sparse features learn as the rest."""


SEVERAL_LABELS = 1.5
"""Labels per sample from which on samples have several."""


CLASS_MEAN_WEIGHTS = {CROSS_ENTROPY: 0.5, LOGISTIC: 0.09}
"""How much rare labels lean on class means: on samples held out it cost at most 0.15 points of P@1."""


ONE_VS_REST_WEIGHTS = {CROSS_ENTROPY: 0.4, LOGISTIC: 0.1}
"""How much linear machines count where they are taken. On samples held out of Debian's tags, Reuters-90 and CLINC150,
and with the logistic loss of Debian's dependencies, they gain at 1, 3 and 5 places, and as many rare labels are found
as by the machines alone."""


SAMPLES_OF_MACHINES = 5_000
"""From as many on: with RCV1's 4,000, P@1 loses half a point."""


OPERATIONS_OF_MACHINES = 2**34
"""Values times labels: about six minutes of one core."""


SIZE_OF_MACHINES = 2**28
"""Features times labels: 1.1 GB."""
