"""Conformal sets beside MAPIE's: the same model, scores and calibrating samples, the same sets, and what they take.

    pip install mapie
    python benchmarks/conformal_peers.py    # writes results/conformal_peers.csv

A logistic regression of a long-tailed part of scikit-learn's digits, and a table of probabilities with many classes.
MAPIE has one threshold for all classes ("lac"), and none for each: only that method is compared. Times are of
calibrating and predicting together, the model's own predictions included, each in turn, in a random order.
"""

from __future__ import annotations

import importlib.util
import statistics
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import environment, interleaved_times, write_rows
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ConformalClassifier, make_long_tailed
from longtail.posthoc import marginal_thresholds

Array = npt.NDArray[Any]
ALPHA = 0.1


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose inputs are its probabilities."""

    def fit(self, X: Array, y: Array) -> Given:
        """Learn which classes there are."""
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Array) -> Array:
        """[N, C] the inputs."""
        return X

    def predict(self, X: Array) -> Array:
        """[N] the most probable classes."""
        labels: Array = self.classes_[X.argmax(axis=1)]
        return labels


def digits() -> tuple[Any, tuple[Array, ...]]:
    """A model of long-tailed digits, and the rest of the digits in two parts."""
    X, X_rest, y, y_rest = train_test_split(*load_digits(return_X_y=True), test_size=0.7, random_state=0)
    X, y = make_long_tailed(X, y, ratio=20, num_max=40)
    return LogisticRegression(max_iter=1000).fit(X, y), train_test_split(X_rest, y_rest, random_state=0)


def many_classes(num_samples: int = 20_000, num_classes: int = 200) -> tuple[Any, tuple[Array, ...]]:
    """Probabilities that are right, and labels drawn from them, in two parts."""
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(num_samples, num_classes)) - np.log(np.arange(num_classes) + 1)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (generator.random(num_samples)[:, None] > probabilities.cumsum(axis=1)).sum(axis=1).clip(0, num_classes - 1)
    y[:num_classes] = np.arange(num_classes)
    return Given().fit(probabilities, y), train_test_split(probabilities, y, test_size=0.5, random_state=0)


def compare(data: str, model: Any, parts: tuple[Array, ...], rounds: int) -> list[dict[str, Any]]:
    """A row for each library."""
    from mapie.classification import SplitConformalClassifier

    X, X_test, y, y_test = parts

    def ours() -> Array:
        found = ConformalClassifier(FrozenEstimator(model), alpha=ALPHA, thresholds=marginal_thresholds).fit(X, y)
        return found.predict_set(X_test)

    def theirs() -> Array:
        found = SplitConformalClassifier(model, 1 - ALPHA, conformity_score="lac", prefit=True).conformalize(X, y)
        sets: Array = found.predict_set(X_test)[1][:, :, 0]
        return sets

    functions = {"longtail": ours, "MAPIE": theirs}
    times = interleaved_times(functions, rounds)
    index, expected = np.searchsorted(model.classes_, y_test), ours()
    rows = []
    for name, function in functions.items():
        sets = function()
        row = {"data": data, "library": name, "samples": len(sets), "classes": sets.shape[1]}
        row |= {
            "coverage": round(float(sets[np.arange(len(sets)), index].mean()), 4),
            "set_size": round(float(sets.sum(axis=1).mean()), 3),
            "sets_that_differ": int((sets != expected).any(axis=1).sum()),
            "ms_p50": round(1000 * statistics.median(times[name]), 2),
        }
        rows.append(row | environment())
        print(row)
    return rows


def main() -> None:
    """Compare on both, and write the rows."""
    if importlib.util.find_spec("mapie") is None:
        print("nothing measured: pip install mapie")
        return
    rows = compare("digits", *digits(), rounds=7) + compare("20,000 rows", *many_classes(), rounds=5)
    print(write_rows("conformal_peers", rows))


if __name__ == "__main__":
    main()
