"""Post-hoc adjustment of a scikit-learn classifier on long-tailed digits: the logic of ``longtail demo``."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression

from longtail.lab.adjusting import IntArray, Measurement, adjust_scores, measure
from longtail.lab.data.builtin import digits
from longtail.lab.data.profiles import exponential_counts, long_tailed
from longtail.metrics import count_hits, per_class_accuracy
from longtail.prior import ClassPrior

__all__ = ["Demonstration", "run_demo"]


class Demonstration(NamedTuple):
    """One model on one balanced test set, before and after adjustment."""

    prior: ClassPrior
    before: Measurement
    after: Measurement


def run_demo(ratio: float = 50.0, seed: int = 0) -> Demonstration:
    """Train a logistic regression on digits with this imbalance, and adjust its scores.

    The ``accuracy`` of the measurements is that on test data with the class frequencies of the training data.
    """
    data = long_tailed(digits(seed=seed), exponential_counts(100, 10, ratio), seed=seed)
    model = LogisticRegression(max_iter=1000).fit(data.train.inputs, data.train.labels)
    adjusted = adjust_scores(model.decision_function(data.test.inputs), data.prior, tau=1.0, target=None)

    def measured(predictions: IntArray) -> Measurement:
        hits, counts = count_hits(torch.from_numpy(predictions), data.test.labels, data.num_classes)
        accuracy = float(data.prior.probs @ per_class_accuracy(hits, counts))
        return dataclasses.replace(measure(predictions, data.prior, data.test.labels.numpy()), accuracy=accuracy)

    return Demonstration(data.prior, measured(adjusted.before), measured(adjusted.after))
