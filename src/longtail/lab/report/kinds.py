"""The two kinds of labels behind one protocol, chosen once from the runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from longtail.lab.report import multilabel, single_label
from longtail.lab.report.blocks import Column, Section
from longtail.lab.report.digests.base import (
    Comparison,
    Digest,
    MethodResults,
    check_predictions,
    sort_into_methods,
)
from longtail.lab.report.digests.labels import Labels
from longtail.lab.runs.folder import Run

__all__ = ["LabelKind", "choose_kind", "compare"]


class LabelKind(Protocol):
    """What a page has to know of one kind of labels. The modules ``single_label`` and ``multilabel`` are such."""

    MAIN_METRIC: str
    """What methods are ranked by."""
    MAIN_NAME: str
    """The same in words."""

    def digest_run(self, run: Run, labels: Labels) -> Digest:
        """Reduce a run to what the page shows."""
        ...

    def gather_runs(self, label: str, runs: tuple[Any, ...]) -> MethodResults[Any]:
        """The runs of one method."""
        ...

    def list_columns(self, labels: Labels) -> list[Column]:
        """The columns of the table of methods."""
        ...

    def find_changes(self, comparison: Comparison[Any]) -> dict[str, float]:
        """What the best method adds to what, against the reference: rarest first."""
        ...

    def describe_levels(self, comparison: Comparison[Any]) -> list[str]:
        """Sentences about a method that is alone."""
        ...

    def build_sections(self, comparison: Comparison[Any]) -> list[Section]:
        """The sections of the page; those without blocks are left out."""
        ...


def choose_kind(labels: Labels) -> LabelKind:
    """The kind of these labels."""
    return multilabel if labels.is_multilabel else single_label


def compare(runs: Iterable[Run]) -> Comparison[Any]:
    """Digest runs one by one, and sort them into methods. Raises if they do not belong on one page."""
    labels: Labels | None = None
    digests: list[Digest] = []
    for run in runs:
        check_predictions(run.path, run.predictions)
        its_labels = Labels.of(run.predictions)
        labels = labels or its_labels
        if not labels.is_same_data(its_labels):
            raise ValueError(
                f"runs must be of the same data. {run.path} has other classes, class counts or test samples than "
                f"{digests[0].path}; report them apart."
            )
        digests.append(choose_kind(labels).digest_run(run, labels))
    if labels is None:
        raise ValueError("a report needs at least one run. Got none.")
    kind = choose_kind(labels)
    methods = tuple(kind.gather_runs(label, same) for label, same in sort_into_methods(digests))
    return Comparison(labels, methods, kind.MAIN_METRIC)
