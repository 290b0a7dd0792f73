"""scikit-learn: wrap any classifier

`LogitAdjustedClassifier(model)` fits the model, chooses the strength by cross-validation and predicts for balanced
classes. It works with forests, boosting, linear models and pipelines.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from longtail import LogitAdjustedClassifier, make_long_tailed

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

models = [
    LogisticRegression(max_iter=1000),
    RandomForestClassifier(n_estimators=50, random_state=0),
    KNeighborsClassifier(),
    GaussianNB(var_smoothing=1e-2),
]
scores = [
    [
        balanced_accuracy_score(y_test, one.fit(X, y).predict(X_test))
        for one in (model, LogitAdjustedClassifier(model))
    ]
    for model in models
]
places = np.arange(len(models))
for offset, column, label in [(-0.2, 0, "alone"), (0.2, 1, "in LogitAdjustedClassifier")]:
    values = [pair[column] for pair in scores]
    plt.barh(places + offset, values, 0.4, label=label, hatch="//" if column else "")
plt.yticks(places, [type(model).__name__ for model in models])
plt.gca().invert_yaxis()
plt.xlabel("balanced accuracy")
plt.title("Digits with a long tail")
plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
