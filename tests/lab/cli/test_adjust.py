"""``longtail adjust``: what it writes and prints, and that bad input costs one line and no file."""

import io
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

COUNTS = np.array([400, 60, 10])


NAMES = ["cat", "dog", "emu"]


def make_logits(num_samples, seed):
    """Balanced labels, and calibrated logits of a model that has learned COUNTS."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, num_samples)
    inputs = 2 * np.eye(3)[labels] + generator.normal(size=(num_samples, 3))
    return labels, 2 * inputs + np.log(COUNTS / COUNTS.sum())


@pytest.fixture
def folder(tmp_path):
    """Score, label and count files of every kind."""
    labels, logits = make_logits(300, seed=0)
    np.save(tmp_path / "logits.npy", logits)
    np.savez(tmp_path / "logits.npz", scores=logits, classes=np.array(NAMES), y=labels)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.save(tmp_path / "probabilities.npy", probabilities)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "train.npy", np.repeat(np.arange(3), COUNTS))
    np.save(tmp_path / "counts.npy", COUNTS)
    table = pa.table(
        {
            "id": np.arange(300) + 7000,
            "truth": [NAMES[label] for label in labels],
            **{f"score_{name}": logits[:, index] for index, name in enumerate(NAMES)},
        }
    )
    pa.csv.write_csv(table, tmp_path / "logits.csv")
    pa.parquet.write_table(table, tmp_path / "logits.parquet")
    (tmp_path / "counts.csv").write_text("class,count\nemu,10\ncat,400\ndog,60\n")
    return tmp_path


def expected_predictions(tau=1.0):
    _, logits = make_logits(300, seed=0)
    return (logits - tau * np.log(COUNTS)).argmax(axis=1)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("source", ["logits.csv", "logits.parquet"])
def test_adjust_tables(run, folder, source, suffix):
    output = folder / f"out{suffix}"
    done = run(
        *("adjust", folder / source, "--counts", folder / "counts.csv", "--output", output),
        *("--columns", "score_", "--label", "truth"),
    )
    assert done.exit_code == 0, done.stderr
    written = pa.csv.read_csv(output) if suffix == ".csv" else pa.parquet.read_table(output)
    assert written.column_names == ["id", "truth", "prediction", "score_cat", "score_dog", "score_emu"]
    assert written["id"].to_pylist() == list(range(7000, 7300))
    assert written["prediction"].to_pylist() == [NAMES[index] for index in expected_predictions()]
    probabilities = np.column_stack([written[f"score_{name}"] for name in NAMES])
    _, logits = make_logits(300, seed=0)
    unnormalized = np.exp(logits) / COUNTS
    np.testing.assert_allclose(probabilities, unnormalized / unnormalized.sum(axis=1, keepdims=True), rtol=1e-9)
    labels, _ = make_logits(300, seed=0)
    recalls = [(expected_predictions()[labels == label] == label).mean() for label in range(3)]
    line = next(line for line in done.stdout.splitlines() if line.startswith("balanced accuracy"))
    assert line.split()[-1] == f"{np.mean(recalls):.1%}"


def test_adjust_keeps_numeric_ids(run, folder):
    output = folder / "out.csv"
    (folder / "ordered.csv").write_text("count\n400\n60\n10\n")
    done = run(
        *("adjust", folder / "logits.csv", "--counts", folder / "ordered.csv", "--output", output, "--id", "id")
    )
    assert done.exit_code == 0, done.stderr
    written = pa.csv.read_csv(output)
    assert written["id"].to_pylist() == list(range(7000, 7300))
    assert set(written["prediction"].to_pylist()) == {"score_cat", "score_dog", "score_emu"}


@pytest.mark.parametrize("prior", [("--counts", "counts.npy"), ("--train-labels", "train.npy")])
def test_adjust_arrays(run, folder, prior):
    option, name = prior
    done = run("adjust", folder / "logits.npz", option, folder / name, "--label", "y", "--output", folder / "o.npz")
    assert done.exit_code == 0, done.stderr
    assert "balanced accuracy" in done.stdout
    with np.load(folder / "o.npz", allow_pickle=False) as written:
        assert written["predictions"].tolist() == [NAMES[index] for index in expected_predictions()]
        assert written["classes"].tolist() == NAMES
        np.testing.assert_allclose(written["probabilities"].sum(axis=1), 1)


def test_adjust_probabilities_as_their_logits(run, folder):
    for name, flags in [("logits.npy", ()), ("probabilities.npy", ("--probabilities",))]:
        output = folder / f"out_{name}"
        done = run("adjust", folder / name, "--counts", folder / "counts.npy", "--output", output, *flags)
        assert (done.exit_code, done.stderr) == (0, "")
    np.testing.assert_allclose(np.load(folder / "out_logits.npy"), np.load(folder / "out_probabilities.npy"))


def test_adjust_handles_probability_zero(run, folder):
    np.save(folder / "sure.npy", np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    done = run(
        *("adjust", folder / "sure.npy", "--probabilities", "--counts", folder / "counts.npy"),
        *("--output", folder / "out.npz"),
    )
    assert done.exit_code == 0, done.stderr
    assert np.load(folder / "out.npz")["predictions"].tolist() == [0, 2]


def test_adjust_asks_what_scores_between_0_and_1_are(run, refuse, folder):
    call = ["adjust", folder / "probabilities.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npy"]
    refuse(*call, message="add --probabilities, or --logits if they are logits")
    assert not (folder / "out.npy").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run(*call, "--logits")
    assert done.exit_code == 0
    assert done.stderr.startswith("longtail: logits look like probabilities")


def test_adjust_reads_counts_by_the_names_beside_them(run, refuse, folder):
    """As ``value_counts().to_csv()`` writes them: by falling count, not in the order of the scores."""
    shared = ["adjust", folder / "logits.csv", "--columns", "score_", "--output"]
    rows = {"class": "class,count", "kind": "kind,count"}
    for name, heading in rows.items():
        lines = [
            f"{label},{count}" for label, count in sorted(zip(NAMES, COUNTS, strict=True), key=lambda row: row[1])
        ]
        (folder / f"{name}.csv").write_text("\n".join([heading, *lines]))
        done = run(*shared, folder / f"by_{name}.csv", "--counts", folder / f"{name}.csv")
        assert done.exit_code == 0, done.stderr
    assert (folder / "by_kind.csv").read_text() == (folder / "by_class.csv").read_text()
    (folder / "two.csv").write_text("kind,sort,count\na,b,3\n")
    refuse(*shared, folder / "o.csv", "--counts", folder / "two.csv", message="call it 'class'. Got: kind, sort")


def test_adjust_tau_is_used(run, folder):
    done = run(
        *("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz"),
        *("--tau", "0.4"),
    )
    assert done.exit_code == 0, done.stderr
    assert np.load(folder / "out.npz")["predictions"].tolist() == expected_predictions(0.4).tolist()
    assert not np.array_equal(expected_predictions(0.4), expected_predictions(1.0))


def test_adjust_chooses_tau_on_a_holdout(run, folder):
    labels, logits = make_logits(2000, seed=1)
    np.save(folder / "holdout.npy", logits * 2)  # overconfident, so the best tau is about 2
    np.save(folder / "holdout_labels.npy", labels)
    done = run(
        *("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz"),
        *("--tau", "auto", "--holdout-scores", folder / "holdout.npy"),
        *("--holdout-labels", folder / "holdout_labels.npy"),
    )
    assert done.exit_code == 0, done.stderr
    tau = float(done.stdout.split()[1].rstrip(","))
    assert 1.5 < tau < 2.5
    assert "chosen on the holdout" in done.stdout


def test_adjust_to_other_frequencies(run, folder):
    (folder / "target.csv").write_text("class,probability\ncat,0.2\nemu,0.7\ndog,0.1\n")
    shared = ("adjust", folder / "logits.npz", "--counts", folder / "counts.npy", "--force", "--output")
    predictions = {}
    for target in ("train", "estimate", "uniform", folder / "target.csv"):
        done = run(*shared, folder / "out.npz", "--target-prior", target)
        assert done.exit_code == 0, done.stderr
        predictions[str(target)] = np.load(folder / "out.npz")["predictions"].tolist()
    _, logits = make_logits(300, seed=0)
    named = np.array(NAMES)
    assert predictions["train"] == named[logits.argmax(axis=1)].tolist()
    assert predictions["uniform"] == named[expected_predictions()].tolist()
    shifted = logits - np.log(COUNTS) + np.log([0.2, 0.1, 0.7])
    assert predictions[str(folder / "target.csv")] == named[shifted.argmax(axis=1)].tolist()
    agreement = np.mean(np.array(predictions["estimate"]) == np.array(predictions["uniform"]))
    assert agreement > 0.9  # the labels are balanced, so that is what an estimate finds


TRUE_COUNTS = np.array([900, 90, 10])


@pytest.mark.parametrize(
    ("trained_with", "seen"),
    [
        ("balanced", [1, 1, 1]),
        ("weights:weights.csv", TRUE_COUNTS * [1, 2, 5]),
        ("counts:resampled.npy", [300, 200, 100]),
    ],
)
def test_adjust_takes_back_what_training_did(run, folder, monkeypatch, trained_with, seen):
    monkeypatch.chdir(folder)
    Path("weights.csv").write_text("class,weight\nemu,5\ndog,2\ncat,1\n")
    np.save("resampled.npy", np.array([300, 200, 100]))
    np.save("true.npy", TRUE_COUNTS)
    shared = ("adjust", "logits.npz", "--counts", "true.npy", "--trained-with", trained_with, "--output", "out.npz")
    done = run(*shared, "--target-prior", "train")
    assert (done.exit_code, done.stderr) == (0, "")
    _, logits = make_logits(300, seed=0)
    unnormalized = np.exp(logits) * TRUE_COUNTS / seen
    expected = unnormalized / unnormalized.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.load("out.npz")["probabilities"], expected, rtol=1e-9)


def test_adjust_estimates_from_what_was_seen(run, folder):
    """The scores stand for COUNTS. Seen through them, the labels are balanced, whatever the data had."""
    np.save(folder / "true.npy", TRUE_COUNTS)
    done = run(
        *("adjust", folder / "logits.npy", "--counts", folder / "true.npy", "--output", folder / "out.npz"),
        *("--trained-with", f"counts:{folder / 'counts.npy'}", "--target-prior", "estimate"),
    )
    assert done.exit_code == 0, done.stderr
    assert np.mean(np.load(folder / "out.npz")["predictions"] == expected_predictions()) > 0.9


def test_adjust_says_when_training_left_nothing_to_adjust(run, folder):
    arguments = (folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz")
    done = run("adjust", *arguments, "--trained-with", "balanced")
    assert done.exit_code == 0
    assert "nothing is left to adjust" in done.stderr
    assert "0 of 300 predictions changed" in done.stdout


def test_a_holdout_must_have_every_class(refuse, folder):
    labels, logits = make_logits(300, seed=1)
    np.save(folder / "holdout.npy", logits[labels != 1])
    np.save(folder / "holdout_labels.npy", labels[labels != 1])
    refuse(
        *("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz"),
        *("--tau", "auto", "--holdout-scores", folder / "holdout.npy"),
        *("--holdout-labels", folder / "holdout_labels.npy"),
        message="Got none of class 1; add some, or give tau as a number",
    )
    assert not (folder / "out.npz").exists()


def test_adjust_smooths_a_class_without_samples(run, folder):
    np.save(folder / "gap.npy", np.array([400, 0, 10]))
    shared = ("adjust", folder / "logits.npy", "--counts", folder / "gap.npy", "--output", folder / "out.npz")
    refused = run(*shared)
    assert refused.exit_code == 2
    assert "class 1 has no training samples" in refused.stderr
    assert "--smooth 1" in refused.stderr
    assert run(*shared, "--smooth", "1").exit_code == 0


def test_adjust_overwrites_only_if_told_to(run, folder):
    output = folder / "out.npy"
    output.write_bytes(b"precious")
    shared = ("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", output)
    refused = run(*shared)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert output.read_bytes() == b"precious"
    assert run(*shared, "--force").exit_code == 0
    assert np.load(output).shape == (300, 3)


def test_a_failed_write_leaves_nothing(run, folder, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("numpy.lib.format.write_array", fail)  # once the rows are written
    (folder / "out.npz").write_bytes(b"precious")
    files = sorted(folder.iterdir())
    arguments = (folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz", "--force")
    done = run("adjust", *arguments)
    assert (done.exit_code, done.stderr) == (2, "longtail: disk full\n")
    assert sorted(folder.iterdir()) == files
    assert (folder / "out.npz").read_bytes() == b"precious"


def header_of_nothing(shape):
    """An .npy that says it has this shape, and has no data."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return file.getvalue()


