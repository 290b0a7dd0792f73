"""Rare labels lean on the mean of their samples: against loops, in files as in memory, and what it is good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme.class_means import add_class_means
from longtail.estimators.extreme.data import Samples
from longtail.estimators.extreme.settings import DataShape, choose_settings
from longtail.margins import logit_adjusted
from longtail.negatives import HINGE, LOGISTIC

WEIGHT = 6.0


def fit(X: Any, y: Any, weight: float | None = WEIGHT, **settings: Any) -> ExtremeClassifier:
    defaults: dict[str, Any] = {"hidden_size": 8, "n_estimators": 1, "epochs": 2, "random_state": 0}
    return ExtremeClassifier(class_mean_weight=weight, **{**defaults, **settings}).fit(X, y)


def made(num_samples: int = 90, num_labels: int = 4) -> tuple[Any, Any]:
    """Dense features, labels of very different counts, one label without samples."""
    rng = np.random.default_rng(0)
    y = np.zeros((num_samples, num_labels + 1), dtype=bool)
    for label, (start, end) in enumerate([(0, 80), (20, 50), (70, 78), (78, 82)]):
        y[start:end, label] = True  # the last samples have no label
    X = rng.normal(size=(num_samples, 6)) + y[:, :1] + 2 * y[:, 2:3]
    return X.astype(np.float32), y


def add_by_loops(model: ExtremeClassifier, X: Any, y: Any, sample_weight: Any) -> Any:
    """The logits of a model without class means, with the term as the docstring says, in float64."""
    vectors = model.model_.weight.detach().numpy().astype(np.float64)[:, :-1]
    hidden = model.embed(X).numpy().astype(np.float64)[:, :-1]
    logits = model.decision_function(X).astype(np.float64)
    labeled = [row for row in range(len(y)) if y[row].any()]
    total = sum(sample_weight[row] for row in labeled)
    mean = sum(sample_weight[row] * hidden[row] for row in labeled) / total
    directions, counts = {}, {}
    for label in range(y.shape[1]):
        rows = [row for row in labeled if y[row, label]]
        count = sum(sample_weight[row] for row in rows)
        if not count:
            continue
        direction = sum(sample_weight[row] * hidden[row] for row in rows) / count - mean
        directions[label], counts[label] = direction / np.linalg.norm(direction), count
    pairs = [(count, directions[label] @ vectors[label]) for label, count in counts.items()]
    learned = sum(count * length for count, length in pairs) / sum(counts.values())
    assert learned > 0
    for label, direction in directions.items():
        for row in range(len(hidden)):
            logits[row, label] += WEIGHT * learned * 5 / (5 + counts[label]) * (direction @ (hidden[row] - mean))
    return logits


@pytest.mark.parametrize("is_weighted", [False, True])
def test_logits_are_those_of_loops(is_weighted: bool) -> None:
    X, y = made()
    sample_weight = np.random.default_rng(1).uniform(0, 2, size=len(X)) if is_weighted else np.ones(len(X))
    models = []
    for weight in (0.0, WEIGHT):
        model = ExtremeClassifier(class_mean_weight=weight, hidden_size=8, n_estimators=1, epochs=2, random_state=0)
        models.append(model.fit(X, y, sample_weight=sample_weight if is_weighted else None))
    expected = add_by_loops(models[0], X, y, sample_weight)
    np.testing.assert_allclose(models[1].decision_function(X), expected, atol=2e-5)


def test_the_term_is_zero_in_the_mean_over_samples() -> None:
    X, y = made()
    labeled = y.any(axis=1)
    plain, with_means = (fit(X, y, weight).decision_function(X)[labeled] for weight in (0.0, WEIGHT))
    assert np.abs(with_means - plain).max() > 0.1
    np.testing.assert_allclose((with_means - plain).mean(axis=0), 0, atol=1e-5)


def test_several_networks_lean_on_means_of_all_their_hidden_values() -> None:
    X, y = made()
    plain, with_means = (fit(X, y, weight, n_estimators=3) for weight in (0.0, WEIGHT))
    expected = add_by_loops(plain, X, y, np.ones(len(X)))
    np.testing.assert_allclose(with_means.decision_function(X), expected, atol=2e-5)


def test_a_file_gives_what_memory_gives(tmp_path: Path) -> None:
    X, y = made()
    path, lines = tmp_path / "samples.txt", [f"{X.shape[0]} {X.shape[1]} {y.shape[1]}"]
    for row, labels in zip(X, y, strict=True):
        names = ",".join(map(str, np.flatnonzero(labels)))
        lines.append(f"{names} " + " ".join(f"{column}:{value!r}" for column, value in enumerate(row.tolist())))
    path.write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {"hidden_size": 8, "n_estimators": 1, "epochs": 1, "random_state": 0}
    models = [ExtremeClassifier(class_mean_weight=weight, **settings).fit(path) for weight in (0.0, WEIGHT)]
    expected = add_by_loops(models[0], csr_array(X), y, np.ones(len(X)))
    np.testing.assert_allclose(models[1].decision_function(csr_array(X)), expected, atol=2e-5)


def test_rare_labels_are_found_that_training_alone_misses() -> None:
    rng = np.random.default_rng(0)
    prior = np.r_[np.full(10, 100), np.full(30, 2)]
    centers = rng.normal(size=(len(prior), 20))
    train, test = np.repeat(np.arange(len(prior)), prior), np.repeat(np.arange(len(prior)), 20)
    X, unseen = (centers[labels] + 1.2 * rng.normal(size=(len(labels), 20)) for labels in (train, test))
    recalls = []
    for weight in (0.0, None):
        best = ExtremeClassifier(class_mean_weight=weight, random_state=0).fit(X, train).predict_topk(unseen, 3)
        is_found = (best == test[:, None]).any(axis=1)
        recalls.append([is_found[test >= 10].mean(), is_found[test < 10].mean()])
    (plain_rare, plain_frequent), (rare, frequent) = recalls
    assert rare > plain_rare + 0.05
    assert frequent > plain_frequent - 0.02


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.5),
        ({"emphasis": "tail"}, 0.5),
        ({"emphasis": "precision"}, 0.0),
        ({"margins": logit_adjusted}, 0.0),
        ({"loss": LOGISTIC}, 0.09),
        ({"loss": HINGE}, 0.0),
        ({"scale": 8.0}, 0.0),
        ({"class_mean_weight": 2.0, "loss": HINGE}, 2.0),
    ],
)
def test_the_weight_follows_what_is_asked_for(settings: dict[str, Any], expected: float) -> None:
    X, y = made()
    model = ExtremeClassifier(**settings, hidden_size=4, epochs=1, n_estimators=1, random_state=0).fit(X, y)
    assert model.settings_["class_mean_weight"] == expected


def test_cosines_take_no_class_means() -> None:
    X, y = made()
    with pytest.raises(ValueError, match="class_mean_weight must be None or 0 where scale makes cosines"):
        fit(X, y, scale=8.0)


def test_a_label_that_all_samples_have_changes_nothing() -> None:
    X, y = made()
    everywhere = np.ones((len(y), 1), dtype=bool)
    plain, with_means = (
        fit(X, np.hstack([y, everywhere]), weight).decision_function(X)[:, -1] for weight in (0.0, WEIGHT)
    )
    np.testing.assert_allclose(with_means, plain, atol=5e-3)  # but for rounding


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_hidden_values_that_are_all_alike_change_nothing(value: float) -> None:
    X, y = np.full((21, 3), value, dtype=np.float32), np.arange(21) % 4
    plain, with_means = (fit(X, y, weight).decision_function(X) for weight in (0.0, WEIGHT))
    np.testing.assert_allclose(with_means, plain, atol=1e-3)


def test_vectors_that_point_away_from_their_means_are_left_as_they_are() -> None:
    X, y = made()
    model = fit(X, y, 0.0)
    network, settings = model.model_, choose_settings(model, DataShape(len(y), int(y.sum()), 6, 5, False))
    with torch.no_grad():
        network.weight[:, :-1] *= -1
    before = network.weight.detach().clone()
    add_class_means(network, Samples(X, csr_array(y), np.flatnonzero(y.any(axis=1))), WEIGHT, settings)
    torch.testing.assert_close(network.weight.detach(), before, rtol=0, atol=0)
