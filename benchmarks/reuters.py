"""Losses for multi-label data, with and without tuned thresholds, on Reuters-90 news texts.

    python benchmarks/reuters.py reuters90.jsonl.gz    # about 10 minutes on one quiet core; writes
                                                       # results/quality/labels/reuters90.csv

The file has one JSON object per line: "split" (train or test), "text", "labels" (topics). A linear model on TF-IDF
features is trained with every loss from the same start on the same batches. A fifth of the training texts is held
out: thresholds are tuned on it, and where a loss has settings to choose, the one with the best macro-F1 on it is
chosen. Nothing looks at the test texts before the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import write_rows
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer
from torch import Tensor, nn

from longtail import ClassPrior, get_method
from longtail._core.labels import rarest_labels
from longtail.estimators._common import stratified_splits
from longtail.metrics import (
    average_precision,
    count_labels,
    exact_match,
    macro_scores,
    macro_scores_from_counts,
    micro_scores_from_counts,
)
from longtail.posthoc import apply_thresholds, f1_thresholds

CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "binary_cross_entropy": ({},),
    "binary_focal": ({},),
    "asymmetric": ({"negative_gamma": 2.0}, {"negative_gamma": 4.0}),
    "partial_label_masking": ({"rate": 0.01}, {"rate": 0.03}, {"rate": 0.1}),
    "balanced_sigmoid": ({"keep_constant": True}, {"keep_constant": False}),
}
"""Methods and the settings that the holdout chooses from."""
EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 128, 16.0
NUM_SEEDS, NUM_PARTS = 5, 5
NUM_RAREST = 30
MIN_F1 = 0.1
"""Classes that no threshold serves so well on the holdout keep to their surest prediction."""


class Texts(NamedTuple):
    """TF-IDF features and labels of some texts."""

    features: csr_array
    labels: Tensor

    def part(self, rows: np.ndarray) -> Texts:
        """Some of them."""
        return Texts(self.features[rows], self.labels[torch.from_numpy(rows)])


class LinearText(nn.Module):
    """A linear model of sparse features."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(num_features, num_classes, mode="sum")
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, features: csr_array) -> Tensor:
        """[N, C] logits."""
        indices, starts = (torch.from_numpy(part.astype(np.int64)) for part in (features.indices, features.indptr))
        weights = torch.from_numpy(features.data.astype(np.float32))
        logits: Tensor = self.weight(indices, starts[:-1], per_sample_weights=weights)
        return logits + self.bias


def read(path: Path) -> tuple[Texts, Texts]:
    """Training and test texts."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [json.loads(line) for line in file]
    parts = [[row for row in rows if row["split"] == split] for split in ("train", "test")]
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english")
    binarizer = MultiLabelBinarizer().fit([row["labels"] for row in rows])
    vectorizer.fit(row["text"] for row in parts[0])
    train, test = (
        Texts(
            csr_array(vectorizer.transform(row["text"] for row in part)),
            torch.from_numpy(binarizer.transform([row["labels"] for row in part])).bool(),
        )
        for part in parts
    )
    return train, test


def batches(count: int, generator: torch.Generator) -> Iterator[np.ndarray]:
    """Row numbers in random order."""
    return (rows.numpy() for rows in torch.randperm(count, generator=generator).split(BATCH_SIZE))


def train_model(seen: Texts, method: str, options: dict[str, Any], seed: int) -> LinearText:
    """A model trained with one loss."""
    loss_function = get_method(method).plan(ClassPrior.from_indicator(seen.labels), **options).loss
    model = LinearText(seen.features.shape[1], seen.labels.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - epoch / EPOCHS)
        for rows in batches(len(seen.labels), generator):
            batch = seen.part(rows)
            optimizer.zero_grad()
            loss_function(model(batch.features), batch.labels).backward()
            optimizer.step()
        if hasattr(loss_function, "end_epoch"):
            loss_function.end_epoch()
    return model


@torch.no_grad()
def run(train: Texts, test: Texts, method: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """One row: macro-F1 and more at a probability of 0.5, and with thresholds from the holdout."""
    order = np.random.default_rng(seed).permutation(len(train.labels))
    train = train.part(order)
    seen_rows, held_rows = stratified_splits(NUM_PARTS, rarest_labels(train.labels).numpy())[0]
    seen, held = train.part(seen_rows), train.part(held_rows)
    start = time.perf_counter()
    with torch.enable_grad():
        model = train_model(seen, method, options, seed)
    seconds = time.perf_counter() - start
    held_probs, test_probs = (model(part.features).sigmoid() for part in (held, test))
    tuned = f1_thresholds(held_probs, held.labels, min_f1=MIN_F1)
    rarest = ClassPrior.from_indicator(train.labels).rarest(NUM_RAREST)
    settings = json.dumps(options)
    row: dict[str, Any] = {"method": method, "settings": settings, "seed": seed}
    row["holdout_macro_f1"] = _f1(held_probs, held.labels, 0.5)
    for name, thresholds in (("", 0.5), ("tuned_", tuned.values)):
        predicted = apply_thresholds(test_probs, thresholds)
        counts = count_labels(predicted, test.labels)
        row[f"{name}macro_f1"] = float(macro_scores_from_counts(counts).f1)
        row[f"{name}rarest_f1"] = float(macro_scores_from_counts(counts.of(rarest)).f1)
        row[f"{name}micro_f1"] = float(micro_scores_from_counts(counts).f1)
        row[f"{name}exact_match"] = float(exact_match(predicted, test.labels))
    row["map"] = float(average_precision(test_probs, test.labels).nanmean())
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()} | {
        "seconds": round(seconds, 1)
    }


def _f1(probs: Tensor, labels: Tensor, threshold: float) -> float:
    return float(macro_scores(apply_thresholds(probs, threshold), labels).f1)


def chosen(rows: list[dict[str, Any]]) -> set[str]:
    """The settings of each method that are best on the holdouts, as method and settings."""
    best = set()
    for method in CANDIDATES:
        groups: dict[str, list[float]] = {}
        for row in rows:
            if row["method"] == method:
                groups.setdefault(method + row["settings"], []).append(row["holdout_macro_f1"])
        best.add(max(groups, key=lambda name: statistics.mean(groups[name])))
    return best


def main() -> None:
    """Train everything, and write all rows; print those that the holdout chose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("LONGTAIL_DATA", "data")) / "reuters90.jsonl.gz"
    parser.add_argument("data", type=Path, nargs="?", default=default)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"There is no {arguments.data}: nothing measured.")
        return
    train, test = read(arguments.data)
    print(f"{train.features.shape[1]:,} features; {len(train.labels):,} and {len(test.labels):,} texts")
    rows = []
    for method, candidates in CANDIDATES.items():
        for options, seed in product(candidates, range(arguments.seeds)):
            rows.append(run(train, test, method, options, seed))
            print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    best = chosen(rows)
    rows = [row | {"chosen": row["method"] + row["settings"] in best} for row in rows]
    print(write_rows("quality/labels/reuters90", rows))


if __name__ == "__main__":
    main()
