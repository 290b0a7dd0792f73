"""What the options of ``longtail adjust`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from longtail._core.files import check_output
from longtail._core.memory import memory_budget
from longtail.lab.cli._console import show_progress
from longtail.lab.data.formats.sources import Source, check_suffix, find_parts
from longtail.lab.data.formats.tables import ScoreFile, open_indicators, open_scores

__all__ = ["Request"]

SINGLE_LABEL = ("counts", "train_labels", "tau", "trained_with", "target_prior", "label", "smooth")
MULTILABEL = ("precision_floor", "thresholds")
"""Options that only one kind of labels has."""


@dataclass(frozen=True)
class Request:
    """The options, with the defaults that the command has."""

    scores: Sequence[Source]
    output: Path
    counts: Source | None = None
    train_labels: Source | None = None
    trained_with: str | None = None
    tau: str = "1.0"
    holdout_scores: Source | None = None
    holdout_labels: Source | None = None
    target_prior: str = "uniform"
    labels: Source | None = None
    label: str | None = None
    columns: str | None = None
    id_columns: tuple[str, ...] = ()
    probabilities: bool | None = None
    smooth: float = 0.0
    precision_floor: float | None = None
    thresholds: Path | None = None
    memory: float | None = None

    @property
    def budget(self) -> int:
        """Bytes that data may take."""
        return memory_budget(self.memory)

    def check_outputs(self, overwrite: bool) -> None:
        """Raise, before any work is done, where an output could not or should not be written."""
        for path in (self.output, *([] if self.thresholds is None else [self.thresholds])):
            check_suffix(path)
            check_output(path, overwrite)
        if self.thresholds is not None and self.thresholds.resolve() == self.output.resolve():
            raise ValueError(f"--thresholds must be another file than --output. Got {self.output} for both.")

    def check_kind(self, is_multilabel: bool) -> None:
        """Raise for options that are given and belong to the other kind of labels."""
        wrong = SINGLE_LABEL if is_multilabel else MULTILABEL
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        for name in given:
            if name in wrong:
                kind = "is for one label per sample, not for --multilabel" if is_multilabel else "needs --multilabel"
                raise ValueError(f"--{name.replace('_', '-')} {kind}.")

    def open_scores(self, sources: Sequence[Source]) -> ScoreFile:
        """Scores of files, with the label column if they have it."""
        num_bytes = sum(part.size for part in find_parts(sources))
        with show_progress("Reading columns", num_bytes) as progress:
            return open_scores(sources, self.columns, self.id_columns, self.label, self.budget, progress)

    def check_scale(self, scores: ScoreFile) -> None:
        """Raise where nothing is said about the scores, and the first ones are what logits hardly ever are."""
        if self.probabilities is not None:
            return
        values = next(iter(scores.batches())).values
        if len(values) > 1 and values.min() >= 0 and 0 < values.max() <= 1:
            raise ValueError(
                f"{scores.name}: all scores are between 0 and 1; add --probabilities, or --logits if they are logits."
            )

    def open_indicators(self, source: Source) -> ScoreFile:
        """Labels of a file as 0 and 1."""
        return open_indicators(source, self.columns, self.id_columns, self.budget)
