"""PriorCorrectedClassifier: scikit-learn's contract, what it undoes, and that nothing is corrected twice."""

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import ClassPrior, LogitAdjustedClassifier, PriorCorrectedClassifier
from longtail.margins import logit_adjusted


def overlapping(counts, seed=0, labels=None):
    """Gaussians in the plane that overlap, for which logistic regression is the right model."""
    generator = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(counts)), counts)
    centers = 1.5 * np.stack([np.cos(np.arange(len(counts))), np.sin(np.arange(len(counts)))], axis=1)
    X = centers[codes] + generator.normal(size=(len(codes), 2))
    order = generator.permutation(len(codes))
    y = codes if labels is None else np.asarray(labels)[codes]
    return X[order], y[order]


class KeepEqual:
    """As many samples of every class as the rarest has: what an under-sampler of imbalanced-learn does."""

    def fit_resample(self, X, y):
        smallest = np.unique(y, return_counts=True)[1].min()
        rows = np.concatenate([np.flatnonzero(y == label)[:smallest] for label in np.unique(y)])
        return X[rows], y[rows]


@parametrize_with_checks(
    [
        PriorCorrectedClassifier(),
        PriorCorrectedClassifier(LogisticRegression(), trained_with="balanced", target="uniform"),
        PriorCorrectedClassifier(LogisticRegression(), cv=2),
    ]
)
@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings of the classifier inside
def test_scikit_learn_contract(estimator, check):
    check(estimator)


COUNTS = [2000, 300, 100]
LABELS = ["c", "a", "b"]
WEIGHTS = {"c": 1.0, "a": 3.0, "b": 12.0}


@pytest.mark.parametrize(
    ("estimator", "trained_with", "seen"),
    [
        (LogisticRegression(class_weight="balanced"), None, [1, 1, 1]),
        (LogisticRegression(class_weight=WEIGHTS), None, [900, 1200, 2000]),
        (make_pipeline(StandardScaler(), LogisticRegression(class_weight=WEIGHTS)), None, [900, 1200, 2000]),
        (LogisticRegression(), "balanced", [1, 1, 1]),
        (LogisticRegression(), WEIGHTS, [900, 1200, 2000]),
        (LogisticRegression(), KeepEqual(), [1, 1, 1]),
        (LogisticRegression(), None, [300, 100, 2000]),
    ],
)
def test_brings_probabilities_back_to_the_plain_model(estimator, trained_with, seen):
    X, y = overlapping(COUNTS, labels=LABELS)
    plain = LogisticRegression().fit(X, y).predict_proba(X)
    model = PriorCorrectedClassifier(estimator, trained_with=trained_with).fit(X, y)
    np.testing.assert_allclose(model.seen_prior_, np.array(seen) / np.sum(seen), rtol=1e-9)
    np.testing.assert_allclose(model.class_prior_, np.array([300, 100, 2000]) / 2400)
    corrected, raw = model.predict_proba(X), model.estimator_.predict_proba(X)
    assert np.abs(corrected - plain).mean() < (0.04 if isinstance(trained_with, KeepEqual) else 0.02)
    if seen != [300, 100, 2000]:
        assert np.abs(raw - plain).mean() > 0.1
        assert log_loss(y, corrected) < log_loss(y, raw) - 0.1
    assert log_loss(y, corrected) < log_loss(y, plain) + 0.02
    np.testing.assert_array_equal(model.predict(X), model.classes_[corrected.argmax(axis=1)])


