"""ExtremeClassifier: the loss it optimizes, what it learns, its contract as an estimator, and bad input."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from torch import Tensor

from longtail import ClassPrior, margins, negatives, weights
from longtail._core.tensors_file import load_tensors, save_tensors
from longtail.errors import DamagedFileError
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme import data as data_module
from longtail.estimators.extreme import losses as losses_module
from longtail.estimators.extreme import network as network_module
from longtail.estimators.extreme import training as training_module
from longtail.estimators.extreme.objective import make_criterion
from longtail.estimators.extreme.settings import DataShape, choose_network, choose_settings


def made(num_samples: int = 240, num_features: int = 30, num_labels: int = 12, seed: int = 0) -> tuple[Any, Any]:
    """Each label has two features of its own; rare labels exist; every eighth sample has no label."""
    rng = np.random.default_rng(seed)
    probabilities = 1 / np.arange(1, num_labels + 1)
    labels = np.zeros((num_samples, num_labels), dtype=bool)
    features = np.zeros((num_samples, num_features), dtype=np.float32)
    for row in range(num_samples):
        chosen = rng.choice(num_labels, 2, replace=False, p=probabilities / probabilities.sum())
        features[row, np.concatenate([2 * chosen, 2 * chosen + 1])] = 1
        features[row, rng.integers(num_features)] += 0.5
        labels[row, chosen] = row % 8 > 0
    return csr_array(features), csr_array(labels)


def quick(**settings: Any) -> ExtremeClassifier:
    defaults = {"hidden_size": 24, "n_estimators": 1, "dropout": 0.0, "epochs": 25, "batch_size": 32}
    defaults |= {"learning_rate": 1e-2, "random_state": 0}
    return ExtremeClassifier(**{**defaults, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation": "relu", "dropout": 0.2},
        {"skip_connection": True, "uses_bfloat16": True},
        {"margins": margins.logit_adjusted},
        {"margins": margins.adaptive},
        {"class_weights": weights.balanced},
        {"distribution": lambda prior: negatives.uniform(prior.num_classes), "num_negatives": 8},
        {"distribution": negatives.WithinBatch, "weighting": negatives.constant, "num_negatives": 11},
        {"distribution": negatives.prior_power, "margins": margins.logit_adjusted, "num_negatives": 8},
    ],
)
@pytest.mark.parametrize("is_sparse", [True, False])
def test_learns_labels_from_their_features(settings: dict[str, Any], is_sparse: bool) -> None:
    X, y = made()
    model = quick(**settings).fit(X if is_sparse else X.toarray(), y if is_sparse else y.toarray())
    has_labels = np.flatnonzero(y.toarray().any(axis=1))
    assert model.score(X[has_labels], y[has_labels]) > 0.9
    assert model.predict_topk(X, 3).shape == (X.shape[0], 3)
    assert len(model.history_) == 25
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


@pytest.mark.parametrize("builder", [margins.none, margins.logit_adjusted, margins.adaptive, margins.equalized])
@pytest.mark.parametrize("excludes_other_labels", [False, True])
def test_full_loss_equals_the_sum_over_pairs(builder: Any, excludes_other_labels: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    prior = ClassPrior.from_counts([50, 20, 5, 1])
    network = network_module.Network(6, 4, 5, activation="relu", skip_connection=True)
    network.reset_parameters(prior.log_probs, 1.0, generator)
    network.direct.data.normal_(generator=generator)
    network.double()
    rows = torch.randn(3, 6, generator=generator).double()
    pairs = [(0, 0), (0, 3), (2, 1)]
    batch = data_module.LabelBatch(rows, torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs]))
    alpha = torch.tensor([0.5, 1.0, 2.0, 4.0]).double()
    criterion = losses_module.FullSoftmax(builder(prior), alpha, excludes_other_labels)
    loss = criterion(network, network.embed(rows), batch, generator).detach()
    logits = network.logits(rows, network.embed(rows)).tolist()
    delta = builder(prior).dense().tolist()
    total = 0.0
    for sample, y in pairs:
        left_out = [z for other, z in pairs if other == sample] if excludes_other_labels else [y]
        wrong = [z for z in range(4) if z not in left_out]
        others = sum(math.exp(delta[y][z] + logits[sample][z] - logits[sample][y]) for z in wrong)
        total += float(alpha[y]) * math.log(1 + others)
    assert float(loss) == pytest.approx(total / len(pairs), abs=1e-10)


@pytest.mark.parametrize("excludes_other_labels", [False, True])
def test_drawn_negatives_estimate_the_full_loss(excludes_other_labels: bool) -> None:
    """With importance weights and many draws, of the same network on the same batch."""
    X, y = made()
    shared = {"excludes_other_labels": excludes_other_labels, "emphasis": 0, "epochs": 1}
    losses = []
    for settings in (
        {},
        {"distribution": lambda prior: negatives.uniform(prior.num_classes), "weighting": negatives.importance},
    ):
        model = quick(**shared, **settings, num_negatives=11).fit(X, y)
        network = quick(**shared).fit(X, y).model_
        criterion = make_criterion(model, negatives.CROSS_ENTROPY, model.label_prior_, model.classes_)
        if isinstance(criterion, losses_module.DrawnNegatives):
            criterion.share(network)
            criterion.head.num_negatives = 4000
        samples = data_module.Samples(X, y, np.flatnonzero(np.diff(y.indptr)))
        generator = torch.Generator().manual_seed(0)
        (batch,) = samples.batches(1000, generator, "cpu")
        losses.append(criterion(network, network.embed(batch.rows), batch, generator).item())
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.parametrize("num_samples", [33, 65])
def test_no_batch_is_too_small_for_negatives_from_it(num_samples: int) -> None:
    X = np.random.default_rng(0).normal(size=(num_samples, 4)).astype(np.float32)
    model = quick(distribution=negatives.WithinBatch, num_negatives=3, epochs=2).fit(X, np.arange(num_samples) % 5)
    assert np.isfinite(model.history_[-1]["loss"])


def test_by_default_negatives_from_the_batch_suit_any_number_of_labels() -> None:
    """Their number is a cap, so the default of 256 is no error where labels are fewer."""
    X, y = made()
    model = ExtremeClassifier(
        distribution=negatives.WithinBatch, weighting=negatives.constant, hidden_size=4, epochs=1, random_state=0
    )
    assert np.isfinite(model.fit(X, y).history_[-1]["loss"])


def test_sampling_with_all_negatives_many_times_nears_the_full_loss() -> None:
    X, y = made()
    prior = ClassPrior.from_indicator(y)
    full = quick(margins=margins.logit_adjusted).fit(X, y)
    drawn = quick(
        margins=margins.logit_adjusted,
        distribution=lambda prior: negatives.uniform(prior.num_classes),
        num_negatives=11,
    ).fit(X, y)
    assert prior.num_classes == full.n_labels_ == drawn.n_labels_
    agree = (full.predict_topk(X, 1) == drawn.predict_topk(X, 1)).mean()
    assert agree > 0.7


def test_row_sparse_updates_touch_the_features_of_the_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = made(num_features=40)  # 24 features carry labels, the others occur by chance or, from 36 on, never
    X = csr_array(X.toarray() * (np.arange(40) < 36))
    monkeypatch.setattr(training_module, "ROW_SPARSE_FROM", 1)
    start: dict[str, torch.Tensor] = {}
    original = network_module.Network.reset_parameters

    def remembering(network: Any, *args: Any) -> None:
        original(network, *args)
        start["vectors"] = network.vectors.detach().clone()

    monkeypatch.setattr(network_module.Network, "reset_parameters", remembering)
    model = quick(weight_decay=0.1).fit(X, y)
    changed = (model.model_.vectors != start["vectors"]).any(dim=1)
    assert changed[:24].all()
    assert not changed[36:].any()
    has_labels = np.flatnonzero(y.toarray().any(axis=1))
    assert model.score(X[has_labels], y[has_labels]) > 0.9


def test_tau_moves_predictions_from_frequent_to_rare_labels() -> None:
    X, y = made(num_samples=400)
    counts = np.asarray(y.sum(axis=0)).ravel()
    frequencies = [
        counts[quick(epochs=2, margins=partial(margins.logit_adjusted, tau=tau)).fit(X, y).predict_topk(X, 3)].mean()
        for tau in (0.0, 0.5, 1.0)
    ]
    assert frequencies[0] > frequencies[1] > frequencies[2]


def test_same_state_gives_the_same_model_and_leaves_global_randomness_alone() -> None:
    X, y = made()
    settings: dict[str, Any] = {
        "epochs": 2,
        "dropout": 0.3,
        "distribution": negatives.WithinBatch,
        "num_negatives": 8,
    }
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (quick(**settings).fit(X, y) for _ in range(2))
    assert torch.rand(1) == expected
    other = quick(**settings, random_state=1).fit(X, y)
    np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))
    assert not np.array_equal(first.decision_function(X), other.decision_function(X))


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.7])
def test_dropout_keeps_its_share_and_the_mean(dropout: float) -> None:
    factors = network_module._dropout_factors(torch.Size((401, 1001)), dropout, torch.Generator().manual_seed(0))
    assert float((factors == 0).double().mean()) == pytest.approx(dropout, abs=0.005)
    assert float(factors.double().mean()) == pytest.approx(1, abs=0.01)
    rows, columns = (factors == 0).double().mean(dim=1), (factors == 0).double().mean(dim=0)
    assert float(rows.std()) == pytest.approx((dropout * (1 - dropout) / 1001) ** 0.5, rel=0.2)
    assert float(columns.std()) == pytest.approx((dropout * (1 - dropout) / 401) ** 0.5, rel=0.2)


def test_bfloat16_is_for_training_alone_and_close() -> None:
    X, y = made()
    exact, rounded = (quick(uses_bfloat16=value, epochs=3).fit(X, y) for value in (False, True))
    assert not rounded.model_.uses_bfloat16
    difference = np.abs(exact.decision_function(X) - rounded.decision_function(X)).max()
    assert 0 < difference < 0.2


def test_early_stop_keeps_the_best_epoch() -> None:
    X, y = made()
    model = quick(epochs=60, n_iter_no_change=3, validation_fraction=0.2).fit(X, y)
    precisions = [epoch["validation_precision"] for epoch in model.history_]
    assert len(precisions) < 60
    assert precisions.index(max(precisions)) == len(precisions) - 4


def test_one_label_a_sample_as_whole_numbers() -> None:
    X, y = made()
    labels = y.toarray().argmax(axis=1)
    model = quick().fit(X, labels)
    one_hot = quick().fit(X, np.eye(12)[labels][:, : labels.max() + 1])
    np.testing.assert_array_equal(model.decision_function(X), one_hot.decision_function(X))
    assert model.score(X, labels) == pytest.approx(float((model.predict_topk(X, 1)[:, 0] == labels).mean()))


def test_topk_is_the_order_of_the_logits_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = made()
    model = quick(epochs=2).fit(X, y)
    logits = model.decision_function(X)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(model.predict_topk(X, 5), expected)
    monkeypatch.setattr(network_module, "PREDICTED_AT_ONCE", 7)
    np.testing.assert_array_equal(model.predict_topk(X.toarray(), 5), expected)
    assert model.predict_topk(X, 12).shape == (240, 12)


def test_labels_without_samples_are_smoothed() -> None:
    X, y = made()
    wide = csr_array((y.data, y.indices, y.indptr), shape=(y.shape[0], 14))
    model = quick(margins=margins.logit_adjusted).fit(X, wide)
    assert model.label_prior_.pseudocount == 1
    assert np.isfinite(model.decision_function(X)).all()


def test_clone_and_grid_search() -> None:
    X, y = made()
    model = quick(margins=margins.logit_adjusted, distribution=negatives.WithinBatch, num_negatives=8)
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(quick(epochs=3), {"hidden_size": [4, 24]}, cv=KFold(2)).fit(X, y)
    assert set(search.best_params_) == {"hidden_size"}


@pytest.mark.parametrize("skip_connection", [True, False])
def test_save_and_load(tmp_path: Path, skip_connection: bool) -> None:
    X, y = made()
    model = quick(epochs=2, skip_connection=skip_connection, hidden_size=np.int64(8)).fit(X, y)
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = ExtremeClassifier.load(path)
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(again.predict_topk(X, 4), model.predict_topk(X, 4))
    again.device = "cuda"  # as of a model that was trained elsewhere
    np.testing.assert_array_equal(again.predict_topk(X, 4), model.predict_topk(X, 4))
    again.device = "cpu"
    assert again.label_prior_ == model.label_prior_
    assert again.hidden_size == 8
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    again.fit(X, y)


def written(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The content of a small model's file."""
    X, y = made()
    quick(epochs=1).fit(X, y).save(path)
    return load_tensors(path, "extreme classifier")


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({}, {"num_features": 7}),
        ({}, {"num_features": "many"}),
        ({"counts": torch.ones(3)}, {}),
        ({}, {"settings": {}}),
        ({}, {"settings": None}),
        ({}, {"pseudocount": []}),
        ({"more": torch.zeros(1)}, {}),
        ({"vectors": torch.zeros(1, 1)}, {}),
    ],
)
def test_files_that_are_not_a_model(tmp_path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    path = tmp_path / "model.safetensors"
    before = written(path)
    save_tensors(path, before[0] | tensors, "extreme classifier", before[1] | metadata)
    with pytest.raises(DamagedFileError, match=r"must be a file that ExtremeClassifier\.save wrote"):
        ExtremeClassifier.load(path)


def test_no_flipped_bit_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    written(path)
    content = path.read_bytes()
    draw = random.Random(0)
    for _ in range(120):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"model\.safetensors must be"):
            ExtremeClassifier.load(path)