BAD_INPUT = {
    "empty labels": (
        {"bad.npy": np.array([], dtype=int)},
        ["--train-labels", "bad.npy"],
        "at least one labeled sample",
    ),
    "negative count": ({"bad.npy": np.array([5, -1, 2])}, ["--counts", "bad.npy"], "Got -1 for class 1"),
    "fractional count": ({"bad.npy": np.array([5, 1.5, 2])}, ["--counts", "bad.npy"], "Got 1.5 for class 1"),
    "missing count": ({"bad.csv": "count\n5\n \n2\n"}, ["--counts", "bad.csv"], "not clear"),
    "counts of strings": ({"bad.npy": np.array(["a", "b", "c"])}, ["--counts", "bad.npy"], "one number per class"),
    "counts for other classes": ({"bad.npy": np.array([5, 1])}, ["--counts", "bad.npy"], "each of the 3 classes"),
    "a class counted twice": (
        {"bad.csv": "class,count\n0,5\n0,1\n2,7\n"},
        ["--counts", "bad.csv"],
        "name each class once",
    ),
    "unknown class counted": ({"bad.csv": "class,count\n0,5\n1,1\n3,7\n"}, ["--counts", "bad.csv"], "Got 3"),
    "training of another kind": (
        {},
        ["--counts", "counts.npy", "--trained-with", "smote"],
        "--trained-with must be balanced, weights:FILE or counts:FILE. Got 'smote'",
    ),
    "weights for other classes": (
        {"bad.npy": np.array([5.0, 1.0])},
        ["--counts", "counts.npy", "--trained-with", "weights:bad.npy"],
        "each of the 3 classes",
    ),
    "weight of 0": (
        {"bad.npy": np.array([5.0, 0.0, 1.0])},
        ["--counts", "counts.npy", "--trained-with", "weights:bad.npy"],
        "class_weights must be [C] finite numbers above 0",
    ),
    "class not seen in training": (
        {"bad.npy": np.array([5, 0, 1])},
        ["--counts", "counts.npy", "--trained-with", "counts:bad.npy"],
        "class 1 has no training samples",
    ),
    "no counts": ({}, [], "either --counts or --train-labels"),
    "counts and labels": (
        {},
        ["--counts", "counts.npy", "--train-labels", "train.npy"],
        "either --counts or --train-labels",
    ),
    "label out of range": ({"bad.npy": np.array([0, 3])}, ["--train-labels", "bad.npy"], "Got 3"),
    "negative label": ({"bad.npy": np.array([0, -1])}, ["--train-labels", "bad.npy"], "Got -1"),
    "fractional labels": ({"bad.npy": np.array([0, 0.5])}, ["--train-labels", "bad.npy"], "Got 0.5"),
    "infinite labels": ({"bad.npy": np.array([0, np.inf])}, ["--train-labels", "bad.npy"], "Got inf"),
    "complex labels": ({"bad.npy": np.array([0, 1j])}, ["--train-labels", "bad.npy"], "whole numbers or strings"),
    "matrix of labels": ({"bad.npy": np.zeros((3, 2), int)}, ["--train-labels", "bad.npy"], "must be a vector"),
    "missing labels": ({"bad.npy": np.array([0, np.nan])}, ["--train-labels", "bad.npy"], "must have a label"),
    "string labels without names": (
        {"bad.npy": np.array(["cat"])},
        ["--train-labels", "bad.npy"],
        "among those of the scores (0, 1, 2). Got 'cat'",
    ),
    "CSV without the column": (
        {"bad.csv": "a,b\n1,2\n"},
        ["--train-labels", "bad.csv", "--label", "kind"],
        "there is no column or array 'kind'. Got: a, b",
    ),
    "CSV with several columns": ({"bad.csv": "a,b\n1,2\n"}, ["--train-labels", "bad.csv"], "--label"),
    "label that nothing has": ({}, ["--counts", "counts.npy", "--label", "kind"], "no column or array 'kind'"),
    "CSV with two columns of one name": (
        {"bad.csv": "a,a\n1,2\n"},
        ["--train-labels", "bad.csv", "--label", "a"],
        "its own name",
    ),
    "ragged CSV": ({"bad.csv": "a,b\n1\n"}, ["--train-labels", "bad.csv", "--label", "a"], "no readable .csv"),
    "empty CSV": ({"bad.csv": ""}, ["--train-labels", "bad.csv"], "no readable .csv"),
    "truncated npy": ({"bad.npy": b"\x93NUMPY"}, ["--counts", "bad.npy"], "no readable .npy"),
    "npy that claims too much": (
        {"bad.npy": header_of_nothing((10**13,))},
        ["--counts", "bad.npy"],
        "no readable .npy",
    ),
    "text in an npz": ({"bad.npz": b"hello"}, ["--counts", "bad.npz"], "no readable .npz"),
    "text in a Parquet": ({"bad.parquet": b"hello"}, ["--counts", "bad.parquet"], "no readable .parquet"),
    "pickles": ({"bad.npy": np.array([{}], dtype=object)}, ["--counts", "bad.npy"], "no readable .npy"),
    "missing file": ({}, ["--counts", "nothing.npy"], "there is no such file"),
    "folder for a file": ({}, ["--counts", "folder.npy"], "there is no such file"),
    "unknown suffix": ({"bad.txt": "1"}, ["--counts", "bad.txt"], "Got '.txt'"),
    "tau not a number": ({}, ["--counts", "counts.npy", "--tau", "nan"], "Got nan"),
    "tau infinite": ({}, ["--counts", "counts.npy", "--tau", "inf"], "Got inf"),
    "tau negative": ({}, ["--counts", "counts.npy", "--tau=-1"], "Got -1"),
    "tau a word": ({}, ["--counts", "counts.npy", "--tau", "much"], "Got 'much'"),
    "tau without holdout": ({}, ["--counts", "counts.npy", "--tau", "auto"], "--holdout-scores"),
    "holdout without auto": (
        {},
        ["--counts", "counts.npy", "--holdout-scores", "logits.npy", "--holdout-labels", "labels.npy"],
        "--tau auto",
    ),
    "holdout labels alone": ({}, ["--counts", "counts.npy", "--holdout-labels", "labels.npy"], "--holdout-scores"),
    "holdout without labels": (
        {},
        ["--counts", "counts.npy", "--tau", "auto", "--holdout-scores", "logits.npy"],
        "--holdout-labels",
    ),
    "holdout of other classes": (
        {"bad.npy": np.zeros((300, 2))},
        ["--counts", "counts.npy", "--tau", "auto", "--holdout-scores", "bad.npy", "--holdout-labels", "labels.npy"],
        "same classes",
    ),
    "too few labels": (
        {"bad.npy": np.array([0, 1])},
        ["--counts", "counts.npy", "--labels", "bad.npy"],
        "300 labels",
    ),
    "negative target": (
        {"bad.npy": np.array([1, -1, 1])},
        ["--counts", "counts.npy", "--target-prior", "bad.npy"],
        "none negative",
    ),
    "target misspelled": (
        {},
        ["--counts", "counts.npy", "--target-prior", "unifrom"],
        "must be uniform, train, estimate or a file",
    ),
    "smoothing negative": ({}, ["--counts", "counts.npy", "--smooth=-1"], "Got -1"),
    "logits as probabilities": ({}, ["--counts", "counts.npy", "--probabilities"], "in [0, 1]"),
    "output suffix unknown": ({}, ["--counts", "counts.npy", "--output", "out.xlsx"], "Got '.xlsx'"),
    "output folder missing": ({}, ["--counts", "counts.npy", "--output", "none/out.npy"], "folder of the output"),
    "output is a folder": ({}, ["--counts", "counts.npy", "--output", "folder.npy"], "must be a file"),
    "output exists": ({}, ["--counts", "counts.npy", "--output", "labels.npy"], "--force"),
}