class TestCalibration:
    def test_held_out_samples_mend_an_overconfident_model(self):
        """Naive Bayes on copies of one feature counts it many times."""
        X, y = overlapping([1500, 200])
        X, X_test, y, y_test = X[::2], X[1::2], y[::2], y[1::2]
        copies, copies_test = np.repeat(X, 4, axis=1), np.repeat(X_test, 4, axis=1)
        losses = {}
        for cv in (None, 3):
            model = PriorCorrectedClassifier(GaussianNB(), trained_with="balanced", cv=cv).fit(copies, y)
            losses[cv] = log_loss(y_test, model.predict_proba(copies_test))
        assert model.calibration_.temperature > 2
        assert losses[3] < losses[None] - 0.1
        plain = GaussianNB().fit(X, y)
        assert losses[3] < log_loss(y_test, plain.predict_proba(X_test)) + 0.02

    def test_little_is_changed_where_the_formula_is_right(self):
        X, y = overlapping(COUNTS)
        formula, fitted = (PriorCorrectedClassifier(trained_with="balanced", cv=cv).fit(X, y) for cv in (None, 3))
        assert fitted.calibration_.temperature == pytest.approx(1, abs=0.15)
        np.testing.assert_allclose(fitted.predict_proba(X), formula.predict_proba(X), atol=0.12)

    def test_frozen_model_is_calibrated_on_the_samples_given(self):
        X, y = overlapping([400, 100])
        trained = GaussianNB().fit(np.repeat(X[::2], 4, axis=1), y[::2])
        held_out = np.repeat(X[1::2], 4, axis=1)
        model = PriorCorrectedClassifier(FrozenEstimator(trained), cv=2).fit(held_out, y[1::2])
        assert model.calibration_.temperature > 2
        np.testing.assert_allclose(model.predict_proba(held_out).mean(axis=0), [0.8, 0.2], atol=0.05)

    def test_class_that_is_never_held_out(self):
        X, y = overlapping([40, 20, 1])
        with pytest.raises(ValueError, match=r"samples of every class.*Got none of class 2"):
            PriorCorrectedClassifier(cv=2).fit(X, y)


class TestFrozenModels:
    @pytest.mark.parametrize(
        ("trained_with", "seen"),
        [
            ("balanced", [0.5, 0.5]),
            ({0: 1.0, 1: 9.0}, [0.5, 0.5]),
            ({1: 3.0}, [0.75, 0.25]),
            (ClassPrior.from_counts([70, 30]), [0.7, 0.3]),
            (logit_adjusted(ClassPrior.from_counts([9, 1])), [0.5, 0.5]),
        ],
    )
    def test_are_described_and_left_alone(self, trained_with, seen):
        X, y = overlapping([90, 10])
        trained = LogisticRegression().fit(X[::2], y[::2])
        model = PriorCorrectedClassifier(FrozenEstimator(trained), trained_with=trained_with, target=[0.6, 0.4])
        model.fit(X, y)
        np.testing.assert_allclose(model.seen_prior_, seen)
        raw = trained.predict_proba(X)
        expected = raw * np.array([0.6, 0.4]) / seen
        np.testing.assert_allclose(model.predict_proba(X), expected / expected.sum(axis=1, keepdims=True))

    def test_read_their_own_class_weights(self):
        X, y = overlapping([90, 10])
        trained = FrozenEstimator(LogisticRegression(class_weight="balanced").fit(X, y))
        np.testing.assert_allclose(PriorCorrectedClassifier(trained).fit(X, y).seen_prior_, [0.5, 0.5])

    def test_cannot_be_resampled(self):
        X, y = overlapping([90, 10])
        trained = FrozenEstimator(LogisticRegression().fit(X, y))
        with pytest.raises(ValueError, match=r"what a frozen estimator has seen.*Got KeepEqual"):
            PriorCorrectedClassifier(trained, trained_with=KeepEqual()).fit(X, y)

    def test_need_data_with_all_of_their_classes(self):
        X, y = overlapping([90, 10, 10])
        trained = FrozenEstimator(LogisticRegression().fit(X, y))
        with pytest.raises(TypeError, match="learns the classes of y"):
            PriorCorrectedClassifier(trained).fit(X[y < 2], y[y < 2])


