"""Focal loss: hard samples, not rare classes

Focal loss lowers the weight of samples that are classified well already, whatever their class. It is not a
correction for class frequencies, but can carry margins that are.
"""

import matplotlib.pyplot as plt
import torch

from longtail import focal_loss

probability = torch.linspace(0.01, 0.99, 99)
logits = torch.stack([probability.logit(), torch.zeros(99)], dim=1)
target = torch.zeros(99, dtype=torch.long)
for gamma in (0.0, 1.0, 2.0, 5.0):
    label = "gamma 0: cross-entropy" if gamma == 0 else f"gamma {gamma:.0f}"
    plt.plot(probability, focal_loss(logits, target, gamma=gamma), label=label, markevery=14)
plt.xlabel("probability of the true class")
plt.ylabel("loss")
plt.ylim(0, 4)
plt.title("Focal loss")
plt.legend()
