"""From a training set and the name of a method to a prior, a loss, a sampler and the record to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Sampler

from longtail._core.labels import NO_LABEL, IntArray, label_array, to_numpy
from longtail.correction import Correction
from longtail.methods import Phase, get_method, takes_embeddings
from longtail.methods.plan import instance_sampler
from longtail.metrics.classes import balanced_accuracy_from_counts, count_hits, group_accuracy_from_counts
from longtail.prior import ClassPrior, check_prior
from longtail.sampling.base import EpochSampler

__all__ = ["PreparedMethod", "SingleLoss", "measure_classes", "prepare_method", "read_labels"]

LABEL_COLUMNS = ("labels", "label")


class SingleLoss:
    """A loss as a plain function of logits and target: no part of a module's ``state_dict``, on any device.

    Logits may have more dimensions, [..., C] for target [...], as those of tokens have.

    >>> loss = SingleLoss(MarginCrossEntropy())
    >>> loss(torch.zeros(2, 3, 4), torch.tensor([[0, 1, -100], [3, 2, -100]])).round(decimals=2)
    tensor(1.3900)
    """

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean over samples that have a label; 0 where none has."""
        return self.divided(logits, target, (target != NO_LABEL).sum().clamp_min(1))

    def divided(self, logits: Tensor, target: Tensor, num_items: Tensor | int) -> Tensor:
        """The sum over samples divided by ``num_items``, such as the samples of several batches together."""
        logits, target = logits.flatten(0, -2), target.flatten()
        num_counted = int((target != NO_LABEL).sum())
        if num_counted == 0:  # their mean does not exist, and would make gradients NaN
            return logits.sum() * 0
        mean: Tensor = self.loss.to(logits.device)(logits, target)
        return mean * (num_counted / num_items)


class PreparedMethod(NamedTuple):
    """What a training loop needs of a method with one phase."""

    correction: Correction
    """What to keep with the model."""
    loss: SingleLoss
    phase: Phase
    labels: IntArray | None
    """[N] of the training set; of tokens, all of them. None where a prior was given and no sampler needs them."""
    has_one_label: bool
    """Whether a sample has one label, not one per token."""

    @property
    def prior(self) -> ClassPrior:
        """The class counts."""
        return self.correction.prior

    def sampler(self, seed: int, epochs: int) -> Sampler[int] | None:
        """The draws of all processes together, to be shared out by the loop; None where any order will do."""
        if self.phase.sampler is instance_sampler:
            return None
        if self.labels is None or not self.has_one_label:
            raise ValueError(f"{self.correction.method} draws samples by their label, and a token has one each.")
        sampler = self.phase.sampler(torch.from_numpy(self.labels), seed, epochs)
        if isinstance(sampler, EpochSampler):
            sampler.num_replicas, sampler.rank = 1, 0
        return sampler


def prepare_method(
    dataset: Any,
    method: str = "logit_adjusted",
    num_classes: int | None = None,
    *,
    prior: ClassPrior | None = None,
    **options: Any,
) -> PreparedMethod:
    """Count the labels of a training set, and build what a method does for them.

    Args:
        dataset: as of ``read_labels``.
        method: a name as ``longtail list`` has it, of a method with one phase and a loss of logits.
        num_classes: how many classes there are; None is the largest label + 1.
        prior: the class counts, in place of counting them in the dataset.
        options: of the method, such as tau.

    Returns:
        The loss, the sampler, and the record to keep with the model.

    >>> prepared = prepare_method([{"labels": 0}, {"labels": 0}, {"labels": 1}])
    >>> prepared.prior.counts.tolist(), prepared.correction.is_corrected, prepared.sampler(0, 1)
    ([2, 1], True, None)
    """
    counted = None
    if prior is None:
        counted = _collect_labels(dataset)
        prior = ClassPrior.from_labels(counted[0], num_classes)
    check_prior(prior)
    if num_classes is not None and prior.num_classes != num_classes:
        raise ValueError(f"prior must be for {num_classes} classes, as the model is. Got {prior.num_classes}.")
    found = get_method(method)
    plan = found.plan(prior, **options)
    if found.is_posthoc:
        raise ValueError(f"{method} acts on the trained model: train with 'cross_entropy', then use fold_adjustment.")
    phase = plan.phases[0]
    is_plain = len(plan.phases) == 1 and phase.regularizer is None and plan.head is None
    if not is_plain or takes_embeddings(phase.loss):
        raise ValueError(
            f"method must be one loss of logits from start to end. Got {method}, which has phases, a head or "
            "embeddings of its own; use longtail train, or its plan in your own loop."
        )
    tau = (found.options | options).get("tau")
    correction = Correction(prior, found.name, None if tau is None else float(tau), plan.corrects_prior)
    if counted is None and phase.sampler is not instance_sampler:
        counted = _collect_labels(dataset)
    return PreparedMethod(correction, SingleLoss(phase.loss), phase, *(counted or (None, True)))


