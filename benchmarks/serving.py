"""Predictions per second: a folded classifier and a ranking of labels in PyTorch, and as ONNX in onnxruntime.

    python benchmarks/serving.py        # needs pip install "longtail[export]"

One thread each, interleaved calls; rows go to benchmarks/results/serving.csv.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from harness import environment, interleaved_times, keep_freed_memory, paired_ratios, quantiles, write_rows
from scipy.sparse import random as random_sparse
from torch import nn

from longtail import ClassPrior, ExtremeClassifier, fold_adjustment
from longtail.lab.training.models import build_model
from longtail.serving import LabelRanking, export_onnx, load_onnx, pad_rows

ROUNDS = 30


def main() -> None:
    """Measure, print and write rows."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"Nothing measured: {missing[0]} is not installed.")
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for name, model, inputs in (*classifiers(), *rankings()):
        rows += measure(name, model, inputs)
    print(f"Wrote {write_rows('serving', rows)}.")


def classifiers() -> list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """An MLP and a ResNet-32 with 100 classes, adjusted."""
    prior = ClassPrior.from_counts(np.geomspace(500, 5, 100).astype(int))
    found: list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]] = []
    for name, shape, sizes in (("mlp", (256,), (1, 256)), ("resnet32", (3, 32, 32), (1, 64))):
        torch.manual_seed(0)
        folded = fold_adjustment(build_model(name, 100, shape), prior, layer="head").eval()
        found += [(f"{name}, batch of {size}", folded, (torch.randn(size, *shape),)) for size in sizes]
    return found


def rankings() -> list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """The 5 best of 4,000 labels from 50 of 5,000 features."""
    generator = np.random.default_rng(0)
    features = random_sparse(256, 5000, 0.01, "csr", dtype=np.float32, rng=0)
    labels = generator.integers(0, 4000, 256)
    labels[0] = 3999
    estimator = ExtremeClassifier(hidden_size=256, epochs=1, random_state=0).fit(features, labels)
    ranking = LabelRanking(estimator, k=5).eval()
    rows = [tuple(map(torch.from_numpy, pad_rows(features[:size]))) for size in (2, 256)]
    return [(f"4,000 labels, batch of {len(part[0])}", ranking, part) for part in rows]


def measure(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[dict[str, object]]:
    """One row for each engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        several = tuple(torch.cat([part, part]) if len(part) == 1 else part for part in inputs)
        names = ("columns", "values") if len(inputs) == 2 else ("inputs",)
        outputs = ("labels", "logits") if len(inputs) == 2 else ("logits",)
        difference = export_onnx(model, several, path, input_names=names, output_names=outputs)
        served = load_onnx(path, model, num_threads=1)
    arrays = [part.numpy() for part in inputs]
    repeats = 20 if len(arrays[0]) < 16 else 2
    engines: dict[str, Callable[[], object]] = {
        "PyTorch": lambda: predict(model, inputs, repeats),
        "onnxruntime": lambda: [served.run(*arrays) for _ in range(repeats)],
    }
    times = interleaved_times(engines, ROUNDS)
    ratios = paired_ratios(times, "PyTorch")
    rows = []
    for engine, seconds in times.items():
        per_second = [repeats * len(arrays[0]) / value for value in seconds]
        print(f"{name}: {engine} {np.median(per_second):,.0f} predictions per second, ratio {ratios[engine]:.2f}")
        rows.append(
            {
                "model": name,
                "engine": engine,
                "predictions_per_second": round(float(np.median(per_second))),
                "time_ratio": round(ratios[engine], 3),
                "difference": f"{difference:.1e}",
                "rounds": ROUNDS,
                **quantiles([value / repeats for value in seconds]),
                "onnxruntime": version("onnxruntime"),
                **environment(),
            }
        )
    return rows


@torch.no_grad()
def predict(model: nn.Module, inputs: tuple[torch.Tensor, ...], repeats: int) -> None:
    """Some predictions in PyTorch."""
    for _ in range(repeats):
        model(*inputs)


if __name__ == "__main__":
    sys.exit(main())
