"""LogitAdjustedClassifier: scikit-learn's contract, its gain on long-tailed digits, and what it does at the edges."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from longtail import ClassPrior
from longtail.estimators import LogitAdjustedClassifier
from longtail.posthoc import adjust_logits, balanced_log_loss_shares, cross_validate_tau


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Fits this small only lose time to threads that wait for each other."""
    with threadpool_limits(limits=1):
        yield


def long_tailed_digits(seed, ratio=50, test_size=60):
    """Train on floor(n_max * ratio^(-c / 9)) samples of digit c, test on the same number of each."""
    X, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    largest = np.bincount(y).min() - test_size
    train, test = [], []
    for c in range(10):
        rows = generator.permutation(np.flatnonzero(y == c))
        test.extend(rows[:test_size])
        train.extend(rows[test_size : test_size + int(np.floor(largest * ratio ** (-c / 9)))])
    return X[train] / 16, y[train], X[test] / 16, y[test]


def blobs(counts, seed=0, spread=1.5, labels=None):
    """Gaussians in the plane, ``counts`` samples of each, in random order."""
    generator = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(len(counts)) / len(counts)
    codes = np.repeat(np.arange(len(counts)), counts)
    X = 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)[codes] + spread * generator.normal(
        size=(len(codes), 2)
    )
    order = generator.permutation(len(codes))
    y = codes if labels is None else np.asarray(labels)[codes]
    return X[order], y[order]


@parametrize_with_checks(
    [
        LogitAdjustedClassifier(cv=2),
        LogitAdjustedClassifier(LogisticRegression(), tau=1.0),
        LogitAdjustedClassifier(LinearSVC(dual=False, tol=1e-12, max_iter=100_000), cv=2),
        LogitAdjustedClassifier(RidgeClassifier(), tau=0.5, cv=2),
    ]
)
@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings of the classifier inside
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("tau", ["auto", 1.0])
def test_raises_balanced_accuracy_on_long_tailed_digits(tau):
    gains = []
    for seed in range(5):
        X, y, X_test, y_test = long_tailed_digits(seed)
        plain = LogisticRegression(max_iter=1000).fit(X, y)
        adjusted = LogitAdjustedClassifier(LogisticRegression(max_iter=1000), tau=tau).fit(X, y)
        scores = [balanced_accuracy_score(y_test, model.predict(X_test)) for model in (adjusted, plain)]
        gains.append(scores[0] - scores[1])
    assert np.mean(gains) > 0.03
    assert min(gains) > 0


@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(50, random_state=0), KNeighborsClassifier(10), LinearSVC(dual=False), RidgeClassifier()],
    ids=lambda estimator: type(estimator).__name__,
)
def test_raises_balanced_accuracy_around_other_classifiers(estimator):
    X, y, X_test, y_test = long_tailed_digits(seed=0)
    adjusted = LogitAdjustedClassifier(estimator).fit(X, y)
    scores = [balanced_accuracy_score(y_test, model.predict(X_test)) for model in (adjusted, adjusted.estimator_)]
    assert scores[0] > scores[1] + 0.03