BAD_SCORES = {
    "nan": ({"bad.npy": np.array([[0, np.nan, 1]])}, "Got nan in row 0, class 1"),
    "inf": ({"bad.npy": np.array([[0, 1, 2], [0, 1, -np.inf]])}, "Got -inf in row 1, class 2"),
    "missing in CSV": ({"bad.csv": "a,b,c\n0.5,,0.5\n0.1,0.2,0.3\n"}, "Got nan in row 0, class b"),
    "other width": ({"bad.npy": np.zeros((4, 5))}, "each of the 5 classes"),
    "vector": ({"bad.npy": np.zeros(3)}, "matrix"),
    "no rows": ({"bad.npy": np.zeros((0, 3))}, "at least 1 row"),
    "one class": ({"bad.npy": np.zeros((3, 1))}, "2 classes"),
    "strings": ({"bad.npy": np.array([["a", "b", "c"]])}, "must be numbers"),
    "no numeric column": ({"bad.csv": "a,b\nx,y\n"}, "no numeric columns"),
    "id among scores": ({"bad.csv": "id,a,b\n1,0.5,0.5\n"}, "--id id"),
    "several matrices": ({"bad.npz": {"a": np.zeros((2, 3)), "b": np.zeros((2, 3))}}, "--columns"),
    "class names of another length": (
        {"bad.npz": {"scores": np.zeros((2, 3)), "classes": np.array(["a", "b"])}},
        "name 3 classes",
    ),
    "class names twice": (
        {"bad.npz": {"scores": np.zeros((2, 3)), "classes": np.array(["a", "b", "a"])}},
        "its own name",
    ),
}


