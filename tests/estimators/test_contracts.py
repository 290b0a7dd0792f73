"""Scikit-learn's newer contracts, for every estimator: routing, tags, pages, frames, arrays of others."""

import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import (
    ConformalClassifier,
    ExtremeClassifier,
    LogitAdjustedClassifier,
    MarginBoostedClassifier,
    PriorCorrectedClassifier,
    ThresholdedClassifier,
)

pytestmark = pytest.mark.filterwarnings("ignore:ConformalClassifier:UserWarning")
"""Some data here are too few to calibrate with, which it says."""

AROUND = [LogitAdjustedClassifier, PriorCorrectedClassifier, ThresholdedClassifier, ConformalClassifier]
WEIGHTED = [LogitAdjustedClassifier, PriorCorrectedClassifier]
"""Those whose own fit names sample_weight."""
SPLITTING = [LogitAdjustedClassifier, ThresholdedClassifier]


class Recording(LogisticRegression):
    """Keeps what came with X and y, over all copies of it."""

    seen: ClassVar[list] = []

    def fit(self, X, y, sample_weight=None, marks=None):
        self.seen.append((len(y), sample_weight, marks))
        return super().fit(X, y, sample_weight=sample_weight)


@parametrize_with_checks([ThresholdedClassifier(LogisticRegression(), cv=2)])
@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings of the classifier inside
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture
def data():
    return make_classification(120, n_features=4, weights=[0.8], random_state=0)


@pytest.fixture
def routed():
    Recording.seen = []
    with sklearn.config_context(enable_metadata_routing=True):
        yield Recording.seen


@pytest.mark.parametrize("around", AROUND)
class TestRouting:
    def test_parameters_reach_the_estimator_inside_fold_by_fold(self, around, data, routed):
        X, y = data
        inside = Recording().set_fit_request(marks=True, sample_weight=True)
        model = around(inside)
        if around in WEIGHTED:
            model.set_fit_request(sample_weight=True)
        marks, weight = np.arange(120), np.linspace(1, 2, 120)
        model.fit(X, y, marks=marks, sample_weight=weight)
        assert max(length for length, _, _ in routed) == (90 if around is ConformalClassifier else 120)
        for length, given_weight, given_marks in routed:
            assert len(given_marks) == len(given_weight) == length
            np.testing.assert_array_equal(given_weight, weight[given_marks])
        assert (len(routed) > 1) == (around in SPLITTING)

    def test_sample_weight_goes_into_a_pipeline(self, around, data, routed):
        X, y = data
        inside = make_pipeline(StandardScaler(), Recording().set_fit_request(sample_weight=True))
        inside.named_steps["standardscaler"].set_fit_request(sample_weight=False)
        model = around(inside)
        if around in WEIGHTED:
            model.set_fit_request(sample_weight=True)
        model.fit(X, y, sample_weight=np.full(120, 3.0))
        assert all((weight == 3).all() for _, weight, _ in routed)

    def test_what_nobody_decided_about_is_an_error(self, around, data, routed):
        X, y = data
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            around(Recording()).fit(X, y, sample_weight=np.ones(120))

    def test_without_routing_other_parameters_are_refused(self, around, data):
        X, y = data
        with pytest.raises(ValueError, match=r"Got marks; others need sklearn.set_config"):
            around(Recording()).fit(X, y, marks=np.ones(120))

    def test_goes_through_cross_validation(self, around, data, routed):
        X, y = data
        model = around(Recording().set_fit_request(marks=True, sample_weight=False))
        if around in WEIGHTED:
            model.set_fit_request(sample_weight=False)
        assert len(cross_val_score(model, X, y, params={"marks": np.arange(120)}, cv=2)) == 2


@pytest.mark.parametrize("around", SPLITTING)
class TestGroups:
    def test_groups_stay_together(self, around, data, routed):
        X, y = data
        groups = np.arange(120) % 6
        inside = Recording().set_fit_request(marks=True)
        around(inside, cv=GroupKFold(3)).fit(X, y, groups=groups, marks=groups)
        parts = [set(marks) for _, _, marks in routed if len(marks) < 120]
        assert len(parts) == 3
        assert all(len(part) == 4 for part in parts)

    def test_a_number_of_folds_takes_no_groups(self, around, data, routed):
        X, y = data
        with pytest.raises(TypeError, match="groups"):
            around(Recording()).fit(X, y, groups=np.arange(120))


def test_a_weight_kept_from_the_classifier_is_none_for_the_prior(data, routed):
    X, y = data
    model = LogitAdjustedClassifier(Recording().set_fit_request(sample_weight=False), tau=1.0)
    model.set_fit_request(sample_weight=True).fit(X, y, sample_weight=np.where(y == 1, 9.0, 1.0))
    np.testing.assert_allclose(model.class_prior_, np.bincount(y) / 120)


