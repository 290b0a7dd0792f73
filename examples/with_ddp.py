"""Class-balanced batches with PyTorch's DistributedDataParallel: the sampler shares its draws out to processes.

    torchrun --nproc-per-node 2 examples/with_ddp.py

Lines that are new end in "# new". The sampler is made after the process group, which tells it what its share is. It
takes the place of DistributedSampler, and needs no ``set_epoch``.
"""

import gc

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, by DDP, it would keep the process group for good
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedSampler, make_long_tailed  # new


def digits():
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:500], order[500:]
    return make_long_tailed(images[train], labels[train], ratio=50, num_max=100), (images[test], labels[test])


def main():
    dist.init_process_group("gloo")
    train()
    gc.collect()  # a model that holds the group and goes after it could wait for its threads forever
    dist.destroy_process_group()


def train():
    torch.manual_seed(0)
    (images, labels), test = digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.003)
    train = TensorDataset(images, labels)
    loader = DataLoader(train, batch_size=16, sampler=ClassBalancedSampler(labels))  # new
    for _ in range(40):
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(batch), target).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        predicted = model(test[0]).argmax(dim=1)
        recalls = [(predicted[test[1] == digit] == digit).float().mean() for digit in range(10)]
        print(f"{dist.get_world_size()} processes, balanced accuracy {torch.stack(recalls).mean():.3f}")


if __name__ == "__main__":
    main()
