"""Batches for one epoch: indices from a sampler, inputs from a split, augmented and normalized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset, Inputs, Split
from longtail.lab.training import augment
from longtail.lab.training.mixing import MIXINGS, mix
from longtail.lab.training.policies import POLICIES
from longtail.lab.training.recipe import TrainRecipe
from longtail.prior import ClassPrior
from longtail.sampling import ClassIndex

__all__ = ["Batch", "Preparation", "augment_inputs", "ordered_batches", "prepare_for", "train_batches"]

ToDevice = Callable[[Inputs], Inputs]


@dataclass(frozen=True)
class Batch:
    """What one step of training sees."""

    inputs: Inputs
    target: Tensor
    """[N] class indices, of sequences one for each place; or [N, C]: 0 and 1 for multi-label data, probabilities of
    mixed samples; or [N, L], lists of the labels of multi-label samples."""


@dataclass(frozen=True)
class Preparation:
    """How raw inputs become what the model gets: images are normalized, all else is left alone."""

    mean: Tensor | None
    std: Tensor | None
    channels_last: bool

    def __call__(self, inputs: Inputs) -> Inputs:
        """Normalized inputs in the memory layout that the model wants."""
        if not isinstance(inputs, Tensor) or self.mean is None or self.std is None:
            return inputs
        normalized = augment.normalize(inputs, self.mean, self.std)
        return normalized.contiguous(memory_format=torch.channels_last) if self.channels_last else normalized


def prepare_for(data: Dataset, channels_last: bool) -> Preparation:
    """The preparation that fits a data set; statistics are those of its training split."""
    if len(data.input_shape) != 3:
        return Preparation(None, None, channels_last=False)
    mean, std = augment.channel_statistics(data.train)
    return Preparation(mean, std, channels_last)


def train_batches(
    split: Split,
    indices: Iterable[int],
    batch_size: int,
    num_classes: int,
    prepare: Preparation,
    recipe: TrainRecipe,
    generator: torch.Generator,
    size: int = 0,
    views: int = 1,
    listed: bool = False,
) -> Iterator[Batch]:
    """Augmented batches in the order of ``indices``; the last one may be smaller. ``size`` is the side of images.

    ``listed``: whether the labels of multi-label samples come as lists.

    With several views each sample comes so often in a row, augmented anew; the first of them is only moved: without
    policy and cutout.
    """
    weak = replace(recipe, augmentation="none", cutout=0)
    mixer = None if recipe.mixing == "none" else Mixer(split.labels, num_classes)

    def load(chosen: Tensor, settings: TrainRecipe = recipe) -> Inputs:
        inputs = augment_inputs(split.batch(chosen), prepare, settings, generator)
        return augment.shrink(inputs, size) if size and isinstance(inputs, Tensor) else inputs

    for chosen in index_batches(indices, batch_size):
        if views > 1:
            seen = [load(chosen, weak), *(load(chosen) for _ in range(views - 1))]
            yield Batch(interleave(seen), split.targets(chosen).repeat_interleave(views, dim=0))
            continue
        inputs = load(chosen)
        if mixer is not None and isinstance(inputs, Tensor):
            yield mixer.mix(inputs, chosen, load, recipe, generator)
        else:
            yield Batch(inputs, split.listed_targets(chosen) if listed else split.targets(chosen))


def interleave(views: Sequence[Inputs]) -> Tensor:
    """[V N, ...]: all views of the first sample, then those of the next."""
    tensors = [view for view in views if isinstance(view, Tensor)]
    if len(tensors) < len(views):
        raise ValueError("several views must be of images or features in tensors. Got sparse features.")
    mixed = torch.stack(tensors, dim=1).flatten(0, 1)
    is_last = tensors[0].ndim == 4 and tensors[0].is_contiguous(memory_format=torch.channels_last)
    return mixed.contiguous(memory_format=torch.channels_last) if is_last else mixed


class Mixer:
    """Mixes batches with partners, as a recipe says.

    Args:
        labels: [N] class indices of the training split.
        num_classes: C.
    """

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        self.labels = labels
        self.prior = ClassPrior.from_labels(labels, num_classes)
        self.index = ClassIndex.of(labels, num_classes)

    def mix(
        self,
        inputs: Tensor,
        chosen: Tensor,
        load: Callable[[Tensor], Inputs],
        recipe: TrainRecipe,
        generator: torch.Generator,
    ) -> Batch:
        """The samples ``chosen`` mixed; partners that are not among them are loaded."""
        mixing = MIXINGS[recipe.mixing]
        if mixing.has_balanced_partners:
            known = torch.nonzero(self.index.counts)[:, 0]
            others = self.index.draw(known[torch.randint(len(known), (len(chosen),), generator=generator)], generator)
            partners = load(others)
        else:
            order = torch.randperm(len(chosen), generator=generator)
            partners, others = inputs[order], chosen[order]
        assert isinstance(partners, Tensor)
        labels = self.labels[chosen], self.labels[others]
        mixed = mix(mixing, inputs, labels[0], partners, labels[1], self.prior, recipe.mixing_alpha, generator)
        return Batch(*mixed)


def augment_inputs(inputs: Inputs, prepare: Preparation, recipe: TrainRecipe, generator: torch.Generator) -> Inputs:
    """Prepared inputs; images are cropped, mirrored, changed by a policy and cut out, as the recipe says."""
    if isinstance(inputs, Tensor) and inputs.ndim == 4:
        inputs = augmented(inputs, recipe, generator)
    inputs = prepare(inputs)
    if recipe.cutout and isinstance(inputs, Tensor):
        inputs = augment.cutout(inputs, recipe.cutout, generator)
    return inputs


def augmented(images: Tensor, recipe: TrainRecipe, generator: torch.Generator) -> Tensor:
    """Cropped and mirrored at random, then changed by a policy, as the recipe says."""
    if recipe.pad_crop:
        images = augment.random_crop(images, recipe.pad_crop, generator)
    if recipe.resized_crop:
        images = augment.random_resized_crop(images, images.shape[-1], generator=generator)
    if recipe.flip:
        images = augment.random_flip(images, generator=generator)
    return POLICIES[recipe.augmentation](images, generator)


def ordered_batches(split: Split, start: int, stop: int, batch_size: int, prepare: Preparation) -> Iterator[Inputs]:
    """Inputs of the samples from ``start`` to ``stop``, in order."""
    for first in range(start, stop, batch_size):
        yield prepare(split.batch(torch.arange(first, min(first + batch_size, stop))))


def index_batches(indices: Iterable[int], batch_size: int) -> Iterator[Tensor]:
    """Index tensors of ``batch_size``; the last one may be smaller."""
    iterator = iter(indices)
    while chosen := list(islice(iterator, batch_size)):
        yield torch.tensor(chosen)
