"""``ThresholdedClassifier``."""

import warnings

import numpy as np
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

from longtail import ThresholdedClassifier
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