class TestPredictions:
    def test_are_those_of_adjust_logits(self):
        X, y = blobs([80, 40, 10])
        model = LogitAdjustedClassifier(tau=0.7).fit(X, y)
        logits = LogisticRegression().fit(X, y).predict_log_proba(X)
        adjusted = adjust_logits(logits, ClassPrior.from_labels(y), 0.7)
        np.testing.assert_allclose(model.decision_function(X), adjusted, atol=1e-10)
        np.testing.assert_allclose(model.predict_proba(X), softmax(adjusted, axis=1), atol=1e-10)
        np.testing.assert_array_equal(model.predict(X), adjusted.argmax(axis=1))
        np.testing.assert_allclose(model.class_prior_, [80 / 130, 40 / 130, 10 / 130])
        assert (model.tau_, model.tau_search_, model.temperature_) == (0.7, None, 1.0)

    @pytest.mark.parametrize("options", [{"tau": 0.0}, {"target": "train"}, {"target": "train", "tau": 2.0}])
    @pytest.mark.parametrize("estimator", [LogisticRegression(), RidgeClassifier()])
    def test_are_the_classifier_s_own_without_a_shift(self, options, estimator):
        X, y = blobs([80, 40, 10])
        model = LogitAdjustedClassifier(estimator, **options).fit(X, y)
        np.testing.assert_array_equal(model.predict(X), estimator.fit(X, y).predict(X))
        assert model.tau_search_ is None

    def test_follow_the_target(self):
        X, y = blobs([80, 40, 10], labels=["b", "c", "a"])
        model = LogitAdjustedClassifier(tau=1.0, target=[0.9, 0.1, 0.0]).fit(X, y)
        assert model.classes_.tolist() == ["a", "b", "c"]
        assert "c" not in model.predict(X)
        assert (model.predict_proba(X)[:, 2] == 0).all()
        uniform = LogitAdjustedClassifier(tau=1.0).fit(X, y)
        assert (model.predict(X) == "a").sum() > (uniform.predict(X) == "a").sum()

    def test_two_classes_with_text_labels(self):
        X, y = blobs([90, 10], labels=["often", "rarely"])
        model = LogitAdjustedClassifier(tau=1.0).fit(X, y)
        scores = model.decision_function(X)
        assert scores.shape == (100,)
        np.testing.assert_array_equal(model.predict(X), np.where(scores > 0, "rarely", "often"))
        np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)))
        expected = LogisticRegression().fit(X, y).decision_function(X) + np.log(9)
        np.testing.assert_allclose(scores, expected, atol=1e-8)

    def test_probability_of_zero_is_no_evidence_whatever_the_class(self):
        """At tau = 1 classes without a vote share one score, and never win against a class with votes."""
        X, y = blobs([200, 40, 3], spread=0.6)
        forest = RandomForestClassifier(20, random_state=0)
        model = LogitAdjustedClassifier(forest, tau=1.0).fit(X, y)
        votes, adjusted = model.estimator_.predict_proba(X), model.decision_function(X)
        without = votes == 0
        assert without.any(axis=0).all()
        np.testing.assert_allclose(adjusted[without], np.log(1e-6 / 3), atol=1e-9)
        assert (votes[np.arange(len(y)), adjusted.argmax(axis=1)] > 0).all()


class TestChoiceOfTau:
    def test_is_that_of_cross_validation(self):
        X, y = blobs([60, 25, 8])
        splits = list(StratifiedKFold(3).split(X, y))
        folds = []
        for train, test in splits:
            fold = LogisticRegression().fit(X[train], y[train])
            folds.append((fold.predict_log_proba(X[test]), y[test], ClassPrior.from_labels(y[train])))
        expected = cross_validate_tau(folds, objective=balanced_log_loss_shares)
        for cv in (splits, StratifiedKFold(3)):
            model = LogitAdjustedClassifier(cv=cv, objective=balanced_log_loss_shares).fit(X, y)
            assert model.tau_ == model.tau_search_.tau == expected.tau
            np.testing.assert_allclose(model.tau_search_.scores, expected.scores, atol=1e-9)

    def test_adds_little_to_a_correction_that_was_made_already(self):
        X, y = blobs([1500, 200, 60])
        plain = LogitAdjustedClassifier(LogisticRegression()).fit(X, y)
        with pytest.warns(UserWarning, match="LogisticRegression has class weights: a correction"):
            corrected = LogitAdjustedClassifier(LogisticRegression(class_weight="balanced")).fit(X, y)
        assert corrected.tau_ < 0.5 * plain.tau_

    def test_classes_smaller_than_the_folds(self):
        X, y = blobs([50, 20, 3, 2])
        model = LogitAdjustedClassifier(cv=5).fit(X, y)
        assert model.tau_search_.missing_classes.tolist() == []

    def test_single_sample_is_trained_on_but_never_held_out(self):
        X, y = blobs([50, 20, 1], labels=["x", "y", "z"])
        model = LogitAdjustedClassifier(cv=5).fit(X, y)
        assert model.tau_search_.missing_classes.tolist() == [2]
        assert model.predict_proba(X).shape == (71, 3)

    def test_folds_are_no_more_than_samples(self):
        X, y = blobs([3, 2])
        assert LogitAdjustedClassifier(cv=10).fit(X, y).tau_ >= 0

    def test_threads_change_nothing(self):
        X, y = blobs([60, 25, 8])
        with joblib.parallel_config("threading"):
            model = LogitAdjustedClassifier(n_jobs=2).fit(X, y)
        expected = LogitAdjustedClassifier().fit(X, y)
        np.testing.assert_array_equal(model.tau_search_.scores, expected.tau_search_.scores)


