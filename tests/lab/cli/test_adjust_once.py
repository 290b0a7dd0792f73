"""What ``longtail adjust`` wrote says so, and is not adjusted again."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from longtail import ClassPrior
from longtail.correction import ATTRIBUTE, Correction
from longtail.lab.frames import adjust_frame

COUNTS = ClassPrior.from_counts([400, 60, 10])
NAMES = ["cat", "dog", "emu"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to be in, with scores, labels and counts."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 60)
    logits = 2 * np.eye(3)[labels] + generator.normal(size=(60, 3)) + np.log(COUNTS.probs.numpy())
    table = pa.table({"truth": [NAMES[label] for label in labels]} | dict(zip(NAMES, logits.T, strict=True)))
    pa.parquet.write_table(table, "scores.parquet")
    np.savez("scores.npz", scores=logits)
    np.save("counts.npy", COUNTS.counts.numpy())
    return tmp_path


def read_record(path):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return Correction.from_json(json.loads(str(file[ATTRIBUTE])))
    return Correction.from_json(json.loads(pa.parquet.read_schema(path).metadata[ATTRIBUTE.encode()]))


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_an_adjusted_file_is_not_adjusted_again(run, refuse, folder, suffix):
    once, twice = folder / f"once{suffix}", folder / f"twice{suffix}"
    counts = ("--counts", "counts.npy")
    done = run("adjust", f"scores{suffix}", *counts, "--tau", 0.5, "--output", once)
    assert done.exit_code == 0, done.stderr
    assert read_record(once) == Correction(COUNTS, "longtail adjust", 0.5, is_corrected=True)
    again = ("adjust", once, *counts, "--probabilities", "--output", twice)
    refuse(*again, message="scores must not be corrected yet. Got some that are, by longtail adjust with tau 0.5")
    assert not twice.exists()


def test_one_corrected_part_or_holdout_is_enough(run, refuse, folder):
    adjust = ("adjust", "scores.parquet", "--counts", "counts.npy", "--label", "truth")
    (folder / "parts").mkdir()
    table = pa.parquet.read_table("scores.parquet")
    pa.parquet.write_table(table, "parts/0.parquet")
    record = Correction(COUNTS, "mine", is_corrected=True)
    pa.parquet.write_table(
        table.replace_schema_metadata({ATTRIBUTE: json.dumps(record.to_json())}), "parts/1.parquet"
    )
    refuse("adjust", "parts", *adjust[2:], "--output", "out.csv", message="Got some that are, by mine; a second")
    holdout = ("--tau", "auto", "--holdout-scores", "parts/1.parquet")
    refuse(*adjust, *holdout, "--output", "out.csv", message="parts/1.parquet: scores must not be corrected yet")
    assert not (folder / "out.csv").exists()


@pytest.mark.parametrize(
    ("options", "is_corrected"),
    [
        ((), True),
        (("--tau", "0"), False),
        (("--target-prior", "train"), False),
        (("--trained-with", "balanced", "--target-prior", "train"), False),
        (("--trained-with", "balanced"), True),
        (("--target-prior", "counts.npy"), False),
    ],
)
def test_what_stands_for_the_frequencies_of_the_data_may_be_adjusted(run, folder, options, is_corrected):
    assert run("adjust", "scores.npz", "--counts", "counts.npy", *options, "--output", "once.npz").exit_code == 0
    assert read_record(folder / "once.npz").is_corrected == is_corrected
    again = run("adjust", "once.npz", "--counts", "counts.npy", "--probabilities", "--output", "twice.npz")
    assert again.exit_code == (2 if is_corrected else 0)


def test_a_csv_keeps_no_record_and_is_told_by_its_column(run, refuse, folder):
    assert run("adjust", "scores.parquet", "--counts", "counts.npy", "--output", "once.csv").exit_code == 0
    again = ("adjust", "once.csv", "--counts", "counts.npy", "--probabilities", "--output", "twice.csv")
    refuse(*again, message="two columns named 'prediction'; rename one in the scores; if the scores are adjusted")
    assert not (folder / "twice.csv").exists()


@pytest.mark.parametrize("record", ["", "{}", "[" * 100_000, json.dumps({"format": 1, "method": "mine"})])
def test_a_record_that_cannot_be_read_is_one_line(refuse, folder, record):
    np.savez("odd.npz", scores=np.zeros((2, 3)), **{ATTRIBUTE: np.array(record)})
    adjust = ("adjust", "odd.npz", "--counts", "counts.npy", "--output", "out.npz")
    refuse(*adjust, message=f"odd.npz: the record {ATTRIBUTE} can't be read")
    assert not (folder / "out.npz").exists()


def test_a_frame_is_not_adjusted_again():
    frame = pa.table({"cat": [2.0, 0.5], "dog": [1.0, 0.4]})
    prior = ClassPrior.from_counts([90, 10])
    once = adjust_frame(frame, prior)
    with pytest.raises(ValueError, match="the frame: scores must not be corrected yet"):
        adjust_frame(once.drop_columns(["prediction"]), prior, are_probabilities=True)
