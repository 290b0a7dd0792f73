"""Two digits in one image, so that a sample has two labels: MultiMNIST, and a small set that needs no download."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail.datasets import exponential_counts
from longtail.lab.data.dataset import Dataset, Split, long_tailed
from longtail.lab.data.locate import PathLike
from longtail.lab.data.sets.builtin import digits
from longtail.lab.data.sets.mnist import load_mnist

__all__ = ["load_multimnist", "pair_up", "two_digits"]


def load_multimnist(root: PathLike | None = None, ratio: float = 100.0, seed: int = 0, size: int = 32) -> Dataset:
    """Imbalanced MultiMNIST: two MNIST digits over each other, uint8 [N, 1, 32, 32], the training digits long-tailed.

    MNIST's training images are cut to the exponential profile, 14,694 of them at a ratio of 100, and each gets a
    partner drawn from the same images, of any digit. Each of the 10,000 test images gets nine partners, one of each
    other digit: 90,000 samples, whose counts are those of the paper to the last one. Images are padded to 32 x 32,
    and both digits are shifted by -6 to 6 pixels each way.

    Args:
        root: as for ``load_mnist``.
        ratio: samples of digit 0 over samples of digit 9 among the training images, before they are paired.
        seed: chooses the images kept, partners and shifts.
        size: pixels of a side; 16 or 8 take means of 2 x 2 or 4 x 4 pixels, for faster trials.

    Deviates:
        The paper does not say how two digits share a pixel: here the brighter one counts.

    Reference:
        Duarte et al. (2021), "PLM: partial label masking for imbalanced multi-label classification", appendix C.
    """
    if size not in (8, 16, 32):
        raise ValueError(f"MultiMNIST: size must be 8, 16 or 32. Got {size}.")
    data = pair_up(load_mnist(root), "MultiMNIST", ratio, padding=2, max_shift=6, seed=seed)
    return (
        data
        if size == 32
        else Dataset(data.name, _shrink(data.train, 32 // size), _shrink(data.test, 32 // size), data.class_names)
    )


def two_digits(
    ratio: float = 20.0, pairs_per_image: int = 4, test_per_class: int = 50, max_shift: int = 1, seed: int = 0
) -> Dataset:
    """Two of scikit-learn's digits over each other, uint8 [N, 1, 12, 12]: MultiMNIST in small, and always there.

    Args:
        ratio: samples of digit 0 over samples of digit 9 among the training images, before they are paired.
        pairs_per_image: how many partners each training image gets.
        test_per_class: images of each digit to test on; each gets nine partners.
        max_shift: both digits are shifted by up to this many pixels each way.
        seed: chooses the images kept, partners and shifts.

    >>> data = two_digits()
    >>> data.input_shape, len(data.test), data.test.labels.sum(1).unique().tolist()
    ((1, 12, 12), 4500, [2])

    Reference:
        Duarte et al. (2021), appendix C, for the way to make it.
    """
    flat = digits(test_per_class, seed)
    images = Dataset("digits", _as_images(flat.train), _as_images(flat.test), flat.class_names)
    return pair_up(
        images, "two digits", ratio, padding=2, max_shift=max_shift, seed=seed, pairs_per_image=pairs_per_image
    )


def pair_up(
    data: Dataset, name: str, ratio: float, padding: int, max_shift: int, seed: int, pairs_per_image: int = 1
) -> Dataset:
    """A data set of single objects, made long-tailed, as one of images with two objects each.

    Args:
        data: images uint8 [N, channels, H, W], dark background, one label each.
        name: of the new data set.
        ratio: imbalance of the training images, before they are paired.
        padding: pixels added on each side.
        max_shift: both images are shifted by up to this many pixels each way.
        seed: chooses the images kept, partners and shifts.
        pairs_per_image: how many partners each training image gets.

    Returns:
        Every training image with partners of any class; every test image with one partner of each other class.
    """
    for setting, value, least in (("max_shift", max_shift, 0), ("pairs_per_image", pairs_per_image, 1)):
        if value < least:
            raise ValueError(f"{name}: {setting} must be at least {least}. Got {value}.")
    generator = torch.Generator().manual_seed(seed)
    kept = long_tailed(data, ratio=ratio, num_max=_largest_count(data.prior.counts, ratio), seed=seed).train
    first = torch.arange(len(kept)).repeat(pairs_per_image)
    partner = torch.randint(len(kept) - 1, (len(first),), generator=generator)
    partner += partner >= first  # another image, never itself
    train = _superimpose(kept, first, partner, data.num_classes, padding, max_shift, generator)
    first, partner = _partners_of_other_classes(data.test.labels, data.num_classes, generator)
    test = _superimpose(data.test, first, partner, data.num_classes, padding, max_shift, generator)
    return Dataset(name, train, test, data.class_names)


def _largest_count(available: Tensor, ratio: float) -> int:
    """The most images of class 0 for which every class has enough for its place in the exponential profile."""
    shares = exponential_counts(10**6, len(available), ratio)
    return min(int(count) * 10**6 // share for count, share in zip(available.tolist(), shares, strict=True))


def _shrink(split: Split, factor: int) -> Split:
    """Images with the mean of ``factor`` x ``factor`` pixels in place of these."""
    assert isinstance(split.inputs, Tensor)
    parts = [torch.nn.functional.avg_pool2d(part.float(), factor) for part in torch.split(split.inputs, 8192)]
    return Split(torch.cat([part.round().to(torch.uint8) for part in parts]), split.labels)


def _as_images(split: Split) -> Split:
    """[64] values from 0 to 1 as [1, 8, 8] bytes."""
    assert isinstance(split.inputs, Tensor)
    return Split((split.inputs * 255).round().to(torch.uint8).view(-1, 1, 8, 8), split.labels)


def _partners_of_other_classes(labels: Tensor, num_classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Every sample once for each other class, and a random sample of that class to go with it."""
    firsts, partners = [], []
    for c in range(num_classes):
        others, members = torch.nonzero(labels != c)[:, 0], torch.nonzero(labels == c)[:, 0]
        firsts.append(others)
        partners.append(members[torch.randint(len(members), (len(others),), generator=generator)])
    return torch.cat(firsts), torch.cat(partners)


