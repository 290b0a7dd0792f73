"""CLINC-150: short requests and their intents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.text import Texts, label_codes, parse_json, tfidf_ngrams
from longtail.lab.data.locate import PathLike, data_root, published_file, read_bytes

__all__ = ["load_clinc150", "read_clinc150"]


def load_clinc150(root: str | None = None, max_words: int = 2) -> Dataset:
    """CLINC-150 intents as TF-IDF of words and pairs of words."""
    return tfidf_ngrams(read_clinc150(root), max_words=max_words)


def read_clinc150(root: PathLike | None = None) -> Texts:
    """CLINC-150 with imbalanced training data: short requests, 150 intents.

    Args:
        root: folder with ``clinc150/data_imbalanced.json[.gz]``; None is the variable LONGTAIL_DATA.

    Reference:
        Larson et al. (2019), "An evaluation dataset for intent classification and out-of-scope prediction".
    """
    path = published_file("CLINC-150", data_root(root), "clinc150/data_imbalanced.json")
    content = parse_json(read_bytes(path), str(path))
    train_texts, train_names = _pairs(content, "train", path)
    test_texts, test_names = _pairs(content, "test", path)
    class_names = tuple(sorted(set(train_names)))
    index = {name: c for c, name in enumerate(class_names)}
    train_labels = torch.tensor([index[name] for name in train_names])
    test_labels = torch.tensor(label_codes(test_names, index, str(path)))
    return Texts("CLINC-150", train_texts, train_labels, test_texts, test_labels, class_names)


def _pairs(content: Any, split: str, path: Path) -> tuple[list[str], list[str]]:
    pairs = content.get(split) if isinstance(content, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise ValueError(f"{path} must have {split!r}, a list of [text, label] pairs.")
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise ValueError(f"{path}, {split} {number}: must be a [text, label] pair. Got {pair!r:.100}.")
    return [text for text, _ in pairs], [label for _, label in pairs]
