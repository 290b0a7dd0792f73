"""MarginBoostedClassifier with each of the three libraries, where they are installed."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss

from longtail import LogitAdjustedClassifier, MarginBoostedClassifier, PriorCorrectedClassifier
from longtail.margins import adaptive, logit_adjusted, logit_adjusted_adaptive, none


def make_xgboost(num_trees=30, **options):
    xgboost = pytest.importorskip("xgboost")
    return xgboost.XGBClassifier(n_estimators=num_trees, max_depth=3, n_jobs=1, **options)


def make_lightgbm(num_trees=30, **options):
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.LGBMClassifier(n_estimators=num_trees, max_depth=3, n_jobs=1, verbose=-1, **options)


def make_catboost(num_trees=30, **options):
    catboost = pytest.importorskip("catboost")
    quiet = {"verbose": 0, "allow_writing_files": False, "thread_count": 1, "learning_rate": 0.3}
    return catboost.CatBoostClassifier(iterations=num_trees, depth=3, **(quiet | options))


MAKERS = [make_xgboost, make_lightgbm, make_catboost]
pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba")  # CatBoost's objectives are slow without it


def overlapping(counts, seed=0):
    generator = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(counts)), counts)
    angles = 2 * np.pi * np.arange(len(counts)) / len(counts)
    X = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)[codes] + generator.normal(size=(len(codes), 2))
    return X, np.array(["a", "b", "c"])[codes]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("counts", [[900, 60], [800, 120, 40]])
def test_raises_balanced_accuracy(make, counts):
    (X, y), (X_test, y_test) = overlapping(counts), overlapping([200] * len(counts), seed=1)
    codes = np.searchsorted(np.unique(y), y)
    plain, adjusted = make().fit(X, codes), MarginBoostedClassifier(make()).fit(X, y)
    predicted = np.unique(y)[np.asarray(plain.predict(X_test)).ravel().astype(int)]
    assert adjusted.classes_.tolist() == ["a", "b", "c"][: len(counts)]
    gain = balanced_accuracy_score(y_test, adjusted.predict(X_test)) - balanced_accuracy_score(y_test, predicted)
    assert gain > 0.04
    np.testing.assert_allclose(adjusted.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("counts", [[900, 60], [800, 120, 40]])
def test_probabilities_at_the_true_prior_are_those_of_plain_training(make, counts):
    X, y = overlapping(counts)
    model = MarginBoostedClassifier(make(), target="train").fit(X, y)
    share = np.array(counts) / sum(counts)
    np.testing.assert_allclose(model.seen_prior_, np.full(len(counts), 1 / len(counts)))
    np.testing.assert_allclose(model.predict_proba(X).mean(axis=0), share, atol=0.02)
    plain = make().fit(X, np.searchsorted(model.classes_, y)).predict_proba(X)
    assert log_loss(y, model.predict_proba(X)) == pytest.approx(log_loss(y, plain), abs=0.03)


@pytest.mark.parametrize("make", MAKERS)
def test_no_margin_is_the_booster_itself(make):
    X, y = overlapping([300, 60])
    options = {"base_score": 0.5} if make is make_xgboost else {}
    if make is make_lightgbm:
        options = {"boost_from_average": False}
    plain = make(**options).fit(X, (y == "b").astype(int))
    model = MarginBoostedClassifier(make(**options), margins=none).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("make", MAKERS)
def test_starting_scores_and_objective_agree(make):
    """The same loss two ways, for two classes, where no booster scales the second derivative."""
    X, y = overlapping([300, 40])
    shifted = MarginBoostedClassifier(make(num_trees=10)).fit(X, y)

    def almost(prior):
        """Not a shift, by so little that nothing changes."""
        return logit_adjusted(prior) + adaptive(prior, scale=1e-4)

    options = {"leaf_estimation_iterations": 1} if make is make_catboost else {}
    optimized = MarginBoostedClassifier(make(num_trees=10, **options), margins=almost).fit(X, y)
    assert optimized.seen_prior_ is None
    if make is make_catboost:  # its own losses take more steps in a leaf, and objectives have no such default
        shifted = MarginBoostedClassifier(make(num_trees=10, **options)).fit(X, y)
    np.testing.assert_allclose(optimized.predict_proba(X), shifted.predict_proba(X), atol=0.01)


@pytest.mark.parametrize("make", [make_xgboost, make_lightgbm])
def test_other_margins_of_many_classes(make):
    (X, y), (X_test, y_test) = overlapping([800, 120, 40]), overlapping([200, 200, 200], seed=1)
    scores = {
        margins.__name__: balanced_accuracy_score(
            y_test, MarginBoostedClassifier(make(), margins=margins).fit(X, y).predict(X_test)
        )
        for margins in (adaptive, logit_adjusted_adaptive)
    }
    assert scores["logit_adjusted_adaptive"] > scores["adaptive"] + 0.02


def test_catboost_trains_many_classes_with_other_margins():
    X, y = overlapping([60, 20, 10])
    model = MarginBoostedClassifier(make_catboost(num_trees=3), margins=logit_adjusted_adaptive).fit(X, y)
    assert set(model.predict(X)) == {"a", "b", "c"}


def test_catboost_has_no_learning_rate_of_its_own_for_other_margins_and_that_is_said():
    X, y = overlapping([60, 20, 10])
    booster = make_catboost(num_trees=2, learning_rate=None)
    MarginBoostedClassifier(booster).fit(X, y)  # its own objective
    with pytest.warns(UserWarning, match=r"takes 0\.03 with these margins.*set learning_rate"):
        MarginBoostedClassifier(booster, margins=logit_adjusted_adaptive).fit(X, y)


def test_xgboost_s_own_intercept_would_undo_it():
    """Why base_score is set: without, predictions are those of plain training."""
    from longtail import ClassPrior
    from longtail.boosting import starting_scores

    X, y = overlapping([900, 60])
    codes = (y == "b").astype(int)
    start = starting_scores(logit_adjusted(ClassPrior.from_labels(codes)), len(y))
    undone = make_xgboost().fit(X, codes, base_margin=start).predict_proba(X)
    np.testing.assert_allclose(undone, make_xgboost().fit(X, codes).predict_proba(X), atol=1e-3)
    assert MarginBoostedClassifier(make_xgboost()).fit(X, y).predict_proba(X)[:, 1].mean() > 2 * undone[:, 1].mean()


@pytest.mark.parametrize("make", [make_xgboost, make_lightgbm])
@pytest.mark.parametrize("counts", [[900, 60], [800, 120, 40]])
def test_adjusting_in_training_grows_the_trees_of_plain_training(make, counts):
    """Both libraries start at the class frequencies by themselves, so the loss differs by an intercept alone."""
    X, y = overlapping(counts)
    inside = MarginBoostedClassifier(make()).fit(X, y)
    afterwards = LogitAdjustedClassifier(make(), tau=1.0).fit(X, np.searchsorted(inside.classes_, y))
    np.testing.assert_allclose(inside.predict_proba(X), afterwards.predict_proba(X), atol=2e-3)


def test_sample_weight_moves_the_prior():
    X, y = overlapping([300, 60])
    model = MarginBoostedClassifier(make_lightgbm()).fit(X, y, sample_weight=np.where(y == "b", 5.0, 1.0))
    np.testing.assert_allclose(model.class_prior_, [0.5, 0.5])
    np.testing.assert_allclose(model.margins_.negative[0], model.margins_.negative[1], atol=1e-9)


class TestNothingTwice:
    def test_weights_of_the_booster_warn(self):
        X, y = overlapping([90, 20])
        with pytest.warns(UserWarning, match="class weights: a correction of the prior already"):
            MarginBoostedClassifier(make_lightgbm(3, scale_pos_weight=5.0)).fit(X, y)

    @pytest.mark.parametrize("around", [PriorCorrectedClassifier, LogitAdjustedClassifier])
    def test_it_is_not_corrected_again(self, around):
        X, y = overlapping([90, 20])
        with pytest.raises(ValueError, match="corrected twice"):
            around(MarginBoostedClassifier(make_lightgbm(3))).fit(X, y)


def test_clones():
    model = clone(MarginBoostedClassifier(make_lightgbm(3), margins=adaptive))
    assert model.margins is adaptive


@pytest.mark.parametrize("estimator", [LogisticRegression(), HistGradientBoostingClassifier()])
def test_other_classifiers_are_refused(estimator):
    X, y = overlapping([9, 6])
    with pytest.raises(TypeError, match=r"must be a classifier of XGBoost, LightGBM or CatBoost"):
        MarginBoostedClassifier(estimator).fit(X, y)


def test_bad_input():
    X, y = overlapping([30, 20])
    with pytest.raises(ValueError, match="target needs margins that only shift"):
        MarginBoostedClassifier(make_lightgbm(3), margins=adaptive, target="train").fit(X, y)
    with pytest.raises(ValueError, match="margins must be a function"):
        MarginBoostedClassifier(make_lightgbm(3), margins="adaptive").fit(X, y)
    with pytest.raises(ValueError, match="at least 2 classes"):
        MarginBoostedClassifier(make_lightgbm(3)).fit(X, np.full(50, "a"))
