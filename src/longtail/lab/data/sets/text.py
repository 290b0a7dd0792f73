"""CLINC150 and Reuters-90."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.lab.data.formats.text import Texts, label_codes, parse_json
from longtail.lab.data.locate import PathLike, data_root, not_found, read_bytes

__all__ = ["read_clinc150", "read_reuters90"]


def read_clinc150(root: PathLike | None = None) -> Texts:
    """CLINC-150 with imbalanced training data: short requests, 150 intents.

    Args:
        root: folder with ``clinc150/data_imbalanced.json[.gz]``; None is the variable LONGTAIL_DATA.

    Reference:
        Larson et al. (2019), "An evaluation dataset for intent classification and out-of-scope prediction".
    """
    path = _published_file("CLINC-150", data_root(root), "clinc150/data_imbalanced.json")
    content = parse_json(read_bytes(path), str(path))
    train_texts, train_names = _pairs(content, "train", path)
    test_texts, test_names = _pairs(content, "test", path)
    class_names = tuple(sorted(set(train_names)))
    index = {name: c for c, name in enumerate(class_names)}
    train_labels = torch.tensor([index[name] for name in train_names])
    test_labels = torch.tensor(label_codes(test_names, index, str(path)))
    return Texts("CLINC-150", train_texts, train_labels, test_texts, test_labels, class_names)


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
    path = _published_file("Reuters-90", data_root(root), "reuters90/reuters90.jsonl")
    parsed = [
        _checked_row(parse_json(line, f"{path}, line {number}"), f"{path}, line {number}")
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


def _pairs(content: Any, split: str, path: Path) -> tuple[list[str], list[str]]:
    pairs = content.get(split) if isinstance(content, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise ValueError(f"{path} must have {split!r}, a list of [text, label] pairs.")
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise ValueError(f"{path}, {split} {number}: must be a [text, label] pair. Got {pair!r:.100}.")
    return [text for text, _ in pairs], [label for _, label in pairs]


def _checked_row(row: Any, where: str) -> dict[str, Any]:
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


def _published_file(name: str, root: Path, relative: str) -> Path:
    for path in (root / relative, root / f"{relative}.gz"):
        if path.is_file():
            return path
    raise not_found(name, root, f"{relative} or {relative}.gz")
