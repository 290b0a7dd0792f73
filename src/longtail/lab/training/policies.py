"""Augmentation policies: which operation each image of a batch gets, and how strong. One name in a recipe.

Every policy takes uint8 images [N, C, H, W] with 1 or 3 channels and draws equally many random numbers for every
batch of a size, so that a resumed epoch draws what the uninterrupted one drew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.lab.training.image_operations import OPERATIONS, apply_operations

__all__ = ["POLICIES", "auto_augment", "rand_augment", "trivial_augment"]

Policy = Callable[[Tensor, torch.Generator | None], Tensor]


class Range(NamedTuple):
    """Strengths from the weakest to the strongest; the sign of some is drawn."""

    weakest: float = 0.0
    strongest: float = 0.0
    is_signed: bool = False


_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}


def _ranges(shear: float, translate: float, rotate: float, enhance: float, bits: int) -> Tensor:
    """[operations, 3]: the ``Range`` of every operation, in the order of ``OPERATIONS``."""
    signed = {
        **dict.fromkeys(("shear_x", "shear_y"), shear),
        **dict.fromkeys(("translate_x", "translate_y"), translate),
        "rotate": rotate,
        **dict.fromkeys(("brightness", "contrast", "color", "sharpness"), enhance),
    }
    ranges = {name: Range(0.0, strongest, is_signed=True) for name, strongest in signed.items()}
    ranges |= {"posterize": Range(8, bits), "solarize": Range(256, 0)}
    return torch.tensor([ranges.get(name, Range()) for name in OPERATIONS])


_RANGES = _ranges(shear=0.3, translate=150 / 331, rotate=30.0, enhance=0.9, bits=4)
_WIDE_RANGES = _ranges(shear=0.99, translate=1.0, rotate=135.0, enhance=0.99, bits=2)
_SIMPLE = torch.tensor([number for name, number in _NUMBERS.items() if name != "invert"])
"""What RandAugment and TrivialAugment draw from: without the one that only AutoAugment has."""

# Pairs of (operation, probability, magnitude from 0 to 9).
CIFAR_POLICY = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)


def auto_augment(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """AutoAugment's policy for CIFAR: each image gets one of 25 pairs of operations, each with its probability.

    Args:
        images: uint8 [N, C, H, W], C 1 or 3.
        generator: source of randomness; None is PyTorch's global one.

    >>> auto_augment(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 3, 8, 8])

    Deviates:
        Magnitudes 0 to 9 are ten even steps of the ranges of the paper's Table 6, where brightness, color, contrast
        and sharpness go both ways from 1 by a drawn sign, as the code in use for long-tailed CIFAR has it. What comes
        in from outside is gray 128; pixels are not interpolated.

    Reference:
        Cubuk et al. (2019), "AutoAugment: learning augmentation strategies from data", Table 7 of the appendix.
    """
    numbers = torch.tensor([[_NUMBERS[name] for name, _, _ in pair] for pair in CIFAR_POLICY])
    probabilities = torch.tensor([[probability for _, probability, _ in pair] for pair in CIFAR_POLICY])
    levels = torch.tensor([[magnitude / 9 for _, _, magnitude in pair] for pair in CIFAR_POLICY])
    chosen = torch.randint(len(CIFAR_POLICY), (len(images),), generator=generator)
    is_applied = torch.rand(len(images), 2, generator=generator) < probabilities[chosen]
    operation = torch.where(is_applied, numbers[chosen], _NUMBERS["identity"])
    return _apply_in_turn(images, operation, levels[chosen], _RANGES, generator)


def rand_augment(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """RandAugment: two operations for each image, all equally likely, at magnitude 9 of 30.

    Args:
        images: uint8 [N, C, H, W], C 1 or 3.
        generator: source of randomness; None is PyTorch's global one.

    >>> rand_augment(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 3, 8, 8])

    Reference:
        Cubuk et al. (2020), "RandAugment: practical automated data augmentation with a reduced search space",
        Figure 2, with N = 2 and M = 9.
    """
    operation = _SIMPLE[torch.randint(len(_SIMPLE), (len(images), 2), generator=generator)]
    return _apply_in_turn(images, operation, torch.full(operation.shape, 9 / 30), _RANGES, generator)


def trivial_augment(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """TrivialAugment: one operation for each image, all equally likely, at one of 31 magnitudes of wide ranges.

    Args:
        images: uint8 [N, C, H, W], C 1 or 3.
        generator: source of randomness; None is PyTorch's global one.

    >>> trivial_augment(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 3, 8, 8])

    Reference:
        Müller and Hutter (2021), "TrivialAugment: tuning-free yet state-of-the-art data augmentation", Algorithm 1,
        and the wide space of its Table 1.
    """
    operation = _SIMPLE[torch.randint(len(_SIMPLE), (len(images), 1), generator=generator)]
    level = torch.randint(31, operation.shape, generator=generator) / 30
    return _apply_in_turn(images, operation, level, _WIDE_RANGES, generator)


def no_policy(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The images."""
    return images


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "none": no_policy,
        "autoaugment": auto_augment,
        "randaugment": rand_augment,
        "trivialaugment": trivial_augment,
    }
)
"""Every policy by the name that ``train.augmentation`` has for it."""


def _apply_in_turn(
    images: Tensor, operation: Tensor, level: Tensor, ranges: Tensor, generator: torch.Generator | None
) -> Tensor:
    """``operation`` [N, steps], one step after the other, at ``level`` [N, steps] of each one's range."""
    weakest, strongest, is_signed = ranges[operation].unbind(dim=2)
    is_negative = torch.rand(operation.shape, generator=generator) < 0.5
    strength = weakest + level * (strongest - weakest)
    strength = torch.where(is_negative & is_signed.bool(), -strength, strength)
    for step in range(operation.shape[1]):
        images = apply_operations(images, operation[:, step], strength[:, step])
    return images
