"""Balanced batches

Samplers go into a `DataLoader` and change how often classes are seen: every class alike, by the square root of its
size, or as the data are.
"""

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

from longtail import ClassBalancedSampler
from longtail.sampling import InstanceSampler, SquareRootSampler

labels = np.repeat(np.arange(6), [600, 300, 150, 75, 30, 10])
samplers = {
    "as the data are": InstanceSampler,
    "square root": SquareRootSampler,
    "class-balanced": ClassBalancedSampler,
}
for offset, (name, sampler), hatch in zip((-0.27, 0, 0.27), samplers.items(), ("", "//", "..")):
    drawn = Counter(labels[list(sampler(labels))].tolist())
    shares = [drawn[label] / drawn.total() for label in range(6)]
    plt.bar(np.arange(6) + offset, shares, 0.27, label=name, hatch=hatch)
plt.xticks(range(6), ["600", "300", "150", "75", "30", "10"])
plt.xlabel("training samples of the class")
plt.ylabel("share of what is drawn")
plt.title("What three samplers draw")
plt.legend()
