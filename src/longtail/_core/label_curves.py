"""What each class's labels look like in the order of its scores, and which scores a threshold lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail._core.checks import score_matrix
from longtail._core.numerics import row_chunks

__all__ = ["CHUNK_ELEMENTS", "LabelCurve", "label_curves", "pass_thresholds"]

CHUNK_ELEMENTS = 2**23
"""Scores sorted at once: some hundred megabytes with all that follows from them."""


class LabelCurve(NamedTuple):
    """Samples from the highest score down, for some classes, a column each."""

    scores: Tensor
    """[N, C] in descending order."""
    hits: Tensor
    """[N, C] float64, positives among the first 1, 2, ... N samples."""
    is_cut: Tensor
    """[N, C] bool, whether a threshold can lie behind the sample: the next one's score is lower."""

    @property
    def ranks(self) -> Tensor:
        """[N, 1] float64, 1 to N."""
        return torch.arange(1, len(self.scores) + 1, dtype=torch.float64, device=self.scores.device)[:, None]


def label_curves(scores: Tensor, is_positive: Tensor) -> Iterator[tuple[slice, LabelCurve]]:
    """The curves of some classes at a time, and which classes they are."""
    for columns in row_chunks(scores.shape[1], len(scores), CHUNK_ELEMENTS):
        ordered, order = scores[:, columns].sort(dim=0, descending=True)
        hits = is_positive[:, columns].gather(0, order).cumsum(dim=0).double()
        is_cut = torch.ones_like(ordered, dtype=torch.bool)
        is_cut[:-1] = ordered[:-1] > ordered[1:]
        yield columns, LabelCurve(ordered, hits, is_cut)


def pass_thresholds(scores: Any, thresholds: Any) -> Tensor:
    """[N, C] bool, where scores [N, C] are at least their class's threshold [C] (or one for all)."""
    scores = score_matrix(scores)
    thresholds = torch.as_tensor(thresholds, device=scores.device)
    if thresholds.ndim and thresholds.shape != scores.shape[1:]:
        raise ValueError(f"thresholds must be [{scores.shape[1]}], one per class. Got {tuple(thresholds.shape)}.")
    missing = torch.nonzero(thresholds.isnan().flatten()).flatten().tolist()
    if missing:
        raise ValueError(f"thresholds must be numbers. Got NaN for class {missing[0]}.")
    is_predicted: Tensor = scores >= thresholds
    return is_predicted
