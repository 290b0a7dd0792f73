"""Batches from files: every sample once a pass, each process its own parts, and resumed at any step."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.sampling import FileBatches, files

NUM_SAMPLES = 60


def write_text(path, num_samples=NUM_SAMPLES, end="\n"):
    """Sample i has feature i of value i / 2, the label i % 7, and for every third one the label 7 too."""
    lines = [f"{i % 7}{',7' if i % 3 == 0 else ''} {i}:{i / 2:g}" for i in range(num_samples)]
    path.write_text(f"{num_samples} {num_samples} 8\n" + "\n".join(lines) + end)
    return path


def write_parquet(folder, num_samples=NUM_SAMPLES):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(num_samples), 3)):
        columns = {
            "labels": [[i % 7, 7] if i % 3 == 0 else [i % 7] for i in rows],
            "features": [[i] for i in rows],
            "values": [[i / 2] for i in rows],
        }
        parquet.write_table(pyarrow.table(columns), folder / f"part{number}.parquet", row_group_size=7)
    return folder


@pytest.fixture(params=["text", "parquet"])
def path(request, tmp_path):
    return write_text(tmp_path / "a.txt") if request.param == "text" else write_parquet(tmp_path / "a")


def samples_of(batch):
    """The numbers of a batch's samples, after a look at all that they have."""
    numbers = batch.columns.tolist()
    assert batch.offsets.tolist() == list(range(len(numbers) + 1))
    assert batch.values.tolist() == [number / 2 for number in numbers]
    for number, target in zip(numbers, batch.target.tolist(), strict=True):
        assert [label for label in target if label != -100] == ([number % 7, 7] if number % 3 == 0 else [number % 7])
    return numbers


def take(path, num_steps, start=0, num_processes=1, **options):
    """Each step's samples of all processes, one process after the other."""
    options = {"batch_size": 12, "num_parts": 4, "block_size": 4} | options
    readers = [
        FileBatches(path, num_replicas=num_processes, rank=rank, **options).start_at(start)
        for rank in range(num_processes)
    ]
    return [[n for reader in readers for n in samples_of(next(reader))] for _ in range(num_steps)]


def test_a_pass_has_every_sample_once_in_a_new_order(path):
    steps = take(path, 10, seed=1)
    first, second = (sorted(n for step in part for n in step) for part in (steps[:5], steps[5:]))
    if path.is_dir():  # parts of equally many rows
        assert first == second == list(range(NUM_SAMPLES))
    assert steps[:5] != steps[5:]
    assert steps != take(path, 10, seed=2)
    assert steps == take(path, 10, seed=1)


@pytest.mark.parametrize("num_processes", [2, 4])
def test_the_samples_of_a_step_do_not_depend_on_the_number_of_processes(path, num_processes):
    assert take(path, 12, num_processes=num_processes) == take(path, 12)


@pytest.mark.parametrize("start", [1, 3, 5, 11, 26])
def test_any_step_can_be_the_first(path, start):
    assert take(path, 4, start) == take(path, 30)[start : start + 4]


def test_a_process_reads_only_its_own_bytes(tmp_path, monkeypatch):
    path, read = write_text(tmp_path / "a.txt"), []
    original = files._TextSource.read
    monkeypatch.setattr(
        files._TextSource, "read", lambda source, block: read.append(block) or original(source, block)
    )
    reader = FileBatches(path, 12, num_parts=4, block_size=4, num_replicas=4, rank=2)
    seen = {number for batch in islice(reader.start_at(0), 40) for number in samples_of(batch)}
    assert 10 < len(seen) < 20
    assert max(seen) - min(seen) == len(seen) - 1
    assert min(block.start for block in read) > path.stat().st_size * 0.4
    assert max(block.end for block in read) < path.stat().st_size * 0.8


@settings(max_examples=25, deadline=None)
@given(
    num_samples=st.integers(4, 40),
    num_parts=st.integers(1, 4),
    block_size=st.integers(1, 9),
    end=st.sampled_from(["\n", "", "\n\n", "\r\n"]),
    small=st.integers(3, 40),
)
def test_parts_of_a_text_file_have_each_line_once(tmp_path_factory, num_samples, num_parts, block_size, end, small):
    path = write_text(tmp_path_factory.mktemp("text") / "a.txt", num_samples, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", small)
        reader = FileBatches(path, num_parts, num_parts=num_parts, block_size=block_size)
        blocks = [block for part in range(num_parts) for block in reader._blocks[part]]
        found = [n for block in blocks for n in reader._source.read(block).features.indices.tolist()]
    assert found == list(range(num_samples))
    assert all(block.num_samples <= block_size for block in blocks)


def share(rank, path):
    batches = FileBatches(path, 12, num_parts=4, block_size=4)
    try:
        FileBatches(path.with_name("cut.txt"), 12, num_parts=4)
        message = ""
    except ValueError as error:
        message = str(error)
    try:
        list(islice(FileBatches(path.with_name("bad.txt"), 12, num_parts=4).start_at(0), 10))
    except ValueError as error:
        message += str(error)
    return [samples_of(batch) for batch in islice(batches.start_at(3), 4)], message


def test_two_processes_read_as_one_does(tmp_path, two_processes):
    """They tell each other how many samples they have: a file that is cut off is found, and a line's number."""
    path = write_text(tmp_path / "a.txt")
    (tmp_path / "cut.txt").write_text(path.read_text()[:-30])
    lines = path.read_text().splitlines()
    lines[50] = "x 1:1"
    (tmp_path / "bad.txt").write_text("\n".join(lines))
    (first, cut), (second, bad) = two_processes(share, path)
    assert [a + b for a, b in zip(first, second, strict=True)] == take(path, 4, 3)
    assert "cut.txt must have 60 samples, as its first line says. Got 5" in cut
    assert "bad.txt, line 51: " in bad


def test_what_batches_can_not_be_made_of(tmp_path, path):
    with pytest.raises(ValueError, match="num_parts must be a multiple of the number of processes"):
        FileBatches(path, 12, num_parts=3, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match=r"batch_size one of num_parts\. Got 4 parts, 1 processes and 6 samples"):
        FileBatches(path, 6, num_parts=4)
    with pytest.raises(ValueError, match="must be unpacked"):
        FileBatches(tmp_path / "a.txt.gz", 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must have files that end with \.parquet"):
        FileBatches(tmp_path / "empty", 4)
    few = write_text(tmp_path / "few.txt", 2)
    with pytest.raises(ValueError, match="has no samples; use fewer parts"):
        next(FileBatches(few, 4, num_parts=4).start_at(0))
    (tmp_path / "changed.txt").write_text(few.read_text())
    changed = FileBatches(tmp_path / "changed.txt", 1)
    (tmp_path / "changed.txt").write_text("2 2 8\n0 0:0 1:1 1:2\n")
    with pytest.raises(ValueError, match=r"must not change while it is read"):
        next(changed.start_at(0))


def test_a_sample_without_labels_or_features_is_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("5 2 2\n 0:1\n0,1\n\n\n1 1:2\n")
    batch = next(FileBatches(path, 5, block_size=2).start_at(0))
    assert sorted(batch.target.tolist()) == [[-100, -100]] * 3 + [[0, 1], [1, -100]]
    assert sorted(torch.diff(batch.offsets).tolist()) == [0, 0, 0, 1, 1]
