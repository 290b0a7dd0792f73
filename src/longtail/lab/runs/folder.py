"""The run folder: what training leaves behind, and what comparison and report read.

recipe.toml        the resolved recipe
environment.json   versions and hardware
metrics.jsonl      one line per epoch: epoch, phase, learning_rate, train_loss, seconds, test metrics if measured
checkpoint.safetensors    the last complete epoch, to resume from
predictions.safetensors   logits and labels of the test set, training counts, norms of the class vectors
rankings.safetensors    in place of these, for sequences and very many labels: the best ones of each test sample
embeddings.safetensors    embeddings and labels of training and test samples, if the recipe asks for them
summary.json       final metrics; it is written last, so a folder that has it is complete

All of them are checked when they are read: tensors by a digest in their file, the recipe, the metrics and the summary
by digests in the summary.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longtail._core.files import replacing, sync_file
from longtail._core.tensors_file import (
    load_tensors,
    pack_state,
    pack_text,
    save_tensors,
    unpack_state,
    unpack_text,
)
from longtail.errors import DamagedFileError
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.runs.rankings import RANKINGS, Rankings, training_prior
from longtail.prior import ClassPrior

__all__ = [
    "CHECKPOINT",
    "EMBEDDINGS",
    "PREDICTIONS",
    "Predictions",
    "Run",
    "append_metrics",
    "check_metrics",
    "drop_metrics_from",
    "environment",
    "find_runs",
    "label_runs",
    "load_run",
    "read_checkpoint",
    "save_embeddings",
    "seal_metrics",
    "write_checkpoint",
    "write_json",
    "write_summary",
]

CHECKPOINT, PREDICTIONS, EMBEDDINGS = (f"{name}.safetensors" for name in ("checkpoint", "predictions", "embeddings"))
SEALED_TEXTS = "recipe.toml", "metrics.jsonl"
"""Files of text whose digests are in the summary."""

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
        return training_prior(self.train_counts, self.num_train)

    @property
    def is_multilabel(self) -> bool:
        """Whether the data are multi-label: a sample may have any number of labels, or none."""
        return self.labels.ndim == 2

    def save(self, path: Path) -> None:
        """Write to ``path`` whole or not at all. Scores equal to the logits are not stored twice."""
        tensors = {
            "logits": torch.from_numpy(self.logits),
            "labels": torch.from_numpy(self.labels),
            "train_counts": torch.from_numpy(self.train_counts),
            "class_names": pack_text(self.class_names),
        }
        if self.weight_norms is not None:
            tensors["weight_norms"] = torch.from_numpy(self.weight_norms)
        if self.scores is not self.logits and not np.array_equal(self.scores, self.logits):
            tensors["scores"] = torch.from_numpy(self.scores)
        save_tensors(path, tensors, "predictions", {"num_train": self.num_train})

    @staticmethod
    def load(path: Path) -> Predictions:
        """Read what :meth:`save` wrote."""
        tensors, metadata = load_tensors(path, "predictions")
        names = unpack_text(tensors.pop("class_names"))
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return Predictions(
            logits=arrays["logits"],
            scores=arrays.get("scores", arrays["logits"]),
            labels=arrays["labels"],
            train_counts=arrays["train_counts"],
            class_names=names,
            weight_norms=arrays.get("weight_norms"),
            num_train=metadata["num_train"],
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
    results: Predictions | Rankings
    """Of the test set."""

    @property
    def predictions(self) -> Predictions:
        """What the model says of the test set; a run that ranks has rankings instead."""
        if not isinstance(self.results, Predictions):
            raise ValueError(
                f"{self.path} keeps the best labels of each sample, not all scores: see its metrics, not a page."
            )
        return self.results

    @property
    def is_ranked(self) -> bool:
        """Whether the run keeps the best labels of each sample, as of sequences and of very many labels."""
        return isinstance(self.results, Rankings)

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
        path = self.path / EMBEDDINGS
        if not path.is_file():
            return None
        tensors, metadata = load_tensors(path, "embeddings")
        train, test = (Split(tensors[f"{part}_inputs"], tensors[f"{part}_labels"]) for part in ("train", "test"))
        return Dataset(metadata["name"], train, test, unpack_text(tensors["class_names"]))

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics on the test set; a group without classes is not among them."""
        return dict(self.summary["metrics"])


