"""Constraints of parameters: what each kind accepts, and one message for all."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator

from longtail.estimators import (
    ExtremeClassifier,
    LogitAdjustedClassifier,
    ThresholdedClassifier,
    _parameters,
    adjusted,
    thresholded,
)
from longtail.estimators._parameters import (
    FLAG,
    FOLDS,
    FUNCTION,
    INTEGER,
    NOTHING,
    WHOLE,
    check_parameters,
    number,
    text,
)
from longtail.estimators.extreme import parameters


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (number(0), [0, 2.5, np.float32(1), np.int64(3)], [-1, math.nan, math.inf, "1", None, True]),
        (number(0, 1, excludes_low=True), [0.5], [0, 1]),
        (number(0, 1, includes_high=True), [0, 1], [1.5]),
        (text("auto", "none"), ["auto", "none"], ["other", None, 0, np.array(["auto", "none"])]),
        (WHOLE, [1, np.int64(2)], [0, 1.5, True, "1", None]),
        (INTEGER, [-1, 0, 3], [1.5, "all"]),
        (FLAG, [True, np.bool_(False)], [0, "yes", None]),
        (FOLDS, [2, None, [([0], [1])]], [1, 0]),
        (FUNCTION, [max], ["max", None]),
        (NOTHING, [None], [0, ""]),
    ],
)
def test_kinds(kind, accepted, refused):
    assert all(kind.accepts(value) for value in accepted)
    assert not any(kind.accepts(value) for value in refused)


class Machine(BaseEstimator):
    def __init__(self, size=1, rate="auto"):
        self.size = size
        self.rate = rate


def test_one_message_for_all():
    kinds = {"size": (WHOLE,), "rate": (text("auto"), number(0))}
    check_parameters(Machine(3, 0.5), kinds)
    with pytest.raises(ValueError, match=r"^rate must be 'auto' or a finite number of at least 0. Got -2.$"):
        check_parameters(Machine(rate=-2), kinds)
    with pytest.raises(TypeError, match=r"declared for \['rate', 'size'\]. Got \['size'\]"):
        check_parameters(Machine(), {"size": (WHOLE,)})


@pytest.mark.parametrize(
    ("estimator", "module"),
    [(ExtremeClassifier, parameters), (LogitAdjustedClassifier, adjusted), (ThresholdedClassifier, thresholded)],
)
def test_every_default_of_every_estimator_is_allowed(estimator, module):
    _parameters.check_parameters(estimator(), module.CONSTRAINTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision_floor": 0}, "precision_floor must be a finite number above 0 and at most 1 or None. Got 0"),
        ({"min_f1": 1.5}, "min_f1 must be a finite number of at least 0 and at most 1. Got 1.5"),
        ({"cv": 1}, "cv must be at least 2 folds. Got 1"),
        ({"n_jobs": "all"}, "n_jobs must be an integer or None. Got 'all'"),
    ],
)
def test_the_parameters_of_thresholded_classifier_are_checked_when_it_is_fitted(options, message):
    with pytest.raises(ValueError, match=message):
        ThresholdedClassifier(**options).fit(np.eye(4), np.eye(4, dtype=int)[:, :2])


def test_labels_other_than_0_and_1_are_refused():
    with pytest.raises(ValueError, match=r"y must be \[N, C\] of 0 and 1. Got -1|not supported"):
        ThresholdedClassifier().fit(np.ones((20, 2)), csr_array(np.tile([[1, -1]], (20, 1))))
