"""Probabilities of ExtremeClassifier: a softmax for one label per sample, a calibrated sigmoid for any number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from longtail.estimators.extreme.network import Network, row_chunks

__all__ = ["LOOKED_AT", "Calibration", "calibrate", "compute_probabilities", "compute_scores"]

LOOKED_AT = 1000
"""Samples that a calibration looks at."""
LOOKED_AT_LOGITS = 2**27
"""Logits that it looks at: with very many labels, of fewer samples."""
PLACES = 50
"""The best labels of each that it looks at; what comes after them is no label, surely enough."""


class Calibration(NamedTuple):
    """P(y | x) = share[y] where samples have one label, or sigmoid(slope score[y] + offset)."""

    slope: float
    offset: float
    is_single: bool
    is_decoupled: bool
    """Whether scores are logits, of a loss that scores each label by itself; else they are log share[y]."""


@torch.no_grad()
def compute_scores(network: Network, features: Any, shift: Tensor, has_shares: bool) -> Iterator[Tensor]:
    """Some rows [n, C] of f + shift, or of its log softmax; ``shift`` [C] takes the margin of training back."""
    for rows in row_chunks(network, features, has_logits=True):
        scores = network.logits(rows, network.embed(rows)) + shift.to(network.weight)
        yield scores.log_softmax(dim=1) if has_shares else scores


def calibrate(
    network: Network, features: Any, labels: Any, shift: Tensor, is_single: bool, is_decoupled: bool
) -> Calibration:
    """Fit slope and offset on samples [N, D] with CSR labels, of which the first some are looked at."""
    unfitted = Calibration(1.0, 0.0, is_single, is_decoupled)
    if is_single or features.shape[0] == 0:
        return unfitted
    scores, hits, start = [], [], 0
    size = min(LOOKED_AT, max(32, LOOKED_AT_LOGITS // len(shift)))
    for part in compute_scores(network, features[:size], shift, has_shares=not is_decoupled):
        best = part.topk(min(PLACES, part.shape[1]), dim=1)
        truth = torch.from_numpy(labels[start : start + len(part)].toarray())
        scores.append(best.values.flatten().cpu().numpy())
        hits.append(truth.gather(1, best.indices.cpu()).flatten().numpy())
        start += len(part)
    is_hit = np.concatenate(hits)
    if is_hit.all() or not is_hit.any():
        return unfitted
    fitted = LogisticRegression(C=1e4).fit(np.concatenate(scores)[:, None], is_hit)
    return unfitted._replace(slope=float(fitted.coef_[0, 0]), offset=float(fitted.intercept_[0]))


def compute_probabilities(
    network: Network, features: Any, columns: npt.NDArray[np.int64], shift: Tensor, calibration: Calibration
) -> npt.NDArray[np.float32]:
    """[N, K] probabilities of these labels."""
    has_shares = calibration.is_single or not calibration.is_decoupled
    parts = [
        _probabilities(part[:, torch.from_numpy(columns)], calibration).cpu().numpy()
        for part in compute_scores(network, features, shift, has_shares)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, len(columns)), dtype=np.float32)


def _probabilities(scores: Tensor, calibration: Calibration) -> Tensor:
    if calibration.is_single:
        return scores.exp()
    return (calibration.slope * scores + calibration.offset).sigmoid()
