"""What a trained model recommends to the users of the test set, as a run folder keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from longtail._core.tensors_file import load_tensors, pack_text, save_tensors, unpack_text
from longtail.prior import ClassPrior

__all__ = ["RECOMMENDATIONS", "Recommendations"]

RECOMMENDATIONS = "recommendations.safetensors"


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best items of each sequence of the test set, in place of the scores of all items."""

    items: Tensor
    """[N, k] int64, best first."""
    scores: Tensor
    """[N, k] float32; minus infinity where what was there before is left out, and nothing else is left."""
    labels: Tensor
    """[N] int64, the item that came next."""
    train_counts: Tensor
    """[C] int64, how often each item is a label in training."""
    class_names: tuple[str, ...]
    """Of the items."""

    @property
    def prior(self) -> ClassPrior:
        """The counts of the training data."""
        return ClassPrior.from_counts(self.train_counts)

    def save(self, path: Path) -> None:
        """Write to ``path`` whole or not at all."""
        tensors = {name: getattr(self, name) for name in ("items", "scores", "labels", "train_counts")}
        tensors["class_names"] = pack_text(self.class_names)
        save_tensors(path, tensors, "recommendations", {}, not_finite=("scores",))

    @staticmethod
    def load(path: Path) -> Recommendations:
        """Read what :meth:`save` wrote."""
        tensors, _ = load_tensors(path, "recommendations")
        return Recommendations(class_names=unpack_text(tensors.pop("class_names")), **tensors)