def load_run(path: Path | str) -> Run:
    """Read a complete run folder."""
    path = Path(path)
    if not (path / "summary.json").is_file():
        raise FileNotFoundError(f"{path} is no complete run: it has no summary.json; train it, or resume it.")
    import tomllib

    try:
        summary = json.loads((path / "summary.json").read_bytes())
        if summary.pop("digest") != _digest_json(summary):
            raise DamagedFileError("summary.json does not fit its checksum")
        texts = {name: (path / name).read_bytes() for name in SEALED_TEXTS}
        for name, content in texts.items():
            if summary["digests"][name] != hashlib.sha256(content).hexdigest():
                raise DamagedFileError(f"{name} does not fit its checksum in summary.json")
        return Run(
            path=path,
            recipe=tomllib.loads(texts["recipe.toml"].decode()),
            summary=summary,
            history=[json.loads(line) for line in texts["metrics.jsonl"].splitlines()],
            results=_load_results(path),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: this run can't be read: {reason}; train it again with --restart.") from error


def _load_results(path: Path) -> Predictions | Rankings:
    rankings = path / RANKINGS
    return Rankings.load(rankings) if rankings.is_file() else Predictions.load(path / PREDICTIONS)


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


def write_checkpoint(path: Path, state: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write tensors and plain values, nested as a ``state_dict`` is, whole or not at all."""
    tensors, tree = pack_state(state)
    # A loss may keep NaN where something is undefined, such as the ratio of a class without positives.
    save_tensors(path, tensors, "checkpoint", {**metadata, "state": tree}, ("loss.", "learner.", "regularizer."))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What training saved after its last complete epoch, and the metadata."""
    try:
        tensors, metadata = load_tensors(path, "checkpoint")
        return unpack_state(tensors, metadata.pop("state")), metadata
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DamagedFileError(f"{path} can't be read: {reason}; train again with --restart.") from error


def save_embeddings(data: Dataset, path: Path) -> None:
    """Write embeddings, in place of the inputs of a data set, and labels."""
    tensors = {"class_names": pack_text(data.class_names)}
    for part, split in (("train", data.train), ("test", data.test)):
        assert isinstance(split.inputs, torch.Tensor)
        tensors |= {f"{part}_inputs": split.inputs, f"{part}_labels": split.labels}
    save_tensors(path, tensors, "embeddings", {"name": data.name})


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary with digests of itself and of the files of text, by which the run is complete."""
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in SEALED_TEXTS}
    sealed = {**summary, "digests": digests}
    write_json(folder / "summary.json", {**sealed, "digest": _digest_json(sealed)})


def _digest_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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


def seal_metrics(path: Path) -> str:
    """The digest of ``metrics.jsonl``, of which every line is on the disk."""
    sync_file(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_metrics(path: Path, epoch: int, digest: object) -> None:
    """Raise unless the lines before an epoch have the digest that ``seal_metrics`` gave for them."""
    if hashlib.sha256(_lines_before(path, epoch)).hexdigest() != digest:
        raise DamagedFileError(f"{path} does not fit the checkpoint beside it; train again with --restart.")


def drop_metrics_from(path: Path, epoch: int) -> None:
    """Drop the lines of epochs that a resumed run does again, and what a kill left of a line."""
    if path.exists():
        kept = _lines_before(path, epoch)
        with replacing(path) as file:
            file.write(kept)


def _lines_before(path: Path, epoch: int) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:epoch]) if path.exists() else b""


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
