"""Conformal sets on long-tailed data: how often they hold the true class, class by class, and how large they are.

    python benchmarks/conformal.py logits.npz    # with logits [N, C], labels and train_counts
    python benchmarks/conformal.py               # a linear head on Tiny-ImageNet-LT features, where these are

writes results/conformal/NAME.csv. Test samples, balanced over classes, are split into a part that calibrates and one
that is measured, again and again. The promise is for the mean over such splits: a class's coverage in one split, from
some dozen samples, varies by several points. A row has means over the splits of the mean coverage of head, torso and
tail classes (100 and more, 20 to 99, fewer training samples), the coverage of the worst class, the share of classes
whose mean coverage is within 2 points of what is promised, and the number of classes in a set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, write_rows
from torch import Tensor

from longtail import ClassPrior, adjust_logits
from longtail.posthoc import (
    adaptive_set_scores,
    class_coverage,
    class_thresholds,
    clustered_thresholds,
    marginal_thresholds,
    prevalence_scores,
    probability_scores,
)

METHODS = {
    "one threshold": (probability_scores, marginal_thresholds),
    "one threshold, adaptive sets": (adaptive_set_scores, marginal_thresholds),
    "one threshold, prevalence": (prevalence_scores, marginal_thresholds),
    "clusters of classes": (probability_scores, clustered_thresholds),
    "every class": (probability_scores, class_thresholds),  # prevalence would be the same: it divides by class
}


def train_linear_head() -> tuple[Tensor, Tensor, ClassPrior] | None:
    """Test logits of a linear head on Tiny-ImageNet-LT features; None where these are not found."""
    from longtail.lab.data.sets.tiny_imagenet_lt import load_tiny_imagenet_lt_features

    try:
        data = load_tiny_imagenet_lt_features()
    except FileNotFoundError as error:
        print(f"nothing measured: {error}")
        return None
    torch.manual_seed(0)
    head = torch.nn.Linear(data.train.inputs.shape[1], len(data.class_names))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for _ in range(10):
        for rows in torch.randperm(len(data.train.labels)).split(256):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(data.train.inputs[rows]), data.train.labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        logits = head(data.test.inputs)
    return logits, data.test.labels, ClassPrior.from_labels(data.train.labels, len(data.class_names))


def read_logits(path: Path) -> tuple[Tensor, Tensor, ClassPrior]:
    """Logits, labels and training counts from a file."""
    with np.load(path, allow_pickle=False) as file:
        prior = ClassPrior.from_counts(file["train_counts"])
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"]), prior


def split_classes(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """[N] whether a sample calibrates: the same share of every class."""
    order = torch.argsort(labels + torch.rand(len(labels), generator=generator))  # by class, at random within it
    counts = torch.bincount(labels)
    ranks = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    calibrates = torch.zeros(len(labels), dtype=torch.bool)
    calibrates[order] = ranks < (share * counts[labels[order]]).round()
    return calibrates


def measure(
    name: str, probabilities: Tensor, labels: Tensor, prior: ClassPrior, alpha: float, share: float, num_splits: int
) -> list[dict[str, Any]]:
    """A row for each method: means over splits."""
    groups = {group: classes for group, classes in prior.groups().items() if len(classes)}
    rows = []
    for method, (score, choose) in METHODS.items():
        scores = score(probabilities, prior.probs)
        generator = torch.Generator().manual_seed(0)
        coverages, sizes = [], []
        for _ in range(num_splits):
            calibrates = split_classes(labels, share, generator)
            thresholds = choose(scores[calibrates], labels[calibrates], alpha)
            sets = scores[~calibrates] <= thresholds
            coverages.append(class_coverage(sets, labels[~calibrates]))
            sizes.append(float(sets.sum(dim=1).double().mean()))
        mean = torch.stack(coverages).mean(dim=0)
        row = {"data": name, "method": method, "promised": 1 - alpha}
        row |= {f"{group}_coverage": round(float(mean[classes].mean()), 4) for group, classes in groups.items()}
        row |= {
            "worst_class": round(float(mean.min()), 4),
            "within_2_points": round(float(((mean - 1 + alpha).abs() <= 0.02).double().mean()), 3),
            "set_size": round(float(np.mean(sizes)), 2),
            "splits": num_splits,
        }
        rows.append(row | environment())
        print("  ".join(f"{value}" for key, value in row.items() if key != "data"))
    return rows


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--name", help="of the rows; default: of the file")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--share", type=float, default=0.6, help="of each class that calibrates")
    parser.add_argument("--splits", type=int, default=100)
    arguments = parser.parse_args()
    found = train_linear_head() if arguments.file is None else read_logits(arguments.file)
    if found is None:
        return
    logits, labels, prior = found
    name = arguments.name or ("tiny_imagenet_lt_features" if arguments.file is None else arguments.file.stem)
    rows = []
    adjusted = adjust_logits(logits, prior)
    for kind, scores in (("plain", logits), ("adjusted", adjusted)):
        probabilities = scores.softmax(dim=1)
        rows += measure(
            f"{name}, {kind}", probabilities, labels, prior, arguments.alpha, arguments.share, arguments.splits
        )
    print(write_rows(f"conformal/{name}", rows))


if __name__ == "__main__":
    main()
