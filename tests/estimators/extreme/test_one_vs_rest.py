"""Linear machines beside the network: the formula against loops, when they are taken, and what they are good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.svm import LinearSVC

from longtail import weights
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme.settings import DataShape, choose_loss, choose_one_vs_rest_weight
from longtail.margins import logit_adjusted
from longtail.negatives import HINGE, WithinBatch

WEIGHT = 0.7


def fit(X: Any, y: Any, weight: float | None = WEIGHT, **settings: Any) -> ExtremeClassifier:
    quick: dict[str, Any] = {"hidden_size": 8, "n_estimators": 1, "epochs": 2, "random_state": 0}
    return ExtremeClassifier(one_vs_rest_weight=weight, **{**quick, **settings}).fit(X, y)


def made() -> tuple[Any, Any]:
    """Sparse features; labels of very different counts, one without samples and one that all labeled samples have."""
    rng = np.random.default_rng(0)
    y = np.zeros((90, 5), dtype=bool)
    for label, (start, end) in enumerate([(0, 60), (20, 50), (58, 64), (0, 80)]):
        y[start:end, label] = True  # the last samples have no label
    X = random_array((90, 30), density=0.2, rng=rng, dtype=np.float32).tolil()
    X[:, 0] = 3 * y[:, :1]
    return csr_array(X), y


def spread(scores: Any) -> float:
    return float(np.sqrt(np.mean([np.var(row) for row in scores])))


@pytest.mark.parametrize("settings", [{}, {"skip_connection": True}, {"n_estimators": 2}])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("is_dense", [False, True])
def test_logits_are_those_of_loops(settings: dict[str, Any], is_weighted: bool, is_dense: bool) -> None:
    X, y = made()
    X = X.toarray() if is_dense else X
    sample_weight = np.random.default_rng(1).integers(0, 3, size=len(y)) if is_weighted else np.ones(len(y))
    plain, model = (
        ExtremeClassifier(
            one_vs_rest_weight=weight, hidden_size=8, epochs=2, random_state=0, **{"n_estimators": 1, **settings}
        ).fit(X, y, sample_weight=sample_weight if is_weighted else None)
        for weight in (0.0, WEIGHT)
    )
    kept = np.flatnonzero(y.any(axis=1) & (sample_weight > 0))
    length = np.sqrt(np.mean(np.sum(np.square(csr_array(X).toarray()[kept]), axis=1)))
    scores = np.full(y.shape, -1.0)
    for label in (0, 1, 2):
        machine = LinearSVC(random_state=0).fit(X[kept] / length, y[kept, label], sample_weight[kept])
        scores[:, label] = machine.decision_function(X / length)
    network = plain.decision_function(X)
    labeled = np.flatnonzero(y.any(axis=1))
    ratio = spread(network[labeled]) / spread(scores[labeled])
    few = 1 + 5 / (5 + (y[kept] * sample_weight[kept, None]).sum(axis=0))
    expected = (network + WEIGHT * ratio * few * (scores + 1)) / (1 + WEIGHT)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=2e-3)


def test_rare_words_of_rare_labels_are_found() -> None:
    """Each rare label has a word of its own, which the network has seen three times."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 4, size=1200)
    X = random_array((1200, 400), density=0.02, rng=rng, dtype=np.float32).tolil()
    X[np.arange(1200), common] = 1
    labels = [[int(label)] for label in common]
    for rare in range(40):
        for row in range(12 * rare, 12 * rare + 12):
            X[row, 300 + rare] = 1
            labels[row].append(4 + rare)
    train = [row for row in range(1200) if row >= 480 or row % 12 < 3]
    test = [row for row in range(480) if row % 12 >= 3]
    y = np.zeros((1200, 44), dtype=bool)
    for row, of_row in enumerate(labels):
        y[row, of_row] = True
    X = csr_array(X)
    found = []
    for weight in (0.0, 0.4):
        best = fit(X[train], y[train], weight, epochs=4, hidden_size=64).predict_topk(X[test], 3)
        found.append(np.mean([4 + row // 12 in best[place] for place, row in enumerate(test)]))
    assert found[1] > found[0] + 0.1


TEXTS = DataShape(8_000, 16_000, 20_000, 100, is_sparse=True, num_values=400_000)


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        ({}, {}, 0.4),
        ({"emphasis": "precision"}, {}, 0.4),
        ({}, {"num_samples": 40_000, "num_pairs": 80_000}, 0.1),
        ({"one_vs_rest_weight": 0.0}, {}, 0.0),
        ({"one_vs_rest_weight": 0.2}, {"is_sparse": False}, 0.2),
        ({}, {"num_samples": 4_000}, 0.0),
        ({}, {"num_features": 500}, 0.0),
        ({}, {"is_sparse": False}, 0.0),
        ({}, {"num_values": 200_000_000}, 0.0),
        ({}, {"num_features": 3_000_000}, 0.0),
        ({}, {"num_values": None}, 0.0),
        ({"margins": logit_adjusted}, {}, 0.0),
        ({"class_weights": weights.balanced}, {}, 0.0),
        ({"distribution": WithinBatch}, {}, 0.0),
        ({"loss": HINGE}, {}, 0.0),
        ({"scale": 8.0}, {}, 0.0),
    ],
)
def test_the_weight_follows_the_data_and_what_is_asked_for(
    settings: dict[str, Any], changes: dict[str, Any], expected: float
) -> None:
    estimator, shape = ExtremeClassifier(**settings), TEXTS._replace(**changes)
    assert choose_one_vs_rest_weight(estimator, choose_loss(estimator, shape), shape) == expected


def test_their_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = made()
    fit(X, y, verbose=True)
    assert "linear machines: label 5 of 5\n" in capsys.readouterr().err


def test_small_data_have_none() -> None:
    X, y = made()
    model = fit(X, y, None)
    assert model.settings_["one_vs_rest_weight"] == 0
    assert model.model_.direct is None
    assert model.label_vectors().shape == (5, 9)


def test_a_saved_model_keeps_them(tmp_path: Path) -> None:
    X, y = made()
    model = fit(X, y)
    model.save(tmp_path / "model.safetensors")
    again = ExtremeClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(again.predict_topk(X, 4), model.predict_topk(X, 4))
    assert again.one_vs_rest_weight == WEIGHT


def test_one_label_per_sample_has_probabilities() -> None:
    X, y = made()
    probabilities = fit(X, y.argmax(axis=1)).predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_what_has_no_place_for_them(tmp_path: Path) -> None:
    X, y = made()
    with pytest.raises(ValueError, match="one_vs_rest_weight must be None or 0 where scale makes cosines"):
        fit(X, y, scale=8.0)
    with pytest.raises(ValueError, match="leave one_vs_rest_weight None"):
        ExtremeClassifier(one_vs_rest_weight=0.4).fit(str(tmp_path / "train.txt"))
    with pytest.raises(ValueError, match="fit with skip_connection=False and one_vs_rest_weight=0"):
        fit(X, y).label_vectors()