def write_files(folder, files):
    for name, content in files.items():
        if isinstance(content, np.ndarray):
            np.save(folder / name, content, allow_pickle=True)
        elif isinstance(content, dict):
            np.savez(folder / name, **content)
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_writes_nothing(refuse, folder, monkeypatch, case):
    files, arguments, message = BAD_INPUT[case]
    write_files(folder, files)
    (folder / "folder.npy").mkdir()
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    output = [] if "--output" in arguments else ["--output", "out.csv"]
    refuse("adjust", "logits.npy", *arguments, *output, message=message)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_scores_are_one_line_and_write_nothing(refuse, folder, monkeypatch, case):
    files, message = BAD_SCORES[case]
    write_files(folder, files)
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    refuse("adjust", *files, "--counts", "counts.npy", "--output", "out.csv", message=message)
    assert sorted(folder.iterdir()) == before


def test_output_columns_must_differ(refuse, folder):
    (folder / "bad.csv").write_text("prediction,a,b,c\nx,0.1,0.2,0.7\n")
    files = (folder / "bad.csv", "--counts", folder / "counts.npy", "--output", folder / "out.csv")
    refuse("adjust", *files, message="two columns named 'prediction'")
    assert not (folder / "out.csv").exists()


def test_names_that_look_like_other_things_stay_names(run, tmp_path, monkeypatch):
    """Classes true and false, and classes 1, 2, 3 and other of which labels happen to name the numbers alone."""
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("true,false\n2.0,0.0\n1.5,0.2\n0.1,3.0\n")
    Path("c.csv").write_text("class,count\ntrue,90\nfalse,10\n")
    Path("y.csv").write_text("label\ntrue\ntrue\nfalse\n")
    done = run("adjust", "s.csv", "--counts", "c.csv", "--labels", "y.csv", "--output", "o.npz")
    assert done.exit_code == 0, done.stderr
    assert accuracy_before(done) == "100.0%"
    with np.load("o.npz") as file:
        assert file["probabilities"][0, 0] < 0.88
    Path("s.csv").write_text("1,2,3,other\n9,0,0,0\n0,9,0,0\n0,0,9,0\n")
    Path("c.csv").write_text("class,count\n1,40\n2,30\n3,20\nother,10\n")
    Path("y.csv").write_text("label\n1\n2\n3\n")
    done = run("adjust", "s.csv", "--counts", "c.csv", "--labels", "y.csv", "--output", "p.npz")
    assert accuracy_before(done) == "100.0%"
    Path("y.csv").write_text("label\n1\n0\n3\n")
    done = run("adjust", "s.csv", "--counts", "c.csv", "--labels", "y.csv", "--output", "q.npz")
    assert done.exit_code == 2
    assert "Got 1, which is a name, and 0, which is none" in done.stderr


