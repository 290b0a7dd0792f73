"""The data sets of ``extreme.py``: where each is read from, how it is split, and which were looked at in development.

Below the folder that is given (default: LONGTAIL_DATA), in the publishers' layouts:

    delicious/{train,test}.txt.gz             Delicious, its own split
    multilabel/rcv1sub1.txt.gz                RCV1 subset 1: two thirds to train on, drawn with seed 0
    multilabel/corel5k_{train,test}.txt.gz    Corel5k, its own split
    multilabel/tmc2007_500_{train,test}.txt.gz    TMC2007-500, its own split
    eurlex57k_{train,test}.txt                EURLEX57K: counts of 5,000 words
    reuters90/reuters90.jsonl.gz              Reuters-21578, ModApte, 90 topics: text, as counts of words
    clinc150/data_imbalanced.json.gz          CLINC150, imbalanced: one intent per text, as counts of words
    debian/packages.txt                       Debian 12: words of a package's description and what it depends on ->
                                              its tags (role::program, ...); two thirds of the source packages to
                                              train on, drawn with seed 0. On Debian, as root (some minutes):
                                              apt-get update -o Acquire::Languages=en
                                              apt-cache -o Acquire::Languages=en search --full . > packages.txt
                                              dependencies: name, section and description -> the packages it depends
                                              on, those that three or more of the training packages do; two ninths
                                              of the source packages to train on, half as many to test on
    sequences/toys.txt.gz                     Amazon Toys: items bought before -> the last one

Texts become counts of words that occur in at least two training texts. Every model gets the counts or, where that is
better for it, rows of tf-idf of length 1: ``extreme_peers.py`` says which.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

from longtail.lab.data.formats.sparse_text import read_sparse_file
from longtail.lab.data.locate import data_root

DEVELOPED_ON = ("delicious", "tmc2007", "reuters90")
"""Defaults were chosen on held-out parts of the training samples of these; the others confirm. How much rare labels
lean on class means was chosen on such parts of more sets: docs/extreme-results.md says which."""


class Problem(NamedTuple):
    """Samples to train on and to test on."""

    features: Any
    labels: Any
    test_features: Any
    test_labels: Any


def read_problem(name: str, root: Path | None = None) -> Problem:
    """One of ``READERS``; test labels that no training sample has are kept, and nobody can find them."""
    return READERS[name](Path(data_root(root)))


def select_held_out(problem: Problem, share: float, seed: int) -> Problem:
    """A part of the training samples as test samples, to choose settings on."""
    order = np.random.default_rng(seed).permutation(problem.features.shape[0])
    cut = round(share * len(order))
    held_out, kept = np.sort(order[:cut]), np.sort(order[cut:])
    return Problem(problem.features[kept], problem.labels[kept], problem.features[held_out], problem.labels[held_out])


def _read_files(train: str, test: str) -> Callable[[Path], Problem]:
    def read(root: Path) -> Problem:
        parts = [read_sparse_file(_find(root, name)) for name in (train, test)]
        return Problem(parts[0].features, parts[0].labels, parts[1].features, parts[1].labels)

    return read


def _read_rcv1(root: Path) -> Problem:
    whole = read_sparse_file(_find(root, "multilabel/rcv1sub1.txt"))
    return select_held_out(Problem(whole.features, whole.labels, None, None), 1 / 3, seed=0)


def _read_reuters(root: Path) -> Problem:
    with gzip.open(root / "reuters90/reuters90.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    parts = [[row for row in rows if row["split"] == split] for split in ("train", "test")]
    return _count_words(*(([row["text"] for row in part], [row["labels"] for row in part]) for part in parts))


def _read_clinc(root: Path) -> Problem:
    with gzip.open(root / "clinc150/data_imbalanced.json.gz", "rt", encoding="utf-8") as file:
        content = json.load(file)
    parts = [content["train"], content["test"]]
    return _count_words(*(([text for text, _ in part], [[intent] for _, intent in part]) for part in parts))


def _read_packages(root: Path, needed: str) -> Iterator[dict[str, str]]:
    for record in (root / "debian/packages.txt").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(part.split(":", 1) for part in re.split(r"\n(?! )", record) if ":" in part)
        if needed in fields:
            yield fields


def _name_source(fields: dict[str, str]) -> str:
    return fields.get("Source", fields["Package"]).split()[0]  # without a version behind it


def _read_dependencies(root: Path) -> Problem:
    texts, needs, sources = [], [], []
    for fields in _read_packages(root, "Depends"):
        texts.append(" ".join(fields.get(name, "") for name in ("Package", "Section", "Description-en")))
        names = re.split(r"[,|]", re.sub(r"\([^)]*\)", "", fields["Depends"]))  # without versions in brackets
        needs.append(sorted({name.strip().split(":")[0] for name in names if name.strip()}))
        sources.append(_name_source(fields))
    found, of_source = np.unique(sources, return_inverse=True)
    place = (np.random.default_rng(0).permutation(len(found)) / len(found))[of_source]
    parts = [np.flatnonzero(place < 2 / 9), np.flatnonzero((place >= 2 / 9) & (place < 1 / 3))]
    counts = Counter(name for i in parts[0] for name in needs[i])
    kept = [[name for name in row if counts[name] >= 3] for row in needs]
    return _count_words(*(([texts[i] for i in part], [kept[i] for i in part]) for part in parts))


def _read_debian(root: Path) -> Problem:
    texts, tags, sources = [], [], []
    for fields in _read_packages(root, "Tag"):
        words = [fields.get(name, "") for name in ("Package", "Description-en", "Pre-Depends", "Depends")]
        texts.append(re.sub(r"\([^)]*\)", "", " ".join(words)))  # without versions in brackets
        tags.append([tag.strip() for tag in fields["Tag"].split(",")])
        sources.append(_name_source(fields))
    names, of_source = np.unique(sources, return_inverse=True)
    is_tested = (np.random.default_rng(0).permutation(len(names)) < round(len(names) / 3))[of_source]
    parts = [np.flatnonzero(is_tested == chosen) for chosen in (False, True)]
    return _count_words(*(([texts[i] for i in part], [tags[i] for i in part]) for part in parts))


def _read_toys(root: Path) -> Problem:
    with gzip.open(root / "sequences/toys.txt.gz", "rt", encoding="utf-8") as file:
        users = [[int(item) for item in line.split()[1:]] for line in file]
    size = max(map(max, users)) + 1
    # As leave-one-out does: the last item is tested on, the one before it is trained on.
    before = [_indicator([user[:end] for user in users], size, np.float32) for end in (-2, -1)]
    last = [_indicator([user[place : place + 1 or None] for user in users], size, np.bool_) for place in (-2, -1)]
    return Problem(before[0], last[0], before[1], last[1])


def _count_words(train: tuple[Sequence[str], Any], test: tuple[Sequence[str], Any]) -> Problem:
    words, names = CountVectorizer(min_df=2, dtype=np.float32), MultiLabelBinarizer(sparse_output=True)
    names.fit([*train[1], *test[1]])  # labels that no training sample has are kept
    features, labels = csr_array(words.fit_transform(train[0])), csr_array(names.transform(train[1]))
    return Problem(features, labels, csr_array(words.transform(test[0])), csr_array(names.transform(test[1])))


def _indicator(rows: list[list[int]], width: int, dtype: Any) -> Any:
    lengths = np.array([len(row) for row in rows])
    columns = np.array([item for row in rows for item in row], dtype=np.int32)
    matrix = csr_array(
        (np.ones(len(columns), dtype), columns, np.concatenate([[0], lengths.cumsum()])), shape=(len(rows), width)
    )
    matrix.sum_duplicates()
    return matrix


def _find(root: Path, name: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{root / name}[.gz] must be there; the head of extreme_sets.py says what is read.")


READERS: dict[str, Callable[[Path], Problem]] = {
    "delicious": _read_files("delicious/train.txt", "delicious/test.txt"),
    "rcv1": _read_rcv1,
    "corel5k": _read_files("multilabel/corel5k_train.txt", "multilabel/corel5k_test.txt"),
    "tmc2007": _read_files("multilabel/tmc2007_500_train.txt", "multilabel/tmc2007_500_test.txt"),
    "eurlex57k": _read_files("eurlex57k_train.txt", "eurlex57k_test.txt"),
    "reuters90": _read_reuters,
    "clinc150": _read_clinc,
    "debian": _read_debian,
    "dependencies": _read_dependencies,
    "toys": _read_toys,
}
"""Every data set by its name."""
