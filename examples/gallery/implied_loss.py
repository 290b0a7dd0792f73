"""Sampled softmax: which loss is it really?

With very many labels only some negatives are drawn. How they are drawn and weighted decides which loss is
optimized: the implied margin says whether frequent or rare labels gain.
"""

import matplotlib.pyplot as plt

from longtail import ClassPrior, negatives

prior = ClassPrior.from_counts([round(5000 / rank) for rank in range(1, 1001)])
drawn = negatives.prior_power(prior, 1.0)  # negatives as frequent as in the data
weightings = {
    "importance: cross-entropy": negatives.importance,
    "constant: favors the tail": negatives.constant,
    "tail: logit-adjusted": negatives.tail(prior),
}
for name, weighting in weightings.items():
    implied = negatives.implied_margins(drawn, weighting, num_negatives=100)
    plt.plot(prior.counts, implied.positive[0] + implied.negative, label=name, markevery=120)
plt.xscale("log")
plt.xlabel("training samples of the negative label")
plt.ylabel("implied margin against the most frequent label")
plt.title("Which loss sampled negatives optimize")
plt.legend()
