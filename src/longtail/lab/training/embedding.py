"""From a trained model to the embeddings of the samples that it was trained and tested on."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from longtail.heads import CosineLinear, class_mean_head
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.digest import check_same_data, digest_data
from longtail.lab.data.registry import load_data
from longtail.lab.runs.folder import CHECKPOINT, load_run, read_checkpoint
from longtail.lab.training.batches import Preparation, prepare_for
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.devices import open_fabric
from longtail.lab.training.epochs import build_plan
from longtail.lab.training.evaluation import outputs_of_split, test_batch_size
from longtail.lab.training.models import Classifier, build_model
from longtail.lab.training.recipe import Recipe, parse_recipe
from longtail.methods import Plan

__all__ = ["embed_data", "embed_run", "embed_with", "limited", "load_trained_model", "start_from_means"]


def embed_run(folder: Path, accelerator: str = "auto", trust_code: bool = False) -> Dataset:
    """Embeddings of the training and the test samples of a complete run, as its trained encoder makes them.

    Args:
        folder: the run folder; the data that its recipe names must still be there.
        accelerator: Lightning Fabric's name; "auto" takes a GPU if there is one.
        trust_code: whether a model or method that the run's recipe names as ``module:function`` may be run.

    Returns:
        The run's data set with float32 [N, D] in place of its inputs, in the same order and without augmentation.
    """
    run = load_run(folder)
    recipe = parse_recipe(run.recipe)
    check_recipe(recipe, trust_code)
    data = load_data(recipe.data)
    if data.train.labels.ndim != 1:
        raise ValueError(f"{folder}: embeddings are kept with one label per sample, and these data are multi-label.")
    check_same_data(digest_data(data), run.summary.get("data"), folder)
    encoder = load_trained_model(folder / CHECKPOINT, recipe, data, build_plan(recipe, data.prior)).encoder
    fabric = open_fabric(accelerator)
    prepare = prepare_for(data, recipe.train.channels_last)
    return embed_data(fabric, encoder, data, prepare, test_batch_size(recipe))


def embed_with(recipe: Recipe, encoder: nn.Module, accelerator: str = "auto", batch_size: int = 64) -> Dataset:
    """Embeddings of the data of a recipe, by an encoder that takes their images as they are: bytes.

    Args:
        recipe: of which the data are used.
        encoder: uint8 [N, C, H, W] -> [N, D], as ``load_encoder`` makes them.
        accelerator: Lightning Fabric's name; "auto" takes a GPU if there is one.
        batch_size: images to encode together.
    """
    data = load_data(recipe.data)
    if data.train.labels.ndim != 1 or len(data.input_shape) != 3:
        raise ValueError(f"{data.name} must be images with one label per sample to be embedded by an encoder.")
    return embed_data(open_fabric(accelerator), encoder, data, Preparation(None, None, False), batch_size)


def embed_data(fabric: Fabric, encoder: nn.Module, data: Dataset, prepare: Preparation, batch_size: int) -> Dataset:
    """The data set with float32 embeddings [N, D] in place of its inputs; the encoder is left as it is."""
    exact = fabric.to_device(deepcopy(encoder).float())
    train, test = (
        Split(outputs_of_split(fabric, exact, split, prepare, batch_size), split.labels)
        for split in (data.train, data.test)
    )
    return Dataset(data.name, train, test, data.class_names)


@torch.no_grad()
def start_from_means(fabric: Fabric, model: Classifier, split: Split, prepare: Preparation, batch_size: int) -> None:
    """Set the class vectors of a cosine head to the mean directions of the embeddings of their classes."""
    if not isinstance(model.head, CosineLinear):
        raise ValueError(f"train.class_means needs model.options.head = 'cosine'. Got {type(model.head).__name__}.")
    embeddings = outputs_of_split(fabric, model.encoder, split, prepare, batch_size)
    head = class_mean_head(embeddings, split.labels, model.head.num_classes)
    model.head.weight.copy_(head.weight)


def limited(data: Dataset, most: int) -> Dataset:
    """The data set with at most ``most`` training and as many test samples, always the same ones.

    Classes give equally many as far as they go, so rare classes are kept whole.
    """
    train, test = (split.take(_round_robin(split.labels, most)) for split in (data.train, data.test))
    return Dataset(data.name, train, test, data.class_names)


def _round_robin(labels: Tensor, most: int) -> Tensor:
    """In ascending order: a sample of every class, drawn at random, then another of every class, until enough."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = torch.bincount(labels)
    rank_in_class = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    return by_class[rank_in_class.argsort(stable=True)[:most]].sort().values


def load_trained_model(checkpoint: Path, recipe: Recipe, data: Dataset, plan: Plan) -> Classifier:
    """The model with its last weights, or with their moving average if the run has one."""
    saved, _ = read_checkpoint(checkpoint)
    options = dict(recipe.model.options)
    model = build_model(recipe.model.name, data.num_classes, data.input_shape, default_head=plan.head, **options)
    for phase in plan.phases:
        if phase.new_head is not None:
            model.head = phase.new_head(model.head)
    try:
        has_average = saved["average"] is not None
        prefix = "module." if has_average else ""
        weights = saved["average" if has_average else "model"]
        model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{checkpoint} is the checkpoint of another model ({reason}); train it again.") from None
    return model
