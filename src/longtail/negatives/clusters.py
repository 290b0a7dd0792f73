"""Clusters of label vectors, of equal size, to draw labels from in two steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Clusters"]

_ROWS_AT_ONCE = 65_536
"""Vectors looked at together: enough to be fast, too few to be felt in memory."""
_SKETCH_LENGTH = 32


@dataclass(frozen=True, eq=False, slots=True)
class Clusters:
    """Labels in clusters of equal size, with a share of each label in its cluster."""

    centers: Tensor
    """[K, D]"""
    log_mass: Tensor
    """[K] float64 log R, the cluster's part of all r."""
    cluster_of: Tensor
    """[C] the cluster of each label."""
    log_share: Tensor
    """[C] float64 log(r / R), each label's part of its cluster."""
    members: Tensor
    """[C] labels by cluster."""
    starts: Tensor
    """[K + 1] where each cluster begins in ``members``."""
    running: Tensor
    """[C + 1] float64: r of ``members``, added up."""

    @classmethod
    def of(cls, vectors: Tensor, log_r: Tensor, depth: int, generator: torch.Generator | None) -> Clusters:
        """Cluster vectors [C, D], with log r [C], into 2^depth clusters."""
        cluster_of = _bisect(_sketch(vectors, generator), depth, generator)
        num_clusters = 2**depth
        members = cluster_of.argsort(stable=True)
        sizes = cluster_of.bincount(minlength=num_clusters)
        starts = F.pad(sizes.cumsum(0), (1, 0))
        wide = log_r.double()
        r = (wide - wide.max()).exp()
        mass = r.new_zeros(num_clusters).index_add(0, cluster_of, r)
        return cls(
            centers=_means(vectors, cluster_of, num_clusters),
            log_mass=mass.log(),
            cluster_of=cluster_of,
            log_share=r.log() - mass.log()[cluster_of],
            members=members,
            starts=starts,
            running=F.pad(r[members].cumsum(0), (1, 0)),
        )

    def draw_within(self, clusters: Tensor, generator: torch.Generator | None) -> Tensor:
        """A label of each of these clusters, by its share. O(log C) per draw."""
        first, last = self.starts[clusters], self.starts[clusters + 1]
        low, high = self.running[first], self.running[last]
        device = self.running.device
        at = low + (high - low) * torch.rand(clusters.shape, generator=generator, dtype=torch.float64, device=device)
        place = torch.searchsorted(self.running, at, right=True) - 1
        return self.members[torch.minimum(place.clamp_min(first), last - 1)]


def _sketch(vectors: Tensor, generator: torch.Generator | None) -> Tensor:
    """The vectors in at most 32 random directions: enough to tell near from far, and many times less to read."""
    if vectors.shape[1] <= _SKETCH_LENGTH:
        return vectors
    directions = torch.randn(vectors.shape[1], _SKETCH_LENGTH, generator=generator).to(vectors)
    return vectors @ directions


def _bisect(vectors: Tensor, depth: int, generator: torch.Generator | None) -> Tensor:
    """[C] clusters 0..2^depth - 1 of equal size, up to 1, by halving ``depth`` times."""
    cluster_of = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
    for level in range(depth):
        num_clusters = 2**level
        # Two means of random halves, and once more of the halves that they lead to.
        projections = torch.rand(len(vectors), generator=generator).to(vectors.device)
        for _ in range(2):
            halves = 2 * cluster_of + _upper_half(projections, cluster_of, num_clusters)
            means = _means(vectors, halves, 2 * num_clusters)
            projections = _project(vectors, means[1::2] - means[0::2], cluster_of)
        cluster_of = 2 * cluster_of + _upper_half(projections, cluster_of, num_clusters)
    return cluster_of


def _upper_half(values: Tensor, cluster_of: Tensor, num_clusters: int) -> Tensor:
    """[C] 1 where a value is in the upper half of its cluster's, else 0."""
    order = values.argsort(stable=True)
    order = order[cluster_of[order].argsort(stable=True)]
    sizes = cluster_of.bincount(minlength=num_clusters)
    starts = sizes.cumsum(0) - sizes
    clusters = cluster_of[order]
    rank = torch.arange(len(order), device=order.device) - starts[clusters]
    is_upper = torch.empty_like(order)
    is_upper[order] = (2 * rank >= sizes[clusters]).long()
    return is_upper


def _means(vectors: Tensor, cluster_of: Tensor, num_clusters: int) -> Tensor:
    """[K, D] the mean vector of each cluster, in float32 or wider."""
    wide = vectors[:0].float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors[:0]
    sums = wide.new_zeros(num_clusters, vectors.shape[1])
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        sums.index_add_(0, cluster_of[rows], vectors[rows].to(sums))
    return sums / cluster_of.bincount(minlength=num_clusters).clamp_min(1)[:, None]


def _project(vectors: Tensor, directions: Tensor, cluster_of: Tensor) -> Tensor:
    """[C] the inner product of each vector with its cluster's direction."""
    parts = []
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        parts.append((vectors[rows].to(directions) * directions[cluster_of[rows]]).sum(dim=1))
    return torch.cat(parts)