class TestWhatLibrariesSay:
    @pytest.mark.parametrize(
        ("parameters", "seen"),
        [
            ({"scale_pos_weight": 9.0}, [0.5, 0.5]),
            ({"scale_pos_weight": 3.0}, [0.75, 0.25]),
            ({"scale_pos_weight": None}, [0.9, 0.1]),
            ({"is_unbalance": True}, [0.5, 0.5]),
            ({"auto_class_weights": "Balanced"}, [0.5, 0.5]),
            ({"auto_class_weights": "SqrtBalanced"}, [0.75, 0.25]),
            ({"class_weights": [1.0, 3.0]}, [0.75, 0.25]),
        ],
    )
    def test_is_read_from_parameters(self, parameters, seen):
        class Booster(GaussianNB):
            def get_params(self, deep=True):
                return dict(parameters)

            def set_params(self, **values):
                return self

            def __sklearn_clone__(self):
                return Booster()

        X, y = overlapping([90, 10])
        np.testing.assert_allclose(PriorCorrectedClassifier(Booster()).fit(X, y).seen_prior_, seen)

    def test_a_calibrated_classifier_has_no_weights_left(self):
        X, y = overlapping([180, 20])
        calibrated = CalibratedClassifierCV(LogisticRegression(class_weight="balanced"), cv=2)
        model = PriorCorrectedClassifier(calibrated).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X), model.estimator_.predict_proba(X), rtol=1e-12)


class TestNothingTwice:
    @pytest.mark.parametrize("inner", [PriorCorrectedClassifier(), LogitAdjustedClassifier(tau=1.0)])
    @pytest.mark.parametrize("outer", [PriorCorrectedClassifier, LogitAdjustedClassifier])
    @pytest.mark.parametrize("wrap", [lambda model: model, lambda model: make_pipeline(StandardScaler(), model)])
    def test_a_corrected_model_is_refused(self, inner, outer, wrap):
        X, y = overlapping([90, 10])
        with pytest.raises(ValueError, match=r"must not correct the prior itself, or it is corrected twice"):
            outer(wrap(inner)).fit(X, y)

    def test_a_frozen_corrected_model_too(self):
        X, y = overlapping([90, 10])
        frozen = FrozenEstimator(PriorCorrectedClassifier().fit(X, y))
        with pytest.raises(ValueError, match="corrected twice"):
            PriorCorrectedClassifier(frozen, trained_with="balanced").fit(X, y)

    def test_weights_in_two_places(self):
        X, y = overlapping([90, 10])
        with pytest.raises(ValueError, match="class weights must be in one place"):
            PriorCorrectedClassifier(LogisticRegression(class_weight="balanced"), trained_with="balanced").fit(X, y)

    @pytest.mark.parametrize(
        "estimator",
        [
            LogisticRegression(class_weight="balanced"),
            make_pipeline(StandardScaler(), RandomForestClassifier(5, class_weight={1: 5.0})),
        ],
    )
    def test_adjusting_a_weighted_model_warns(self, estimator):
        X, y = overlapping([90, 10])
        with pytest.warns(UserWarning, match="has class weights: a correction of the prior already"):
            LogitAdjustedClassifier(estimator, tau=1.0).fit(X, y)

    def test_adjusting_a_pipeline_that_resamples_warns(self):
        imblearn = pytest.importorskip("imblearn")
        X, y = overlapping([90, 10])
        pipeline = imblearn.pipeline.make_pipeline(imblearn.over_sampling.SMOTE(), LogisticRegression())
        with pytest.warns(UserWarning, match="SMOTE in its pipeline"):
            LogitAdjustedClassifier(pipeline, tau=1.0).fit(X, y)
        with pytest.raises(ValueError, match="trained_with must say what SMOTE in the pipeline does"):
            PriorCorrectedClassifier(pipeline).fit(X, y)


def test_resampled_with_imbalanced_learn():
    imblearn = pytest.importorskip("imblearn")
    X, y = overlapping(COUNTS)
    plain = LogisticRegression().fit(X, y).predict_proba(X)
    model = PriorCorrectedClassifier(trained_with=imblearn.over_sampling.SMOTE(random_state=0)).fit(X, y)
    np.testing.assert_allclose(model.seen_prior_, [1 / 3] * 3)
    # Samples made between neighbors are not quite samples of the class, so it is near and not the same.
    assert np.abs(model.predict_proba(X) - plain).mean() < 0.04
    assert np.abs(model.estimator_.predict_proba(X) - plain).mean() > 0.1


