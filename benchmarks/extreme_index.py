"""Top-k of very many labels: exact against indexes, times and recall side by side.

    python benchmarks/extreme_index.py choose     # 10^5 vectors: LabelIndex, HNSW of faiss, hnswlib and usearch
    python benchmarks/extreme_index.py large      # 10^6 vectors: LabelIndex, with codes and without; some minutes

Rows go to ``results/extreme_index.csv``. Vectors are synthetic, made as class vectors look: in clusters (one for each
100 labels), of lengths that differ (log-normal, 0.2). Queries are near labels, as embeddings of samples are. Uniform
random vectors would be easier for nobody and like nothing: they have no near neighbors. ``--seed 1`` makes others, on
which settings were chosen.

All times are of one thread, in seconds of the processor, so that other work on the machine does not count.
``pip install faiss-cpu hnswlib usearch`` for ``choose``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import environment, update_rows

from longtail.negatives.head import best_labels
from longtail.negatives.index import LabelIndex

SIZE, PLACES, NUM_QUERIES = 128, 10, 256
LABELS_PER_CLUSTER, LENGTHS = 100, 0.2
"""Labels per cluster, and the deviation of the logarithm of lengths: 0.16 on CLINC150 and 0.26 on Delicious."""


def make_vectors(num_labels: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """[C, D] class vectors and [N, D] queries."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(num_labels // LABELS_PER_CLUSTER, SIZE, generator=generator)
    places = torch.randint(len(centers), (num_labels,), generator=generator)
    vectors = centers[places].add_(0.7 * torch.randn(num_labels, SIZE, generator=generator))
    vectors *= torch.randn(num_labels, 1, generator=generator).mul(LENGTHS).exp()
    near = torch.randint(num_labels, (NUM_QUERIES,), generator=generator)
    return vectors, vectors[near] + 0.7 * torch.randn(NUM_QUERIES, SIZE, generator=generator)


def seconds_of(function: Callable[[], Any], repeats: int = 3) -> float:
    """The fastest of some calls, of the processor."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def recall_of(found: Any, exact: Any) -> float:
    """Which share of the exact labels was found."""
    return float((np.asarray(exact)[:, :, None] == np.asarray(found)[:, None, :]).any(axis=2).mean())


def measure(name: str, num_labels: int, build: Callable[[], Any], search: Any, probes: Any, exact: Any) -> list[Any]:
    """Rows of one index at several depths of search; ``exact`` is the exact answer and its seconds."""
    start = time.process_time()
    index = build()
    build_s = time.process_time() - start
    rows = []
    for depth in probes:
        run = search(index, depth)
        seconds = seconds_of(run)
        row = {"index": name, "labels": num_labels, "size": SIZE, "depth": depth, "build_s": round(build_s, 1)}
        row |= {
            "recall@10": round(recall_of(run(), exact[0]), 4),
            "ms_per_query": round(1e3 * seconds / NUM_QUERIES, 4),
        }
        row |= {
            "exact_ms_per_query": round(1e3 * exact[1] / NUM_QUERIES, 3),
            "times_faster": round(exact[1] / seconds, 1),
        }
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row | environment())
    return rows


def measure_own(vectors: Any, queries: Any, exact: Any, bits: tuple[int, ...], probes: dict[int, Any]) -> list[Any]:
    """LabelIndex in several precisions; ``probes`` has depths by the number of candidates, 0 for no codes."""

    def search(index: LabelIndex, depth: int) -> Callable[[], Any]:
        index.num_probes = depth
        return lambda: index.topk(queries, PLACES).indices

    rows = []
    for num_bits in bits:
        for candidates, depths in probes.items():
            name = f"LabelIndex, {num_bits} bits, " + (f"{candidates} candidates" if candidates else "no codes")
            build = partial(LabelIndex, vectors, num_bits=num_bits, num_candidates=candidates)
            rows += measure(name, len(vectors), build, search, depths, exact)
    return rows


def measure_others(vectors: Any, queries: Any, exact: Any) -> list[Any]:
    """Graphs (HNSW) of faiss, hnswlib and usearch, by inner product."""
    import faiss
    import hnswlib
    from usearch.index import Index

    rows, asked = vectors.numpy(), queries.numpy()

    def build_faiss() -> Any:
        faiss.omp_set_num_threads(1)
        index = faiss.IndexHNSWFlat(rows.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        index.add(rows)
        return index

    def search_faiss(index: Any, depth: int) -> Callable[[], Any]:
        index.hnsw.efSearch = depth
        return lambda: index.search(asked, PLACES)[1]

    def build_hnswlib() -> Any:
        index = hnswlib.Index("ip", rows.shape[1])
        index.init_index(len(rows), M=16, ef_construction=100, random_seed=0)
        index.add_items(rows, num_threads=1)
        return index

    def search_hnswlib(index: Any, depth: int) -> Callable[[], Any]:
        index.set_ef(depth)
        return lambda: index.knn_query(asked, PLACES, num_threads=1)[0].astype(np.int64)

    def build_usearch() -> Any:
        index = Index(ndim=rows.shape[1], metric="ip", dtype="f16", connectivity=16, expansion_add=100)
        index.add(np.arange(len(rows)), rows, threads=1)
        return index

    def search_usearch(index: Any, depth: int) -> Callable[[], Any]:
        index.expansion_search = depth
        return lambda: index.search(asked, PLACES, threads=1).keys.astype(np.int64)

    depths = (32, 64, 128, 256)
    found = measure("faiss HNSW, M 16", len(rows), build_faiss, search_faiss, depths, exact)
    found += measure("hnswlib, M 16", len(rows), build_hnswlib, search_hnswlib, depths, exact)
    return found + measure("usearch, f16, M 16", len(rows), build_usearch, search_usearch, depths, exact)


def main() -> None:
    """Run the part asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["choose", "large"])
    parser.add_argument("--bits", type=int, nargs="+", default=[16])
    parser.add_argument("--seed", type=int, default=0, help="other vectors; rows are printed, not written")
    arguments = parser.parse_args()
    part, bits = arguments.part, arguments.bits
    if part is None:
        print(__doc__)
        return
    torch.set_num_threads(1)
    num_labels = 10**5 if part == "choose" else 10**6
    vectors, queries = make_vectors(num_labels, arguments.seed)
    answer = best_labels(queries, vectors, PLACES).indices.numpy()
    exact = answer, seconds_of(lambda: best_labels(queries, vectors, PLACES), repeats=2)
    if part == "choose":
        rows = measure_own(vectors, queries, exact, tuple(bits), {0: (1, 2, 4, 8), 10: (2, 4, 8, 16)})
        rows += measure_others(vectors, queries, exact)
    else:
        rows = measure_own(vectors, queries, exact, tuple(bits), {0: (8, 32, 64), 10: (32, 64, 128, 256)})
    if arguments.seed:
        return
    update_rows("extreme_index", rows, ("index", "labels"))


if __name__ == "__main__":
    main()
