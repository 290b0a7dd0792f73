"""The run folder: what training leaves behind, and what comparison and report read.

recipe.toml        the resolved recipe
environment.json   versions and hardware
metrics.jsonl      one line per epoch: epoch, phase, learning_rate, train_loss, seconds, test metrics if measured
checkpoint.pt      the last complete epoch, to resume from
predictions.npz    logits and labels of the test set, training counts, norms of the class vectors
embeddings.npz     embeddings and labels of training and test samples, if the recipe asks for them
summary.json       final metrics; it is written last, so a folder that has it is complete
"""

from __future__ import annotations

import dataclasses
import json
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longtail._core.files import replacing
from longtail.lab.data.dataset import Dataset
from longtail.lab.data.formats.arrays import load_arrays
from longtail.prior import ClassPrior

__all__ = [
    "Predictions",
    "Run",
    "append_metrics",
    "drop_metrics_from",
    "environment",
    "find_runs",
    "label_runs",
    "load_run",
    "read_checkpoint",
    "write_json",
]

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a trained model says of the test set."""

    logits: FloatArray
    """[N, C], of the model itself."""
    scores: FloatArray
    """[N, C], what it predicts with: the logits, or what a post-hoc method makes of them."""
    labels: npt.NDArray[np.int64] | npt.NDArray[np.bool_]
    """[N] class indices, or [N, C] for multi-label data."""
    train_counts: npt.NDArray[np.int64]
    """[C]."""
    class_names: tuple[str, ...]
    weight_norms: FloatArray | None = None
    """[C], norms of the class vectors; None where the head has none."""
    num_train: int | None = None
    """Training samples, where that is not the sum of the counts."""

    @property
    def prior(self) -> ClassPrior:
        """The class counts of the training data."""
        prior = ClassPrior.from_counts(self.train_counts)
        return prior if self.num_train is None else dataclasses.replace(prior, num_samples=self.num_train)

    @property
    def is_multilabel(self) -> bool:
        """Whether the data are multi-label: a sample may have any number of labels, or none."""
        return self.labels.ndim == 2

    def save(self, path: Path) -> None:
        """Write to ``path`` whole or not at all. Scores equal to the logits are not stored twice."""
        arrays: dict[str, Any] = {
            "logits": self.logits,
            "labels": self.labels,
            "train_counts": self.train_counts,
            "class_names": np.array(self.class_names, dtype=np.str_),
        }
        if self.weight_norms is not None:
            arrays["weight_norms"] = self.weight_norms
        if self.num_train is not None:
            arrays["num_train"] = self.num_train
        if self.scores is not self.logits and not np.array_equal(self.scores, self.logits):
            arrays["scores"] = self.scores
        with replacing(path) as file:
            np.savez_compressed(file, **arrays)

    @staticmethod
    def load(path: Path) -> Predictions:
        """Read what :meth:`save` wrote."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            logits = arrays["logits"]
            return Predictions(
                logits=logits,
                scores=arrays.get("scores", logits),
                labels=arrays["labels"],
                train_counts=arrays["train_counts"],
                class_names=tuple(arrays["class_names"].tolist()),
                weight_norms=arrays.get("weight_norms"),
                num_train=int(arrays["num_train"]) if "num_train" in arrays else None,
            )


@dataclass(frozen=True, eq=False)
class Run:
    """One complete run, as read from its folder."""

    path: Path
    recipe: Mapping[str, Any]
    summary: Mapping[str, Any]
    """method, seed, seconds, and metrics: accuracy, balanced_accuracy, head, torso, tail, calibration_error, ..."""
    history: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    predictions: Predictions

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.summary["method"])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.summary["seed"])

    def load_embeddings(self) -> Dataset | None:
        """The embeddings that the run kept, in place of its inputs; None if its recipe did not ask for them."""
        path = self.path / "embeddings.npz"
        return load_arrays(path.absolute()) if path.is_file() else None

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics on the test set; a group without classes is not among them."""
        return dict(self.summary["metrics"])


def load_run(path: Path) -> Run:
    """Read a complete run folder."""
    if not (path / "summary.json").is_file():
        raise FileNotFoundError(f"{path} is no complete run: it has no summary.json; train it, or resume it.")
    import tomllib

    try:
        lines = (path / "metrics.jsonl").read_text().splitlines()
        return Run(
            path=path,
            recipe=tomllib.loads((path / "recipe.toml").read_text(encoding="utf-8")),
            summary=json.loads((path / "summary.json").read_text()),
            history=[json.loads(line) for line in lines],
            predictions=Predictions.load(path / "predictions.npz"),
        )
    except (ValueError, TypeError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: this run can't be read: {reason}; train it again with --restart.") from error


def label_runs(runs: Sequence[Run]) -> list[str]:
    """What to call each run's method: its name, with the options in which runs of that name differ."""
    options_of: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        options_of.setdefault(run.method, []).append(run.summary.get("options", {}))
    labels = []
    for run in runs:
        options = run.summary.get("options", {})
        differing = [
            key for key in options if any(other.get(key) != options[key] for other in options_of[run.method])
        ]
        shown = ", ".join(f"{key}={options[key]}" for key in differing)
        labels.append(f"{run.method} ({shown})" if shown else run.method)
    return labels


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What training saved after its last complete epoch; nothing but tensors and plain values is read."""
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} can't be read ({reason}); train again with --restart.") from None
    return saved


def find_runs(path: Path) -> list[Path]:
    """The complete run folders at or below ``path``, sorted."""
    return sorted(summary.parent for summary in path.rglob("summary.json"))


def write_json(path: Path, value: object) -> None:
    """Write JSON to ``path`` whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")


def append_metrics(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line to ``metrics.jsonl``."""
    with path.open("a") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")


def drop_metrics_from(path: Path, epoch: int) -> None:
    """Drop the lines of epochs that a resumed run does again, and what a kill left of a line."""
    if not path.exists():
        return
    lines = path.read_text().splitlines(keepends=True)
    complete = (line for line in lines if line.endswith("\n"))
    kept = [line for line in complete if json.loads(line)["epoch"] < epoch]
    with replacing(path) as file:
        file.write("".join(kept).encode())


def environment() -> dict[str, Any]:
    """Versions and hardware, to be stored with a run."""
    import longtail

    return {
        "longtail": longtail.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
    }
