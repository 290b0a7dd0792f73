"""One changed line: plain cross-entropy against the logit-adjusted loss, on digits with a long tail.

    python examples/plain_pytorch.py        # a few seconds on a CPU

The loop is ordinary PyTorch. Only the loss differs between the two runs.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from longtail import ClassPrior, MarginCrossEntropy, margins
from longtail.metrics import BalancedAccuracy, PerClassAccuracy


def long_tailed_digits(largest: int = 120, ratio: float = 60, test_per_class: int = 50):
    """Training data with ``largest`` images of a 0 and ``largest / ratio`` of a 9; balanced test data."""
    pixels, targets = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float() / 16, torch.from_numpy(targets)
    train, test = [], []
    for digit in range(10):
        indices = torch.nonzero(labels == digit).flatten()
        test.append(indices[:test_per_class])
        count = round(largest * ratio ** (-digit / 9))
        train.append(indices[test_per_class : test_per_class + count])
    chosen, held_out = torch.cat(train), torch.cat(test)
    return images[chosen], labels[chosen], images[held_out], labels[held_out]


def train(images, labels, loss_function, epochs: int = 20, batch_size: int = 64):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)  # both runs start from the same weights
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(batch_size):
            optimizer.zero_grad()
            loss_function(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model


def main() -> None:
    images, labels, test_images, test_labels = long_tailed_digits()
    prior = ClassPrior.from_labels(labels)
    print(f"{prior.num_samples} images, {prior.counts[0]} of a 0 and {prior.counts[-1]} of a 9")
    losses = {
        "cross-entropy": nn.CrossEntropyLoss(),
        "logit-adjusted": MarginCrossEntropy(margins.logit_adjusted(prior)),  # the one line
    }
    for name, loss_function in losses.items():
        model = train(images, labels, loss_function)
        with torch.no_grad():
            logits = model(test_images)  # predictions use the plain logits: the margin is for training only
        balanced = BalancedAccuracy(num_classes=10)(logits, test_labels)
        rarest = PerClassAccuracy(num_classes=10)(logits, test_labels)[prior.rarest(3)].mean()
        print(f"{name:15} balanced accuracy {balanced:.1%}, three rarest digits {rarest:.1%}")


if __name__ == "__main__":
    main()
