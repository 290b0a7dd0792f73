"""LabelIndex: the best of very many labels, approximately, by looking at few of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.labels import NO_LABEL
from longtail.negatives.head import TopK, best_labels

__all__ = ["LabelIndex"]

Floats = npt.NDArray[np.float32]

LISTS_PER_ROOT = 2
"""Lists per square root of the number of labels, where their number is not given."""
TRAINED_ON_PER_LIST = 64
"""Vectors per list that the lists are found from."""
BITS = (8, 16, 32)
"""How many a number may be stored in."""
LEAST_FOR_CODES = 1000
"""Labels from which on they are ranked by codes first."""


class LabelIndex:
    """The k labels with the largest inner products, approximately: labels are grouped, and near groups are looked at.

    Formula:
        group of y = argmax_g <w[y], c[g]>, c of length 1 from k-means of the directions w[y] / |w[y]|;
        a query x looks at the labels of the groups with the largest <x, c[g]>, ranks them by <x, code of w[y]>, and
        the best of them by <x, w[y]>; a code has 4 bits for two numbers

    Args:
        vectors: [C, D] class vectors, such as ``SampledLinear.weight``.
        num_lists: groups; default: twice the square root of C.
        num_probes: groups to look at for a query. More find more, and take longer: ``recall`` says what they find.
        num_bits: 32, 16 or 8 for a number: float32, float16 or int8. Codes take two more.
        num_candidates: for each of k places, how many labels the codes propose. 0 makes no codes, and ranks by the
            vectors at once, as it is with fewer than a thousand labels.
        seed: of k-means.

    It needs faiss: ``pip install longtail[index]``. What it finds of 10^6 clustered vectors of 128 numbers, and how
    fast, is in docs/extreme-classification.md.

    Use when:
        Labels are 10^5 or more and answers are needed fast.
    Avoid when:
        Each of the best k must be found: ``SampledLinear.topk`` is exact.
    Special cases:
        ``SampledLinear.topk``, with num_probes = num_lists, 32 bits and no candidates.

    >>> index = LabelIndex(torch.randn(500, 8), num_probes=200, num_bits=32)
    >>> index.recall(torch.randn(10, 8), k=5)
    1.0

    Reference:
        Jegou et al. (2011), "Product quantization for nearest neighbor search", for the inverted file and the codes;
        André et al. (2015), "Cache locality is not enough", for codes of 4 bits; Dhillon and Modha (2001), "Concept
        decompositions for large sparse text data using clustering", for k-means of directions.
    """

    def __init__(
        self,
        vectors: Tensor,
        *,
        num_lists: int | None = None,
        num_probes: int = 64,
        num_bits: int = 16,
        num_candidates: int = 10,
        seed: int = 0,
    ) -> None:
        if not isinstance(vectors, Tensor):
            raise TypeError(
                f"LabelIndex: vectors must be a tensor, such as head.weight or torch.from_numpy(array). Got "
                f"{type(vectors).__name__}."
            )
        if vectors.ndim != 2 or not vectors.is_floating_point() or 0 in vectors.shape:
            raise ValueError(f"LabelIndex: vectors must be floating-point [C, D]. Got {tuple(vectors.shape)}.")
        if not bool(vectors.isfinite().all()):
            raise ValueError("LabelIndex: vectors must be finite. Got NaN or an infinity.")
        if num_bits not in BITS:
            raise ValueError(f"LabelIndex: num_bits must be one of {BITS}. Got {num_bits}.")
        self.num_labels, self.num_features = vectors.shape
        chosen = LISTS_PER_ROOT * round(math.sqrt(self.num_labels)) if num_lists is None else num_lists
        self.num_lists = min(at_least(chosen, 1, "LabelIndex: num_lists"), self.num_labels)
        self.num_probes = min(at_least(num_probes, 1, "LabelIndex: num_probes"), self.num_lists)
        self.num_bits = num_bits
        self._vectors = vectors.detach()
        self.num_candidates = at_least(num_candidates, 0, "LabelIndex: num_candidates")
        if self.num_labels < LEAST_FOR_CODES:
            self.num_candidates = 0
        self._store = _build(self._as_stored(vectors), self.num_lists, num_bits, self.num_candidates, seed)

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> TopK:
        """[N, k] inner products and labels, best first; of what is stored, so in its precision.

        Args:
            x: [N, D] embeddings.
            k: how many. Where the groups looked at have fewer labels, the rest are -100, of minus infinity.
        """
        if not 1 <= k <= self.num_labels:
            raise ValueError(f"LabelIndex.topk: k must be in 1..{self.num_labels}. Got {k}.")
        x = torch.as_tensor(x)
        if x.ndim != 2 or x.shape[1] != self.num_features:
            raise ValueError(f"LabelIndex.topk: x must be [N, {self.num_features}]. Got {tuple(x.shape)}.")
        self._store.groups.nprobe = self.num_probes
        values, labels = self._store.index.search(self._as_stored(x), k)
        is_found = labels >= 0
        values, labels = np.where(is_found, values, -np.inf), np.where(is_found, labels, NO_LABEL)
        return TopK(torch.from_numpy(values), torch.from_numpy(labels))

    def _as_stored(self, x: Tensor) -> Floats:
        """[N, D], with a 0 more where codes would have half a pair of numbers."""
        return _as_array(F.pad(x, (0, self.num_features % 2)) if self.num_candidates else x)

    def recall(self, x: Tensor, k: int) -> float:
        """Which share of the exact k best labels of embeddings [N, D] it finds."""
        x = torch.as_tensor(x)
        if len(x) == 0:
            raise ValueError("LabelIndex.recall: x must have at least one embedding. Got none.")
        exact = best_labels(x.detach().float(), self._vectors.float(), k).indices
        found = self.topk(x, k).indices
        return float((exact[:, :, None] == found[:, None, :]).any(dim=2).double().mean())


class _Store(NamedTuple):
    """What faiss keeps no reference to must be kept here."""

    index: Any
    """To ask."""
    groups: Any
    """The inverted file, which has ``nprobe``; the index itself where there are no codes."""
    parts: tuple[Any, ...]


def _build(vectors: Floats, num_lists: int, num_bits: int, num_candidates: int, seed: int) -> _Store:
    faiss = _import_faiss()
    product, size = faiss.METRIC_INNER_PRODUCT, vectors.shape[1]
    order = np.random.default_rng(seed).permutation(len(vectors))[: TRAINED_ON_PER_LIST * num_lists]
    centers = _find_centers(vectors[order], num_lists, seed)
    if num_candidates:
        groups = faiss.IndexIVFPQFastScan(centers, size, num_lists, size // 2, 4, product)
        groups.by_residual, groups.pq.cp.seed, groups.pq.cp.min_points_per_centroid = False, seed, 1
        exact = _make_flat(size, num_bits)
        _fill(exact, vectors, order)
    else:
        groups = faiss.IndexIVFFlat(centers, size, num_lists, product)
        if num_bits != 32:
            groups = faiss.IndexIVFScalarQuantizer(centers, size, num_lists, _kind_of(num_bits), product)
    _fill(
        groups, vectors, order
    )  # the centers are there: what is left to train is the range of the numbers, or codes
    if not num_candidates:
        return _Store(groups, groups, (centers,))
    index = faiss.IndexRefine(groups, exact)
    index.k_factor = num_candidates
    return _Store(index, groups, (centers, exact))


def _find_centers(vectors: Floats, num_lists: int, seed: int) -> Any:
    """An index of the centers of directions, each of length 1."""
    faiss = _import_faiss()
    centers, options = faiss.IndexFlatIP(vectors.shape[1]), faiss.ClusteringParameters()
    options.seed, options.min_points_per_centroid, options.spherical = seed, 1, True
    options.max_points_per_centroid = TRAINED_ON_PER_LIST
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
    faiss.Clustering(vectors.shape[1], num_lists, options).train(vectors / lengths, centers)
    return centers


def _make_flat(size: int, num_bits: int) -> Any:
    """An index that looks at all vectors; here at those that the codes propose."""
    faiss = _import_faiss()
    if num_bits == 32:
        return faiss.IndexFlatIP(size)
    return faiss.IndexScalarQuantizer(size, _kind_of(num_bits), faiss.METRIC_INNER_PRODUCT)


def _fill(index: Any, vectors: Floats, order: npt.NDArray[np.int64]) -> None:
    if not index.is_trained:
        index.train(vectors[order])
    index.add(vectors)


def _kind_of(num_bits: int) -> Any:
    quantizer = _import_faiss().ScalarQuantizer
    return quantizer.QT_fp16 if num_bits == 16 else quantizer.QT_8bit


def _as_array(x: Tensor) -> Floats:
    array: Floats = x.detach().float().cpu().contiguous().numpy()
    return array


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("LabelIndex needs faiss: pip install longtail[index].") from error
    return faiss
