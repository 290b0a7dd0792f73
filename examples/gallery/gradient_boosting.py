"""Gradient boosting on a table

A gradient boosting model on tabular data with 4 % and 1 % of rare outcomes. The recall of the rare ones goes up;
the frequent one pays a little.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

from longtail import LogitAdjustedClassifier

X, y = make_classification(
    8000, n_features=8, n_informative=5, n_classes=3, n_clusters_per_class=1, weights=[0.95, 0.04, 0.01],
    class_sep=1.1, flip_y=0, random_state=3,
)  # fmt: skip
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
plain = HistGradientBoostingClassifier(max_iter=50, random_state=0)
adjusted = LogitAdjustedClassifier(HistGradientBoostingClassifier(max_iter=50, random_state=0), cv=3)
places = np.arange(3)
for offset, model, label in [(-0.2, plain, "plain"), (0.2, adjusted, "adjusted")]:
    recall = recall_score(y_test, model.fit(X, y).predict(X_test), average=None)
    plt.bar(
        places + offset, recall, 0.4, label=f"{label}: mean {recall.mean():.2f}", hatch="//" if offset > 0 else ""
    )
plt.xticks(places, ["95 %", "4 %", "1 %"])
plt.xlabel("share of the class")
plt.ylabel("recall")
plt.ylim(0, 1.25)
plt.title("HistGradientBoostingClassifier")
plt.legend(loc="upper right", ncols=2)
