"""Augmentation policies: operations against Pillow, image by image, and what is drawn against the papers' tables."""

import math

import numpy as np
import pytest
import torch

from longtail.lab.training import policies
from longtail.lab.training.image_operations import FILL, OPERATIONS, apply_operations

Image = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps  # noqa: E402

AFFINE = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
SIGNED = (*AFFINE, "brightness", "contrast", "color", "sharpness")
NAMES = [name for name in policies.POLICIES if name != "none"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def smooth_images(count=12, size=32, channels=3):
    """Waves and noise: some channels use all values, some few, one is constant."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phase = torch.rand(count, channels, 1, 1, generator=seeded()) * 6
    waves = 127 + 90 * torch.sin(x / 3 + phase) * torch.cos(y / 5 + phase)
    images = (waves + 30 * torch.rand(waves.shape, generator=seeded(1))).clamp(0, 255).to(torch.uint8)
    images[0, 0] = 40
    images[1] = images[1] // 16 + 100
    images[2, 0, 1:] = 7
    return images


def run(name, images, strengths):
    number = torch.full((len(images),), list(OPERATIONS).index(name))
    return apply_operations(images, number, torch.as_tensor(strengths, dtype=torch.float32).expand(len(images)))


def with_pillow(name, image, strength):
    """One image [C, H, W] by Pillow's own operation."""
    size = image.shape[2], image.shape[1]
    one = Image.fromarray(
        image.permute(1, 2, 0).squeeze(2).numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()
    )
    fill = FILL if len(image) == 1 else (FILL,) * 3

    def affine(*matrix):
        return one.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)

    operations = {
        "shear_x": lambda: affine(1, strength, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, strength, 1, 0),
        "translate_x": lambda: affine(1, 0, strength * size[0], 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, strength * size[1]),
        "rotate": lambda: one.rotate(strength, Image.Resampling.NEAREST, fillcolor=fill),
        "brightness": lambda: ImageEnhance.Brightness(one).enhance(1 + strength),
        "contrast": lambda: ImageEnhance.Contrast(one).enhance(1 + strength),
        "color": lambda: ImageEnhance.Color(one).enhance(1 + strength),
        "sharpness": lambda: ImageEnhance.Sharpness(one).enhance(1 + strength),
        "posterize": lambda: ImageOps.posterize(one, round(strength)),
        "solarize": lambda: ImageOps.solarize(one, strength),
        "invert": lambda: ImageOps.invert(one),
        "autocontrast": lambda: ImageOps.autocontrast(one),
        "equalize": lambda: ImageOps.equalize(one),
        "identity": lambda: one,
    }
    return torch.from_numpy(np.array(operations[name]())).view(size[1], size[0], -1).permute(2, 0, 1)


def strengths_for(name):
    if name in ("shear_x", "shear_y", "translate_x", "translate_y"):
        return (0.3, -0.25, 0.99, 0.0)
    return {"rotate": (30.0, -13.0, 97.0), "posterize": (8, 4, 2), "solarize": (256, 0, 113.8)}.get(
        name, (0.9, -0.9, 0.33, 0.0)
    )


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows(name, channels):
    images = smooth_images(channels=channels)
    for strength in strengths_for(name):
        result = run(name, images, strength)
        expected = torch.stack([with_pillow(name, image, strength) for image in images])
        is_different = (result != expected).double().mean()
        if name in AFFINE:
            # Pillow's coordinates have 16 bits after the point: a center on an edge may fall to the other side.
            assert is_different <= 0.01, strength
        else:
            # Pillow blends in its own order of rounding.
            assert (result.int() - expected.int()).abs().max() <= 1, strength
            assert is_different <= 0.02, strength


