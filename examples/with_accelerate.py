"""The adjusted loss in a loop of Hugging Face's accelerate, with any number of processes.

    pip install accelerate
    python examples/with_accelerate.py
    torchrun --nproc-per-node 2 examples/with_accelerate.py

Lines that are new end in "# new". A sampler of this library would be made with ``num_replicas=1, rank=0``: accelerate
shares out what a loader draws, and a sampler that does so too would leave each process a quarter.
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassPrior, MarginCrossEntropy, make_long_tailed, margins  # new


def digits():
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:500], order[500:]
    return make_long_tailed(images[train], labels[train], ratio=50, num_max=100), (images[test], labels[test])


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    (images, labels), test = digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    loss_function = MarginCrossEntropy(margins.logit_adjusted(ClassPrior.from_labels(labels)))  # new
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.003), loader)
    for _ in range(40):
        for batch, target in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_function(model(batch), target))
                optimizer.step()
                optimizer.zero_grad()
    predicted = accelerator.unwrap_model(model)(test[0]).argmax(dim=1)
    recalls = [(predicted[test[1] == digit] == digit).float().mean() for digit in range(10)]
    accelerator.print(f"{accelerator.num_processes} processes, balanced accuracy {torch.stack(recalls).mean():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
