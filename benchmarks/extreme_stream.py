"""ExtremeClassifier on data of AmazonCat-13K's shape: what a step costs, and a pass over a file in bounded memory.

    python benchmarks/extreme_stream.py steps                  # about 2 minutes of one core
    python benchmarks/extreme_stream.py fit --samples 100000   # writes the file, then one epoch; peak memory

The data are synthetic with the set's statistics: 203,882 features and 13,330 labels, 71 features and 5 labels per
sample on average, both by Zipf's law; AmazonCat-13K itself has 1,186,239 samples to train on. Times are of one
thread, in seconds of the processor. Rows go to ``results/extreme_stream.csv``.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, update_rows
from scipy.sparse import csr_array

from longtail import negatives
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme import training
from longtail.prior import ClassPrior

NUM_FEATURES, NUM_LABELS, FEATURES_EACH, LABELS_EACH = 203_882, 13_330, 71, 5
NUM_SAMPLES = 1_186_239
BATCH, NUM_STEPS = 256, 8


def uniform(prior: ClassPrior) -> negatives.LabelDistribution:
    """Negatives without regard to frequency."""
    return negatives.uniform(prior.num_classes)


BEFORE = {"hidden_size": 512, "uses_layerwise_rate": False, "uses_bfloat16": False, "dropout": 0.0, "emphasis": 0.0}
SAMPLED = {"distribution": uniform, "num_negatives": 1024}
STEPS: dict[str, dict[str, Any]] = {
    "row-wise Adam, float32, all labels": BEFORE,
    "+ one rate for all features": BEFORE | {"uses_layerwise_rate": True},
    "+ bfloat16": BEFORE | {"uses_layerwise_rate": True, "uses_bfloat16": True},
    "+ 1,024 negatives instead of bfloat16": BEFORE | {"uses_layerwise_rate": True} | SAMPLED,
    "+ 512 negatives instead of bfloat16": BEFORE | {"uses_layerwise_rate": True} | SAMPLED | {"num_negatives": 512},
}
"""What each change adds to a step."""


def make_samples(num_samples: int, seed: int = 0) -> tuple[Any, Any]:
    """Features and labels; every label brings two features of its own."""
    rng = np.random.default_rng(seed)
    labels = _draw(rng, num_samples, NUM_LABELS, LABELS_EACH)
    features = _draw(rng, num_samples, NUM_FEATURES, FEATURES_EACH - 2 * LABELS_EACH)
    own = csr_array((np.ones(2 * labels.nnz, np.float32), np.repeat(labels.indices, 2) * 2, 2 * labels.indptr))
    own.indices[1::2] += 1
    own.resize((num_samples, NUM_FEATURES))
    return csr_array(features.astype(np.float32) + own), labels


def _draw(rng: np.random.Generator, num_rows: int, width: int, each: int) -> Any:
    per_row = rng.poisson(each, num_rows).clip(1)
    weights = 1 / np.arange(1, width + 1)
    columns = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(per_row.sum())).clip(max=width - 1)
    rows = csr_array(
        (np.ones(len(columns)), columns, np.concatenate([[0], per_row.cumsum()])), shape=(num_rows, width)
    )
    rows.sum_duplicates()
    rows.data[:] = 1
    return rows.astype(bool)


def measure_steps() -> list[dict[str, Any]]:
    """Seconds of a step of each kind: an epoch of few steps, less the first, which makes the optimizer's state."""
    features, labels = make_samples(BATCH * NUM_STEPS)
    rows, first = [], None
    for name, settings in STEPS.items():
        times: list[float] = []
        original = training.Progress.step

        def step(progress: Any, losses: Any, times: list[float] = times, original: Any = original) -> None:
            times.append(time.process_time())
            original(progress, losses)

        training.Progress.step = step  # type: ignore[method-assign]
        model = ExtremeClassifier(**settings, n_estimators=1, epochs=1, batch_size=BATCH, random_state=0)
        model.fit(features, labels)
        training.Progress.step = original  # type: ignore[method-assign]
        seconds = float(np.median(np.diff(times)))
        first = seconds if first is None else first
        hours = seconds * NUM_SAMPLES / BATCH / 3600
        row = {"part": "step", "name": name, "hidden": model.settings_["hidden_size"], "seconds": round(seconds, 4)}
        rows.append(row | {"times_faster": round(first / seconds, 2), "epoch_hours": round(hours, 3), "peak_mb": ""})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def measure_fit(num_samples: int) -> list[dict[str, Any]]:
    """One epoch from a file, and the most memory that the process ever had."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.txt")
        with path.open("w") as file:
            file.write(f"{num_samples} {NUM_FEATURES} {NUM_LABELS}\n")
            for start in range(0, num_samples, 10_000):
                features, labels = make_samples(min(10_000, num_samples - start), seed=start)
                for row in range(features.shape[0]):
                    columns = features.indices[features.indptr[row] : features.indptr[row + 1]]
                    own = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
                    file.write(",".join(map(str, own)) + " " + " ".join(f"{column}:1" for column in columns) + "\n")
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.process_time()
        settings = {"hidden_size": 512, "n_estimators": 1, "epochs": 1, "batch_size": BATCH, "buffer_size": 16_384}
        ExtremeClassifier(**settings, **SAMPLED, verbose=True, random_state=0).fit(path)
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"part": "fit", "name": f"{num_samples} samples, one epoch, 1,024 negatives", "hidden": 512}
    row |= {"seconds": round(seconds, 1), "times_faster": "", "epoch_hours": ""}
    row["peak_mb"] = f"{peak:.0f} ({before:.0f} before)"
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return [row]


def main() -> None:
    """Run the part asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["steps", "fit"])
    parser.add_argument("--samples", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.part is None:
        print(__doc__)
        return
    torch.set_num_threads(1)
    rows = measure_steps() if arguments.part == "steps" else measure_fit(arguments.samples)
    update_rows("extreme_stream", [row | environment() for row in rows], ("name",))


if __name__ == "__main__":
    main()