@pytest.mark.parametrize("around", AROUND)
class TestOtherContracts:
    def test_tags_are_those_of_the_estimator_inside(self, around):
        assert get_tags(around(KNeighborsClassifier())).input_tags.sparse
        assert get_tags(around(SVC(kernel="precomputed"))).input_tags.pairwise
        tags = get_tags(around(LogisticRegression()))
        assert tags.estimator_type == "classifier"
        assert tags.target_tags.required
        assert not tags.classifier_tags.multi_label
        inside = KNeighborsClassifier()
        assert get_tags(around(inside)).classifier_tags.multi_label == (around is ThresholdedClassifier)

    def test_html_shows_the_estimator_inside_and_links_to_no_other_library(self, around, data):
        X, y = data
        model = around(LogisticRegression(C=0.37))
        for shown in (model._repr_html_(), model.fit(X, y)._repr_html_()):
            assert around.__name__ in shown
            assert "LogisticRegression" in shown
            assert "0.37" in shown

    def test_pipelines_with_frames_keep_names(self, around, data):
        """Classifiers have no transform, so set_output is for the steps before them."""
        X, y = data
        frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
        pipeline = make_pipeline(StandardScaler(), around(LogisticRegression())).set_output(transform="pandas")
        pipeline.fit(frame, y)
        assert pipeline[-1].feature_names_in_.tolist() == ["a", "b", "c", "d"]
        inside = around(make_pipeline(StandardScaler(), LogisticRegression()).set_output(transform="pandas"))
        assert inside.fit(frame, y).feature_names_in_.tolist() == ["a", "b", "c", "d"]

    def test_sparse_inputs(self, around, data):
        X, y = data
        expected = around(LogisticRegression()).fit(X, y).predict(X)
        rows = sparse.csr_array(X)
        np.testing.assert_array_equal(around(LogisticRegression()).fit(rows, y).predict(rows), expected)


class TestBoosted:
    """Around a booster, which is no LogisticRegression."""

    @pytest.fixture
    def booster(self):
        lightgbm = pytest.importorskip("lightgbm")
        return lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1, min_child_samples=5)

    def test_sample_weight_is_routed_to_booster_and_prior(self, booster, data, routed):
        X, y = data
        weight = np.where(y == 1, 9.0, 1.0)
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            MarginBoostedClassifier(booster).fit(X, y, sample_weight=weight)
        model = MarginBoostedClassifier(booster.set_fit_request(sample_weight=True))
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        model.fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(model.class_prior_, np.bincount(y, weights=weight) / weight.sum())
        assert len(cross_val_score(model, X, y, params={"sample_weight": weight}, cv=2)) == 2

    def test_tags_page_names_and_sparse_rows(self, booster, data):
        X, y = data
        model = MarginBoostedClassifier(booster)
        tags = get_tags(model)
        assert tags.estimator_type == "classifier"
        assert tags.input_tags.sparse == get_tags(booster).input_tags.sparse
        frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
        pipeline = make_pipeline(StandardScaler(), model).set_output(transform="pandas").fit(frame, y)
        assert pipeline[-1].feature_names_in_.tolist() == ["a", "b", "c", "d"]
        assert "LGBMClassifier" in pipeline[-1]._repr_html_()
        found, expected = (clone(model).fit(rows, y).predict_proba(rows) for rows in (sparse.csr_matrix(X), X))
        np.testing.assert_allclose(found, expected, atol=1e-6)


class TestExtreme:
    """Which has no estimator inside."""

    def test_sample_weight_is_requested_and_goes_through_cross_validation(self, data, routed):
        X, y = data
        model = ExtremeClassifier(hidden_size=4, epochs=1, batch_size=32, random_state=0)
        weight = np.linspace(1, 2, 120)
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            cross_val_score(model, X, y, params={"sample_weight": weight}, cv=2, error_score="raise")
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        assert len(cross_val_score(model, X, y, params={"sample_weight": weight}, cv=2, error_score="raise")) == 2

    def test_tags_and_page(self):
        tags = get_tags(ExtremeClassifier())
        assert tags.estimator_type == "classifier"
        assert tags.input_tags.sparse
        assert tags.classifier_tags.multi_label
        assert "0.37" in ExtremeClassifier(dropout=0.37)._repr_html_()


ARRAY_API = """
import numpy as np, sklearn, torch
from sklearn.linear_model import LogisticRegression
from longtail import ConformalClassifier, LogitAdjustedClassifier, PriorCorrectedClassifier

generator = np.random.default_rng(0)
y = np.repeat([0, 1, 2], [200, 60, 30])
X = 2 * np.eye(3)[y] + generator.normal(size=(290, 3))
tensors = torch.from_numpy(X), torch.from_numpy(y)
for around in (LogitAdjustedClassifier, PriorCorrectedClassifier, ConformalClassifier):
    expected = around(LogisticRegression()).fit(X, y)
    with sklearn.config_context(array_api_dispatch=True):
        found = around(LogisticRegression()).fit(*tensors)
        outputs = found.predict_proba(tensors[0]), found.predict(tensors[0])
    assert all(isinstance(output, torch.Tensor) for output in outputs), around
    np.testing.assert_allclose(outputs[0].numpy(), expected.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(outputs[1].numpy(), expected.predict(X))
"""


def test_tensors_in_tensors_out_with_array_api_dispatch():
    """In a process of its own, for SciPy must be told before it is loaded."""
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", ARRAY_API], env=environment, check=True)