@pytest.mark.parametrize(
    "trained_with", ["balanced", {0: 1.0, 1: 3.0}, KeepEqual()], ids=["balanced", "dict", "equal"]
)
@pytest.mark.parametrize("cv", [None, 3], ids=["formula", "calibrated"])
def test_no_linear_score_has_a_smaller_log_loss_than_plain_logistic_regression(trained_with, cv):
    """Why correction can bring boosted trees below the plain model, and logistic regression only close to it."""
    X, y = overlapping([400, 60], seed=3)
    X = X**2  # so that no line is the right boundary, and weights change its direction
    line = LogisticRegression(C=np.inf, tol=1e-8)
    plain, corrected = (
        log_loss(y, model.fit(X, y).predict_proba(X))
        for model in (line, PriorCorrectedClassifier(line, trained_with=trained_with, cv=cv))
    )
    assert plain < corrected < plain + 0.1


def test_sample_weight_counts_samples():
    X, y = overlapping([90, 10])
    repeated = np.concatenate([np.arange(100), np.flatnonzero(y == 1)])
    weight = np.where(y == 1, 2.0, 1.0)
    base = LogisticRegression(C=1e3, tol=1e-8)
    weighted = PriorCorrectedClassifier(base, trained_with="balanced").fit(X, y, sample_weight=weight)
    expected = PriorCorrectedClassifier(base, trained_with="balanced").fit(X[repeated], y[repeated])
    np.testing.assert_allclose(weighted.class_prior_, expected.class_prior_)
    np.testing.assert_allclose(weighted.predict_proba(X), expected.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize(
    ("estimator", "options", "error", "message"),
    [
        (None, {"trained_with": [1.0, 9.0]}, ValueError, "trained_with must be None or 'balanced' or a dict"),
        (None, {"trained_with": "smote"}, ValueError, "trained_with must be None or 'balanced'"),
        (None, {"trained_with": {"x": 2.0}}, ValueError, "must be for the classes .* Got one for 'x'"),
        (None, {"trained_with": {1: 0.0}}, ValueError, "finite numbers above 0"),
        (None, {"trained_with": ClassPrior.from_counts([1, 2, 3])}, ValueError, "for 2 classes, those of y. Got 3"),
        (None, {"trained_with": ClassPrior.from_counts([1, 0])}, ValueError, "class 1 has no samples"),
        (None, {"target": [0.5, 0.6]}, ValueError, "target must be 2 probabilities that sum to 1"),
        (None, {"target": "estimate"}, ValueError, "target must be 'uniform', 'train'"),
        (LinearSVC(), {}, TypeError, "must be a classifier with predict_proba. Got LinearSVC"),
        (LinearRegression(), {}, TypeError, "must be a classifier with predict_proba"),
        (KNeighborsClassifier(), {"trained_with": "balanced"}, TypeError, "whose fit takes sample_weight"),
    ],
)
def test_bad_input(estimator, options, error, message):
    X, y = overlapping([9, 6])
    with pytest.raises(error, match=message):
        PriorCorrectedClassifier(estimator, **options).fit(X, y)


def test_resampling_takes_no_sample_weight():
    X, y = overlapping([9, 6])
    with pytest.raises(ValueError, match=r"X and y alone where KeepEqual resamples them. Got sample_weight"):
        PriorCorrectedClassifier(trained_with=KeepEqual()).fit(X, y, sample_weight=np.ones(15))


def test_probabilities_that_do_not_sum_to_1():
    class Wrong(GaussianNB):
        def predict_proba(self, X):
            return 2 * super().predict_proba(X)

    X, y = overlapping([9, 6])
    with pytest.raises(ValueError, match=r"must sum to 1. Got 2 in row"):
        PriorCorrectedClassifier(Wrong()).fit(X, y).predict_proba(X)
