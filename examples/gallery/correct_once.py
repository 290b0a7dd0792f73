"""Correct only once

Class weights are a correction; so is adjusting the logits. Doing both does not balance harder: it makes the model
prefer rare classes as wrongly as it preferred frequent ones before.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from longtail import ClassPrior, adjust_logits

rng = np.random.default_rng(0)


def draw(num_negative, num_positive):
    X = np.concatenate([rng.normal(-1, 1, (num_negative, 2)), rng.normal(1, 1, (num_positive, 2))])
    return X, np.repeat([0, 1], [num_negative, num_positive])


X, y = draw(1900, 100)
X_test, y_test = draw(1000, 1000)
prior = ClassPrior.from_labels(y)
settings = {
    "not at all": (None, 0.0),
    "once, afterwards": (None, 1.0),
    "once, by weights": ("balanced", 0.0),
    "TWICE": ("balanced", 1.0),
}
for place, (class_weight, tau) in enumerate(settings.values()):
    logits = LogisticRegression(class_weight=class_weight).fit(X, y).predict_log_proba(X_test)
    predicted = adjust_logits(logits, prior, tau).argmax(axis=1)
    for label, shift, hatch in ((0, -0.2, ""), (1, 0.2, "//")):
        recall = np.mean(predicted[y_test == label] == label)
        plt.bar(place + shift, recall, 0.4, color=f"C{label}", hatch=hatch)
plt.bar(0, 0, color="C0", label="frequent class")
plt.bar(0, 0, color="C1", hatch="//", label="rare class")
plt.xticks(range(4), settings)
plt.ylabel("recall")
plt.ylim(0, 1.3)
plt.title("One correction, or two")
plt.legend(ncols=2)
