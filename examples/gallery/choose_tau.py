"""How strong should the correction be?

`tau` is the strength: 0 does nothing, 1 is right if the model's probabilities are. `tune_tau` chooses it on held-
out samples, and says which values are as good.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, make_long_tailed, tune_tau

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
search = tune_tau(logits, y_test, ClassPrior.from_labels(y))

plt.plot(search.taus, search.scores, marker="", label="balanced error on held-out samples")
plt.axvspan(*search.interval, alpha=0.15, label="as good as the best")
plt.axvline(search.tau, ls="--", color="black", label=f"chosen: {search.tau:.2f}")
plt.xlabel("tau")
plt.ylabel("balanced error")
plt.title("The error against the strength")
plt.legend(loc="lower right")
