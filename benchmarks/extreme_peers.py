"""Train one peer and rank labels with it; ``extreme.py`` calls this with the Python of the peers' environment.

Settings are the peers' defaults. PECOS gets rows of length 1, without which its P@1 is 8 points lower; napkinXC gets
them as they are.
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
Moment = tuple[float, float]


def now() -> Moment:
    """Seconds on the clock, and of all threads on the processors."""
    return time.perf_counter(), time.process_time()


def napkinxc_run(
    name: str, folder: Path, features: Any, truth: Any, test: Any, threads: int
) -> tuple[Any, list[Moment]]:
    """A probabilistic label tree, or one binary problem per label."""
    from napkinxc.models import BR, PLT

    labels = [truth.indices[truth.indptr[i] : truth.indptr[i + 1]].tolist() for i in range(truth.shape[0])]
    model = (PLT if name.endswith("PLT") else BR)(str(folder / "model"), threads=threads)
    times = [now()]
    model.fit(features, labels)
    times.append(now())
    predicted = model.predict(test, top_k=PLACES)
    times.append(now())
    return [list(row) + [-1] * (PLACES - len(row)) for row in predicted], times


def pecos_run(features: Any, truth: Any, test: Any, threads: int) -> tuple[Any, list[Moment]]:
    """A tree over label embeddings, with linear rankers."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel
    from sklearn.preprocessing import normalize

    times = [now()]
    features, test = normalize(features), normalize(test)
    tree = Indexer.gen(LabelEmbeddingFactory.create(truth, features, method="pifa"))
    model = XLinearModel.train(features, truth, C=tree, threads=threads)
    times.append(now())
    predicted = model.predict(test, only_topk=PLACES, beam_size=PLACES, threads=threads).tocsr()
    times.append(now())
    ranked = np.full((predicted.shape[0], PLACES), -1)
    for i in range(predicted.shape[0]):
        row = slice(predicted.indptr[i], predicted.indptr[i + 1])
        order = np.argsort(-predicted.data[row], kind="stable")
        ranked[i, : len(order)] = predicted.indices[row][order]
    return ranked, times


def main() -> None:
    """Arguments: the folder with the matrices, the peer's name, and how many threads it may use."""
    if len(sys.argv) != 4:
        print(__doc__)
        return
    folder, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    features, truth, test = (load_npz(folder / f"{part}.npz").tocsr() for part in ("X", "Y", "test"))
    if name.startswith("napkinXC"):
        ranked, times = napkinxc_run(name, folder, features, truth, test, threads)
    else:
        ranked, times = pecos_run(features, truth, test, threads)
    np.save(folder / "ranked.npy", np.asarray(ranked))
    seconds = {"train_s": times[1][0] - times[0][0], "train_cpu_s": times[1][1] - times[0][1]}
    seconds["predict_s"] = times[2][0] - times[1][0]
    (folder / "times.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
