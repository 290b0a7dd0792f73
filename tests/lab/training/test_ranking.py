"""Ranked items and their metrics against plain loops."""

import math

import pytest
import torch
from torch import nn

from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.runs.rankings import Rankings
from longtail.lab.training import ranking
from longtail.lab.training.ranking import popularity_thirds, rank_items, ranking_metrics
from longtail.prior import ClassPrior


@pytest.mark.parametrize("scores_at_once", [1, 50, 10**6])
def test_chunks_change_nothing(monkeypatch, scores_at_once):
    monkeypatch.setattr(ranking, "SCORES_AT_ONCE", scores_at_once)
    torch.manual_seed(0)
    head, x = nn.Linear(4, 20), torch.randn(13, 4)
    scores, items = rank_items(x, head, 5)
    expected = head(x).topk(5, dim=1)
    assert torch.equal(items, expected.indices)
    torch.testing.assert_close(scores, expected.values)
    _, adjusted = rank_items(x, head, 5, adjust=lambda logits: -logits)
    assert torch.equal(adjusted, (-head(x)).topk(5, dim=1).indices)


def test_what_was_there_before_is_left_out():
    x = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    history = ItemSequences(torch.tensor([0, 1, 3]), torch.tensor([0, 3, 1]), 4, 5)
    assert rank_items(x, nn.Identity(), 2)[1].tolist() == [[0, 1], [3, 2]]
    scores, items = rank_items(x, nn.Identity(), 3, history)
    assert items[:, :2].tolist() == [[1, 2], [2, 0]]
    assert items[0, 2] == 3
    assert scores[1, 2] == -math.inf


def test_metrics_are_what_loops_give():
    torch.manual_seed(0)
    num_items, num_samples = 30, 40
    counts = torch.randint(1, 50, (num_items,))
    items = torch.stack([torch.randperm(num_items)[:12] for _ in range(num_samples)])
    labels = torch.randint(num_items, (num_samples,))
    found = Rankings(items, torch.zeros(num_samples, 12), labels, counts, tuple(map(str, range(num_items))))
    metrics = ranking_metrics(found)
    thirds = popularity_thirds(ClassPrior.from_counts(counts))
    assert [len(part) for part in thirds.values()] == [10, 10, 10]
    assert counts[thirds["head"]].min() >= counts[thirds["torso"]].max() >= counts[thirds["tail"]].max()
    for name, members in {"": torch.arange(num_items), **{f"_{n}": part for n, part in thirds.items()}}.items():
        hits, gains = [], []
        for best, label in zip(items.tolist(), labels.tolist(), strict=True):
            if label in members.tolist():
                place = best.index(label) if label in best[:10] else None
                hits.append(place is not None)
                gains.append(0 if place is None else 1 / math.log2(place + 2))
        assert metrics[f"recall_at_10{name}"] == pytest.approx(sum(hits) / len(hits))
        assert metrics[f"ndcg_at_10{name}"] == pytest.approx(sum(gains) / len(gains))


def test_a_third_without_samples_is_left_out():
    found = Rankings(
        torch.tensor([[0, 1]]), torch.zeros(1, 2), torch.tensor([1]), torch.tensor([9, 5, 1]), ("a", "b", "c")
    )
    assert set(ranking_metrics(found)) == {f"{m}_at_2{part}" for m in ("recall", "ndcg") for part in ("", "_torso")}


def test_rankings_are_kept(tmp_path):
    found = Rankings(
        torch.tensor([[0, 1]]), torch.zeros(1, 2), torch.tensor([1]), torch.tensor([9, 5, 1]), ("a", "b", "ç")
    )
    found.save(tmp_path / "x.safetensors")
    again = Rankings.load(tmp_path / "x.safetensors")
    assert again.class_names == found.class_names
    assert torch.equal(again.best, found.best)
    assert again.prior == found.prior