class TestScoresWithoutProbabilities:
    def test_scores_become_calibrated(self):
        X, y = blobs([300, 100, 40])
        model = LogitAdjustedClassifier(RidgeClassifier(), target="train").fit(X, y)
        scores = model.estimator_.decision_function(X)
        np.testing.assert_allclose(model.predict_proba(X), softmax(scores / model.temperature_, axis=1))
        confidence = model.predict_proba(X).max(axis=1).mean()
        assert confidence == pytest.approx(model.score(X, y), abs=0.05)
        assert softmax(scores, axis=1).max(axis=1).mean() < confidence - 0.1

    def test_separable_scores_stay_adjustable(self):
        X, y = blobs([200, 20], spread=0.2)
        model = LogitAdjustedClassifier(LinearSVC(dual=False), tau=1.0).fit(X, y)
        assert 0 < model.predict_proba(X).min() < model.predict_proba(X).max() < 1

    def test_scale_of_the_scores_does_not_matter(self):
        X, y = blobs([200, 60, 20])
        model = LogitAdjustedClassifier(RidgeClassifier(alpha=1e-9)).fit(X, y)
        scaled = clone(model).fit(1e3 * X, y)
        np.testing.assert_allclose(scaled.predict_proba(1e3 * X), model.predict_proba(X), atol=1e-6)

    def test_precomputed_kernel(self):
        X, y = blobs([60, 20, 10])
        options = {"decision_function_shape": "ovr", "tol": 1e-8}
        linear = LogitAdjustedClassifier(SVC(kernel="linear", **options)).fit(X, y)
        precomputed = LogitAdjustedClassifier(SVC(kernel="precomputed", **options)).fit(X @ X.T, y)
        np.testing.assert_allclose(precomputed.predict_proba(X @ X.T), linear.predict_proba(X), atol=1e-5)

    def test_one_score_a_pair_is_refused(self):
        X, y = blobs([20, 20, 20, 20])
        with pytest.raises(ValueError, match=r"SVC must give one score for each of 4 classes. Got shape \(\d+, 6\)"):
            LogitAdjustedClassifier(SVC(decision_function_shape="ovo")).fit(X, y)


