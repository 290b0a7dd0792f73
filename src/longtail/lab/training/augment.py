"""Augmentation of small images, a whole batch of tensors at a time, and the normalization that follows it.

Images are [N, channels, H, W], uint8 or floating-point. Every function returns new images of the same kind, and what
comes channels last stays so, except where it is said. Cropping bytes and normalizing last is the fast order.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.lab.data.dataset import Inputs, Split

__all__ = [
    "channel_statistics",
    "cutout",
    "growing_size",
    "normalize",
    "random_crop",
    "random_flip",
    "random_resized_crop",
    "shrink",
]

_SIZE_STEP = 8
"""Sides grow by so many pixels: at 28 an image costs nearly what it costs at 32."""

_STATISTICS_CHUNK = 1024


def random_crop(images: Tensor, padding: int = 4, generator: torch.Generator | None = None) -> Tensor:
    """Pad every image with zeros on all sides and cut a random window of the old size out of it.

    Args:
        images: [N, C, H, W].
        padding: pixels on each side; 4 for 32 x 32 images.
        generator: source of randomness; None is PyTorch's global one.

    >>> random_crop(torch.ones(2, 3, 8, 8, dtype=torch.uint8), padding=2).shape
    torch.Size([2, 3, 8, 8])

    Reference:
        He et al. (2016), "Deep residual learning for image recognition", section 4.2.
    """
    _check_images(images)
    if padding < 0:
        raise ValueError(f"random_crop: padding must be at least 0. Got {padding}.")
    height, width = images.shape[2:]
    rows, columns = torch.randint(2 * padding + 1, (2, len(images)), generator=generator)
    # A view with one window for each pair of offsets; indexing copies the chosen window of each image.
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    return windows[torch.arange(len(images)), rows, columns]


def random_flip(images: Tensor, probability: float = 0.5, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image, left to right, with the given probability.

    Args:
        images: [N, C, H, W].
        probability: of a flip, in [0, 1].
        generator: source of randomness; None is PyTorch's global one.

    >>> random_flip(torch.tensor([[[[1, 2, 3]]]]), probability=1.0).tolist()
    [[[[3, 2, 1]]]]
    """
    _check_images(images)
    if not 0 <= probability <= 1:
        raise ValueError(f"random_flip: probability must be in [0, 1]. Got {probability}.")
    is_flipped = (torch.rand(len(images), generator=generator) < probability).to(images.device)
    return torch.where(is_flipped[:, None, None, None], images.flip(3), images)


def cutout(images: Tensor, size: int, generator: torch.Generator | None = None) -> Tensor:
    """Set a square of each image to zero; its center is any pixel, so part of it may lie outside.

    Args:
        images: [N, C, H, W]. On normalized images zero is the mean of the training data, as the authors use it; on
            bytes it is black.
        size: side of the square in pixels.
        generator: source of randomness; None is PyTorch's global one.

    >>> int(cutout(torch.ones(1, 1, 8, 8), size=20).sum())
    0

    Reference:
        DeVries and Taylor (2017), "Improved regularization of convolutional neural networks with cutout",
        section 3.2.
    """
    _check_images(images)
    if size < 0:
        raise ValueError(f"cutout: size must be at least 0. Got {size}.")
    height, width = images.shape[2:]
    inside_rows = _inside(height, size, len(images), generator)
    inside_columns = _inside(width, size, len(images), generator)
    is_cut = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
    return torch.where(is_cut.to(images.device), images.new_zeros(()), images)