def read_labels(dataset: Any) -> IntArray:
    """[N] class indices of a training set; of tokens, those of all sentences, without -100.

    Args:
        dataset: samples that are mappings with ``labels`` or ``label``; a Hugging Face dataset with such a column; or
            whatever ``ClassPrior.from_labels`` takes.

    >>> read_labels([{"label": 2}, {"label": 0}]).tolist()
    [2, 0]
    >>> read_labels([{"labels": [-100, 1, 0]}, {"labels": [1, -100]}]).tolist()
    [1, 0, 1]
    """
    return _collect_labels(dataset)[0]


def measure_classes(scores: Any, target: Any, prior: ClassPrior) -> dict[str, float]:
    """Accuracy, balanced and by group, of scores [..., C] for target [...]; a group without samples is left out."""
    scores, target = torch.as_tensor(scores).flatten(0, -2), torch.as_tensor(target).flatten()
    hits, counts = count_hits(scores, target)
    values = {"accuracy": hits.sum() / counts.sum(), "balanced_accuracy": balanced_accuracy_from_counts(hits, counts)}
    values |= group_accuracy_from_counts(hits, counts, prior.groups())
    return {name: float(value) for name, value in values.items() if value == value}


def _collect_labels(dataset: Any) -> tuple[IntArray, bool]:
    """All labels, and whether each sample has one."""
    column = _find_column(dataset)
    if column is None:
        return label_array(dataset), True
    values = dataset[column] if hasattr(dataset, "column_names") else [item[column] for item in dataset]
    parts = [np.atleast_1d(to_numpy(value)) for value in values]
    wrong = next((part for part in parts if part.dtype.kind not in "iub"), None)
    if wrong is not None:
        got = (
            "floating-point ones, as of multi-label data; if they are classes, make them whole numbers"
            if wrong.dtype.kind == "f"
            else f"{wrong.flat[0]!s}; encode them first, for example with sklearn.preprocessing.LabelEncoder"
        )
        raise TypeError(f"the labels of a dataset must be class indices. Got {got}.")
    labels = np.concatenate(parts or [np.empty(0, np.int64)]).astype(np.int64)
    return labels[labels != NO_LABEL], all(np.ndim(value) == 0 for value in values)


def _find_column(dataset: Any) -> str | None:
    names: Any = getattr(dataset, "column_names", None)
    if names is None and isinstance(dataset, IterableDataset):
        first = next(iter(dataset), None)
        names = first if isinstance(first, Mapping) else None
    elif names is None and isinstance(dataset, Sequence) and len(dataset) and isinstance(dataset[0], Mapping):
        names = dataset[0]
    elif (
        names is None and not _has_labels(dataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        names = dataset[0] if len(dataset) and isinstance(dataset[0], Mapping) else None
    if names is None:
        return None
    for column in LABEL_COLUMNS:
        if column in names:
            return column
    raise ValueError(
        f"a sample must have 'labels' or 'label'. Got {', '.join(map(str, names))}; rename the one with the "
        "classes, or pass prior."
    )


def _has_labels(dataset: Any) -> bool:
    return any(hasattr(dataset, name) for name in ("targets", "labels", "tensors", "datasets", "dataset"))
