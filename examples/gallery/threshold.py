"""Two classes: it is the threshold

With two classes, adjusting by tau moves the threshold of the positive class: from 0.5 at tau = 0 to the share of
positives at tau = 1. Precision pays for recall.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits

X, y = make_classification(20_000, weights=[0.97], class_sep=0.8, flip_y=0.01, random_state=0)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
prior = ClassPrior.from_labels(y)
logits = LogisticRegression().fit(X, y).predict_log_proba(X_test)
taus = np.linspace(0, 1.5, 16)
recall, precision, specificity = [], [], []
for tau in taus:
    is_positive = adjust_logits(logits, prior, tau).argmax(axis=1) == 1
    recall.append(is_positive[y_test == 1].mean())
    precision.append(y_test[is_positive].mean())
    specificity.append(1 - is_positive[y_test == 0].mean())
for name, values in [("recall", recall), ("precision", precision), ("specificity", specificity)]:
    plt.plot(taus, values, label=name)
plt.axvline(1, ls=":", color="black", label=f"tau = 1: threshold {prior.probs[1]:.3f}")
plt.xlabel("tau")
plt.title(f"{prior.probs[1]:.1%} positives")
plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
