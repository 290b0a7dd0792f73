"""What a trained model ranks first for each sample of the test set, as a run folder keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from longtail._core.tensors_file import load_tensors, pack_text, save_tensors, unpack_text
from longtail.prior import ClassPrior

__all__ = ["RANKINGS", "Rankings", "training_prior"]

RANKINGS = "rankings.safetensors"


def training_prior(counts: Any, num_samples: int | None) -> ClassPrior:
    """The prior of class counts [C]; ``num_samples``, where samples are not as many as the counts together."""
    prior = ClassPrior.from_counts(counts)
    return prior if num_samples is None else dataclasses.replace(prior, num_samples=num_samples)


@dataclass(frozen=True, eq=False)
class Rankings:
    """The best labels of each test sample, in place of the scores of all labels: of sequences, the best items."""

    best: Tensor
    """[N, k] int64, best first."""
    scores: Tensor
    """[N, k] float32; minus infinity where what was there before is left out, and nothing else is left."""
    labels: Tensor
    """[P] int64, the true ones, sample by sample; of a sequence, the item that came next."""
    train_counts: Tensor
    """[C] int64, how often each label is one in training."""
    class_names: tuple[str, ...]
    offsets: Tensor | None = None
    """[N + 1] int64, sample i's labels are at offsets[i] to offsets[i + 1]; None: each sample has one."""
    num_train: int | None = None
    """Training samples, where that is not the sum of the counts."""
    propensity: tuple[float, float] | None = None
    """A and B of ``inverse_propensities``, for multi-label data."""

    @property
    def prior(self) -> ClassPrior:
        """The counts of the training data."""
        return training_prior(self.train_counts, self.num_train)

    @property
    def is_multilabel(self) -> bool:
        """Whether samples have any number of labels."""
        return self.offsets is not None

    @property
    def truth(self) -> Any:
        """[N, C] CSR of 0 and 1: the true labels."""
        offsets = torch.arange(len(self.labels) + 1) if self.offsets is None else self.offsets
        ones = np.ones(len(self.labels), dtype=np.int8)
        shape = (len(self.best), len(self.train_counts))
        return csr_array((ones, self.labels.numpy(), offsets.numpy()), shape=shape)

    def save(self, path: Path) -> None:
        """Write to ``path`` whole or not at all."""
        tensors = {name: getattr(self, name) for name in ("best", "scores", "labels", "train_counts")}
        tensors["class_names"] = pack_text(self.class_names)
        if self.offsets is not None:
            tensors["offsets"] = self.offsets
        about = {"num_train": self.num_train, "propensity": self.propensity}
        save_tensors(path, tensors, "rankings", about, not_finite=("scores",))

    @staticmethod
    def load(path: Path) -> Rankings:
        """Read what :meth:`save` wrote."""
        tensors, about = load_tensors(path, "rankings")
        propensity = about["propensity"]
        return Rankings(
            class_names=unpack_text(tensors.pop("class_names")),
            num_train=about["num_train"],
            propensity=None if propensity is None else (float(propensity[0]), float(propensity[1])),
            **tensors,
        )
