"""Class weights, and how they differ

Weights multiply the loss of a class's samples. `balanced` is scikit-learn's `class_weight="balanced"`; the
effective number of samples is a softer choice, and a power lies between.
"""

import matplotlib.pyplot as plt

from longtail import ClassPrior, weights

prior = ClassPrior.from_counts([1000, 600, 360, 215, 130, 77, 46, 28, 17, 10])
methods = {
    "balanced": weights.balanced(prior),
    "power, exponent 0.5": weights.power(prior, exponent=0.5),
    "effective number, beta 0.999": weights.effective_number(prior, beta=0.999),
    "effective number, beta 0.99": weights.effective_number(prior, beta=0.99),
}
for name, weight in methods.items():
    plt.plot(prior.counts, weight, label=name)
plt.xscale("log")
plt.yscale("log")
plt.gca().invert_xaxis()
plt.xlabel("training samples of the class")
plt.ylabel("weight of a sample")
plt.title("Class weights")
plt.legend()
