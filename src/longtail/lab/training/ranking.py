"""From a model of sequences to the items that it recommends, a few million scores at a time, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.runs.recommendations import Recommendations
from longtail.metrics.retrieval import ndcg_at_k, recall_at_k
from longtail.prior import ClassPrior

__all__ = ["KEPT", "PLACES", "popularity_thirds", "rank_items", "ranking_metrics"]

PLACES = 10
"""k of R@k and nDCG@k."""

KEPT = 20
"""How many items of each user a run keeps."""

SCORES_AT_ONCE = 2**23


@torch.no_grad()
def rank_items(
    embeddings: Tensor,
    head: nn.Module,
    k: int,
    history: ItemSequences | None = None,
    adjust: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The best items of all, exactly; the scores of some users at a time are in memory.

    Args:
        embeddings: [N, D] of users.
        head: embeddings [n, D] -> logits [n, C].
        k: how many.
        history: what users had before, if that is not to be recommended again: one sequence for each.
        adjust: logits [n, C] -> those to rank by.

    Returns:
        [N, k] scores and [N, k] items, best first. Users who had so many that fewer than k are left get such again,
        with a score of minus infinity.

    >>> scores, items = rank_items(torch.eye(2), nn.Identity(), k=1)
    >>> items.tolist()
    [[0], [1]]
    """
    found = []
    num_rows = 1
    start = 0
    while start < len(embeddings):
        logits = head(embeddings[start : start + num_rows])
        scores = (logits if adjust is None else adjust(logits)).float()
        if history is not None:
            had = history.batch(torch.arange(start, start + len(scores)))
            scores[had.rows, had.items] = -math.inf
        found.append(scores.topk(k, dim=1))
        start += num_rows
        num_rows = max(1, SCORES_AT_ONCE // scores.shape[1])
    return torch.cat([best.values for best in found]), torch.cat([best.indices for best in found])


def ranking_metrics(recommended: Recommendations) -> dict[str, float]:
    """R@10 and nDCG@10 over all samples, and over those whose item is in each third of the items by training count.

    Returns:
        "recall_at_10", "ndcg_at_10", and both with "_head", "_torso" and "_tail"; a third that no sample's item is in
        is left out.
    """
    num_samples, num_items = len(recommended.labels), len(recommended.train_counts)
    ones = np.ones(num_samples, dtype=np.int8)
    truth = csr_array((ones, recommended.labels.numpy(), np.arange(num_samples + 1)), shape=(num_samples, num_items))
    k = min(PLACES, recommended.items.shape[1])
    groups = {"": torch.arange(num_samples)}
    for name, items in popularity_thirds(recommended.prior).items():
        groups[f"_{name}"] = torch.nonzero(torch.isin(recommended.labels, items)).flatten()
    values = {}
    for name, samples in groups.items():
        if len(samples):
            best, target = recommended.items[samples], truth[samples.numpy()]
            values[f"recall_at_{k}{name}"] = float(recall_at_k(best, target, k)[-1])
            values[f"ndcg_at_{k}{name}"] = float(ndcg_at_k(best, target, k)[-1])
    return values


def popularity_thirds(prior: ClassPrior) -> dict[str, Tensor]:
    """The items in three parts of equal size by training count; of equal counts, the first index is the rarer.

    >>> {name: items.tolist() for name, items in popularity_thirds(ClassPrior.from_counts([9, 1, 5])).items()}
    {'head': [0], 'torso': [2], 'tail': [1]}
    """
    order = prior.rarest(prior.num_classes)
    third = prior.num_classes // 3
    return {"head": order[len(order) - third :], "torso": order[third : len(order) - third], "tail": order[:third]}