def accuracy_before(done):
    line = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    return line.split()[1]


def test_force_overwrites_regular_files_only(refuse, folder):
    (folder / "precious.npy").write_bytes(b"precious")
    (folder / "link.npy").symlink_to(folder / "precious.npy")
    os.mkfifo(folder / "pipe.npy")
    for name in ("link.npy", "pipe.npy"):
        shared = (folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / name, "--force")
        refuse("adjust", *shared, message="the output must be a regular file")
    assert (folder / "precious.npy").read_bytes() == b"precious"
    assert (folder / "link.npy").is_symlink()


def test_names_cannot_steer_the_terminal(run, folder):
    np.savez(folder / "named.npz", scores=np.zeros((2, 3)), classes=np.array(["a", "b\x1b[2J", "c"]))
    np.save(folder / "gap.npy", np.array([5, 0, 2]))
    done = run("adjust", folder / "named.npz", "--counts", folder / "gap.npy", "--output", folder / "out.npz")
    assert done.exit_code == 2
    assert "class b\\x1b[2J has no training samples" in done.stderr
    assert "\x1b" not in done.output


def split_scores(folder, parts=3):
    """The scores as a folder of Parquet parts."""
    table = pa.parquet.read_table(folder / "logits.parquet")
    (folder / "parts").mkdir()
    for i in range(parts):
        pa.parquet.write_table(table.slice(i * 100, 100), folder / "parts" / f"{i}.parquet")
    return [folder / "parts" / f"{i}.parquet" for i in range(parts)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".npy"])
