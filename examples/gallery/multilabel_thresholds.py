"""Multi-label: a threshold per label

At 0.5, rare labels are hardly ever predicted. `f1_thresholds` chooses a threshold for each label on held-out
samples.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import f1_score

from longtail.posthoc import f1_thresholds

rng = np.random.default_rng(0)
shares = np.array([0.4, 0.2, 0.1, 0.05, 0.02, 0.01])
labels = rng.random((8000, 6)) < shares
logits = 2.2 * labels + rng.normal(0, 1, labels.shape) + np.log(shares / (1 - shares)) - 0.6
probabilities = 1 / (1 + np.exp(-logits))
held_out, rest = slice(0, 4000), slice(4000, None)

found = f1_thresholds(probabilities[held_out], labels[held_out])
thresholds = np.asarray(found.values)
places = np.arange(6)
for offset, limit, name, hatch in [
    (-0.2, 0.5, "threshold 0.5", ""),
    (0.2, thresholds, "a threshold per label", "//"),
]:
    score = f1_score(labels[rest], probabilities[rest] >= limit, average=None, zero_division=0)
    plt.bar(places + offset, score, 0.4, label=f"{name}: mean {score.mean():.2f}", hatch=hatch)
plt.xticks(places, [f"{share:.0%}\n({limit:.2f})" for share, limit in zip(shares, thresholds)])
plt.xlabel("share of samples with the label (chosen threshold)")
plt.ylabel("F1")
plt.title("F1 of each label")
plt.legend()
