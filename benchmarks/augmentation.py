"""Augmentation policies on a batch of 128 CIFAR images, as a share of a ResNet-32 step, beside kornia and Pillow.

    pip install kornia                         # for one of the sides; the library itself does not need it
    python benchmarks/augmentation.py          # a minute on one core; writes results/augmentation.csv

Times are of one thread, and of the processor rather than the clock, so that other work on the machine does not count.
The step is forward, backward and update of a ResNet-32 of width 16 in bfloat16 autocast and channels-last, on the
same batch. Pillow's side is AutoAugment's table, image by image, from and to arrays. kornia's takes and gives floats
and draws one sub-policy for a whole batch. Images are random bytes: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from harness import environment, quantiles, write_rows
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from longtail.lab.training import policies
from longtail.lab.training.models import build_model

STEP = "ResNet-32 step"
SIZE = 128


def step_on(images: Tensor) -> Callable[[], object]:
    """One training step of a ResNet-32 on a batch."""
    model = build_model("resnet32", 10, (3, 32, 32)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = (images.float() / 128 - 1).contiguous(memory_format=torch.channels_last)
    target = torch.arange(len(images)) % 10

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def pillow_operation(name: str, one: Image.Image, level: float) -> Image.Image:
    """What AutoAugment's table asks of one image."""
    gray = (128, 128, 128)
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "color": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }
    plain = {"invert": ImageOps.invert, "autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}
    matrices = {
        "shear_y": (1, 0, 0, 0.3 * level, 1, 0),
        "translate_x": (1, 0, 150 / 331 * 32 * level, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, 150 / 331 * 32 * level),
    }
    if name in enhancers:
        return enhancers[name](one).enhance(1 + 0.9 * level)
    if name in plain:
        return plain[name](one)
    if name in matrices:
        return one.transform((32, 32), Image.Transform.AFFINE, matrices[name], fillcolor=gray)
    if name == "rotate":
        return one.rotate(30 * level, fillcolor=gray)
    return (
        ImageOps.posterize(one, 8 - round(4 * level))
        if name == "posterize"
        else ImageOps.solarize(one, 256 - 256 * level)
    )


def pillow_autoaugment(images: Tensor) -> Tensor:
    """AutoAugment, image by image."""
    results = []
    for image in images.permute(0, 2, 3, 1).numpy():
        one = Image.fromarray(image)
        for name, probability, magnitude in policies.CIFAR_POLICY[int(torch.randint(25, ()))]:
            if torch.rand(()) < probability:
                one = pillow_operation(name, one, magnitude / 9)
        results.append(np.asarray(one))
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


def kornia_policies(images: Tensor) -> dict[str, Callable[[], object]]:
    """kornia's policies, if it is there."""
    if importlib.util.find_spec("kornia") is None:
        return {}
    from kornia.augmentation import auto

    made = {
        "autoaugment": auto.AutoAugment("cifar10"),
        "randaugment": auto.RandAugment(n=2, m=9),
        "trivialaugment": auto.TrivialAugment(),
    }

    def run(policy: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: (policy(images.float() / 255) * 255).to(torch.uint8)

    return {f"kornia {name}": run(policy) for name, policy in made.items()}


def our_policies(images: Tensor) -> dict[str, Callable[[], object]]:
    """The library's."""

    def run(policy: Callable[[Tensor, torch.Generator], Tensor]) -> Callable[[], object]:
        generator = torch.Generator().manual_seed(0)
        return lambda: policy(images, generator)

    return {f"longtail {name}": run(policy) for name, policy in policies.POLICIES.items() if name != "none"}


def main() -> None:
    """Rounds of all sides, and a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randint(256, (SIZE, 3, 32, 32)).to(torch.uint8)
    sides = {
        STEP: step_on(images),
        **our_policies(images),
        **kornia_policies(images),
        "Pillow autoaugment": lambda: pillow_autoaugment(images),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 2):
        for name, function in sides.items():
            start = time.thread_time()
            function()
            if round_number >= 2:
                times[name].append(time.thread_time() - start)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    rows = [
        {"side": name, **quantiles(values), "share_of_step": round(medians[name] / medians[STEP], 4), **environment()}
        for name, values in times.items()
    ]
    for row in rows:
        print(f"{row['side']:28} {row['ms_p50']:9.2f} ms  {100 * row['share_of_step']:6.1f} % of a step")
    print(f"wrote {write_rows('augmentation', rows)}")


if __name__ == "__main__":
    main()