def test_absent_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError):
        ExtremeClassifier.load(path)
    torch.save([1, 2], path)
    with pytest.raises(DamagedFileError, match=r"model\.safetensors must be"):
        ExtremeClassifier.load(path)
    save_tensors(path, {"a": torch.zeros(1)}, "checkpoint")
    with pytest.raises(DamagedFileError, match="Got kind 'checkpoint'"):
        ExtremeClassifier.load(path)


def test_a_diverged_model_is_not_saved(tmp_path: Path) -> None:
    X, y = made()
    model = quick(epochs=1).fit(X, y)
    with torch.no_grad():
        model.model_.vectors[0, 0] = math.nan
    with pytest.raises(ValueError, match="'vectors' must be finite"):
        model.save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = made()
    quick(epochs=2, verbose=True).fit(X, y)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch 2/2 [##############################]  loss" in printed.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number of at least 1 or None. Got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"batch_size": -1}, "batch_size must be a whole number"),
        ({"num_negatives": 0}, "num_negatives must be a whole number"),
        ({"n_iter_no_change": 0}, "n_iter_no_change must be a whole number"),
        ({"learning_rate": 0}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number above 0"),
        ({"weight_decay": -1}, "weight_decay must be a finite number of at least 0"),
        ({"dropout": 1}, "dropout must be a finite number of at least 0 and below 1 or None. Got 1"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a finite number"),
        ({"weighting": negatives.constant}, "give a distribution too"),
        (
            {"weighting": negatives.constant, "distribution": negatives.WithinBatch, "margins": margins.none},
            "give one of the two",
        ),
        ({"skip_connection": True, "distribution": negatives.WithinBatch}, "skip_connection needs the full softmax"),
        (
            {"distribution": negatives.prior_power, "num_negatives": 12},
            "num_negatives must be at most num_classes - 1",
        ),
        ({"activation": "tanh"}, "activation must be 'identity' or 'relu'. Got 'tanh'"),
        ({"skip_connection": "yes"}, "skip_connection must be True or False. Got 'yes'"),
        ({"margins": "adaptive"}, "margins must be a function or None. Got 'adaptive'"),
        ({"learning_rate": 1e30}, "training must have a finite loss"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    X, y = made()
    with pytest.raises(ValueError, match=message):
        quick(epochs=settings.pop("epochs", 2), **settings).fit(X, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full((4, 3), 2), r"y must be \[N, C\] of 0 and 1"),
        (csr_matrix(np.full((4, 3), 0.5)), r"y must be \[N, C\] of 0 and 1"),
        (np.zeros((4, 3)), "samples that have one. Got 3 labels and 0 positives"),
        (np.ones((4, 1)), "two labels or more"),
        (np.eye(3), "X and y must have one length. Got 4 and 3"),
        (np.array([0, 1, -1, 0]), "y must be at least 0. Got -1"),
        (np.array([0.5, 1, 0, 0]), r"y must be zeros and ones \[N, C\], whole numbers or names"),
        (np.array([["a", "b"]] * 4), r"y must be \[N, C\] of 0 and 1. Got <U1"),
        (np.array([[0, 1], [1, np.nan], [0, 1], [0, 1]]), "y contains NaN"),
    ],
)
def test_bad_labels(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(epochs=1).fit(np.eye(4), y)


def test_bad_features_and_calls_out_of_order() -> None:
    X, y = made()
    with pytest.raises(NotFittedError):
        quick().predict_topk(X)
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(np.full((4, 2), np.nan), np.eye(4))
    model = quick(epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        model.predict_topk(X[:, :5])
    for k in (0, 13, 1.5):
        with pytest.raises(ValueError, match=r"k must be in 1\.\.12"):
            model.predict_topk(X, k)
    with pytest.raises(ValueError, match=r"the 12 labels of training\. Got 3"):
        model.score(X, np.ones((X.shape[0], 3)))
    with pytest.raises(ValueError, match=r"y must be in 0\.\.11\. Got 12"):
        model.score(X[:1], np.array([12]))
    with pytest.raises(ValueError, match="n_iter_no_change needs samples to hold out and samples to train on"):
        quick(n_iter_no_change=1).fit(np.eye(2), np.array([[1, 1], [0, 0]]))


@pytest.mark.parametrize(
    ("num_samples", "settings", "expected"),
    [(500, {}, 0.5), (20_000, {}, 0.7), (40_000, {}, 0.5), (40_000, {"dropout": 0.0}, 0.0)],
)
def test_dropout_follows_the_number_of_samples(num_samples: int, settings: dict[str, Any], expected: float) -> None:
    shape = DataShape(num_samples, num_samples, 30, 10, is_sparse=True)
    assert choose_settings(ExtremeClassifier(**settings), shape).dropout == expected


@pytest.mark.parametrize(
    ("num_labels", "settings", "expected"),
    [(4000, {}, 2.0), (1000, {}, 0.3), (4000, {"distribution": negatives.WithinBatch}, 0.3)],
)
def test_vectors_of_many_labels_start_long(num_labels: int, settings: dict[str, Any], expected: float) -> None:
    chosen = choose_network(ExtremeClassifier(**settings), DataShape(500, 500, 30, num_labels, is_sparse=True))
    assert chosen.label_start == expected
    network = network_module.Network(30, num_labels, chosen.hidden_size, "relu", False)
    generator = torch.Generator().manual_seed(0)
    network.reset_parameters(torch.zeros(num_labels), 1.0, generator, chosen.hidden_start, chosen.label_start)
    assert float(network.weight.detach()[:, :-1].norm(dim=1).mean()) == pytest.approx(expected, rel=0.01)
