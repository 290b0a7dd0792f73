"""Train one peer and rank labels with it; ``extreme.py`` calls this with the Python of the peers' environment.

Settings are the peers' defaults, which are what their documentation shows for a start.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import load_npz

PLACES = 50


def napkinxc_run(
    name: str, folder: Path, features: Any, truth: Any, test: Any, threads: int
) -> tuple[Any, list[float]]:
    """A probabilistic label tree, or one binary problem a label."""
    from napkinxc.models import BR, PLT

    labels = [truth.indices[truth.indptr[i] : truth.indptr[i + 1]].tolist() for i in range(truth.shape[0])]
    model = (PLT if name.endswith("PLT") else BR)(str(folder / "model"), threads=threads)
    times = [time.perf_counter()]
    model.fit(features, labels)
    times.append(time.perf_counter())
    predicted = model.predict(test, top_k=PLACES)
    times.append(time.perf_counter())
    return [list(row) + [-1] * (PLACES - len(row)) for row in predicted], times


def pecos_run(features: Any, truth: Any, test: Any, threads: int) -> tuple[Any, list[float]]:
    """A tree over label embeddings, with linear rankers."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    times = [time.perf_counter()]
    tree = Indexer.gen(LabelEmbeddingFactory.create(truth, features, method="pifa"))
    model = XLinearModel.train(features, truth, C=tree, threads=threads)
    times.append(time.perf_counter())
    predicted = model.predict(test, only_topk=PLACES, beam_size=PLACES, threads=threads).tocsr()
    times.append(time.perf_counter())
    ranked = np.full((predicted.shape[0], PLACES), -1)
    for i in range(predicted.shape[0]):
        row = slice(predicted.indptr[i], predicted.indptr[i + 1])
        order = np.argsort(-predicted.data[row], kind="stable")
        ranked[i, : len(order)] = predicted.indices[row][order]
    return ranked, times


def main() -> None:
    """Arguments: the folder with the matrices, the peer's name, and how many threads it may use."""
    folder, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    features, truth, test = (load_npz(folder / f"{part}.npz").tocsr() for part in ("X", "Y", "test"))
    if name.startswith("napkinXC"):
        ranked, times = napkinxc_run(name, folder, features, truth, test, threads)
    else:
        ranked, times = pecos_run(features, truth, test, threads)
    np.save(folder / "ranked.npy", np.asarray(ranked))
    seconds = {"train_s": times[1] - times[0], "predict_s": times[2] - times[1]}
    (folder / "times.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
