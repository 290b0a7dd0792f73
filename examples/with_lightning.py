"""The adjusted loss in PyTorch Lightning: a callback; the module and the data stay as they are.

    pip install lightning
    python examples/with_lightning.py

Lines that are new end in "# new". The callback counts the labels when training starts, replaces the module's
``loss``, measures what ``test_step`` hands to it, and keeps in every checkpoint what was done.
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from longtail.integrations import MethodCallback  # new


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.loss = torch.nn.CrossEntropyLoss()

    def training_step(self, batch, batch_index):
        images, labels = batch
        return self.loss(self.model(images), labels)

    def test_step(self, batch, batch_index):
        images, labels = batch
        self.log("test_loss", self.loss(self.model(images), labels))

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
    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=40,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[MethodCallback("logit_adjusted")],  # new
    )
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
    trainer.test(module, DataLoader(test, batch_size=128))


if __name__ == "__main__":
    main()
