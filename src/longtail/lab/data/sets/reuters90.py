"""Reuters-90: news and their topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.text import Texts, parse_json, tfidf_ngrams
from longtail.lab.data.locate import PathLike, data_root, published_file, read_bytes

__all__ = ["load_reuters90", "read_reuters90"]


def load_reuters90(root: str | None = None, max_words: int = 1, max_features: int | None = None) -> Dataset:
    """Reuters-90 news, one or more topics each, as TF-IDF of words and runs of words."""
    return tfidf_ngrams(read_reuters90(root), max_features=max_features, max_words=max_words)


def read_reuters90(root: PathLike | None = None) -> Texts:
    """Reuters-21578, ModApte split: news with one or more of 90 topics.

    Args:
        root: folder with ``reuters90/reuters90.jsonl[.gz]``, lines with ``split``, ``text`` and ``labels``; None is
            the variable LONGTAIL_DATA.

    Returns:
        Labels are bool [N, C].

    Reference:
        Lewis (1997), "Reuters-21578 text categorization test collection".
    """
    path = published_file("Reuters-90", data_root(root), "reuters90/reuters90.jsonl")
    parsed = [
        _check_row(parse_json(line, f"{path}, line {number}"), f"{path}, line {number}")
        for number, line in enumerate(read_bytes(path).split(b"\n"), start=1)
        if line.strip()
    ]
    class_names = tuple(sorted({label for row in parsed for label in row["labels"]}))
    index = {name: c for c, name in enumerate(class_names)}
    by_split = {split: [row for row in parsed if row["split"] == split] for split in ("train", "test")}
    return Texts(
        "Reuters-90",
        [row["text"] for row in by_split["train"]],
        _indicator(by_split["train"], index),
        [row["text"] for row in by_split["test"]],
        _indicator(by_split["test"], index),
        class_names,
    )


def _check_row(row: Any, where: str) -> dict[str, Any]:
    is_row = isinstance(row, dict) and isinstance(row.get("text"), str) and row.get("split") in ("train", "test")
    labels = row.get("labels") if is_row else None
    if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
        raise ValueError(
            f"{where}: must have a split (train or test), a text and a list of labels. Got {row!r:.100}."
        )
    return dict(row)


def _indicator(rows: Sequence[dict[str, Any]], index: dict[str, int]) -> Tensor:
    indicator = torch.zeros(len(rows), len(index), dtype=torch.bool)
    for i, row in enumerate(rows):
        indicator[i, [index[label] for label in row["labels"]]] = True
    return indicator
