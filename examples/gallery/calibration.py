"""Are the probabilities right?

A reliability diagram: of predictions with 80 % confidence, 80 % should be right. Divide the logits by a temperature
that is fitted on held-out samples with the training frequencies, then adjust.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits, make_long_tailed
from longtail.metrics import calibration_error, reliability
from longtail.posthoc import temperature_scale

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
prior = ClassPrior.from_labels(y)
held_out, rest = slice(0, None, 2), slice(1, None, 2)
as_in_training = prior.probs.numpy()[y_test[held_out]]
temperature = temperature_scale(logits[held_out], y_test[held_out], sample_weight=as_in_training)

plt.plot([0, 1], [0, 1], ":", color="black", marker="", label="honest")
for name, divisor in [("adjusted", 1.0), ("temperature, then adjusted", temperature)]:
    scores = torch.tensor(adjust_logits(logits[rest] / divisor, prior))
    labels = torch.tensor(y_test[rest])
    found = reliability(scores, labels, num_bins=8)
    error = calibration_error(scores, labels)
    plt.plot(found.confidence, found.accuracy, label=f"{name}: error {error:.2f}")
plt.xlabel("confidence")
plt.ylabel("share that is right")
plt.title("Reliability on balanced digits")
plt.legend()
