"""Sets that hold the true class, for rare classes too

A conformal set holds the true class with a chosen probability, here 90 %. One threshold for all keeps that promise
on average only, and rare classes pay; a threshold for each class keeps it for every class.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from longtail.posthoc import class_coverage, class_thresholds, marginal_thresholds, probability_scores

generator = np.random.default_rng(0)
shares = np.array([0.6, 0.25, 0.1, 0.04, 0.01])
labels = generator.choice(5, size=12_000, p=shares)
logits = generator.normal(0, 1, (12_000, 5)) + np.log(shares)
logits[np.arange(12_000), labels] += 2.0  # a model that knows something, and the frequencies
scores = probability_scores(torch.tensor(logits).softmax(dim=1))
target = torch.tensor(labels)
held_out, rest = slice(0, 6000), slice(6000, None)

choices = {"one threshold": marginal_thresholds, "a threshold per class": class_thresholds}
for offset, (name, choose), hatch in zip((-0.2, 0.2), choices.items(), ("", "//")):
    sets = scores[rest] <= choose(scores[held_out], target[held_out], alpha=0.1)
    coverage = class_coverage(sets, target[rest]).numpy()
    size = sets.sum(dim=1).double().mean()
    plt.bar(np.arange(5) + offset, coverage, 0.4, label=f"{name}: {size:.1f} classes per set", hatch=hatch)
plt.axhline(0.9, ls=":", color="black")
plt.xticks(range(5), [f"{share:.0%}" for share in shares])
plt.xlabel("share of the class")
plt.ylabel("sets that hold the true class")
plt.ylim(0, 1.3)
plt.title("Coverage of each class")
plt.legend(ncols=2)