class TestSampleWeight:
    def test_prior_is_that_of_the_weighted_samples(self):
        X, y = blobs([80, 40, 10])
        weight = np.where(y == 2, 3.0, 1.0)
        model = LogitAdjustedClassifier(tau=1.0).fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(model.class_prior_, [80 / 150, 40 / 150, 30 / 150])

    def test_shares_of_a_whole_are_weights_too(self):
        """The model does not care for the scale of naive Bayes' weights; the choice of tau must not either."""
        X, y = blobs([200, 60, 20])
        ones, shares = (
            LogitAdjustedClassifier(GaussianNB()).fit(X, y, sample_weight=np.full(len(y), weight))
            for weight in (1.0, 1 / len(y))
        )
        assert (ones.tau_, ones.tau_search_.interval) == (shares.tau_, shares.tau_search_.interval)

    def test_balancing_weights_leave_nothing_to_adjust(self):
        X, y = blobs([80, 40, 10])
        weight = 1 / np.bincount(y)[y]
        model = LogitAdjustedClassifier(tau=1.0).fit(X, y, sample_weight=weight)
        plain = LogisticRegression().fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), atol=1e-10)

    def test_bad_weights(self):
        X, y = blobs([8, 4])
        with pytest.raises(ValueError, match="sample_weight must be 12 finite numbers of at least 0"):
            LogitAdjustedClassifier().fit(X, y, sample_weight=np.ones(3))
        with pytest.raises(ValueError, match=r"sample_weight must be 12 finite numbers of at least 0.*-1"):
            LogitAdjustedClassifier().fit(X, y, sample_weight=-np.ones(12))
        with pytest.raises(ValueError, match="Class 1 has no samples to train on, or only samples of zero weight"):
            LogitAdjustedClassifier().fit(X, y, sample_weight=(y == 0).astype(float))
        with pytest.raises(
            TypeError, match=r"sample_weight needs an estimator whose fit takes it. Got Pipeline; of a"
        ):
            LogitAdjustedClassifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(
                X, y, sample_weight=np.ones(12)
            )


