"""Data that needs no download: two Gaussians, two moons, and the digits that ship with scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Split

__all__ = ["digits", "gaussians", "moons"]


def gaussians(num_train: int = 10_000, num_test: int = 10_000, positive_rate: float = 0.05, seed: int = 0) -> Dataset:
    """Two Gaussians in the plane with means -(1, 1) and +(1, 1) and identity covariance, the positive one rare.

    The best separator for the balanced error is the line through the origin with normal (1, 1); its balanced error
    is Phi(-sqrt(2)), about 7.86%.

    Args:
        num_train: training samples. Their labels are drawn too, so the class counts vary.
        num_test: test samples, of either class with probability 1/2.
        positive_rate: probability of class 1 in training.
        seed: chooses the samples.

    >>> data = gaussians(num_train=1000)
    >>> data.input_shape, int(data.prior.counts[1]) < 100
    ((2,), True)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 6.1.
    """

    def points(labels: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(len(labels), 2, generator=generator) + (2 * labels - 1)[:, None]

    return _binary("gaussians", points, num_train, num_test, positive_rate, seed)


def moons(
    num_train: int = 2_000, num_test: int = 2_000, positive_rate: float = 0.05, noise: float = 0.15, seed: int = 0
) -> Dataset:
    """Two interleaved half circles, the positive one rare: no line separates them.

    Args:
        num_train: training samples. Their labels are drawn too, so the class counts vary.
        num_test: test samples, of either class with probability 1/2.
        positive_rate: probability of class 1 in training.
        noise: standard deviation of the Gaussian noise on each coordinate.
        seed: chooses the samples.

    >>> moons(noise=0.0).train.inputs.abs().max() <= 2
    tensor(True)
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"moons: noise must be a finite number of at least 0. Got {noise}.")

    def points(labels: Tensor, generator: torch.Generator) -> Tensor:
        angles = math.pi * torch.rand(len(labels), generator=generator)
        upper = torch.stack([angles.cos(), angles.sin()], dim=1)
        lower = torch.stack([1 - angles.cos(), 0.5 - angles.sin()], dim=1)
        jitter = noise * torch.randn(len(labels), 2, generator=generator)
        return torch.where(labels[:, None] == 1, lower, upper) + jitter

    return _binary("moons", points, num_train, num_test, positive_rate, seed)


def digits(test_per_class: int = 50, seed: int = 0) -> Dataset:
    """8 x 8 images of handwritten digits, 174 to 183 per class, to be made long-tailed.

    Args:
        test_per_class: images of each digit to test on; the others are for training.
        seed: chooses the test images.

    Inputs are [64] float32 in [0, 1].

    >>> data = digits()
    >>> data.train.inputs.shape, data.test.labels.bincount().unique().tolist(), int(data.prior.counts.min())
    (torch.Size([1297, 64]), [50], 124)

    Reference:
        The UCI set "Optical Recognition of Handwritten Digits", test part, as scikit-learn ships it.
    """
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    everything = Split(torch.from_numpy(pixels).float() / 16, torch.from_numpy(targets).long())
    smallest = int(everything.labels.bincount().min())
    if not 1 <= test_per_class < smallest:
        raise ValueError(f"digits: test_per_class must be in 1..{smallest - 1}. Got {test_per_class}.")
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    shuffled_labels = everything.labels[order]
    members = [order[shuffled_labels == digit] for digit in range(10)]
    return Dataset(
        "digits",
        train=everything.take(torch.cat([rows[test_per_class:] for rows in members])),
        test=everything.take(torch.cat([rows[:test_per_class] for rows in members])),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def _binary(
    name: str,
    points: Callable[[Tensor, torch.Generator], Tensor],
    num_train: int,
    num_test: int,
    positive_rate: float,
    seed: int,
) -> Dataset:
    if not 0 < positive_rate < 1:
        raise ValueError(f"{name}: positive_rate must be in (0, 1). Got {positive_rate}.")
    generator = torch.Generator().manual_seed(seed)

    def draw(num_samples: int, rate: float) -> Split:
        if num_samples < 1:
            raise ValueError(f"{name}: there must be at least 1 sample to train and to test on. Got {num_samples}.")
        labels = (torch.rand(num_samples, generator=generator) < rate).long()
        return Split(points(labels, generator), labels)

    train = draw(num_train, positive_rate)
    # Balanced error has the same expectation for any class ratio, and the least noise for equal classes.
    return Dataset(name, train=train, test=draw(num_test, 0.5), class_names=("negative", "positive"))
