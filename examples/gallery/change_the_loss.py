"""PyTorch: change one line, the loss

The same small network, the same data, the same batches: only the loss differs. Predictions use the plain logits.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from longtail import ClassPrior, MarginCrossEntropy, make_long_tailed, margins

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
    "logit-adjusted": MarginCrossEntropy(margins.logit_adjusted(prior)),  # the one line
}
for name, loss_function in losses.items():
    hits = train(loss_function) == y_test
    recall = [hits[y_test == digit].float().mean() for digit in range(10)]
    plt.plot(prior.counts, recall, label=f"{name}: mean {sum(recall) / 10:.0%}")
plt.xscale("log")
plt.xlabel("training images of the digit")
plt.ylabel("recall")
plt.title("Recall against frequency")
plt.legend()
