"""Oversampling, class weights, or adjusting?

Repeating rare samples, weighting them, and adjusting the trained model are three ways to one goal. Adjusting needs
no second training, and its strength can be chosen afterwards.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits, make_long_tailed

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

rng = np.random.default_rng(0)
repeated = np.concatenate([rng.choice(np.flatnonzero(y == digit), 100) for digit in range(10)])
plain = LogisticRegression(max_iter=1000).fit(X, y)
predictions = {
    "plain": plain.predict(X_test),
    "oversampled": LogisticRegression(max_iter=1000).fit(X[repeated], y[repeated]).predict(X_test),
    'class_weight="balanced"': LogisticRegression(max_iter=1000, class_weight="balanced").fit(X, y).predict(X_test),
    "adjusted": adjust_logits(plain.decision_function(X_test), ClassPrior.from_labels(y)).argmax(axis=1),
}
for place, predicted in enumerate(predictions.values()):
    recall = [np.mean(predicted[y_test == digit] == digit) for digit in range(10)]
    for color, (group, marker, part) in enumerate(
        [("0 to 4, frequent", "o", recall[:5]), ("5 to 9, rare", "^", recall[5:])]
    ):
        label = f"digits {group}" if place == 0 else None
        plt.plot(np.mean(part), place, marker=marker, ms=10, ls="", color=f"C{color}", label=label)
plt.yticks(range(4), predictions)
plt.gca().invert_yaxis()
plt.margins(y=0.15)
plt.xlabel("mean recall")
plt.title("Logistic regression on long-tailed digits")
plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
