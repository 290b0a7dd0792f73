"""Margins of the methods, side by side

Most methods add a margin: how far the logit of the true class must lead that of another class. Here the other class
is the most frequent one, and the true class gets rarer to the right.
"""

import matplotlib.pyplot as plt

from longtail import ClassPrior, margins

prior = ClassPrior.from_counts([1000, 600, 360, 215, 130, 77, 46, 28, 17, 10])
methods = {
    "logit_adjusted": margins.logit_adjusted(prior),
    "logit_adjusted, tau 0.5": margins.logit_adjusted(prior, tau=0.5),
    "adaptive (LDAM)": margins.adaptive(prior),
    "equalized": margins.equalized(prior),
}
for name, margin in methods.items():
    plt.plot(prior.counts[1:], margin.dense()[1:, 0], label=name)
plt.xscale("log")
plt.gca().invert_xaxis()
plt.xlabel("training samples of the true class")
plt.ylabel("lead over the most frequent class")
plt.title("How far the true class must lead")
plt.legend()
