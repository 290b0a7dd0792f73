"""The adjusted loss in PyTorch Lightning: only the line that makes the loss differs from a plain module.

pip install lightning
python examples/with_lightning.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassPrior, MarginCrossEntropy, margins
from longtail.metrics import BalancedAccuracy


class Digits(lightning.LightningModule):
    def __init__(self, prior):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.loss = MarginCrossEntropy(margins.logit_adjusted(prior))
        self.accuracy = BalancedAccuracy(num_classes=10)

    def training_step(self, batch, batch_index):
        images, labels = batch
        return self.loss(self.model(images), labels)

    def test_step(self, batch, batch_index):
        images, labels = batch
        self.accuracy.update(self.model(images), labels)

    def on_test_epoch_end(self):
        self.log("balanced_accuracy", self.accuracy.compute())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.003)


def long_tailed_digits():
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    keep = torch.cat([torch.nonzero(labels == c)[40 : 40 + int(130 * 50 ** (-c / 9))].flatten() for c in range(10)])
    test = torch.cat([torch.nonzero(labels == c)[:40].flatten() for c in range(10)])
    return TensorDataset(images[keep], labels[keep]), TensorDataset(images[test], labels[test])


def main():
    lightning.seed_everything(0, verbose=False)
    train, test = long_tailed_digits()
    module = Digits(ClassPrior.from_labels(train))
    trainer = lightning.Trainer(
        max_epochs=40, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
    trainer.test(module, DataLoader(test, batch_size=128))


if __name__ == "__main__":
    main()