def test_parts_give_what_one_file_gives(run, folder, monkeypatch, suffix):
    monkeypatch.setattr("longtail.lab.data.formats.table_files.BATCH", 4000)
    files = split_scores(folder)
    options = ["--counts", folder / "counts.csv", "--columns", "score_", "--label", "truth"]
    screens = []
    for sources, name in (([folder / "logits.parquet"], "one"), ([folder / "parts"], "folder"), (files, "files")):
        done = run("adjust", *sources, *options, "--output", folder / f"{name}{suffix}")
        assert done.exit_code == 0, done.stderr
        screens.append(done.stdout.partition("Wrote")[0])
    assert len(set(screens)) == 1
    for name in ("folder", "files"):
        one, many = (load_all(folder / f"{part}{suffix}") for part in ("one", name))
        assert one.keys() == many.keys()
        for key, values in one.items():
            np.testing.assert_array_equal(values, many[key])


def load_all(path):
    if path.suffix == ".npy":
        return {"": np.load(path)}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    table = pa.csv.read_csv(path) if path.suffix == ".csv" else pa.parquet.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def test_a_bad_last_part_writes_nothing(refuse, folder):
    """Another schema is seen before, other numbers only while rows are written."""
    files = split_scores(folder)
    shared = (
        folder / "parts",
        "--counts",
        folder / "counts.csv",
        "--columns",
        "score_",
        "--output",
        folder / "o.csv",
    )
    table = pa.parquet.read_table(files[-1])
    before = {*folder.iterdir()}
    pa.parquet.write_table(table.drop_columns(["truth"]), files[-1])
    refuse("adjust", *shared, message="2.parquet: every part must have the columns of")
    pa.parquet.write_table(table.set_column(2, "score_cat", pa.array([0.0] * 99 + [np.nan])), files[-1])
    refuse("adjust", *shared, message="scores must be finite. Got nan in row 299, class cat")
    shares = [np.full(100, 1 / 3) for _ in range(3)]
    for i, path in enumerate(files):
        shares[0][-1] = 0.9 if i == 2 else 1 / 3
        pa.parquet.write_table(pa.table(shares, names=["score_cat", "score_dog", "score_emu"]), path)
    refuse("adjust", *shared, "--probabilities", message="must sum to 1. Got 1.56667 in row 299")
    assert {*folder.iterdir()} == before


def test_the_budget_of_memory_is_an_option(refuse, folder):
    shared = (folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npy")
    message = "--target-prior estimate: {} would take 3.6e-05 GB of memory, and data may take 1e-05 GB"
    refuse(
        "adjust",
        *shared,
        "--target-prior",
        "estimate",
        "--memory",
        "1e-5",
        message=message.format(folder / "logits.npy"),
    )
    refuse("adjust", *shared, "--memory", "-1", message="must be a number of gigabytes above 0. Got -1")
