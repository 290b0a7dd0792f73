"""Several losses on the same data

Plain cross-entropy, class weights, focal loss and margins, with head, torso and tail apart. `longtail compare` does
this with seeds and intervals.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, FocalLoss, MarginCrossEntropy, make_long_tailed, margins, weights

X, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
X, X_test, y, y_test = train_test_split(X.float() / 16, y, test_size=500, stratify=y, random_state=0)
X, y = make_long_tailed(X, y, ratio=50, num_max=100)  # 100 images of a 0 ... 2 of a 9
prior = ClassPrior.from_labels(y)


def train(loss_function):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(20):
        for batch in torch.randperm(len(X)).split(32):
            optimizer.zero_grad()
            loss_function(model(X[batch]), y[batch]).backward()
            optimizer.step()
    return model(X_test).argmax(dim=1)


losses = {
    "cross-entropy": torch.nn.CrossEntropyLoss(),
    "focal": FocalLoss(),
    "class-balanced weights": MarginCrossEntropy(class_weights=weights.effective_number(prior)),
    "adaptive (LDAM)": MarginCrossEntropy(margins.adaptive(prior)),
    "logit-adjusted": MarginCrossEntropy(margins.logit_adjusted(prior)),
}
groups = prior.groups()
markers = dict(zip(groups, "os^"))
for place, loss_function in enumerate(losses.values()):
    hits = (train(loss_function) == y_test).float()
    for color, (group, classes) in enumerate(groups.items()):
        recall = torch.stack([hits[y_test == label].mean() for label in classes]).mean()
        label = group if place == 0 else None
        plt.plot(recall, place, marker=markers[group], ms=9, color=f"C{color}", ls="", label=label)
plt.yticks(range(len(losses)), losses)
plt.gca().invert_yaxis()
plt.xlabel("accuracy, mean over classes")
plt.title("Head, torso and tail")
plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
