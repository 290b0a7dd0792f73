"""ConformalClassifier: scikit-learn's contract, and the coverage that it promises in every class."""

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import ConformalClassifier, PriorCorrectedClassifier
from longtail.posthoc import class_coverage, marginal_thresholds, prevalence_scores


def overlapping(counts, seed=0):
    generator = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(counts)), counts)
    angles = 2 * np.pi * np.arange(len(counts)) / len(counts)
    X = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)[codes] + generator.normal(size=(len(codes), 2))
    return X, np.array(["a", "b", "c"])[codes]


@parametrize_with_checks([ConformalClassifier()])
@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings of the classifier inside
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def mean_coverage(model, seeds=10):
    """[C] coverage over some fits on long-tailed data, and the mean size of sets."""
    found, sizes = [], []
    for seed in range(seeds):
        X, y = overlapping([1500, 300, 120], seed=2 * seed)
        X_test, y_test = overlapping([500, 500, 500], seed=2 * seed + 1)
        sets = model.fit(X, y).predict_set(X_test)
        found.append(class_coverage(sets, np.searchsorted(model.classes_, y_test)).numpy())
        sizes.append(sets.sum(axis=1).mean())
    return np.mean(found, axis=0), np.mean(sizes)


def test_every_class_is_covered_where_one_threshold_misses_the_tail():
    by_class, _ = mean_coverage(ConformalClassifier(alpha=0.1))
    np.testing.assert_allclose(by_class, 0.9, atol=0.045)
    marginal, _ = mean_coverage(ConformalClassifier(alpha=0.1, thresholds=marginal_thresholds))
    assert marginal[2] < 0.75
    prevalence, _ = mean_coverage(
        ConformalClassifier(alpha=0.1, thresholds=marginal_thresholds, nonconformity=prevalence_scores)
    )
    assert prevalence[2] > marginal[2] + 0.1


def test_frozen_model_is_calibrated_with_all_samples():
    X, y = overlapping([300, 100, 60])
    trained = LogisticRegression().fit(X[::2], y[::2])
    model = ConformalClassifier(FrozenEstimator(trained), alpha=0.2).fit(X[1::2], y[1::2])
    np.testing.assert_array_equal(model.predict(X), trained.predict(X))
    np.testing.assert_array_equal(model.predict_proba(X), trained.predict_proba(X))
    codes = np.searchsorted(model.classes_, y[1::2])
    own = 1 - trained.predict_proba(X[1::2])[np.arange(len(codes)), codes]
    for label in range(3):
        ordered = np.sort(own[codes == label])
        assert model.thresholds_[label] == ordered[int(np.ceil((len(ordered) + 1) * 0.8)) - 1]


def test_goes_around_other_estimators_of_the_library():
    X, y = overlapping([300, 100, 60])
    sets = ConformalClassifier(PriorCorrectedClassifier(trained_with="balanced")).fit(X, y).predict_set(X)
    assert sets.shape == (460, 3)


def test_a_class_with_few_samples_is_in_every_set():
    X, y = overlapping([300, 100, 6])
    with pytest.warns(UserWarning, match=r"1 of 3 classes have too few samples .* \(each needs 9\)"):
        model = ConformalClassifier(alpha=0.1).fit(X, y)
    assert np.isinf(model.thresholds_).tolist() == [False, False, True]
    assert model.predict_set(X)[:, 2].all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, "alpha must be a finite number above 0 and below 1"),
        ({"alpha": 1.0}, ValueError, "alpha must be"),
        ({"calibration_size": 0.6}, ValueError, "calibration_size must be"),
        ({"thresholds": "class"}, ValueError, "thresholds must be a function"),
        ({"estimator": LinearSVC()}, TypeError, "must be a classifier with predict_proba"),
    ],
)
def test_bad_input(options, error, message):
    X, y = overlapping([30, 20, 10])
    with pytest.raises(error, match=message):
        ConformalClassifier(**options).fit(X, y)


@pytest.mark.parametrize("num_samples", [99, 150, 500])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.25])
def test_one_threshold_is_mapie_s(num_samples, alpha):
    """The same model, scores and calibrating samples: the same threshold and sets. MAPIE has none for every class."""
    classification = pytest.importorskip("mapie.classification")
    X, y = overlapping([900, 300, 100])
    model = LogisticRegression().fit(X, y)
    X_test, y_test = overlapping([300, 300, 300], seed=1)
    rows = np.random.default_rng(2).permutation(900)[:num_samples]
    theirs = classification.SplitConformalClassifier(model, 1 - alpha, conformity_score="lac", prefit=True)
    theirs.conformalize(X_test[rows], y_test[rows])
    ours = ConformalClassifier(FrozenEstimator(model), alpha=alpha, thresholds=marginal_thresholds)
    sets = ours.fit(X_test[rows], y_test[rows]).predict_set(X_test)
    assert 0.1 < sets.mean() < 0.9
    np.testing.assert_array_equal(sets, theirs.predict_set(X_test)[1][:, :, 0])
