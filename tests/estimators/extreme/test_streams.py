"""ExtremeClassifier from files and from parts: the same samples, in bounded memory, and what is wrong with a file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from longtail import margins
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme import settings as settings_module
from longtail.estimators.extreme import streams
from longtail.estimators.extreme.features import FeatureScaling
from longtail.estimators.extreme.training import Trainer
from longtail.negatives import LOGISTIC

SMALL: dict[str, Any] = {"hidden_size": 16, "dropout": 0.0, "batch_size": 16, "random_state": 0}


def made(num_samples: int = 120, num_features: int = 30, num_labels: int = 6) -> tuple[Any, Any]:
    """Label y has feature y; counts of features; every tenth sample has no label."""
    rng = np.random.default_rng(0)
    features = rng.poisson(0.1, size=(num_samples, num_features)).astype(np.float32)
    labels = np.zeros((num_samples, num_labels), dtype=bool)
    for row in range(num_samples):
        chosen = rng.choice(num_labels, 2, replace=False)
        features[row, chosen] = 3
        labels[row, chosen] = row % 10 > 0
    return csr_array(features), csr_array(labels)


def write_text(path: Path, X: Any, y: Any) -> Path:
    lines = [f"{X.shape[0]} {X.shape[1]} {y.shape[1]}"]
    for row in range(X.shape[0]):
        columns = X.indices[X.indptr[row] : X.indptr[row + 1]]
        values = X.data[X.indptr[row] : X.indptr[row + 1]]
        labels = ",".join(map(str, y.indices[y.indptr[row] : y.indptr[row + 1]]))
        lines.append(f"{labels} " + " ".join(f"{c}:{v:g}" for c, v in zip(columns, values, strict=True)))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(folder: Path, X: Any, y: Any, num_parts: int = 3) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(X.shape[0]), num_parts)):
        columns = {
            "labels": [y.indices[y.indptr[row] : y.indptr[row + 1]].tolist() for row in rows],
            "features": [X.indices[X.indptr[row] : X.indptr[row + 1]].tolist() for row in rows],
            "values": [X.data[X.indptr[row] : X.indptr[row + 1]].tolist() for row in rows],
        }
        parquet.write_table(pyarrow.table(columns), folder / f"part{number}.parquet")
    return folder


@pytest.fixture(params=["text", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(streams, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr("longtail._core.sparse_parts.CHUNK", 400)
    X, y = made()
    if request.param == "text":
        return write_text(tmp_path / "samples.txt", X, y)
    return write_parquet(tmp_path / "samples", X, y)


def test_a_stream_has_the_samples_of_its_file(path: Path) -> None:
    X, y = made()
    chunks = list(streams.open_stream(path).chunks())
    assert len(chunks) > 5
    np.testing.assert_array_equal(np.concatenate([chunk.features.toarray() for chunk in chunks]), X.toarray())
    np.testing.assert_array_equal(np.concatenate([chunk.labels.toarray() for chunk in chunks]), y.toarray())
    found = streams.read_statistics(streams.open_stream(path))
    assert (found.num_samples, found.num_labeled, found.are_counts) == (120, 108, True)
    assert found.label_counts.tolist() == y.sum(axis=0).tolist()
    assert found.rows_with.tolist() == (X != 0).sum(axis=0).tolist()


@pytest.mark.parametrize("num_skipped", [0, 30])
def test_an_epoch_has_every_labeled_sample_once_in_bounded_memory(path: Path, num_skipped: int) -> None:
    X, y = made()
    stream = streams.open_stream(path)
    source = streams.StreamedSamples(stream, FeatureScaling(None, False), 108 - num_skipped, num_skipped, 40)
    labeled = np.flatnonzero(np.diff(y.indptr))[num_skipped:]
    expected = sorted(map(tuple, X.toarray()[labeled].tolist()))
    sizes = [block.features.shape[0] for block in source._blocks(16, torch.Generator().manual_seed(0))]
    assert max(sizes) <= 40 + 16
    sizes = [len(batch.rows.offsets) - 1 for batch in source.batches(16, torch.Generator(), "cpu")]
    assert len(sizes) == source.num_batches(16)
    assert set(sizes[:-1]) == {16}
    found, orders = [], []
    for seed in range(2):
        rows = []
        for batch in source.batches(16, torch.Generator().manual_seed(seed), "cpu"):
            offsets = batch.rows.offsets.tolist()
            for start, end in pairwise(offsets):
                row = np.zeros(30)
                row[batch.rows.columns[start:end]] = batch.rows.values[start:end]
                rows.append(tuple(row.tolist()))
        found.append(sorted(rows))
        orders.append(rows)
    assert found[0] == found[1] == expected
    assert orders[0] != orders[1]


def test_fit_from_a_file_learns_what_fit_from_arrays_learns(path: Path) -> None:
    X, y = made()
    settings = {
        "hidden_size": 16,
        "dropout": 0.0,
        "epochs": 15,
        "batch_size": 16,
        "random_state": 0,
        "n_estimators": 1,
    }
    model = ExtremeClassifier(**settings, buffer_size=40).fit(path)
    arrays = ExtremeClassifier(**settings).fit(X, y)
    np.testing.assert_allclose(model.scaling_.idf, arrays.scaling_.idf)
    assert model.label_prior_ == arrays.label_prior_
    labeled = np.flatnonzero(np.diff(y.indptr))
    scores = [fitted.score(X[labeled], y[labeled]) for fitted in (model, arrays)]
    assert min(scores) > 0.9
    stopped = ExtremeClassifier(**settings | {"epochs": 30}, n_iter_no_change=2).fit(path)
    assert "validation_precision" in stopped.history_[0]
    assert len(stopped.history_) < 30


def test_a_file_and_arrays_of_very_many_samples_have_the_same_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "MANY_SAMPLES", 50)
    monkeypatch.setattr(settings_module, "VERY_MANY_SAMPLES", 100)
    X, y = made()
    for data in ((path,), (X, y)):
        model = ExtremeClassifier(hidden_size=8, epochs=1, random_state=0).fit(*data)
        assert model.settings_["loss"] is LOGISTIC
        assert model.settings_["n_estimators"] == 2
        assert model.calibration_.is_decoupled


def test_partial_fit_goes_on() -> None:
    X, y = made()
    settings = {
        "hidden_size": 16,
        "dropout": 0.0,
        "batch_size": 16,
        "random_state": 0,
        "margins": margins.logit_adjusted,
    }
    model = ExtremeClassifier(**settings, learning_rate=0.01)
    for _ in range(8):
        for rows in np.array_split(np.arange(120), 3):
            model.partial_fit(X[rows], y[rows])
    labeled = np.flatnonzero(np.diff(y.indptr))
    assert model.score(X[labeled], y[labeled]) > 0.9
    assert model.label_prior_.counts.tolist() == (8 * y.sum(axis=0)).tolist()
    assert len(model.history_) == 24
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert len(model.fit(X, y).history_) != 25  # fit begins anew


def test_partial_fit_trains_one_network_and_says_so() -> None:
    assert ExtremeClassifier(hidden_size=4).partial_fit(np.eye(3), np.array([0, 1, 0])).settings_["n_estimators"] == 1


def test_a_small_network_is_trained_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    step = Trainer._set_learning_rate
    monkeypatch.setattr(
        Trainer, "_set_learning_rate", lambda *args: seen.append(torch.get_num_threads()) or step(*args)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ExtremeClassifier(hidden_size=4, epochs=1, n_estimators=1).fit(np.eye(3), np.array([0, 1, 0]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_partial_fit_passes_over_a_part_without_labels() -> None:
    y = np.array([[1, 0], [0, 1], [1, 1]])
    model = ExtremeClassifier(hidden_size=4, random_state=0).partial_fit(np.eye(3), y)
    before = model.decision_function(np.eye(3))
    model.partial_fit(np.eye(3), np.zeros((3, 2), dtype=int))
    np.testing.assert_array_equal(model.decision_function(np.eye(3)), before)
    assert model.label_prior_.num_samples == 3
    assert len(model.history_) == 1


def test_partial_fit_is_told_labels_that_come_later() -> None:
    model = ExtremeClassifier(hidden_size=4, random_state=0)
    model.partial_fit(np.eye(3), np.array(["a", "b", "a"]), classes=["a", "b", "c"])
    model.partial_fit(np.eye(3), np.array(["c", "c", "c"]))
    assert model.classes_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"y must have labels of training\. Got 'd'"):
        model.partial_fit(np.eye(3), np.array(["d", "a", "a"]))
    numbered = ExtremeClassifier(hidden_size=4).partial_fit(np.eye(3), np.array([0, 1, 0]), classes=9)
    assert numbered.n_labels_ == 9


def test_progress_says_loss_and_time_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ExtremeClassifier(hidden_size=4, epochs=2, n_estimators=1, verbose=True).fit(path)
    assert capsys.readouterr().err.splitlines()[-1].startswith("epoch 2/2 [##############################]  loss")
    ExtremeClassifier(hidden_size=4, epochs=2, n_estimators=2, verbose=True).fit(path)
    first, second = capsys.readouterr().err.strip().split("\n")
    assert "network 1/2, epoch 2/2 [" in first
    assert "network 2/2, epoch 2/2 [" in second
    assert second.endswith("0:00 left")


def test_what_is_no_file_of_samples(tmp_path: Path) -> None:
    X, y = made()
    model = ExtremeClassifier(epochs=1)
    with pytest.raises(FileNotFoundError, match="must be a file of samples"):
        model.fit(tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match="leave y and sample_weight None"):
        model.fit(write_text(tmp_path / "a.txt", X, y), y)
    with pytest.raises(ValueError, match="unless X is a file that has them"):
        model.fit(X)
    with pytest.raises(ValueError, match=r"must have files that end with \.parquet"):
        model.fit(tmp_path)
    (tmp_path / "b.txt").write_text("3 2 2\n0 0:1\n")
    with pytest.raises(ValueError, match=r"must have 3 samples, as its first line says\. Got 1 lines"):
        model.fit(tmp_path / "b.txt")
    (tmp_path / "c.txt").write_text("1 2 2\n7 0:1\n")
    with pytest.raises(ValueError, match="line 2"):
        model.fit(tmp_path / "c.txt")


def test_what_is_no_table_of_samples(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for columns, message in (
        ({"labels": [[0]]}, "must have columns labels, features and values"),
        ({"labels": [[0]], "features": [[1]], "values": [[0.5, 0.5]]}, "must have one length in every row"),
        ({"labels": [[-1]], "features": [[1]], "values": [[0.5]]}, "labels must be at least 0"),
        ({"labels": [[0], None], "features": [[1], [1]], "values": [[0.5], [1.0]]}, "a list in every row"),
    ):
        parquet.write_table(pyarrow.table(columns), tmp_path / "samples.parquet")
        with pytest.raises(ValueError, match=message):
            ExtremeClassifier(epochs=1).fit(tmp_path / "samples.parquet")


def test_a_row_of_very_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one value takes some bytes in the file however long it is, and all of them once read."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ends = pyarrow.array([0, 10**6], pyarrow.int32())
    lists = pyarrow.ListArray.from_arrays(ends, pyarrow.array(np.zeros(10**6, dtype=np.int64)))
    path = tmp_path / "samples.parquet"
    parquet.write_table(pyarrow.table({"labels": [[0]], "features": lists, "values": lists}), path)
    assert path.stat().st_size < 10_000
    monkeypatch.setenv("LONGTAIL_MEMORY", "0.01")
    with pytest.raises(ValueError, match=r"column 'features.* of a row group would take 0\.012 GB of memory"):
        ExtremeClassifier(epochs=1).fit(path)
