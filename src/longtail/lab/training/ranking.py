"""From a model to the labels that it ranks first, a few million scores at a time, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.runs.rankings import Rankings
from longtail.metrics.label_hits import group_recall
from longtail.metrics.propensity import inverse_propensities, propensity_scored_precision_at_k
from longtail.metrics.retrieval import ndcg_at_k, precision_at_k, recall_at_k
from longtail.prior import ClassPrior

__all__ = ["KEPT", "PLACES", "popularity_thirds", "rank_items", "ranking_metrics"]

PLACES = 10
"""k of R@k and nDCG@k."""

PRECISION_PLACES = (1, 3, 5)
"""k of P@k and PSP@k."""

KEPT = 20
"""How many labels of each sample a run keeps."""

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


def ranking_metrics(rankings: Rankings) -> dict[str, float]:
    """What is measured of rankings.

    Returns:
        Of sequences, "recall_at_10" and "ndcg_at_10", over all samples and over those whose item is in each third of
        the items by training count. Of multi-label data "precision_at_k" and "psp_at_k" (propensity-scored) for k of
        1, 3 and 5, and "recall_at_10" of the pairs of a sample and one of its labels, over all and over those of the
        most frequent third of the labels, the next and the rarest. Parts that have no samples are left out.
    """
    return _label_metrics(rankings) if rankings.is_multilabel else _next_item_metrics(rankings)


def _next_item_metrics(rankings: Rankings) -> dict[str, float]:
    truth, k = rankings.truth, min(PLACES, rankings.best.shape[1])
    groups = {"": torch.arange(len(rankings.labels))}
    for name, items in popularity_thirds(rankings.prior).items():
        groups[f"_{name}"] = torch.nonzero(torch.isin(rankings.labels, items)).flatten()
    values = {}
    for name, samples in groups.items():
        if len(samples):
            best, target = rankings.best[samples], truth[samples.numpy()]
            values[f"recall_at_{k}{name}"] = float(recall_at_k(best, target, k)[-1])
            values[f"ndcg_at_{k}{name}"] = float(ndcg_at_k(best, target, k)[-1])
    return values


def _label_metrics(rankings: Rankings) -> dict[str, float]:
    truth, prior, best = rankings.truth, rankings.prior, rankings.best
    assert rankings.propensity is not None
    places, k = max(PRECISION_PLACES), min(PLACES, best.shape[1])
    precision = precision_at_k(best, truth, places)
    scored = propensity_scored_precision_at_k(best, truth, places, inverse_propensities(prior, *rankings.propensity))
    values = {f"precision_at_{place}": float(precision[place - 1]) for place in PRECISION_PLACES}
    values |= {f"psp_at_{place}": float(scored[place - 1]) for place in PRECISION_PLACES}
    groups = {"": torch.arange(prior.num_classes)}
    groups |= {f"_{name}": labels for name, labels in prior.quantile_groups().items()}
    for name, recall in group_recall(best, truth, groups, [k]).items():
        values[f"recall_at_{k}{name}"] = float(recall[0])
    return {name: value for name, value in values.items() if not math.isnan(value)}


def popularity_thirds(prior: ClassPrior) -> dict[str, Tensor]:
    """The items in three parts of equal size by training count; of equal counts, the first index is the rarer.

    >>> {name: items.tolist() for name, items in popularity_thirds(ClassPrior.from_counts([9, 1, 5])).items()}
    {'head': [0], 'torso': [2], 'tail': [1]}
    """
    order = prior.rarest(prior.num_classes)
    third = prior.num_classes // 3
    return {"head": order[len(order) - third :], "torso": order[third : len(order) - third], "tail": order[:third]}
