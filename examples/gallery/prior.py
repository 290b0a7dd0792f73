"""What is a prior?

A `ClassPrior` is how often each class occurs in the training data. Everything else is made from it: margins,
weights, samplers, and the groups of frequent (head), middling (torso) and rare (tail) classes.
"""

import matplotlib.pyplot as plt

from longtail import ClassPrior

prior = ClassPrior.from_counts([500, 320, 200, 130, 80, 50, 32, 20, 13, 8])
print(prior.num_samples, "samples, imbalance", prior.imbalance)

for name, classes in prior.groups().items():
    plt.bar(classes.numpy(), prior.counts[classes].numpy(), label=f"{name}: {len(classes)} classes")
plt.xlabel("class")
plt.ylabel("training samples")
plt.title("A few classes have most of the samples")
plt.legend()
