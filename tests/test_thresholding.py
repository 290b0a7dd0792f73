"""``ThresholdedClassifier``, and ``longtail adjust --multilabel``."""

import warnings

import numpy as np
import pyarrow.csv
import pytest
import scipy.sparse
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

from longtail import ThresholdedClassifier
from longtail.lab.cli.commands import app
from longtail.posthoc import f1_thresholds


def make_data(num_samples=400):
    """Five labels, the last ones rare, with noise."""
    X, Y = make_multilabel_classification(num_samples, n_classes=5, n_labels=2, random_state=0)
    drop = np.random.default_rng(0).random(Y.shape) < np.linspace(0, 0.85, 5)
    return X, Y * ~drop


@parametrize_with_checks(
    [
        ThresholdedClassifier(LogisticRegression(), cv=2),
        ThresholdedClassifier(RandomForestClassifier(3, random_state=0), cv=2),
    ]
)
def test_the_estimator_keeps_scikit_learns_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        check(estimator)


class TestThresholdedClassifier:
    def test_it_beats_the_usual_threshold_on_unseen_samples(self):
        X, Y = make_data(1200)
        base = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        plain, tuned = base.fit(X[:800], Y[:800]), ThresholdedClassifier(base).fit(X[:800], Y[:800])
        scores = [
            f1_score(Y[800:], model.predict(X[800:]), average="macro", zero_division=0) for model in (plain, tuned)
        ]
        assert scores[1] > scores[0] + 0.03

    def test_thresholds_are_those_of_the_held_out_scores(self):
        X, Y = make_data()
        base = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        splits = list(KFold(3).split(X))
        held = np.concatenate([base.fit(X[train], Y[train]).predict_proba(X[test]) for train, test in splits])
        model = ThresholdedClassifier(base, cv=KFold(3), min_f1=0.0).fit(X, Y)
        np.testing.assert_allclose(model.thresholds_, f1_thresholds(held, Y).values)
        np.testing.assert_array_equal(model.predict(X), model.decision_function(X) >= 0)
        assert model.classes_.tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        "base",
        [
            RandomForestClassifier(10, random_state=0),
            OneVsRestClassifier(LinearSVC()),
            make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression())),
        ],
        ids=["forest", "svm", "pipeline"],
    )
    def test_bases_of_all_kinds(self, base):
        X, Y = make_data()
        model = ThresholdedClassifier(base, cv=3).fit(X, Y)
        assert model.predict(X).shape == Y.shape
        assert set(np.unique(model.predict(X))) <= {0, 1}

    def test_sparse_labels(self):
        X, Y = make_data()
        base = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        dense, sparse = (ThresholdedClassifier(base, cv=3).fit(X, y) for y in (Y, scipy.sparse.csr_array(Y)))
        np.testing.assert_allclose(sparse.thresholds_, dense.thresholds_)

    def test_a_grid_search_goes_through_it(self):
        X, Y = make_data()
        base = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        grid = {"estimator__estimator__C": [0.1, 1.0], "precision_floor": [None, 0.8]}
        search = GridSearchCV(ThresholdedClassifier(base, cv=2), grid, cv=2, scoring="f1_macro").fit(X, Y)
        assert search.best_params_["precision_floor"] is None

    def test_a_floor_costs_labels(self):
        X, Y = make_data()
        base = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        free, careful = (ThresholdedClassifier(base, precision_floor=floor).fit(X, Y) for floor in (0.3, 0.9))
        assert careful.predict(X).sum() < free.predict(X).sum()

    def test_a_label_without_held_out_positives_keeps_the_usual_threshold(self):
        X, Y = make_data()
        Y[:, 4] = 0
        Y[7, 4] = 1
        Y[7, :4] = 0  # its only sample has no other label: it is always trained on
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Label not")
            model = ThresholdedClassifier().fit(X, Y)
        assert model.undecided_.tolist() == [4]
        assert model.thresholds_[4] == 0.5

    def test_two_classes_of_any_kind(self):
        X, Y = make_data()
        names = np.where(Y[:, 0] == 1, "yes", "no")
        model = ThresholdedClassifier(LogisticRegression(max_iter=1000)).fit(X, names)
        assert set(model.predict(X)) == {"yes", "no"}
        assert model.decision_function(X).shape == (len(X),)

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (np.arange(20) % 3, "Only binary"),
            (np.tile([[0, 2]], (20, 1)), "of 0 and 1|not supported"),
            (None, "None"),
        ],
    )
    def test_bad_labels(self, y, message):
        with pytest.raises(ValueError, match=message):
            ThresholdedClassifier().fit(np.ones((20, 2)), y)

    def test_an_estimator_without_scores(self):
        from sklearn.neighbors import NearestCentroid
        from sklearn.svm import SVC

        class NoScores(NearestCentroid):
            decision_function = predict_proba = property(lambda self: (_ for _ in ()).throw(AttributeError))

        X, Y = make_data(60)
        with pytest.raises(TypeError, match="predict_proba or decision_function"):
            ThresholdedClassifier(NoScores(), cv=2).fit(X, Y[:, 0])
        assert ThresholdedClassifier(SVC(), cv=2).fit(X, Y[:, 0]).predict(X).shape == (60,)


def test_a_label_without_positives_is_predicted_nowhere():
    X, Y = make_data(60)
    Y[:, 2] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of the label that it does not learn
        model = ThresholdedClassifier(OneVsRestClassifier(LinearSVC()), cv=2).fit(X, Y)
    assert model.undecided_.tolist() == [2]
    assert model.predict(X)[:, 2].sum() == 0


