"""ExtremeClassifier as scikit-learn's users expect it: any form of labels, tables, weights, sets, probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme import features as feature_scaling
from longtail.estimators.extreme import network
from longtail.negatives import LabelIndex

NAMES = ["art", "biology", "chess"]


def quick(**settings: Any) -> ExtremeClassifier:
    defaults = {"hidden_size": 16, "dropout": 0.1, "epochs": 30, "batch_size": 16, "random_state": 0}
    return ExtremeClassifier(**{**defaults, **settings})


def made() -> tuple[Any, Any]:
    """Four kinds of samples; each kind has its labels."""
    y = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]]).repeat(10, axis=0)
    return np.eye(4, dtype=np.float32).repeat(10, axis=0), y


def lists() -> list[list[str]]:
    return [[NAMES[column] for column in np.flatnonzero(row)] for row in made()[1]]


@pytest.mark.parametrize("form", [list, set, tuple])
def test_lists_and_sets_of_names_are_the_indicator(form: Any) -> None:
    X, y = made()
    named, numbered = quick().fit(X, [form(row) for row in lists()]), quick().fit(X, y)
    assert named.classes_.tolist() == NAMES
    np.testing.assert_array_equal(named.decision_function(X), numbered.decision_function(X))
    assert named.predict_topk(X, 2).tolist() == np.array(NAMES)[numbered.predict_topk(X, 2)].tolist()
    assert named.score(X, lists()) == numbered.score(X, y) == 1.0


def test_lists_of_numbers_of_different_lengths_are_labels() -> None:
    X, y = made()
    model = quick().fit(X, [np.flatnonzero(row).tolist() for row in y])
    np.testing.assert_array_equal(model.decision_function(X), quick().fit(X, y).decision_function(X))


def test_names_one_per_sample_are_predicted_as_names() -> None:
    X, _ = made()
    y = np.array(["dog", "cat", "dog", "emu"]).repeat(10)
    model = quick().fit(X, y)
    assert model.predict(X).tolist() == y.tolist()
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-5)
    assert model.predict_proba(X, ["emu", "cat"])[35].argmax() == 0
    with pytest.raises(ValueError, match=r"y must have labels of training\. Got 'owl'"):
        model.score(X, np.array(["owl"] * 40))


@pytest.mark.parametrize("emphasis", ["precision", "tail"])
def test_probabilities_do_not_depend_on_the_emphasis(emphasis: str) -> None:
    """With nothing to learn from the features they are the shares of the labels."""
    X, y = np.ones((200, 1), dtype=np.float32), np.array([0] * 150 + [1] * 40 + [2] * 10)
    found = quick(emphasis=emphasis, epochs=20).fit(X, y).predict_proba(X[:1])[0]
    assert found == pytest.approx([0.75, 0.2, 0.05], abs=0.03)


def test_sets_of_labels_are_those_that_are_likely() -> None:
    X, y = made()
    model = quick().fit(X, y)
    predicted = model.predict(X)
    assert issparse(predicted)
    np.testing.assert_array_equal(predicted.toarray(), y)
    chances = model.predict_proba(X, [1, 2])
    np.testing.assert_array_equal(chances >= 0.5, y[:, 1:] == 1)


def test_probabilities_do_not_depend_on_how_many_logits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = made()
    model = quick(epochs=3).fit(X, y)
    chances, sets = model.predict_proba(X), model.predict(X).toarray()
    monkeypatch.setattr(network, "LOGITS_AT_ONCE", 10)
    np.testing.assert_allclose(model.predict_proba(X), chances, rtol=1e-5, atol=1e-6)  # of float32 logits
    np.testing.assert_array_equal(model.predict(X).toarray(), sets)


@pytest.mark.parametrize(
    "y",
    [
        [[2], [1], [2], [0]],
        [[0, 2], [1, 2], [2, 1], [0, 1]],
        [[np.int64(2)], [1], [2], [0]],
        ((2,), (1,), (2,), (0,)),
    ],
)
def test_lists_of_numbers_may_all_have_one_length(y: Any) -> None:
    X = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(
        quick().fit(X, y).decision_function(X), quick().fit(X, [set(row) for row in y]).decision_function(X)
    )


def test_lists_are_read_alike_in_any_batch_once_labels_are_known() -> None:
    X, y = made()
    model = quick().fit(X, y)
    assert model.score(X[:1], [[0]]) == model.score(X[:1], [{0}]) == 1.0
    assert model.score(X[30:31], [[1]]) == 0.0
    assert model.score(X[:1], [[1, 0]]) == 1.0
    assert model.score(X[10:11], [[0, 1, 0]]) == 1.0  # as wide as the labels: a matrix
    quick().partial_fit(X[:2], [[0], [1]], classes=3).partial_fit(X[:1], [[2]])
    for matrix in ([[0, 0]], [[0, 1, 0, 1]]):
        with pytest.raises(ValueError, match="y must have the 3 labels of training"):
            model.score(X[:1], matrix)


@pytest.mark.parametrize("unseen", [[{"owl"}], [{"cat", "owl"}]])
def test_labels_that_training_had_no_sample_of_are_not_found(unseen: Any) -> None:
    X = np.eye(2, dtype=np.float32).repeat(10, axis=0)
    model = quick().fit(X, np.array(["cat", "dog"]).repeat(10))
    expected = (1 + ("cat" in unseen[0])) / 2
    assert model.score(X[[0, 0]], [{"cat"}, *unseen]) == expected
    with pytest.raises(ValueError, match="Got 'owl'"):
        model.predict_proba(X, ["cat", "owl"])


def test_rare_labels_do_not_stop_cross_validation() -> None:
    X = np.eye(2, dtype=np.float32).repeat(10, axis=0)
    for y in (np.array([0] * 10 + [1] * 9 + [2]), np.array(["a"] * 10 + ["b"] * 9 + ["c"])):
        scores = cross_val_score(quick(), X, y, cv=KFold(4))
        assert np.isfinite(scores).all()


def test_samples_without_any_label_are_told_so() -> None:
    with pytest.raises(ValueError, match=r"y must have two labels or more.* Got 0 labels and 0 positives"):
        ExtremeClassifier().fit(np.eye(3), [[], [], []])


def test_pandas_and_polars_are_the_arrays() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, y = made()
    expected = quick().fit(X, y).decision_function(X)
    features = {f"f{column}": X[:, column] for column in range(4)}
    targets = {name: y[:, column] for column, name in enumerate(NAMES)}
    for frame in (pandas.DataFrame, polars.DataFrame):
        model = quick().fit(frame(features), frame(targets))
        np.testing.assert_array_equal(model.decision_function(frame(features)), expected)
        assert model.classes_.tolist() == NAMES
        assert model.score(frame(features), frame(targets)) == 1.0
        with pytest.raises(ValueError, match="y must have the columns of training"):
            model.score(frame(features), frame(dict(reversed(targets.items()))))
    for series in (pandas.Series, polars.Series):
        np.testing.assert_array_equal(quick().fit(X, series(lists())).decision_function(X), expected)


def test_a_saved_model_knows_the_columns_of_its_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = made()
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    model = quick(epochs=1).fit(frame, y)
    model.save(tmp_path / "model.safetensors")
    again = ExtremeClassifier.load(tmp_path / "model.safetensors")
    assert again.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(again.decision_function(frame), model.decision_function(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(frame[["b", "a", "c", "d"]])
    model.fit(X, y).save(tmp_path / "model.safetensors")
    assert not hasattr(ExtremeClassifier.load(tmp_path / "model.safetensors"), "feature_names_in_")


def test_a_file_after_a_table_has_no_column_names(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = made()
    (tmp_path / "tiny.txt").write_text("3 4 3\n0,2 1:0.5 3:2\n1 0:1\n0 3:1\n")
    model = quick(epochs=1).fit(pandas.DataFrame(X, columns=["a", "b", "c", "d"]), y)
    assert not hasattr(model.fit(tmp_path / "tiny.txt"), "feature_names_in_")


def test_sample_weights_weigh_and_zero_leaves_out() -> None:
    X = np.ones((40, 1), dtype=np.float32)
    y = np.array([0] * 20 + [1] * 20)
    weighted = quick(emphasis=0).fit(X, y, sample_weight=np.array([3.0] * 20 + [1.0] * 20))
    assert weighted.predict_proba(X[:1])[0, 0] == pytest.approx(0.75, abs=0.05)
    assert weighted.score(X, y, sample_weight=np.array([1.0] * 20 + [0.0] * 20)) == 1.0
    for wrong in (np.ones(3), -np.ones(40), np.zeros(40), np.full(40, np.nan)):
        with pytest.raises(ValueError, match="sample_weight must be 40 finite numbers of at least 0, not all 0"):
            quick().fit(X, y, sample_weight=wrong)


@pytest.mark.parametrize("given", [[3.0, 1.0], {"a": 3.0}, lambda prior: np.array([3.0, 1.0])])
def test_class_weights_in_any_form(given: Any) -> None:
    X, y = np.ones((40, 1), dtype=np.float32), np.array(["a", "b"]).repeat(20)
    model = quick(emphasis=0, class_weights=given).fit(X, y)
    assert model.predict_proba(X[:1])[0, 0] == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("wrong", [[1.0], [1.0, -1.0], [np.inf, 1.0]])
def test_bad_class_weights(wrong: Any) -> None:
    with pytest.raises(ValueError, match="class_weights must be 2 finite numbers of at least 0"):
        quick(class_weights=wrong).fit(np.eye(2), np.array(["a", "b"]))


def test_grid_search_over_settings_that_may_be_left_open() -> None:
    X, _ = made()
    grid = {"emphasis": ["precision", "tail", 0.3], "hidden_size": [None, 4], "learning_rate": [None, 0.01]}
    search = GridSearchCV(quick(epochs=2), grid, cv=KFold(2, shuffle=True, random_state=0)).fit(X, lists())
    assert set(search.best_params_) == set(grid)
    assert len(search.cv_results_["params"]) == 12


def test_counts_become_the_tfidf_of_scikit_learn() -> None:
    counts = csr_array(np.random.default_rng(0).poisson(0.7, size=(30, 8)).astype(np.float32))
    assert feature_scaling.are_counts(counts)
    idf = feature_scaling.idf_of(feature_scaling.count_rows(counts), 30)
    logs = counts.copy()
    logs.data = np.log1p(logs.data)
    expected = TfidfTransformer().fit(counts)
    np.testing.assert_allclose(idf, expected.idf_, rtol=1e-6)
    scaling = feature_scaling.FeatureScaling(idf, True)
    np.testing.assert_allclose(scaling.apply(counts).toarray(), expected.transform(logs).toarray(), rtol=1e-5)
    np.testing.assert_allclose(scaling.apply(counts.toarray()), scaling.apply(counts).toarray(), rtol=1e-5)


@pytest.mark.parametrize(
    ("features", "are"),
    [
        (csr_array(np.array([[0.0, 2.0]])), True),
        (csr_array(np.array([[0.0, 1.0]])), False),
        (csr_array(np.array([[0.5, 2.0]])), False),
        (csr_array(np.array([[-1.0, 2.0]])), False),
        (np.array([[0.0, 2.0]]), False),
        (csr_array((1, 2)), False),
    ],
)
def test_counts_are_sparse_whole_numbers_beyond_one(features: Any, are: bool) -> None:
    assert feature_scaling.are_counts(features) is are


def test_scaling_is_applied_to_new_samples_and_saved(tmp_path: Path) -> None:
    X, _ = made()
    X, y = csr_array(3 * X), np.array(["dog", "cat", "dog", "emu"]).repeat(10)
    model = quick().fit(X, y)
    assert model.scaling_.idf is not None
    np.testing.assert_allclose(model.decision_function(X), model.decision_function(7 * X), atol=1e-5)
    model.save(tmp_path / "model.safetensors")
    again = ExtremeClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X, ["emu"]), model.predict_proba(X, ["emu"]))
    plain = quick(uses_tfidf=False, normalizes_rows=False).fit(X, y)
    assert plain.scaling_.idf is None
    with pytest.raises(ValueError, match=r"uses_tfidf needs features of at least 0"):
        quick(uses_tfidf=True).fit(-X, y)


def test_an_ensemble_is_the_mean_of_its_networks() -> None:
    X, y = made()
    joined = quick(n_estimators=3, epochs=2, skip_connection=True).fit(X, y)
    assert joined.model_.vectors.shape == (4, 48)
    assert len(joined.history_) == 6
    parts = [slice(16 * number, 16 * number + 16) for number in range(3)]
    hidden = np.maximum(X @ joined.model_.vectors.detach().numpy() + joined.model_.offset.detach().numpy(), 0)
    weight = joined.model_.weight.detach().numpy()
    each = [3 * hidden[:, part] @ weight[:, :-1][:, part].T for part in parts]
    direct = X @ joined.model_.direct.detach().numpy()
    np.testing.assert_allclose(joined.decision_function(X), np.mean(each, axis=0) + weight[:, -1] + direct, atol=1e-5)


def test_vectors_give_the_logits_and_an_index_the_ranking() -> None:
    X, y = made()
    model = quick(epochs=2).fit(X, y)
    logits = (model.embed(X) @ model.label_vectors().T).numpy()
    np.testing.assert_allclose(logits, model.decision_function(X), atol=1e-5)
    pytest.importorskip("faiss")
    index = LabelIndex(model.label_vectors(), num_probes=3, num_bits=32)
    np.testing.assert_array_equal(model.predict_topk(X, 2, index), model.predict_topk(X, 2))
    with pytest.raises(ValueError, match="no inner products"):
        quick(epochs=1, skip_connection=True).fit(X, y).label_vectors()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"emphasis": "recall"}, "emphasis must be 'precision' or 'balanced' or 'tail' or a finite number"),
        ({"emphasis": -1}, "emphasis must be 'precision'"),
        ({"n_estimators": 2, "scale": 1.0}, "n_estimators must be 1 where scale"),
        ({"loss": "hinge"}, "loss must be a SampledLoss or None. Got 'hinge'"),
        ({"scale": 0}, "scale must be a finite number above 0 or None"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    X, y = made()
    with pytest.raises(ValueError, match=message):
        quick(**settings).fit(X, y)


def test_labels_of_two_kinds() -> None:
    with pytest.raises(ValueError, match=r"names or whole numbers as labels\. Got both"):
        quick().fit(np.eye(2), [["a", 1], ["b"]])
