"""How compact the classes of finished runs are in embedding space: one row per run, beside its metrics.

    longtail compare digits_elm --methods logit_adjusted,elm --seeds 3
    python benchmarks/compactness.py runs/digits_elm    # writes results/quality/digits_elm.csv

For each group of classes: the mean over its samples of the largest distance to a sample of the same class, of
training and of test samples, as it is (raw), divided by the largest norm of an embedding, and divided by the mean
distance between class means.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from harness import write_rows
from torch import Tensor

from longtail.diagnostics import intraclass_distances, split_by_group
from longtail.lab.data.dataset import Dataset
from longtail.lab.runs.folder import find_runs, load_run
from longtail.lab.training.embedding import embed_run

MEASURES = ("raw", "by_norm", "by_class_means")


def row_of(folder: Path) -> dict[str, Any]:
    """Metrics and distances of one run."""
    run = load_run(folder)
    metrics = {name: round(value, 6) for name, value in run.metrics.items()}
    options = " ".join(f"{name}={value}" for name, value in run.recipe["method"].get("options", {}).items())
    row = {"recipe": run.recipe["name"], "method": run.method, "options": options, "seed": run.seed, **metrics}
    return row | {"seconds": run.summary["seconds"]} | distances_of(embed_run(folder))


def distances_of(embedded: Dataset) -> dict[str, float]:
    """Split, group and measure -> the mean of the largest distances inside a class."""
    found = {}
    for name, split in (("train", embedded.train), ("test", embedded.test)):
        embeddings = split.batch(torch.arange(len(split)))
        assert isinstance(embeddings, Tensor)
        distances = intraclass_distances(embeddings, split.labels)
        for measure in MEASURES:
            values = split_by_group(getattr(distances, measure), split.labels, embedded_groups(embedded))
            found |= {f"{name}_{group}_{measure}": round(float(v.mean()), 5) for group, v in values.items() if len(v)}
    return found


def embedded_groups(embedded: Dataset) -> dict[str, Tensor]:
    """Head, torso and tail by counts; where no class is rare enough for a tail, the rarest fifth of the classes."""
    groups = embedded.prior.groups()
    if not len(groups["tail"]):
        groups["tail"] = embedded.prior.rarest(max(1, embedded.num_classes // 5))
    return groups


def main() -> None:
    """Measure every complete run of a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", action="store_true", help="settings that were not taken, to quality/trials")
    parser.add_argument("folders", nargs="*", type=Path, help="what longtail compare has made; none: nothing to do")
    arguments = parser.parse_args()
    where = "quality/trials" if arguments.trials else "quality"
    for folder in arguments.folders:
        rows = [row_of(path) for path in find_runs(folder)]
        print(write_rows(f"{where}/{rows[0]['recipe']}", rows))


if __name__ == "__main__":
    main()