def run(*arguments):
    return CliRunner().invoke(app, ["adjust", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture
def folder(tmp_path):
    """Probabilities of 4 classes, most far below 0.5, for a holdout and for what is to be predicted."""
    generator = np.random.default_rng(0)
    for name in ("holdout", "test"):
        truth = (generator.random((200, 4)) < [0.5, 0.2, 0.1, 0.05]).astype(np.int64)
        scores = 0.3 * generator.random((200, 4)) + 0.15 * truth
        np.save(tmp_path / f"{name}_truth.npy", truth)
        np.save(tmp_path / f"{name}.npy", scores)
    return tmp_path


def options(folder, **changes):
    named = {
        "--holdout-scores": folder / "holdout.npy",
        "--holdout-labels": folder / "holdout_truth.npy",
        "--output": folder / "out.npz",
    } | changes
    pairs = [part for name, value in named.items() if value is not None for part in (name, value)]
    return [folder / "test.npy", "--multilabel", "--probabilities", *pairs]


class TestCommand:
    def test_thresholds_and_predictions_come_out(self, folder):
        more = {"--labels": folder / "test_truth.npy", "--thresholds": folder / "thresholds.csv"}
        done = run(*options(folder, **more))
        assert done.exit_code == 0, done.output
        with np.load(folder / "out.npz") as file:
            written = dict(file)
        chosen = f1_thresholds(np.load(folder / "holdout.npy"), np.load(folder / "holdout_truth.npy"), min_f1=0.1)
        np.testing.assert_allclose(written["thresholds"], chosen.values)
        np.testing.assert_array_equal(written["predictions"], np.load(folder / "test.npy") >= written["thresholds"])
        table = pyarrow.csv.read_csv(folder / "thresholds.csv").to_pydict()
        assert table["class"] == [0, 1, 2, 3]
        np.testing.assert_allclose(table["threshold"], chosen.values)
        assert "macro-F1" in done.output
        assert "0.0%" in done.output  # nothing reached 0.5 before

    def test_labels_may_be_true_and_false_and_lack_the_prefix_and_the_ids_of_scores(self, folder):
        for name in ("holdout", "test"):
            values, truth = np.load(folder / f"{name}.npy"), np.load(folder / f"{name}_truth.npy").astype(bool)
            table = {"id": np.arange(200)} | {f"p_{c}": values[:, i] for i, c in enumerate("abcd")}
            pyarrow.csv.write_csv(pyarrow.table(table), folder / f"{name}.csv")
            pyarrow.csv.write_csv(
                pyarrow.table({c: truth[:, i] for i, c in enumerate("abcd")}), folder / f"{name}_truth.csv"
            )
            np.save(folder / f"{name}_truth.npy", truth)
        assert run(*options(folder, **{"--labels": folder / "test_truth.npy"})).exit_code == 0
        files = {"--holdout-scores": folder / "holdout.csv", "--holdout-labels": folder / "holdout_truth.csv"}
        files |= {"--labels": folder / "test_truth.csv", "--output": folder / "out.csv"}
        files |= {"--columns": "p_", "--id": "id"}
        done = run(folder / "test.csv", *options(folder, **files)[1:])
        assert done.exit_code == 0, done.output
        assert "macro-F1" in done.output

    @pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
    def test_other_formats(self, folder, suffix):
        done = run(*options(folder, **{"--output": folder / f"out{suffix}", "--precision-floor": 0.6}))
        assert done.exit_code == 0, done.output
        assert (folder / f"out{suffix}").is_file()
        if suffix == ".npy":
            assert set(np.unique(np.load(folder / "out.npy"))) <= {0, 1}

    def test_classes_without_positives_in_the_holdout_are_named(self, folder):
        truth = np.load(folder / "holdout_truth.npy")
        truth[:, 2] = 0
        np.save(folder / "holdout_truth.npy", truth)
        done = run(*options(folder))
        assert "1 without positives there, left at 0.5: 2" in done.output

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"--holdout-labels": None}, "needs --holdout-scores and --holdout-labels"),
            ({"--holdout-labels": "halves.npy"}, "labels must be 0 or 1. Got 0.5"),
            ({"--holdout-labels": "short.npy"}, "there must be a row a sample"),
            ({"--holdout-scores": "narrow.npy", "--holdout-labels": "narrow.npy"}, "classes of the scores, 4. Got 3"),
            ({"--holdout-scores": "nan.npy"}, "scores must be finite"),
            ({"--counts": "holdout.npy"}, "--counts is for one label a sample"),
            ({"--tau": "2"}, "--tau is for one label"),
            ({"--precision-floor": "1.5"}, "floor must be in"),
            ({"--thresholds": "thresholds.txt"}, "suffix must be"),
            ({"--thresholds": "./out.npz"}, "--thresholds must be another file than --output"),
        ],
    )
    def test_bad_input_is_one_line_and_writes_nothing(self, folder, monkeypatch, changes, message):
        monkeypatch.chdir(folder)
        np.save("halves.npy", np.full((200, 4), 0.5))
        np.save("short.npy", np.ones((3, 4)))
        np.save("narrow.npy", np.ones((5, 3)))
        np.save("nan.npy", np.full((200, 4), np.nan))
        done = run(*options(folder, **changes))
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (folder / "out.npz").exists()

    def test_options_for_several_labels_need_the_flag(self, folder):
        done = run(folder / "test.npy", "--precision-floor", 0.5, "--output", folder / "out.npz")
        assert done.exit_code == 2
        assert "--precision-floor needs --multilabel" in done.stderr
