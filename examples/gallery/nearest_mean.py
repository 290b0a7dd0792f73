"""A head that cannot prefer frequent classes

The nearest class mean on the same features weighs all classes alike: no frequencies, no training. It is a strong
simple baseline where classes have few samples.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits, make_long_tailed
from longtail.posthoc import class_means, nearest_mean

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

prior = ClassPrior.from_labels(y)
logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
features, labels, test = torch.tensor(X), torch.tensor(y), torch.tensor(X_test)
predictions = {
    "logistic regression": logits.argmax(axis=1),
    "the same, adjusted": adjust_logits(logits, prior).argmax(axis=1),
    "nearest class mean": nearest_mean(test, class_means(features, labels, 10)).numpy(),
}
for name, predicted in predictions.items():
    recall = [(predicted[y_test == digit] == digit).mean() for digit in range(10)]
    plt.plot(prior.counts, recall, label=f"{name}: mean {sum(recall) / 10:.0%}")
plt.xscale("log")
plt.xlabel("training images of the digit")
plt.ylabel("recall")
plt.title("Three heads on the same pixels")
plt.legend()
