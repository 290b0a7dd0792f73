"""Frequencies that nobody knows

Only unlabeled samples from production are at hand. `estimate_target_prior` finds their class frequencies from the
model's own outputs, and the logits are adjusted for those.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, estimate_target_prior, make_long_tailed

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=10, num_max=100)  # 100 images of a 0 ... 10 of a 9

logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
prior = ClassPrior.from_labels(y)
estimate = estimate_target_prior(logits, prior)

digits = np.arange(10)
plt.plot(digits, prior.probs, "--", label="in training")
plt.plot(digits, np.bincount(y_test) / len(y_test), label="in production, unknown")
plt.plot(digits, estimate.probs, label="estimated without labels")
plt.xticks(digits)
plt.xlabel("digit")
plt.ylabel("frequency")
plt.title("Class frequencies from unlabeled samples")
plt.legend()
