"""Train one peer and rank labels with it; ``extreme.py`` calls this with the Python of the peers' environment.

    pip install --no-deps libpecos napkinxc && pip install "numpy<2" "scipy<1.14" scikit-learn

Settings are the peers' defaults. All get the features as ``ExtremeClassifier`` prepares them by default: rows of
length 1, of tf-idf where the features are counts. Without that PECOS loses 8 points of P@1 on Delicious. One-vs-rest
is scikit-learn's ``LinearSVC`` for each label, stronger on texts than its logistic regression.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, load_npz

PLACES = 50
PREDICTED_AT_ONCE = 512
Moment = tuple[float, float]


class Run(NamedTuple):
    """What a peer did."""

    ranked: Any
    times: list[Moment]
    """Before training, after it, and after prediction."""
    num_bytes: int
    """Size of the model, as the peer writes it; of one-vs-rest, of its coefficients."""


def now() -> Moment:
    """Seconds on the clock, and of all threads on the processors."""
    return time.perf_counter(), time.process_time()


def napkinxc_run(name: str, folder: Path, features: Any, truth: Any, test: Any, threads: int) -> Run:
    """A probabilistic label tree, or one binary problem per label."""
    from napkinxc.models import BR, PLT

    labels = [truth.indices[truth.indptr[i] : truth.indptr[i + 1]].tolist() for i in range(truth.shape[0])]
    places = min(PLACES, truth.shape[1])
    model = (PLT if name.endswith("PLT") else BR)(str(folder / "model"), threads=threads)
    times = [now()]
    model.fit(features, labels)
    times.append(now())
    predicted = model.predict(test, top_k=places)
    times.append(now())
    ranked = [list(row) + [-1] * (places - len(row)) for row in predicted]
    return Run(ranked, times, folder_bytes(folder / "model"))


def pecos_run(folder: Path, features: Any, truth: Any, test: Any, threads: int) -> Run:
    """A tree over label embeddings, with linear rankers."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    places = min(PLACES, truth.shape[1])
    times = [now()]
    tree = Indexer.gen(LabelEmbeddingFactory.create(truth, features, method="pifa"))
    model = XLinearModel.train(features, truth, C=tree, threads=threads)
    times.append(now())
    predicted = model.predict(test, only_topk=places, beam_size=places, threads=threads).tocsr()
    times.append(now())
    ranked = np.full((predicted.shape[0], places), -1)
    for i in range(predicted.shape[0]):
        row = slice(predicted.indptr[i], predicted.indptr[i + 1])
        order = np.argsort(-predicted.data[row], kind="stable")
        ranked[i, : len(order)] = predicted.indices[row][order]
    model.save(str(folder / "model"))
    return Run(ranked, times, folder_bytes(folder / "model"))


def one_vs_rest_run(features: Any, truth: Any, test: Any) -> Run:
    """A support vector machine per label that some sample has and some has not; the others come last."""
    from sklearn.svm import LinearSVC

    columns, places = truth.tocsc(), min(PLACES, truth.shape[1])
    vectors = np.zeros((truth.shape[1], features.shape[1]), dtype=np.float32)
    offsets = np.full(truth.shape[1], -np.inf, dtype=np.float32)
    times = [now()]
    for label in range(truth.shape[1]):
        is_label = columns[:, [label]].toarray()[:, 0] > 0
        if is_label.any() and not is_label.all():
            model = LinearSVC().fit(features, is_label)
            vectors[label], offsets[label] = model.coef_[0], model.intercept_[0]
    times.append(now())
    ranked = []
    for start in range(0, test.shape[0], PREDICTED_AT_ONCE):
        scores = test[start : start + PREDICTED_AT_ONCE] @ vectors.T + offsets
        ranked.append(np.argsort(-scores, axis=1, kind="stable")[:, :places])
    times.append(now())
    return Run(np.concatenate(ranked), times, vectors.nbytes + offsets.nbytes)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Arguments: the folder with the matrices, the peer's name, and how many threads it may use."""
    if len(sys.argv) != 4:
        print(__doc__)
        return
    folder, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    features, truth, test = (csr_matrix(load_npz(folder / f"{part}.npz")) for part in ("X", "Y", "test"))
    for matrix in (features, truth, test):
        matrix.sort_indices()  # as PECOS wants them
        matrix.indices, matrix.indptr = (part.astype(np.int32) for part in (matrix.indices, matrix.indptr))
    if name.startswith("napkinXC"):
        run = napkinxc_run(name, folder, features, truth, test, threads)
    elif name.startswith("PECOS"):
        run = pecos_run(folder, features, truth, test, threads)
    else:
        run = one_vs_rest_run(features, truth, test)
    np.save(folder / "ranked.npy", np.asarray(run.ranked))
    start, trained, predicted = run.times
    seconds = {"train_s": trained[0] - start[0], "train_cpu_s": trained[1] - start[1]}
    seconds |= {"predict_s": predicted[0] - trained[0], "predict_cpu_s": predicted[1] - trained[1]}
    seconds["model_mb"] = run.num_bytes / 1e6
    (folder / "times.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
