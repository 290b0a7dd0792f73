"""The reader of the extreme-classification repository's text format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from longtail._core import sparse_parts
from longtail.lab.data.formats import sparse_text
from longtail.lab.data.formats.sparse_text import SparseSamples, one_per_positive, read_sparse_file


def written(folder: Path, content: str) -> Path:
    path = folder / "data.txt"
    path.write_bytes(content.encode())
    return path


def by_lines(content: str) -> tuple[np.ndarray, np.ndarray]:
    """The reference: dense features and labels, one number after the other."""
    header, *lines = content.split("\n")
    num_samples, num_features, num_labels = map(int, header.split())
    features = np.zeros((num_samples, num_features), dtype=np.float32)
    labels = np.zeros((num_samples, num_labels), dtype=bool)
    for row, line in enumerate(lines[:num_samples]):
        for word in line.split():
            if ":" in word:
                column, value = word.split(":")
                features[row, int(column)] += np.float32(float(value))
            else:
                labels[row, [int(label) for label in word.split(",")]] = True
    return features, labels


VALUES = st.one_of(
    st.sampled_from(["1", "0", "-1", "0.5", "-.25", "5.", "+3", "1e-3", "-2.5E+2", "0.1234567890123456789", "007"]),
    st.floats(-1e6, 1e6, width=32).map(repr),
    st.floats(-10, 10).map(lambda value: f"{value:.6f}"),
)


@st.composite
def contents(draw: st.DrawFn) -> str:
    num_samples, num_features, num_labels = (draw(st.integers(1, high)) for high in (6, 1200, 30))
    lines = [f"{num_samples} {num_features} {num_labels}"]
    for _ in range(num_samples):
        labels = draw(st.lists(st.integers(0, num_labels - 1), max_size=4))
        columns = draw(st.lists(st.integers(0, num_features - 1), max_size=4, unique=True))
        pairs = [f"{column}:{draw(VALUES)}" for column in columns]
        lines.append(" ".join([",".join(map(str, labels)), *pairs]))
    ends = ["\n", "\n\n \n"] + [""] * bool(lines[-1])  # an empty sample at the end is one by its line end alone
    return "\n".join(lines) + draw(st.sampled_from(ends))


@settings(deadline=None, max_examples=150)
@given(contents(), st.sampled_from([3, 17, 2**17]), st.sampled_from([5, 40, 2**17]))
def test_equals_a_loop_over_lines(
    tmp_path_factory: pytest.TempPathFactory, content: str, chunk: int, block: int
) -> None:
    path = written(tmp_path_factory.mktemp("file"), content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_parts, "CHUNK", chunk)
        patch.setattr(sparse_parts, "BLOCK", block)
        samples = read_sparse_file(path)
    features, labels = by_lines(content)
    np.testing.assert_allclose(samples.features.toarray(), features, rtol=1.2e-7)
    np.testing.assert_array_equal(samples.labels.toarray(), labels)
    assert samples.features.dtype == np.float32
    assert samples.labels.dtype == np.bool_


def test_values_of_few_digits_are_exact(tmp_path: Path) -> None:
    numbers = [f"{value:.7f}" for value in np.random.default_rng(0).random(2000)]
    path = written(tmp_path, "1 2000 1\n0 " + " ".join(f"{i}:{number}" for i, number in enumerate(numbers)))
    expected = np.array([float(number) for number in numbers], dtype=np.float32)
    np.testing.assert_array_equal(read_sparse_file(path).features.toarray()[0], expected)


def test_samples_without_labels_or_features_are_empty_rows(tmp_path: Path) -> None:
    samples = read_sparse_file(written(tmp_path, "4 3 3\n 1:2\n2\n\n0:1\n"))
    assert samples.labels.toarray().astype(int).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert samples.features.toarray().tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert len(samples) == 4


def test_repeated_labels_count_once_and_repeated_features_add_up(tmp_path: Path) -> None:
    samples = read_sparse_file(written(tmp_path, "1 2 2\n1,0,1 1:2 0:1 1:3\n"))
    assert samples.labels.toarray().tolist() == [[True, True]]
    assert samples.features.toarray().tolist() == [[1, 5]]


def test_line_ends_and_spaces_of_other_systems(tmp_path: Path) -> None:
    samples = read_sparse_file(written(tmp_path, "2 3 3\r\n0,1 \t1:2  2:1 \r\n  2 0:1\r\n"))
    assert samples.labels.toarray().astype(int).tolist() == [[1, 1, 0], [0, 0, 1]]
    assert samples.features.toarray().tolist() == [[0, 2, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must begin with its numbers of samples, features and labels. Got ''"),
        ("0,2 1:1\n", "must begin with its numbers"),
        ("3 4\n", "must begin with its numbers"),
        ("1 -4 2\n", "must begin with its numbers"),
        ("1 99999999999999999999999 2\n", "must begin with its numbers"),
        ("0 4 2\n", "samples must be at least 1"),
        ("1 4 3000000000\n", "features and labels in 1..2147483647"),
        ("3 4 2\n0 1:1\n1 2:1\n", "must have 3 samples, as its first line says. Got 2 lines after it"),
        ("3 4 2\n", "Got 0 lines after it"),
        ("1 4 2\n0 1:1\n1 2:1\n", "must have 1 samples, as its first line says. Got 2 lines"),
        ("2 4 2\n0 1:1\n2 2:1\n", r"line 3: indices of labels must be in 0..1, as the first line says. Got '2 2:1'"),
        ("1 4 2\n0 1:1 4:1\n", "line 2: indices of features must be in 0..3"),
        ("1 4 2\n0 99999999999999999999:1\n", "indices of features must be in 0..3"),
        ("1 4 2\n-1 1:1\n", "line 2: indices of labels and features must be whole numbers"),
        ("1 4 2\n0 1.0:1\n", "must be whole numbers of at least 0"),
        ("1 4 2\n0 1:nan\n", "not 'n'"),
        ("1 4 2\n0 1:1e999\n", "values must be finite numbers. Got '0 1:1e999'"),
        ("1 4 2\n0 1:1e39\n", "values must be finite numbers"),
        ("1 4 2\n0 1:1.2.3\n", "values must be finite numbers"),
        ("1 4 2\n0 1:-\n", "values must be finite numbers"),
        ("1 4 2\n0 1:.\n", "values must be finite numbers"),
        ("1 4 2\n0 1:\n", "line 2: labels must come first"),
        ("1 4 2\n0 1\n", "features be index:value"),
        ("1 4 2\n0 :1\n", "features be index:value"),
        ("1 4 2\n0 1:2:3\n", "features be index:value"),
        ("1 4 2\n0,1:2\n", "with single commas between"),
        ("1 4 2\n0,,1 1:2\n", "with single commas between"),
        ("1 4 2\n0, 1:2\n", "with single commas between"),
        ("1 4 2\n,0 1:2\n", "with single commas between"),
        ("1 4 2\n0 1:2 1\n", "labels must come first"),
        ("1 4 2\n0 1:2,1\n", "labels must come first"),
        ("1 4 2\n0 1:2\x00\n", "not '\\\\x00'"),
        ("1 4 2\n0 1:2\u00e9\n", "there must be numbers, commas and colons alone"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_sparse_file(written(tmp_path, content))
    assert "data.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_line_numbers_go_on_from_chunk_to_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_parts, "CHUNK", 16)
    content = "9 4 2\n" + "0 1:1\n" * 7 + "0 7:1\n1 2:1\n"
    with pytest.raises(ValueError, match=r"line 9: .* Got '0 7:1'"):
        read_sparse_file(written(tmp_path, content))


def test_packed_and_cut_off_files(tmp_path: Path) -> None:
    path = tmp_path / "data.txt.gz"
    packed = gzip.compress(b"1 4 2\n0 1:2\n")
    path.write_bytes(packed)
    assert read_sparse_file(path).features.toarray().tolist() == [[0, 2, 0, 0]]
    path.write_bytes(packed[:-6])
    with pytest.raises(ValueError, match="must be a complete gzip file"):
        read_sparse_file(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_sparse_file(tmp_path / "absent.txt")


def test_cache_is_used_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = written(tmp_path, "1 4 2\n0 1:2\n"), tmp_path / "made" / "cache"
    first = read_sparse_file(path, cache)
    with monkeypatch.context() as patch:
        patch.setattr(sparse_text, "_parse_file", lambda path: pytest.fail("the file was read again"))
        again = read_sparse_file(path, cache)
    for name in ("features", "labels"):
        np.testing.assert_array_equal(getattr(again, name).toarray(), getattr(first, name).toarray())
        assert getattr(again, name).dtype == getattr(first, name).dtype
    written(tmp_path, "1 4 2\n1 1:2 3:1\n")
    assert read_sparse_file(path, cache).labels.toarray().tolist() == [[False, True]]
    assert all(file.suffix == ".npz" for file in cache.iterdir())


@pytest.mark.parametrize("damage", ["cut", "other", "indices"])
def test_a_damaged_cache_is_read_anew(tmp_path: Path, damage: str) -> None:
    path, cache = written(tmp_path, "1 4 2\n0 1:2\n"), tmp_path / "cache"
    read_sparse_file(path, cache)
    kept = next(cache.iterdir())
    if damage == "cut":
        kept.write_bytes(kept.read_bytes()[:100])
    elif damage == "other":
        np.savez(kept, something=np.zeros(1))
    else:
        with np.load(kept) as arrays:
            changed = dict(arrays)
        np.savez(kept, **{**changed, "labels_indices": np.array([7], dtype=np.int32)})
    assert read_sparse_file(path, cache).labels.toarray().tolist() == [[True, False]]


def test_one_example_for_each_positive() -> None:
    samples, targets = one_per_positive(csr_array(np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)))
    assert samples.tolist() == [0, 0, 2]
    assert targets.tolist() == [1, 2, 0]
    with_explicit_zero = csr_array(([True, False], [0, 1], [0, 2]), shape=(1, 2))
    assert one_per_positive(with_explicit_zero)[1].tolist() == [0]


def test_features_and_labels_have_one_length() -> None:
    with pytest.raises(ValueError, match=r"must have one length\. Got 2 and 3"):
        SparseSamples(csr_array((2, 4)), csr_array((3, 4)))