class TestEcosystem:
    def test_data_frames(self):
        X, y = blobs([60, 25, 8], labels=["x", "y", "z"])
        frame, series = pd.DataFrame(X, columns=["one", "two"]), pd.Series(y, index=range(100, 193))
        model = LogitAdjustedClassifier().fit(frame, series)
        assert model.feature_names_in_.tolist() == ["one", "two"]
        assert model.n_features_in_ == 2
        np.testing.assert_array_equal(model.predict(frame), LogitAdjustedClassifier().fit(X, y).predict(X))

    def test_sparse_matrices_and_lists(self):
        X, y = blobs([60, 25, 8])
        expected = LogitAdjustedClassifier().fit(X, y).predict_proba(X)
        for rows in (sparse.coo_array(X), X.tolist()):
            np.testing.assert_allclose(
                LogitAdjustedClassifier().fit(rows, y).predict_proba(rows), expected, atol=1e-6
            )

    def test_text_goes_to_the_pipeline_inside(self):
        documents = ["good good day", "good day", "day good", "bad day", "good", "bad bad"] * 5
        labels = ["+", "+", "+", "-", "+", "-"] * 5
        model = LogitAdjustedClassifier(make_pipeline(CountVectorizer(), LogisticRegression()), cv=2)
        assert model.fit(documents, labels).predict(["bad", "good"]).tolist() == ["-", "+"]

    def test_grid_search_over_a_pipeline(self):
        X, y = blobs([120, 40, 20])
        pipeline = make_pipeline(StandardScaler(), LogitAdjustedClassifier(LogisticRegression()))
        grid = {
            "logitadjustedclassifier__tau": [0.0, 1.0],
            "logitadjustedclassifier__estimator__C": [0.1, 1.0],
        }
        search = GridSearchCV(pipeline, grid, scoring="balanced_accuracy", cv=3).fit(X, y)
        assert search.best_params_["logitadjustedclassifier__tau"] == 1.0

    def test_clone_and_pickle(self):
        X, y = blobs([60, 25, 8])
        model = LogitAdjustedClassifier(RidgeClassifier(), tau=0.5, target=[0.2, 0.3, 0.5]).fit(X, y)
        assert clone(model).get_params(deep=False)["tau"] == 0.5
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))

    def test_fit_leaves_the_estimator_given_alone(self):
        X, y = blobs([60, 25, 8])
        base = LogisticRegression()
        LogitAdjustedClassifier(base).fit(X, y)
        assert not hasattr(base, "coef_")


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tau": "best"}, "tau must be 'auto' or a finite number of at least 0. Got 'best'"),
            ({"tau": -1.0}, "tau must be 'auto' or a finite number"),
            ({"tau": float("nan")}, "tau must be 'auto' or a finite number"),
            ({"tau": None}, "tau must be 'auto' or a finite number"),
            ({"target": "test"}, "target must be 'uniform', 'train' or probabilities, .* Got 'test'"),
            ({"target": [0.5, 0.5, 0.0]}, "target must be 2 probabilities that sum to 1"),
            ({"target": [0.5, 0.2]}, "target must be 2 probabilities that sum to 1"),
            ({"target": [1.5, -0.5]}, "target must be 2 probabilities that sum to 1"),
            ({"cv": 1}, "cv must be at least 2 folds. Got 1"),
        ],
    )
    def test_options(self, options, message):
        X, y = blobs([8, 4])
        with pytest.raises(ValueError, match=message):
            LogitAdjustedClassifier(**options).fit(X, y)

    def test_single_sample_of_every_class(self):
        X, y = blobs([1, 1, 1])
        with pytest.raises(ValueError, match="Cross-validation needs a class with at least 2 samples"):
            LogitAdjustedClassifier().fit(X, y)
        assert LogitAdjustedClassifier(tau=1.0).fit(X, y).tau_ == 1.0

    def test_training_part_without_a_class(self):
        X, y = blobs([20, 10, 5])
        order = np.argsort(y)
        with pytest.raises(ValueError, match=r"Class 0 has no samples to train on.*choose cv so that"):
            LogitAdjustedClassifier(cv=[(np.flatnonzero(y != 0), np.flatnonzero(y == 0))]).fit(X, y)
        with pytest.raises(ValueError, match="has no samples to train on"):
            LogitAdjustedClassifier(cv=KFold(7)).fit(X[order], y[order])

    @pytest.mark.parametrize(
        ("estimator", "message"),
        [
            (
                LinearRegression(),
                "must be a classifier with predict_proba or decision_function. Got LinearRegression",
            ),
            (KMeans(2), "must be a classifier with predict_proba or decision_function. Got KMeans"),
            ("forest", "must be a classifier with predict_proba or decision_function. Got str"),
        ],
    )
    def test_unsuitable_estimator(self, estimator, message):
        X, y = blobs([8, 4])
        with pytest.raises(TypeError, match=message):
            LogitAdjustedClassifier(estimator).fit(X, y)

    def test_not_fitted(self):
        for method in ("predict", "predict_proba", "decision_function"):
            with pytest.raises(NotFittedError, match="not fitted yet"):
                getattr(LogitAdjustedClassifier(), method)([[0.0]])

    def test_no_labels(self):
        with pytest.raises(ValueError, match="requires y to be passed"):
            LogitAdjustedClassifier().fit([[0.0]], None)
        with pytest.raises(ValueError, match="Unknown label type"):
            LogitAdjustedClassifier().fit(np.ones((3, 1)), [0.1, 0.2, 0.3])

    def test_a_class_in_place_of_a_classifier(self):
        with pytest.raises(TypeError, match=r"Got the class GaussianNB; use GaussianNB\(\)"):
            LogitAdjustedClassifier(GaussianNB).fit([[0.0], [1.0]], [0, 1])

    def test_a_target_by_label(self):
        X, y = np.arange(12.0)[:, None], np.array(["b"] * 8 + ["a"] * 4)
        model = LogitAdjustedClassifier(GaussianNB(), tau=1.0, target={"a": 0.25, "b": 0.75}).fit(X, y)
        np.testing.assert_allclose(model.target_, [0.25, 0.75])
        with pytest.raises(ValueError, match=r"a probability for each of the classes \['a', 'b'\]"):
            LogitAdjustedClassifier(GaussianNB(), target={"a": 1.0}).fit(X, y)
