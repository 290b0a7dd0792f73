"""The classes of a page, how often they occur, and the groups they form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longtail.lab.report.text import class_name, join_words
from longtail.lab.runs.folder import Predictions
from longtail.prior import ClassPrior

__all__ = ["FloatArray", "Group", "IntArray", "Labels"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FEWEST_SAMPLES = 20
"""A class with fewer test samples has no distribution worth drawing."""


@dataclass(frozen=True, eq=False)
class Group:
    """Classes that are measured together: of like frequency, or a single one."""

    key: str
    """head, torso or tail, or class-0, class-1, ...: fit for a key of HTML."""
    name: str
    """As text of others: not escaped."""
    classes: IntArray
    color: str
    """A name that the style sheet defines."""
    order: int
    """Its place, most frequent first: it decides the group's mark."""
    is_class: bool = False

    @property
    def place(self) -> str:
        """Where something is measured, as part of a sentence."""
        return f"on {self.name}" if self.is_class else f"in the {self.name}"

    @property
    def of_samples(self) -> str:
        """Whose samples, as part of a sentence."""
        return f"samples of {self.name}" if self.is_class else f"the {self.name}'s samples"


@dataclass(frozen=True, eq=False)
class Labels:
    """The classes, how often they occur, and the groups they form. The same for all runs of a page."""

    names: tuple[str, ...]
    counts: IntArray
    """[C] training samples."""
    test_counts: IntArray
    """[C] test samples."""
    groups: Mapping[str, Group]
    """By key: head, torso and tail, as far as they have classes; or every class, where they are few."""
    num_train: int
    """Training samples: the sum of the counts, unless the data is multi-label."""
    num_test: int
    is_multilabel: bool

    @staticmethod
    def of(predictions: Predictions, names_few: bool = True) -> Labels:
        """The labels of a run's data.

        Args:
            predictions: of the run.
            names_few: take every class as a group of its own where classes are few, or all in one group.
        """
        names, labels = predictions.class_names, predictions.labels
        is_multilabel = predictions.is_multilabel
        if names_few and not predictions.prior.has_useful_groups:
            groups = _group_by_name(names, predictions.train_counts)
        else:
            groups = _group_by_frequency(predictions.prior)
        return Labels(
            names=names,
            counts=predictions.prior.counts.numpy(),
            test_counts=labels.sum(axis=0) if is_multilabel else np.bincount(labels, minlength=len(names)),
            groups={group.key: group for group in groups},
            num_train=predictions.prior.num_samples,
            num_test=len(labels),
            is_multilabel=is_multilabel,
        )

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.names)

    @property
    def has_named_groups(self) -> bool:
        """Whether every group is a class."""
        return all(group.is_class for group in self.groups.values())

    def define_groups(self) -> str:
        """What the groups are, as a sentence; nothing where every group is a class."""
        if self.has_named_groups:
            return ""
        meaning = {"head": "100 or more", "torso": "20 to 99", "tail": "fewer than 20"}
        sizes = {key: len(group.classes) for key, group in self.groups.items()}
        words = {key: "1 class" if size == 1 else f"{size:,} classes" for key, size in sizes.items()}
        parts = [f"{key} {meaning[key]} ({words[key]})" for key in sizes]
        return f"Groups by training samples per class: {join_words(parts)}."

    @property
    def by_frequency(self) -> IntArray:
        """Class indices, most frequent first."""
        return _sort_by_frequency(self.counts)

    @property
    def prior(self) -> ClassPrior:
        """The prior to adjust with: smoothed only where a class has no samples."""
        prior = ClassPrior.from_counts(self.counts)
        return prior if self.counts.min() > 0 else prior.smoothed(1)

    def example(self, key: str) -> IntArray:
        """A class to stand for its group: the most frequent of the head, the middle one of the torso, the rarest of
        the tail, among classes with test samples enough. If none has enough, all classes of the group."""
        members = self.groups[key].classes
        is_member = np.isin(self.by_frequency, members)
        candidates = self.by_frequency[is_member & (self.test_counts[self.by_frequency] >= FEWEST_SAMPLES)]
        if not len(candidates):
            return members
        place = {"torso": len(candidates) // 2, "tail": -1}.get(key, 0)
        return candidates[[place]]

    def is_same_data(self, other: Labels) -> bool:
        """Whether both are of one data set."""
        arrays = ((self.counts, other.counts), (self.test_counts, other.test_counts))
        is_same_kind = self.names == other.names and self.is_multilabel == other.is_multilabel
        return is_same_kind and all(np.array_equal(one, two) for one, two in arrays)


def _group_by_frequency(prior: ClassPrior) -> list[Group]:
    found = enumerate(prior.groups().items())
    return [Group(name, name, classes.numpy(), name, place) for place, (name, classes) in found if len(classes)]


def _group_by_name(names: tuple[str, ...], counts: IntArray) -> list[Group]:
    groups: list[Group] = []
    for place, c in enumerate(_sort_by_frequency(counts).tolist()):
        name = class_name(names[c], most=40)
        is_taken = any(group.name == name for group in groups)
        shown = f"{name} ({c})" if is_taken else name
        groups.append(Group(f"class-{c}", shown, np.array([c]), f"method-{place}", place, is_class=True))
    return groups


def _sort_by_frequency(counts: IntArray) -> IntArray:
    return np.argsort(-counts, kind="stable")
