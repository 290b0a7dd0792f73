"""What is served around a trained model, as modules that can be exported: thresholds, and a ranking of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, issparse
from torch import Tensor, nn

from longtail._core.checks import as_tensor
from longtail.correction import record_correction
from longtail.estimators.extreme import ExtremeClassifier
from longtail.negatives.linear import embed, use_rows

__all__ = ["LabelRanking", "ThresholdedModel", "pad_rows"]


class ThresholdedModel(nn.Module):
    """A multi-label model with a threshold for each class: scores, and which classes are predicted.

    Args:
        model: inputs -> [N, C] scores, of the kind that the thresholds were chosen on.
        thresholds: [C], as of ``f1_thresholds`` or ``ThresholdedClassifier``.

    >>> model = ThresholdedModel(nn.Identity(), torch.tensor([0.1, 0.3]))
    >>> model(torch.tensor([[0.2, 0.2]]))[1].tolist()
    [[True, False]]
    """

    thresholds: Tensor

    def __init__(self, model: nn.Module, thresholds: Any) -> None:
        super().__init__()
        values = as_tensor(thresholds)
        if values.ndim != 1 or bool(values.isnan().any()):
            raise ValueError(f"thresholds must be [C] numbers. Got {values.dtype} {tuple(values.shape)}.")
        self.model = model
        self.register_buffer("thresholds", values.clone())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C] scores, and [N, C] bool: where they are at least their class's threshold."""
        scores: Tensor = self.model(inputs)
        return scores, scores >= self.thresholds


class LabelRanking(nn.Module):
    """The best labels of a fitted ``ExtremeClassifier``, from rows as :func:`pad_rows` makes them.

    Args:
        estimator: fitted.
        k: how many labels.

    Attributes:
        dynamic_shapes: for ``torch.export``: any number of samples, and of features per sample.
    """

    def __init__(self, estimator: ExtremeClassifier, k: int = 5) -> None:
        super().__init__()
        network = estimator.model_
        if not 1 <= k <= len(network.weight):
            raise ValueError(f"k must be in 1..{len(network.weight)}. Got {k}.")
        self.k, self.is_rectified, self.scale = k, network.activation == "relu", network.scale
        self.normalizes_rows = estimator.scaling_.normalizes_rows
        sizes = {0: torch.export.Dim("samples"), 1: torch.export.Dim("features")}
        self.dynamic_shapes = (sizes, sizes)
        buffers = {**network.state_dict(), "weight": use_rows(network.weight.detach(), network.scale)}
        if estimator.scaling_.idf is not None:
            buffers["idf"] = torch.from_numpy(estimator.scaling_.idf)
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().cpu().clone())
        record_correction(self, estimator.correction_)

    def forward(self, columns: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[N, k] labels as indices into ``classes_``, best first, and [N, k] their logits.

        Args:
            columns: [N, K] which features a sample has.
            values: [N, K] float32 their values, as the estimator takes them; 0 for padding.
        """
        values = self._scale_values(columns, values)
        hidden = self._sum_rows("vectors", columns, values) + self.get_buffer("offset")
        hidden = F.relu(hidden) if self.is_rectified else hidden
        embeddings = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
        logits = F.linear(embed(embeddings, self.scale), self.get_buffer("weight"))
        if "direct" in self._buffers:
            logits = logits + self._sum_rows("direct", columns, values)
        best = logits.topk(self.k, dim=1)
        return best.indices, best.values

    def _scale_values(self, columns: Tensor, values: Tensor) -> Tensor:
        """What the estimator does to features: tf-idf of counts, and rows of length 1."""
        if "idf" in self._buffers:
            values = torch.log1p(values) * self.get_buffer("idf")[columns]
        if not self.normalizes_rows:
            return values
        lengths = values.square().sum(dim=1, keepdim=True).sqrt()
        return values / torch.where(lengths > 0, lengths, 1.0)

    def _sum_rows(self, name: str, columns: Tensor, values: Tensor) -> Tensor:
        return torch.bmm(values[:, None], self.get_buffer(name)[columns])[:, 0]


def pad_rows(features: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Sparse or dense features [N, D] as columns and values [N, K], K the most that a row has; padding is 0.

    >>> columns, values = pad_rows(csr_array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]))
    >>> columns.tolist(), values.tolist()
    ([[1, 0], [0, 2]], [[2.0, 0.0], [3.0, 4.0]])
    """
    rows: Any = csr_array(features) if issparse(features) or np.ndim(features) == 2 else None
    if rows is None:
        raise ValueError(f"features must be [N, D]. Got shape {np.shape(features)}.")
    counts = np.diff(rows.indptr)
    shape = (rows.shape[0], max(1, int(counts.max(initial=0))))
    columns, values = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    is_used = np.arange(shape[1]) < counts[:, None]
    columns[is_used], values[is_used] = rows.indices, rows.data
    return columns, values
