"""LabelIndex: the best of very many labels, approximately, by looking at few of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail.negatives.head import TopK, best_labels

__all__ = ["LabelIndex"]

LISTS_PER_ROOT = 2
"""Lists per square root of the number of labels, where their number is not given."""
TRAINED_ON_PER_LIST = 64
"""Vectors per list that the lists are found from."""
BITS = (8, 16, 32)
"""How many a number may be stored in."""


class LabelIndex:
    """The k labels with the largest inner products, approximately: labels are grouped, and near groups are looked at.

    Formula:
        group of y = argmax_g <w[y], c[g]>, c of length 1 from k-means of the directions w[y] / |w[y]|;
        a query x looks at the labels of the groups with the largest <x, c[g]>, and ranks them by <x, w[y]>

    Args:
        vectors: [C, D] class vectors, such as ``SampledLinear.weight``.
        num_lists: groups; default: twice the square root of C.
        num_probes: groups to look at for a query. More find more, and take longer: ``recall`` says what they find.
        num_bits: 32, 16 or 8 for a number: float32, float16 or int8. What is stored is all that stays in memory.
        seed: of k-means.

    It needs faiss: ``pip install longtail[index]``. What it finds of 10^6 clustered vectors of 128 numbers, and how
    fast, is in docs/extreme-classification.md.

    Use when:
        Labels are 10^5 or more and answers are needed fast.
    Avoid when:
        Each of the best k must be found: ``SampledLinear.topk`` is exact.
    Special cases:
        ``SampledLinear.topk``, with num_probes = num_lists and 32 bits.

    >>> index = LabelIndex(torch.randn(500, 8), num_probes=200, num_bits=32)
    >>> index.recall(torch.randn(10, 8), k=5)
    1.0

    Reference:
        Jegou et al. (2011), "Product quantization for nearest neighbor search", for the inverted file; Dhillon and
        Modha (2001), "Concept decompositions for large sparse text data using clustering", for k-means of directions.
    """

    def __init__(
        self,
        vectors: Tensor,
        *,
        num_lists: int | None = None,
        num_probes: int = 16,
        num_bits: int = 16,
        seed: int = 0,
    ) -> None:
        if vectors.ndim != 2 or not vectors.is_floating_point() or 0 in vectors.shape:
            raise ValueError(f"LabelIndex: vectors must be floating-point [C, D]. Got {tuple(vectors.shape)}.")
        if num_bits not in BITS:
            raise ValueError(f"LabelIndex: num_bits must be one of {BITS}. Got {num_bits}.")
        self.num_labels, self.num_features = vectors.shape
        chosen = LISTS_PER_ROOT * round(math.sqrt(self.num_labels)) if num_lists is None else num_lists
        self.num_lists = min(at_least(chosen, 1, "LabelIndex: num_lists"), self.num_labels)
        self.num_probes = min(at_least(num_probes, 1, "LabelIndex: num_probes"), self.num_lists)
        self.num_bits = num_bits
        self._vectors = vectors.detach()
        self._centers, self._index = _build(_as_array(vectors), self.num_lists, num_bits, seed)

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> TopK:
        """[N, k] inner products and labels, best first; of what is stored, so in its precision.

        Args:
            x: [N, D] embeddings.
            k: how many. Where the groups looked at have fewer labels, the rest are -1, of minus infinity.
        """
        if not 1 <= k <= self.num_labels:
            raise ValueError(f"LabelIndex.topk: k must be in 1..{self.num_labels}. Got {k}.")
        if x.ndim != 2 or x.shape[1] != self.num_features:
            raise ValueError(f"LabelIndex.topk: x must be [N, {self.num_features}]. Got {tuple(x.shape)}.")
        self._index.nprobe = self.num_probes
        values, labels = self._index.search(_as_array(x), k)
        return TopK(torch.from_numpy(np.where(labels < 0, -np.inf, values)), torch.from_numpy(labels))

    def recall(self, x: Tensor, k: int) -> float:
        """Which share of the exact k best labels of embeddings [N, D] it finds."""
        exact = best_labels(x.detach().float(), self._vectors.float(), k).indices
        found = self.topk(x, k).indices
        return float((exact[:, :, None] == found[:, None, :]).any(dim=2).double().mean())


def _build(vectors: npt.NDArray[np.float32], num_lists: int, num_bits: int, seed: int) -> tuple[Any, Any]:
    faiss = _import_faiss()
    size, product = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    centers = faiss.IndexFlatIP(size)
    if num_bits == 32:
        index = faiss.IndexIVFFlat(centers, size, num_lists, product)
    else:
        kind = faiss.ScalarQuantizer.QT_fp16 if num_bits == 16 else faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexIVFScalarQuantizer(centers, size, num_lists, kind, product)
    index.cp.seed, index.cp.min_points_per_centroid, index.cp.spherical = seed, 1, True
    index.cp.max_points_per_centroid = TRAINED_ON_PER_LIST
    order = np.random.default_rng(seed).permutation(len(vectors))[: TRAINED_ON_PER_LIST * num_lists]
    chosen = vectors[order]
    lengths = np.linalg.norm(chosen, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
    faiss.Clustering(size, num_lists, index.cp).train(chosen / lengths, centers)
    index.train(chosen)  # the centers are there: what is left is the range of the numbers
    index.add(vectors)
    return centers, index  # faiss keeps no reference to the centers


def _as_array(x: Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = x.detach().float().cpu().contiguous().numpy()
    return array


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("LabelIndex needs faiss: pip install longtail[index].") from error
    return faiss
