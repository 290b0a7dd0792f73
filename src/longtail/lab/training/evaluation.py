"""From a trained model to its predictions on the test set and their metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from longtail.heads import ExpertHead
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.runs.folder import Predictions
from longtail.lab.runs.rankings import Rankings
from longtail.lab.training.batches import Preparation, ordered_batches
from longtail.lab.training.label_metrics import multilabel_metrics
from longtail.lab.training.models import Classifier
from longtail.lab.training.ranking import KEPT, rank_items, ranking_metrics
from longtail.lab.training.recipe import Recipe
from longtail.methods import Plan
from longtail.metrics.calibration import calibration_error
from longtail.metrics.classes import balanced_accuracy_from_counts, count_hits, group_accuracy_from_counts
from longtail.prior import ClassPrior

__all__ = [
    "expert_metrics",
    "measure_test",
    "outputs_of_split",
    "predictions_of",
    "rank_test",
    "score_metrics",
    "test_batch_size",
]


def test_batch_size(recipe: Recipe) -> int:
    """Samples looked at together where nothing is learned from them."""
    return max(recipe.train.batch_size, 512)


@torch.no_grad()
def outputs_of_split(fabric: Fabric, model: nn.Module, split: Split, prepare: Preparation, batch_size: int) -> Tensor:
    """[N, width] float32 outputs of a split on the CPU, in order; processes share the work and all get the result.

    Outputs of a classifier are logits, those of its encoder are embeddings.
    """
    share = -(-len(split) // fabric.world_size)
    start = min(fabric.global_rank * share, len(split))
    stop = min(start + share, len(split))
    was_training = model.training
    model.eval()
    parts = [
        model(fabric.to_device(inputs)).float() for inputs in ordered_batches(split, start, stop, batch_size, prepare)
    ]
    model.train(was_training)
    if fabric.world_size == 1:
        return torch.cat(parts).cpu()
    return _gathered(fabric, parts, share, len(split))


def measure_test(
    fabric: Fabric, recipe: Recipe, tested: nn.Module, model: Classifier, data: Dataset, prepare: Preparation
) -> dict[str, Any]:
    """What is measured on the test set while a model is trained: ``tested`` as Fabric runs it, ``model`` bare."""
    size = test_batch_size(recipe)
    if data.is_ranked:
        return dict(ranking_metrics(rank_test(fabric, recipe, model, data, prepare)))
    logits = outputs_of_split(fabric, tested, data.test, prepare, size)
    return score_metrics(logits, data.test.labels, data.prior) | expert_metrics(fabric, model, data, prepare, size)


def rank_test(
    fabric: Fabric,
    recipe: Recipe,
    model: Classifier,
    data: Dataset,
    prepare: Preparation,
    plan: Plan | None = None,
) -> Rankings:
    """The best labels of each test sample, by what the plan makes of the logits, if one is given."""
    embeddings = outputs_of_split(fabric, model.encoder, data.test, prepare, test_batch_size(recipe))
    history = data.test.inputs if recipe.train.exclude_history else None
    assert history is None or isinstance(history, ItemSequences)
    adjust = None if plan is None else plan.adjust_logits
    head = model.head
    device = next(head.parameters()).device
    scores, best = rank_items(embeddings.to(device), head, min(KEPT, data.num_classes), history, adjust)
    labels, offsets, num_train, propensity = data.test.labels, None, None, None
    if data.is_multilabel:
        labels, offsets = data.test.label_lists()
        num_train, propensity = len(data.train), data.propensity
    counts = data.prior.counts
    return Rankings(best.cpu(), scores.cpu(), labels, counts, data.class_names, offsets, num_train, propensity)


def expert_metrics(
    fabric: Fabric, model: Classifier, data: Dataset, prepare: Preparation, batch_size: int
) -> dict[str, list[dict[str, float]]]:
    """What ``score_metrics`` says of each expert alone; nothing for a model without experts."""
    head = model.head
    if not isinstance(head, ExpertHead):
        return {}
    stacked = outputs_of_split(fabric, _EachExpert(model.encoder, head), data.test, prepare, batch_size)
    each = stacked.view(len(stacked), head.num_experts, -1).unbind(dim=1)
    return {"experts": [score_metrics(logits, data.test.labels, data.prior) for logits in each]}


class _EachExpert(nn.Module):
    """Inputs -> the logits of all experts, side by side."""

    def __init__(self, encoder: nn.Module, head: ExpertHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, inputs: Any) -> Tensor:
        return self.head.each(self.encoder(inputs)).flatten(1)


def _gathered(fabric: Fabric, parts: list[Tensor], share: int, total: int) -> Tensor:
    """The parts of all processes in one; the last process pads, so that all send equally much."""
    width = torch.tensor(parts[0].shape[1] if parts else 0, device=fabric.device)
    common_width = int(torch.as_tensor(fabric.all_reduce(width, reduce_op="max")))
    mine = torch.cat(parts) if parts else torch.zeros(0, common_width, device=fabric.device)
    padded = torch.cat([mine, mine.new_zeros(share - len(mine), common_width)])
    everything = [torch.empty_like(padded) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(everything, padded)
    return torch.cat(everything)[:total].cpu()


def predictions_of(logits: Tensor, model: Classifier, data: Dataset, plan: Plan) -> Predictions:
    """Logits and what the method makes of them, with what a report needs to explain them."""
    prior = data.prior
    weight = getattr(model.head, "weight", None)
    scores = logits if plan.adjust_logits is None else plan.adjust_logits(logits)
    return Predictions(
        logits=logits.numpy(),
        scores=scores.numpy(),
        labels=data.test.labels.to_dense().numpy(),
        train_counts=prior.counts.numpy(),
        class_names=data.class_names,
        weight_norms=None if weight is None else weight.detach().float().norm(dim=1).cpu().numpy(),
        num_train=prior.num_samples if data.is_multilabel else None,
    )


def score_metrics(scores: Tensor, labels: Tensor, prior: ClassPrior) -> dict[str, float]:
    """What is measured of scores [N, C]; what has no value is left out.

    With one label per sample (labels [N]): accuracy, balanced and by group, and calibration error. For multi-label
    data (labels [N, C]): see ``multilabel_metrics``.
    """
    if labels.ndim == 2:
        return multilabel_metrics(scores, labels.to_dense(), prior)
    hits, counts = count_hits(scores, labels)
    values = {
        "accuracy": float(hits.sum() / counts.sum()),
        "balanced_accuracy": float(balanced_accuracy_from_counts(hits, counts)),
        **{name: float(v) for name, v in group_accuracy_from_counts(hits, counts, prior.groups()).items()},
        "calibration_error": float(calibration_error(scores, labels)),
    }
    return {name: value for name, value in values.items() if np.isfinite(value)}
