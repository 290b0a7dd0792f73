"""Images per second of ``longtail train`` against a bare hand-written PyTorch loop, side by side in one run.

    python benchmarks/training.py          # about 4 minutes on 2 cores; writes results/training.csv
    python benchmarks/training.py --small-images    # about 4 minutes; writes results/training_small_images.csv
    python benchmarks/training.py --compiled        # about 4 minutes; writes results/training_compiled.csv

Both train a CIFAR ResNet-32 in bfloat16 autocast and channels-last on 32 x 32 images with pad-crop and flip, batch
128, SGD with momentum. The images are random bytes: speed does not depend on them. Rounds alternate between the two.
With ``--small-images`` the two are four epochs of the library with and without ``train.start_size = 16``, as the
``*_lt_fast`` recipes have it: the images grow from 16 x 16 to 32 x 32 pixels in the course of training. With
``--compiled`` they are the library with and without ``train.compile``: the second epoch of each, and besides how long
the first step took, of which the first round is the one that compiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from harness import environment, write_rows

from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.training import loop as training
from longtail.lab.training.models import build_model
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, with_settings

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


def train_history(data: Dataset, recipe: Recipe) -> list[dict[str, Any]]:
    """What ``train`` itself says of each epoch."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(training, "load_data", return_value=data):
        return training.train(recipe, Path(folder) / "run", show_progress=False).history


def library_rate(data: Dataset, recipe: Recipe = RECIPE) -> float:
    """Images per second of training, evaluation aside, as ``train``'s own metrics say."""
    history = train_history(data, recipe)
    seconds = sum(len(data.train) / epoch["samples_per_second"] for epoch in history)
    return len(history) * len(data.train) / seconds


def compare_compiled(data: Dataset, number: int) -> dict[str, Any]:
    """A round of the second epoch with ``train.compile`` and without it."""
    found = {}
    for is_compiled in (True, False) if number % 2 else (False, True):
        settings = ["train.epochs=2", f"train.compile={str(is_compiled).lower()}"]
        found[is_compiled] = train_history(data, with_settings(RECIPE, settings))
    plain, compiled = (found[key][1]["samples_per_second"] for key in (False, True))
    first_step = found[True][0]["first_step_seconds"]
    row = {"round": number, "compiled_rate": compiled, "plain_rate": plain, "ratio": round(compiled / plain, 3)}
    return row | {"first_step_s": first_step}


def full_size_rate(data: Dataset) -> float:
    """Of four epochs with images of full size."""
    return library_rate(data, with_settings(RECIPE, ["train.epochs=4"]))


def growing_size_rate(data: Dataset) -> float:
    """Of four epochs with images that begin at half size."""
    return library_rate(data, with_settings(RECIPE, ["train.epochs=4", "train.start_size=16"]))


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
    parser.add_argument("--small-images", action="store_true", help="what images that grow in training save")
    parser.add_argument("--compiled", action="store_true", help="what compiling does")
    arguments = parser.parse_args()
    data = random_images(arguments.images)
    if arguments.compiled:
        rows = []
        for number in range(arguments.rounds):
            rows.append(compare_compiled(data, number) | environment())
            print(rows[-1], flush=True)
        print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")
        print(write_rows("training_compiled", rows))
        return
    bare_rate(random_images(256))
    ours, rival = (growing_size_rate, full_size_rate) if arguments.small_images else (library_rate, bare_rate)
    rows = []
    for number in range(arguments.rounds):
        rates = {function.__name__: function(data) for function in ((rival, ours) if number % 2 else (ours, rival))}
        ratio = rates[ours.__name__] / rates[rival.__name__]
        rows.append({"round": number, **{k: round(v, 1) for k, v in sorted(rates.items())}, "ratio": round(ratio, 3)})
        print(rows[-1])
    print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")
    name = "training_small_images" if arguments.small_images else "training"
    print(write_rows(name, [row | environment() for row in rows]))


if __name__ == "__main__":
    main()
