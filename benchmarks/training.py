"""Images per second of ``longtail train`` against a bare hand-written PyTorch loop, side by side in one run.

    python benchmarks/training.py          # about 4 minutes on 2 cores; writes results/training.csv

Both train a CIFAR ResNet-32 in bfloat16 autocast and channels-last on 32 x 32 images with pad-crop and flip, batch
128, SGD with momentum. The images are random bytes: speed does not depend on them. Rounds alternate between the two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from harness import environment, write_rows

from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.training import loop as training
from longtail.lab.training.models import build_model
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe

RECIPE = Recipe(
    "speed",
    DataRecipe("cifar10"),
    ModelRecipe("resnet32"),
    TrainRecipe(epochs=1, pad_crop=4, flip=True, precision="bf16-mixed", channels_last=True),
)


def random_images(count: int) -> Dataset:
    """Random bytes with 10 labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator).to(torch.uint8)
    split = Split(images, torch.arange(count) % 10)
    return Dataset("random", split, split.take(torch.arange(128)), tuple("0123456789"))


def library_rate(data: Dataset) -> float:
    """Images per second of one epoch of ``train``, as its own metrics say."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(training, "load_data", return_value=data):
        run = training.train(RECIPE, Path(folder) / "run", show_progress=False)
    return float(run.history[-1]["samples_per_second"])


def bare_rate(data: Dataset, batch_size: int = 128) -> float:
    """Images per second of one epoch of a loop without a framework."""
    torch.manual_seed(0)
    model = build_model("resnet32", 10, (3, 32, 32)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    images, labels = data.train.inputs, data.train.labels
    assert isinstance(images, torch.Tensor)
    mean = images.float().mean((0, 2, 3)).view(1, 3, 1, 1)
    std = images.float().std((0, 2, 3)).view(1, 3, 1, 1)
    padded = F.pad(images, (4, 4, 4, 4))
    start = time.monotonic()
    for chosen in torch.randperm(len(labels)).split(batch_size):
        batch = padded[chosen].float()
        rows, columns = torch.randint(9, (2,)).tolist()  # one window per batch, the cheapest crop there is
        batch = batch[:, :, rows : rows + 32, columns : columns + 32]
        if torch.rand(()) < 0.5:
            batch = batch.flip(3)
        batch = ((batch - mean) / std).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(labels) / (time.monotonic() - start)


def main() -> None:
    """Alternate between the two and write every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=3840)
    arguments = parser.parse_args()
    data = random_images(arguments.images)
    bare_rate(random_images(256))
    rows = []
    for number in range(arguments.rounds):
        first, second = (bare_rate, library_rate) if number % 2 else (library_rate, bare_rate)
        rates = {function.__name__: function(data) for function in (first, second)}
        ratio = rates["library_rate"] / rates["bare_rate"]
        rows.append({"round": number, **{k: round(v, 1) for k, v in rates.items()}, "ratio": round(ratio, 3)})
        print(rows[-1])
    print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")
    print(write_rows("training", [row | environment() for row in rows]))


if __name__ == "__main__":
    main()