def _superimpose(
    split: Split,
    first: Tensor,
    second: Tensor,
    num_classes: int,
    padding: int,
    max_shift: int,
    generator: torch.Generator,
) -> Split:
    """Images ``first`` and ``second`` over each other, with the labels of both."""
    assert isinstance(split.inputs, Tensor)
    labels = torch.zeros(len(first), num_classes, dtype=torch.bool)
    images = None
    for chosen in (first, second):
        labels[torch.arange(len(chosen)), split.labels[chosen]] = True
        layer = _pad_and_shift(split.inputs, chosen, padding, max_shift, generator)
        images = layer if images is None else torch.maximum(images, layer)
    assert images is not None
    return Split(images, labels)


def _pad_and_shift(
    images: Tensor, chosen: Tensor, padding: int, max_shift: int, generator: torch.Generator
) -> Tensor:
    """The images at ``chosen`` on a larger dark ground, each moved at random; what leaves the ground is lost."""
    height, width = (size + 2 * padding for size in images.shape[-2:])
    wide = torch.nn.functional.pad(images, (padding + max_shift,) * 4)
    corners = torch.randint(2 * max_shift + 1, (2, len(chosen)), generator=generator)
    rows = (corners[0, :, None] + torch.arange(height))[:, None, :, None]
    columns = (corners[1, :, None] + torch.arange(width))[:, None, None, :]
    channels = torch.arange(images.shape[1])[None, :, None, None]
    return wide[chosen[:, None, None, None], channels, rows, columns]
