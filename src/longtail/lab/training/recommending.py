"""From a run folder to what its model recommends next, after all that users have done."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch

from longtail.lab.data.digest import check_same_data, digest_data
from longtail.lab.data.registry import load_data, load_events
from longtail.lab.runs.folder import CHECKPOINT, load_run
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.embedding import load_trained_model
from longtail.lab.training.epochs import build_plan
from longtail.lab.training.evaluation import test_batch_size
from longtail.lab.training.ranking import rank_items
from longtail.lab.training.recipe import parse_recipe

__all__ = ["recommend"]


@torch.no_grad()
def recommend(folder: Path, k: int = 10, exclude_history: bool = True, trust_code: bool = False) -> pa.Table:
    """The best next items of all users of a run's data, by its trained model and all of their events.

    Args:
        folder: the run folder; the data that its recipe names must still be there.
        k: items for each user.
        exclude_history: whether what the model sees of a user's items is left out.
        trust_code: whether a model or method that the run's recipe names as ``module:function`` may be run.

    Returns:
        A table with a row for each user and place: ``user``, ``place`` from 1, ``item``, ``score``.
    """
    run = load_run(folder)
    recipe = parse_recipe(run.recipe)
    check_recipe(recipe, trust_code)
    data = load_data(recipe.data)
    check_same_data(digest_data(data), run.summary.get("data"), folder)
    events = load_events(recipe.data)
    if not 1 <= k <= data.num_classes:
        raise ValueError(f"k must be in 1..{data.num_classes}, the number of items. Got {k}.")
    plan = build_plan(recipe, data.prior)
    model = load_trained_model(folder / CHECKPOINT, recipe, data, plan).eval()
    histories = events.histories(data.input_shape[0])
    parts = torch.split(torch.arange(len(histories)), test_batch_size(recipe))
    embeddings = torch.cat([model.embed(histories.batch(part)) for part in parts])
    if plan.adjust_head is not None:
        plan.adjust_head(model.head)  # after the encoder has read what may be the same vectors
    scores, items = rank_items(embeddings, model.head, k, histories if exclude_history else None, plan.adjust_logits)
    users = pa.array(events.users).take(pa.array(torch.arange(len(items)).repeat_interleave(k).numpy()))
    return pa.table(
        {
            "user": users,
            "place": pa.array(torch.arange(1, k + 1).repeat(len(items)).numpy()),
            "item": pa.array(events.item_names).take(pa.array(items.flatten().numpy())),
            "score": pa.array(scores.flatten().numpy()),
        }
    )
