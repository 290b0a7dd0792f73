"""Who wins, who pays: the report in words

`classification_report` says in words and numbers how a classifier does on frequent and on rare classes. The picture
shows its recall and its confidence by group.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, adjust_logits, make_long_tailed
from longtail.metrics import classification_report

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9

prior = ClassPrior.from_labels(y)
logits = torch.tensor(LogisticRegression(max_iter=1000).fit(X, y).decision_function(X_test))
target = torch.tensor(y_test)
for offset, scores, name, hatch in [(-0.2, logits, "before", ""), (0.2, adjust_logits(logits, prior), "after", "//")]:
    print(classification_report(scores, target, prior, max_classes=0, num_worst=0))
    hits = (scores.argmax(dim=1) == target).float()
    groups = prior.groups()
    recall = [float(torch.stack([hits[target == c].mean() for c in classes]).mean()) for classes in groups.values()]
    plt.bar(np.arange(3) + offset, recall, 0.4, label=name, hatch=hatch)
plt.xticks(range(3), [f"{name}\n{len(classes)} classes" for name, classes in groups.items()])
plt.ylabel("recall, mean over classes")
plt.ylim(0, 1.25)
plt.title("Head, torso and tail")
plt.legend(ncols=2)