def random_resized_crop(
    images: Tensor,
    size: int,
    smallest_area: float = 0.08,
    largest_aspect: float = 4 / 3,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cut a window of random area and shape out of each image and scale it to a square, as ImageNet training does.

    Args:
        images: [N, C, H, W].
        size: side of the result in pixels.
        smallest_area: the window's share of the image is uniform between this and 1.
        largest_aspect: width over height is log-uniform between 1 / largest_aspect and this, and cut off where the
            window would leave the image.
        generator: source of randomness; None is PyTorch's global one.

    Returns:
        [N, C, size, size] of the same dtype, bilinear, contiguous.

    >>> random_resized_crop(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), size=8).shape
    torch.Size([2, 3, 8, 8])

    Reference:
        Szegedy et al. (2015), "Going deeper with convolutions", section 6.
    """
    _check_images(images)
    if not (0 < smallest_area <= 1 <= largest_aspect and size >= 1):
        raise ValueError(
            "random_resized_crop: needs size >= 1, 0 < smallest_area <= 1 and largest_aspect >= 1. "
            f"Got {size}, {smallest_area} and {largest_aspect}."
        )
    area, aspect, left, top = torch.rand(4, len(images), generator=generator)
    area = smallest_area + (1 - smallest_area) * area
    aspect = torch.exp((2 * aspect - 1) * math.log(largest_aspect))
    width, height = (area * aspect).sqrt().clamp_max(1), (area / aspect).sqrt().clamp_max(1)
    # In coordinates from -1 to 1: where the window's center is, and how wide it is.
    transform = torch.zeros(len(images), 2, 3)
    transform[:, 0, 0], transform[:, 1, 1] = width, height
    transform[:, 0, 2], transform[:, 1, 2] = (2 * left - 1) * (1 - width), (2 * top - 1) * (1 - height)
    wide = images if images.is_floating_point() else images.float()
    shape = [len(images), images.shape[1], size, size]
    grid = F.affine_grid(transform, shape, align_corners=False).to(wide)
    cropped = F.grid_sample(wide, grid, padding_mode="border", align_corners=False)
    return cropped if images.is_floating_point() else cropped.round().to(images.dtype)


def growing_size(progress: float, start_size: int, full_size: int, growth: float = 0.75) -> int:
    """The side of training images as training goes on: from ``start_size`` to ``full_size`` in equal stretches.

    Small images early on cost little, and what they teach is kept: the layers are convolutions, and the last epochs
    see images of full size.

    Args:
        progress: how much of training is done, in [0, 1).
        start_size: side of the first images in pixels; 0, or one of at least ``full_size``, is full size throughout.
        full_size: side of the images that the data set has.
        growth: share of training after which images have their full size.

    >>> [growing_size(progress, 16, 32) for progress in (0.0, 0.3, 0.4, 0.7, 0.75)]
    [16, 16, 24, 24, 32]

    Reference:
        Howard and Gugger (2020), "fastai: A layered API for deep learning", section 2, progressive resizing.
    """
    if not 0 < start_size < full_size or progress >= growth:
        return full_size
    sizes = range(start_size, full_size, _SIZE_STEP)
    return sizes[min(int(progress / growth * len(sizes)), len(sizes) - 1)]


def shrink(images: Tensor, size: int) -> Tensor:
    """Scale images down to ``size`` x ``size`` pixels, bilinear over all pixels that a new one covers.

    >>> shrink(torch.ones(2, 3, 32, 32), 16).shape
    torch.Size([2, 3, 16, 16])
    """
    _check_images(images)
    if images.shape[2] <= size:
        return images
    return F.interpolate(images, size=(size, size), mode="bilinear", antialias=True, align_corners=False)


def channel_statistics(split: Split, max_decoded: int = 4096) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel (or feature) of the inputs, to be used for ``normalize``.

    Args:
        split: the training split, with inputs [N, channels, ...].
        max_decoded: of images in files, look at no more than this many, evenly spaced.

    Returns:
        Two float32 vectors [channels], in the units of the inputs (0 to 255 for bytes). A channel that never changes
        has standard deviation 1, so that dividing by it is harmless.

    >>> split = Split(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.tensor([0, 1]))
    >>> [vector.tolist() for vector in channel_statistics(split)]
    [[1.0, 5.0], [1.0, 1.0]]
    """
    if max_decoded < 1:
        raise ValueError(f"channel_statistics: max_decoded must be at least 1. Got {max_decoded}.")
    count = len(split) if isinstance(split.inputs, Tensor) else min(len(split), max_decoded)
    chosen = torch.linspace(0, len(split) - 1, count, dtype=torch.float64).round().long()
    parts = [
        _moments(split.batch(chosen[start : start + _STATISTICS_CHUNK]))
        for start in range(0, count, _STATISTICS_CHUNK)
    ]
    values, total, squares = (torch.stack(moments).sum(0) for moments in zip(*parts, strict=True))
    mean = total / values
    variance = (squares / values - mean.square()).clamp_min(0)
    # Below this a difference is only rounding.
    is_constant = variance <= 1e-12 * mean.square()
    return mean.float(), variance.sqrt().masked_fill(is_constant, 1).float()


def normalize(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(inputs - mean) / std for each channel, as float32 (or the inputs' own floating-point type).

    Args:
        inputs: [N, channels, ...].
        mean: [channels], in the units of the inputs.
        std: [channels].

    >>> normalize(torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([0.0, 127.5]), torch.ones(2) * 127.5)
    tensor([[0., 1.]])
    """
    wide = inputs if inputs.is_floating_point() else inputs.float()
    if not mean.shape == std.shape == wide.shape[1:2]:
        raise ValueError(
            f"normalize: mean and std must be [{wide.shape[1]}]. Got {tuple(mean.shape)} and {tuple(std.shape)}."
        )
    shape = (-1, *[1] * (wide.ndim - 2))
    centered = wide - mean.to(wide).view(shape)
    return centered.div_(std.to(wide).view(shape))


def _inside(length: int, size: int, count: int, generator: torch.Generator | None) -> Tensor:
    """[count, length] bool: which positions a window of ``size`` around a random center covers."""
    starts = torch.randint(length, (count, 1), generator=generator) - size // 2
    positions = torch.arange(length)
    return (positions >= starts) & (positions < starts + size)


def _moments(batch: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """How many values each channel has, their sum and the sum of their squares, in float64."""
    if not isinstance(batch, Tensor):
        raise TypeError(
            "channel_statistics: sparse features have no channels, nor do sequences; do not normalize them."
        )
    values = batch.double().transpose(0, 1).flatten(1)
    return torch.tensor(values.shape[1]), values.sum(1), values.square().sum(1)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise ValueError(f"images must be [N, channels, H, W]. Got {tuple(images.shape)}.")
