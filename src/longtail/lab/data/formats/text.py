"""Labeled text from tables, as n-gram features."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._core.memory import memory_budget
from longtail.datasets import stratified_holdout
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.locate import PathLike, locate_path
from longtail.lab.data.sparse_rows import SparseRows

__all__ = [
    "Texts",
    "hashed_ngrams",
    "label_codes",
    "load_text_table",
    "parse_json",
    "read_text_table",
    "tfidf_ngrams",
]


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """Texts to train on and others to test on, before their words are counted."""

    name: str
    train_texts: Sequence[str]
    train_labels: Tensor
    """[N] int64, or [N, C] bool for multi-label texts."""
    test_texts: Sequence[str]
    test_labels: Tensor
    class_names: tuple[str, ...]


def hashed_ngrams(texts: Texts, num_features: int = 2**18, max_words: int = 2) -> Dataset:
    """Sparse features without a vocabulary: every run of words is hashed to one of ``num_features`` columns.

    Args:
        texts: what a reader gave.
        num_features: columns; fewer save memory, and more runs of words then share a column.
        max_words: count single words and runs of up to this many words.

    Returns:
        Rows of length 1 (Euclidean); test words that training lacks are hashed as well.

    >>> labels = torch.tensor([0, 1])
    >>> texts = Texts("example", ["good dog", "bad cat"], labels, ["good cat", "dog"], labels, ("yes", "no"))
    >>> hashed_ngrams(texts, num_features=1024).train.inputs.offsets.tolist()
    [0, 3, 6]
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(n_features=num_features, ngram_range=(1, max_words))
    return _make_dataset(texts, vectorizer.transform(texts.train_texts), vectorizer.transform(texts.test_texts))


def tfidf_ngrams(texts: Texts, max_features: int | None = None, max_words: int = 2) -> Dataset:
    """Sparse features over the vocabulary of the training texts, where a word that is in most texts counts little.

    Args:
        texts: what a reader gave.
        max_features: keep the most frequent ones; None keeps all.
        max_words: count single words and runs of up to this many words.

    Returns:
        Rows of length 1 (Euclidean). Vocabulary and document frequencies come from the training texts alone, so a
        test text without a known word is an empty row.

    >>> labels = torch.tensor([0, 1])
    >>> texts = Texts("example", ["good dog", "bad cat"], labels, ["good cow", "cow"], labels, ("yes", "no"))
    >>> data = tfidf_ngrams(texts)
    >>> data.input_shape, data.test.inputs.offsets.tolist()
    ((6,), [0, 1, 1])
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(max_features=max_features, ngram_range=(1, max_words))
    return _make_dataset(texts, vectorizer.fit_transform(texts.train_texts), vectorizer.transform(texts.test_texts))


def load_text_table(
    train: str,
    test: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    max_words: int = 2,
) -> Dataset:
    """A CSV or Parquet table with a text column, as TF-IDF of words and runs of words."""
    return tfidf_ngrams(read_text_table(train, test, text_column, label_column), max_words=max_words)


def read_text_table(
    train: PathLike,
    test: PathLike | None = None,
    text_column: str = "text",
    label_column: str = "label",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Texts:
    """Texts of a CSV or Parquet table with a column of texts and one of labels.

    Args:
        train: the table; ``.parquet``, or CSV with commas (``.tsv``: tabs), a header line, and ``.gz`` if packed.
        test: the table to test on; None holds out part of every class.
        text_column: name of the column with the texts.
        label_column: name of the column with the labels; a label's text is its class's name.
        test_fraction: share of each class to hold out where there is no test table.
        seed: chooses what is held out.
    """
    train_texts, train_labels = _read_columns(locate_path(train), text_column, label_column)
    class_names = _sort_names(train_labels)
    index = {name: c for c, name in enumerate(class_names)}
    labels = torch.tensor([index[label] for label in train_labels])
    name = Path(train).name.partition(".")[0]
    if test is not None:
        test_texts, test_names = _read_columns(locate_path(test), text_column, label_column)
        test_labels = torch.tensor(label_codes(test_names, index, str(test)))
        return Texts(name, train_texts, labels, test_texts, test_labels, class_names)
    kept, held = stratified_holdout(labels, test_fraction, seed)
    if not len(held):
        raise ValueError(f"{train} must have a class with two texts or more to hold out a test set. Got none.")
    return Texts(
        name,
        [train_texts[i] for i in kept.tolist()],
        labels[kept],
        [train_texts[i] for i in held.tolist()],
        labels[held],
        class_names,
    )


def _make_dataset(texts: Texts, train: Any, test: Any) -> Dataset:
    return Dataset(
        texts.name,
        Split(SparseRows.from_scipy(train), texts.train_labels),
        Split(SparseRows.from_scipy(test), texts.test_labels),
        texts.class_names,
    )


def _read_columns(path: Path, text_column: str, label_column: str) -> tuple[list[str], list[str]]:
    """Texts and labels, row by row; a row that lacks one is an error with its number."""
    if not path.is_file():
        raise FileNotFoundError(f"Texts were not found: there is no file {path}.")
    table = _read_table(path, text_column, label_column)
    columns = []
    for name in (text_column, label_column):
        values = table.column(name).to_pylist()
        empty = next((i for i, value in enumerate(values) if value is None or value == ""), None)
        if empty is not None:
            raise ValueError(f"{path}, row {empty + 1}: the column {name!r} must not be empty.")
        columns.append([str(value) for value in values])
    if not columns[0]:
        raise ValueError(f"{path} must have rows. Got none.")
    return columns[0], columns[1]


def _read_table(path: Path, text_column: str, label_column: str) -> Any:
    try:
        import pyarrow

        from longtail.lab.data.formats.sources import find_parts
        from longtail.lab.data.formats.table_files import open_table, read_columns
    except ImportError as error:
        raise ImportError("Tables need pyarrow, which is not installed: pip install 'longtail[lab]'.") from error
    budget = memory_budget()
    table = open_table(find_parts(path), budget)
    for name in (text_column, label_column):
        if name not in table.names:
            raise ValueError(f"{path}: there is no column {name!r}. It has: {', '.join(table.names)}.")
    # Of a CSV, "1.0" and "007" must not become numbers, and lose their spelling.
    wanted = [*dict.fromkeys((text_column, label_column))]
    return read_columns(table, wanted, dict.fromkeys(wanted, pyarrow.string()), budget)


def _sort_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: by value where all are whole numbers, else by letter."""
    names = set(labels)
    are_numbers = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name)) if are_numbers else sorted(names))


def label_codes(names: Sequence[str], index: dict[str, int], where: str) -> list[int]:
    """The code of each name; one that is not in the index is an error that says where."""
    for row, name in enumerate(names, start=1):
        if name not in index:
            raise ValueError(f"{where}, test row {row}: the label must occur in the training texts. Got {name!r}.")
    return [index[name] for name in names]


def parse_json(content: str | bytes, where: str) -> Any:
    """Parsed JSON; what is none is an error that says where."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: must be JSON. Got: {error}.") from error
