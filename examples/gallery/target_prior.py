"""Predict for the class frequencies you expect

Balanced is one target. If the frequencies in production are known, pass them as `target_prior`. Here the test set
gets more and more of the digits 5 to 9, which are rare in training. Both corrections hold up; the exact target
gains nothing over the balanced one here, for it trusts probabilities that two to ten images per digit cannot make
exact.
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

logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
prior = ClassPrior.from_labels(y)
shares = np.linspace(0.05, 0.95, 10)
expected = [np.repeat([(1 - share) / 5, share / 5], 5) for share in shares]
curves = {"not adjusted": [], "balanced target": [], "the right target": []}
for target in expected:
    weight = target[y_test] / np.bincount(y_test)[y_test]  # a test set with these frequencies
    options = [logits, adjust_logits(logits, prior), adjust_logits(logits, prior, target_prior=target)]
    for curve, scores in zip(curves.values(), options):
        curve.append(np.sum(weight * (scores.argmax(axis=1) == y_test)) / weight.sum())
for name, curve in curves.items():
    plt.plot(shares, curve, label=name)
plt.xlabel("share of digits 5 to 9 in production")
plt.ylabel("accuracy there")
plt.title("Accuracy in production, by what is rare there")
plt.legend()
