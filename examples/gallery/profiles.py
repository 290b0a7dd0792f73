"""Make a long tail from balanced data

To study imbalance, take a balanced data set and leave samples out: `make_long_tailed(X, y, ratio=100,
profile=...)`. Three profiles are common: exponential (CIFAR-LT), step, and Pareto (ImageNet-LT).
"""

import matplotlib.pyplot as plt

from longtail.datasets import exponential_counts, pareto_counts, step_counts

for name, profile in [("exponential", exponential_counts), ("step", step_counts), ("Pareto", pareto_counts)]:
    plt.plot(profile(1000, 50, 100), label=name, markevery=7)
plt.yscale("log")
plt.xlabel("class, most frequent first")
plt.ylabel("training samples")
plt.title("Three profiles, largest to smallest class 100 : 1")
plt.legend()
