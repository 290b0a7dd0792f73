"""Fix a trained model: three lines

A model trained with cross-entropy carries the class frequencies of its training data in its logits. `adjust_logits`
takes them out. Rare classes gain, frequent ones pay a little.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits, make_long_tailed

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

logits = LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test)
adjusted = adjust_logits(logits, ClassPrior.from_labels(y))

digits = np.arange(10)
for offset, scores, label in [(-0.2, logits, "before"), (0.2, adjusted, "after")]:
    recall = [np.mean(scores[y_test == digit].argmax(axis=1) == digit) for digit in digits]
    plt.bar(
        digits + offset, recall, 0.4, label=f"{label}: mean {np.mean(recall):.0%}", hatch="//" if offset > 0 else ""
    )
plt.xticks(digits, [f"{digit}\n({np.sum(y == digit)})" for digit in digits])
plt.xlabel("digit (training images)")
plt.ylabel("recall")
plt.ylim(0, 1.3)
plt.title("Recall of each digit, before and after")
plt.legend(ncols=2)