@pytest.mark.parametrize("channels", [3, 1])
def test_every_image_gets_its_own_operation_and_strength(channels):
    images = smooth_images(count=45, channels=channels)
    before = images.clone()
    operation = torch.arange(45) % len(OPERATIONS)
    strength = torch.linspace(0.05, 0.4, 45)
    together = apply_operations(images, operation, strength)
    alone = [apply_operations(images[i : i + 1], operation[i : i + 1], strength[i : i + 1])[0] for i in range(45)]
    assert torch.equal(together, torch.stack(alone))
    assert torch.equal(images, before)
    assert together.dtype == torch.uint8


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_follows_its_generator_and_leaves_images_alone(name):
    images = smooth_images(count=32)
    before = images.clone()
    generators = [seeded(seed) for seed in (3, 3, 4)]
    first, again, other = (policies.POLICIES[name](images, generator) for generator in generators)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert (first.shape, first.dtype) == (images.shape, images.dtype)
    # What follows in the epoch does not depend on what was drawn, nor on what the images are.
    blank = seeded(3)
    policies.POLICIES[name](torch.zeros_like(images), blank)
    assert torch.equal(torch.rand(4, generator=generators[0]), torch.rand(4, generator=blank))


def drawn_by(monkeypatch, name, count=20_000):
    """Which operations and strengths a policy gives to images, step by step."""
    steps = []

    def note(images, operation, strength):
        steps.append((operation, strength))
        return images

    monkeypatch.setattr(policies, "apply_operations", note)
    policies.POLICIES[name](torch.zeros(count, 1, 1, 1, dtype=torch.uint8), seeded())
    return steps


def assert_shares(operation, expected):
    shares = torch.bincount(operation, minlength=len(OPERATIONS)) / len(operation)
    for number, name in enumerate(OPERATIONS):
        share = expected.get(name, 0.0)
        assert abs(shares[number] - share) <= 5 * math.sqrt(share * (1 - share) / len(operation)), name


def test_autoaugment_draws_pairs_with_their_probabilities(monkeypatch):
    steps = drawn_by(monkeypatch, "autoaugment")
    assert len(steps) == 2
    for step, (operation, _) in enumerate(steps):
        expected = {}
        for pair in policies.CIFAR_POLICY:
            name, probability, _ = pair[step]
            expected[name] = expected.get(name, 0.0) + probability / 25
        expected["identity"] = 1 - sum(expected.values())
        assert_shares(operation, expected)
    both = torch.stack([steps[0][0], steps[1][0]], dim=1)
    shear_then_move = [list(OPERATIONS).index(name) for name in ("shear_y", "translate_y")]
    share = (both == torch.tensor(shear_then_move)).all(dim=1).double().mean()
    assert abs(share - 0.5 * 0.7 / 25) < 0.005
    translated = steps[1][1][steps[1][0] == shear_then_move[1]]
    assert torch.allclose(translated.abs(), torch.tensor(150 / 331))
    assert 0.4 < (translated > 0).double().mean() < 0.6


def test_randaugment_and_trivialaugment_draw_all_alike(monkeypatch):
    even = {name: 1 / 14 for name in OPERATIONS if name != "invert"}
    steps = drawn_by(monkeypatch, "randaugment")
    assert len(steps) == 2
    for operation, strength in steps:
        assert_shares(operation, even)
        rotations = strength[operation == list(OPERATIONS).index("rotate")]
        assert torch.allclose(rotations.abs(), torch.tensor(9.0))
    ((operation, strength),) = drawn_by(monkeypatch, "trivialaugment")
    assert_shares(operation, even)
    bits = strength[operation == list(OPERATIONS).index("posterize")]
    assert (bits.min(), bits.max(), bits.unique().numel()) == (2, 8, 31)


def test_every_strength_has_the_range_of_its_operation():
    for ranges in (policies._RANGES, policies._WIDE_RANGES):
        for name, (weakest, strongest, is_signed) in zip(OPERATIONS, ranges.tolist(), strict=True):
            assert bool(is_signed) == (name in SIGNED)
            assert (weakest == strongest) == (name in ("identity", "invert", "autocontrast", "equalize"))


@pytest.mark.parametrize("images", [torch.zeros(2, 3, 8, 8), torch.zeros(2, 4, 8, 8, dtype=torch.uint8)])
def test_what_no_policy_can_take_is_refused(images):
    with pytest.raises(ValueError, match=r"images must be uint8 \[N, 1 or 3, H, W\]"):
        policies.auto_augment(images)


def test_tiny_images_and_empty_batches():
    for name in NAMES:
        for shape in [(0, 3, 8, 8), (40, 3, 1, 1), (40, 1, 2, 5)]:
            assert policies.POLICIES[name](torch.zeros(shape, dtype=torch.uint8), seeded()).shape == shape
