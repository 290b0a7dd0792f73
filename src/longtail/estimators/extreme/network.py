"""The network of ExtremeClassifier: from sparse features through a hidden layer to labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import issparse
from torch import Tensor, nn

from longtail._core.labels import IntArray
from longtail._core.row_sums import sum_rows
from longtail.negatives.head import best_labels
from longtail.negatives.linear import embed, use_rows

__all__ = [
    "Rows",
    "as_rows",
    "Network",
    "compute_logits",
    "embed_rows",
    "is_sparse",
    "join_networks",
    "rank_labels",
    "row_chunks",
]


START = 0.3
"""Deviation of hidden values, and length of label vectors, at the start."""


class _Bag(NamedTuple):
    """Sparse rows as ``embedding_bag`` takes them."""

    columns: Tensor
    values: Tensor
    offsets: Tensor


Rows = Tensor | _Bag


def as_rows(features: Any, device: str | torch.device) -> Rows:
    """Features as the network takes them: a dense tensor, or the parts of a sparse matrix."""
    if not is_sparse(features):
        return torch.from_numpy(np.ascontiguousarray(features)).to(device)
    parts = (features.indices.astype(np.int64), features.data, features.indptr.astype(np.int64))
    return _Bag(*(torch.from_numpy(part).to(device) for part in parts))


class Network(nn.Module):
    """From features through a hidden layer to labels; the last column of ``weight`` is the bias."""

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        hidden_size: int,
        activation: str,
        skip_connection: bool,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.scale, self.is_row_sparse, self.uses_bfloat16 = activation, scale, False, False
        self.vectors = nn.Parameter(torch.empty(num_features, hidden_size))
        self.offset = nn.Parameter(torch.zeros(hidden_size))
        self.weight = nn.Parameter(torch.empty(num_labels, hidden_size + 1))
        self.direct = nn.Parameter(torch.zeros(num_features, num_labels)) if skip_connection else None

    @torch.no_grad()
    def reset_parameters(
        self,
        bias: Tensor,
        mean_square: float,
        generator: torch.Generator,
        hidden_start: float = START,
        label_start: float = START,
    ) -> None:
        """Draw a start: hidden values of deviation ``hidden_start``, label vectors of length ``label_start``."""
        self.vectors.normal_(0, hidden_start * mean_square**-0.5, generator=generator)
        self.weight.normal_(0, label_start * self.vectors.shape[1] ** -0.5, generator=generator)
        self.weight[:, -1] = bias

    def embed(self, rows: Rows, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """[N, H + 1] what the hidden layer makes of the rows, and a 1 for the bias."""
        hidden = self._sum_vectors(rows, self.vectors, self.is_row_sparse) + self.offset
        if self.activation == "relu":
            hidden = F.relu(hidden)
        if dropout:
            hidden = hidden * _dropout_factors(hidden.shape, dropout, generator).to(hidden)
        return torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)

    def logits(self, rows: Rows, embeddings: Tensor) -> Tensor:
        """[N, C]."""
        x, weight = embed(embeddings, self.scale), use_rows(self.weight, self.scale)
        logits = F.linear(x.bfloat16(), weight.bfloat16()).float() if self.uses_bfloat16 else F.linear(x, weight)
        return logits if self.direct is None else logits + self._sum_vectors(rows, self.direct, False)

    def topk(self, rows: Rows, k: int) -> Tensor:
        """[N, k] labels, best first."""
        embeddings = self.embed(rows)
        if self.direct is not None:
            return self.logits(rows, embeddings).topk(k, dim=1).indices
        prepare = partial(use_rows, scale=self.scale)
        return best_labels(embed(embeddings, self.scale), self.weight, k, prepare).indices

    @staticmethod
    def _sum_vectors(rows: Rows, vectors: Tensor, is_row_sparse: bool) -> Tensor:
        if isinstance(rows, Tensor):
            return rows @ vectors
        return sum_rows(rows.columns, rows.values, rows.offsets, vectors, is_row_sparse)


def join_networks(networks: Sequence[Network]) -> Network:
    """One network whose logits are the mean of those of the networks, which must have inner products as logits."""
    if len(networks) == 1:
        return networks[0]
    first, share = networks[0], 1 / len(networks)
    joined = Network(0, 0, 0, first.activation, first.direct is not None)
    weights, biases = ([part(network.weight) for network in networks] for part in (_take_vectors, _take_bias))
    joined.vectors = nn.Parameter(torch.cat([network.vectors.detach() for network in networks], dim=1))
    joined.offset = nn.Parameter(torch.cat([network.offset.detach() for network in networks]))
    joined.weight = nn.Parameter(share * torch.cat([*weights, sum(biases, torch.zeros_like(biases[0]))], dim=1))
    if first.direct is not None:
        direct = [network.direct.detach() for network in networks if network.direct is not None]
        joined.direct = nn.Parameter(share * sum(direct, torch.zeros_like(direct[0])))
    return joined


def _take_vectors(weight: Tensor) -> Tensor:
    return weight.detach()[:, :-1]


def _take_bias(weight: Tensor) -> Tensor:
    return weight.detach()[:, -1:]


@torch.no_grad()
def rank_labels(network: Network, features: Any, k: int) -> IntArray:
    """[N, k] labels, best first, some samples at a time."""
    parts = [network.topk(rows, k).cpu().numpy() for rows in row_chunks(network, features)]
    return np.concatenate(parts) if parts else np.zeros((0, k), dtype=np.int64)


@torch.no_grad()
def embed_rows(network: Network, features: Any) -> Tensor:
    """[N, H + 1] embeddings as the logits use them, some samples at a time."""
    return torch.cat([embed(network.embed(rows), network.scale).cpu() for rows in row_chunks(network, features)])


@torch.no_grad()
def compute_logits(network: Network, features: Any) -> npt.NDArray[np.float32]:
    """[N, C] logits, some samples at a time."""
    chunks = row_chunks(network, features, has_logits=True)
    parts = [network.logits(rows, network.embed(rows)).cpu().numpy() for rows in chunks]
    return np.concatenate(parts) if parts else np.zeros((0, len(network.weight)), dtype=np.float32)


def row_chunks(network: Network, features: Any, has_logits: bool = False) -> Iterator[Rows]:
    """The features some samples at a time, where the network is; fewer where each gets the logits of all labels."""
    size = PREDICTED_AT_ONCE
    if has_logits:
        size = max(1, min(size, LOGITS_AT_ONCE // len(network.weight)))
    for start in range(0, features.shape[0], size):
        yield as_rows(features[start : start + size], network.weight.device)


def _dropout_factors(shape: torch.Size, dropout: float, generator: torch.Generator | None) -> Tensor:
    """1 / share kept where a value is kept and 0 elsewhere; the share is rounded to a multiple of 1 / 256.

    One draw of 64 bits serves eight values: draws with a generator are serial, and would take as long as a layer.
    """
    num_dropped = min(round(256 * dropout), 255)
    draws = torch.empty(math.ceil(shape.numel() / 8), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    is_kept = draws.view(torch.uint8)[: shape.numel()].view(shape) >= num_dropped
    return is_kept * (256 / (256 - num_dropped))


PREDICTED_AT_ONCE = 1024
"""Samples to rank labels for at a time."""


LOGITS_AT_ONCE = 2**25
"""How many logits to hold at a time where those of all labels are needed."""


def is_sparse(matrix: Any) -> bool:
    """Whether SciPy holds it as a sparse matrix or array."""
    return bool(issparse(matrix))  # issparse narrows the type to one without attributes
