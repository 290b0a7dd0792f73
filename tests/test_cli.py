"""The command line: what each command prints and writes, and that bad input costs one line and no file."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

import longtail
from longtail import ClassPrior
from longtail.lab import cli
from longtail.lab.cli import inspecting
from longtail.lab.cli.commands import app
from longtail.lab.data.formats import tables
from longtail.methods import METHODS

COUNTS = np.array([400, 60, 10])
NAMES = ["cat", "dog", "emu"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def skewed_logits(num_samples, seed):
    """Balanced labels, and calibrated logits of a model that has learned COUNTS."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, num_samples)
    inputs = 2 * np.eye(3)[labels] + generator.normal(size=(num_samples, 3))
    return labels, 2 * inputs + np.log(COUNTS / COUNTS.sum())


@pytest.fixture
def folder(tmp_path):
    """Score, label and count files of every kind."""
    labels, logits = skewed_logits(300, seed=0)
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
    _, logits = skewed_logits(300, seed=0)
    return (logits - tau * np.log(COUNTS)).argmax(axis=1)


# The commands that only print


def test_version():
    assert run("--version").stdout == f"longtail {longtail.__version__}\n"


def test_list_names_every_method():
    listed = run("list").stdout
    assert all(name in listed for name in METHODS)
    row = next(line for line in listed.splitlines() if line.startswith("logit_adjusted "))
    assert "yes" in row.split()


def test_list_leaves_room_for_words_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("list").stdout.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in METHODS)
    assert len(lines) < 4 * len(METHODS)


@pytest.mark.parametrize("name", list(METHODS))
def test_show_prints_the_whole_card(name):
    shown = run("show", name)
    assert shown.exit_code == 0
    card = " ".join(shown.stdout.split())
    documented = (METHODS[name].card.__doc__ or "").replace("``", "").split()
    words = [word for word in documented if not word.endswith(":")]
    assert all(word in card for word in words)
    assert all(f"{option} = {value}" in card for option, value in METHODS[name].options.items())


def test_show_says_whether_a_method_is_consistent():
    assert "Yes:" in run("show", "logit_adjusted").stdout
    assert "No:" in run("show", "adaptive").stdout


def test_show_suggests_a_name():
    shown = run("show", "logit_ajusted")
    assert shown.exit_code == 2
    assert "did you mean 'logit_adjusted'?" in shown.stderr


@pytest.mark.slow
def test_demo_shows_the_gain_and_writes_a_page(tmp_path):
    printed = run("demo", "--output", tmp_path / "demo").stdout
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if "±" in line}
    balanced = {name: float(cells[0]) for name, cells in lines.items()}
    tail = {name: float(cells[6]) for name, cells in lines.items()}
    assert len(balanced) == 5
    for adjusted in ("posthoc_adjusted", "logit_adjusted"):
        assert balanced[adjusted] >= balanced["cross_entropy"] + 4
        assert tail[adjusted] >= tail["cross_entropy"] + 10
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000


# train, compare, report


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder made by the command itself."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = run("train", "digits", "--set", "train.epochs=2", "--method", "logit-adjusted", "--output", folder)
    assert done.exit_code == 0, done.stderr
    assert "logit_adjusted" in done.stdout
    return folder


def test_train_leaves_a_run_and_goes_on_with_the_same_recipe_only(trained):
    again = ("train", "digits", "--method", "logit_adjusted", "--output", trained)
    assert run(*again, "--set", "train.epochs=2").exit_code == 0
    other = run(*again, "--set", "train.epochs=3")
    assert other.exit_code == 2
    assert "train.epochs: 2 -> 3" in other.stderr


def test_a_rejected_recipe_does_not_block_its_folder(tmp_path):
    wrong = run("train", "digits", "--output", tmp_path / "run", "--set", "model.options.hiden=[4]")
    assert wrong.exit_code == 2
    assert not (tmp_path / "run").exists()
    assert run("train", "digits", "--output", tmp_path / "run", "--set", "train.epochs=1").exit_code == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    again = ("train", "digits", "--output", tmp_path / "run", "--restart", "--set", "model.options.hiden=[4]")
    assert run(*again).exit_code == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(("seed", "code"), [("20240101", 0), ("-1", 2)])
def test_a_seed_may_be_a_date_and_not_negative(tmp_path, seed, code):
    done = run("train", "digits", "--output", tmp_path / "run", "--set", "train.epochs=1", f"--set=train.seed={seed}")
    assert done.exit_code == code, done.stderr


@pytest.mark.parametrize("size", [0, 0.5])
@pytest.mark.parametrize("name", ["predictions.npz", "checkpoint.pt"])
def test_a_damaged_run_is_one_line(trained, tmp_path, name, size):
    folder = shutil.copytree(trained, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(size * len(content))])
    if name == "checkpoint.pt":
        (folder / "summary.json").unlink()
    arguments = ("train", "digits", "--set", "train.epochs=2", "--method", "logit-adjusted", "--output", folder)
    done = run(*arguments)
    assert done.exit_code == 2
    assert "can't be read" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_report_writes_a_page(trained, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", trained, "--output", page).exit_code == 0
    assert "logit_adjusted" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digit"), "did you mean 'digits'"),
        (("train", "digits", "--set", "train.epocs=1"), "did you mean 'epochs'"),
        (("train", "digits", "--method", "logit_ajusted"), "did you mean 'logit_adjusted'"),
        (("train", "digits", "--devices", "many"), "devices"),
        pytest.param(
            ("train", "digits", "--accelerator", "cuda"),
            "accelerator 'cuda' with devices 1 can't be had here; there is cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (("compare", "digits", "--methods", "cross_entropy,adaptve"), "did you mean 'adaptive'"),
        (("report", "nowhere"), "no complete run"),
        (("download", "cifar11"), "cifar10"),
    ],
)
def test_training_commands_name_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_inspect_takes_a_recipe():
    recipe = Path(__file__).parent.parent / "recipes" / "digits.toml"
    assert json.loads(run("inspect", recipe, "--json").stdout)["imbalance"] == pytest.approx(50, rel=0.3)


def test_a_model_that_cannot_take_the_data_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.array([0, 1, 0, 1])
    np.savez("d.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    recipe = ['name = "r"', "[data]", 'source = "arrays"', "[data.options]", 'path = "d.npz"']
    Path("r.toml").write_text("\n".join([*recipe, "[model]", 'name = "bag_of_features"']))
    done = run("train", "r.toml")
    assert done.exit_code == 2
    assert "model 'bag_of_features' can't take the inputs of d" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_inspect_draws_classes_without_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.array([0, 0, 2])
    np.savez("d.npz", train_images=np.eye(3), train_labels=labels, test_images=np.eye(3), test_labels=np.arange(3))
    recipe = ['name = "r"', "[data]", 'source = "arrays"', "[data.options]", 'path = "d.npz"']
    Path("r.toml").write_text("\n".join([*recipe, "[model]", 'name = "linear"']))
    shown, written = run("inspect", "r.toml"), run("inspect", "r.toml", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(written.stdout, parse_constant=pytest.fail)["imbalance"] is None


# inspect


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("labels.npy", lambda path: np.save(path, np.array([5, 5, 9, 5]))),
        ("labels.npz", lambda path: np.savez(path, other=np.zeros((2, 2)), label=np.array([5, 5, 9, 5]))),
        ("labels.csv", lambda path: path.write_text("x,label\n0.1,5\n0.2,5\n0.3,9\n0.4,5\n0.5,\n")),
        ("labels.csv", lambda path: path.write_text("label\n5.0\n5.0\nnan\n9.0\n5.0\n")),
        (
            "labels.parquet",
            lambda path: pa.parquet.write_table(pa.table({"label": pa.array([5, 5, None, 9, 5])}), path),
        ),
    ],
)
def test_inspect_counts_labels_of_any_file(tmp_path, name, write):
    write(tmp_path / name)
    found = json.loads(run("inspect", tmp_path / name, "--json").stdout)
    assert found["classes"] == [{"class": 5, "count": 3}, {"class": 9, "count": 1}]
    assert found["imbalance"] == 3
    assert found["num_missing"] == (0 if name.endswith(("npy", "npz")) else 1)


def test_inspect_counts_strings_and_tells_missing_ones(tmp_path):
    (tmp_path / "labels.csv").write_text("id,kind\n1,NA\n2,NA\n3,\n4,null\n")
    found = json.loads(run("inspect", tmp_path / "labels.csv", "--label", "kind", "--json").stdout)
    assert found["classes"] == [{"class": "NA", "count": 2}, {"class": "null", "count": 1}]
    assert found["num_missing"] == 1
    assert "1 rows have no label" in run("inspect", tmp_path / "labels.csv", "--label", "kind").stdout


def test_inspect_reads_categories(tmp_path):
    labels = pa.array(["b", "a", "b", None]).dictionary_encode()
    pa.parquet.write_table(pa.table({"y": labels}), tmp_path / "labels.parquet")
    found = json.loads(run("inspect", tmp_path / "labels.parquet", "--json").stdout)
    assert found["classes"] == [{"class": "b", "count": 2}, {"class": "a", "count": 1}]


def test_inspect_says_which_indices_are_unused_but_takes_ids_for_names(tmp_path):
    np.save(tmp_path / "indices.npy", np.array([0, 1, 3]))
    np.save(tmp_path / "ids.npy", np.array([7, 10**12]))
    assert json.loads(run("inspect", tmp_path / "indices.npy", "--json").stdout)["num_skipped"] == 1
    assert json.loads(run("inspect", tmp_path / "ids.npy", "--json").stdout)["num_skipped"] == 0


def test_inspect_is_compact_at_8000_classes(tmp_path):
    counts = np.maximum(1, 9000 // np.arange(1, 8001))
    np.save(tmp_path / "labels.npy", np.repeat(np.arange(8000), counts))
    printed = run("inspect", tmp_path / "labels.npy").stdout
    assert "8,000 classes, imbalance 9,000.0" in printed
    assert len(printed.splitlines()) < 35
    assert max(len(line) for line in printed.splitlines()) < 160


@pytest.mark.parametrize("counts", [(5, 5), (900, 40, 3), (1000, 500), tuple(range(1500, 0, -1)), (1,)])
def test_suggestions_exist_and_differ(counts):
    suggested = [method for method, _ in inspecting.suggest_methods(ClassPrior.from_counts(counts))]
    assert set(suggested) <= set(METHODS)
    assert len(set(suggested)) == len(suggested)
    is_skewed = max(counts) > 1.5 * min(counts)
    assert suggested[0] == ("logit_adjusted" if is_skewed else "cross_entropy")


@pytest.mark.parametrize("counts", [(1,), (1, 1), (7, 3), (10, 1), (10**6, 10, 1), tuple(range(999, 0, -1))])
def test_profile_chart_falls_and_fits(counts):
    rows = inspecting.profile_chart(counts, width=40, height=6)
    assert len(rows) == 6
    cells = [row.partition("┤")[2] or row.partition("│")[2] for row in rows]
    assert all(len(row) <= 40 for row in cells)
    heights = [sum("▁▂▃▄▅▆▇█".find(row[column]) + 1 for row in cells if column < len(row)) for column in range(40)]
    drawn = [height for height in heights if height > 0]
    assert drawn == sorted(drawn, reverse=True)
    assert len(drawn) >= min(40, len(counts))
    assert any(row.lstrip().startswith(f"{counts[0]:,} ┤") for row in rows)


# adjust


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("source", ["logits.csv", "logits.parquet"])
def test_adjust_tables(folder, source, suffix):
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
    _, logits = skewed_logits(300, seed=0)
    unnormalized = np.exp(logits) / COUNTS
    np.testing.assert_allclose(probabilities, unnormalized / unnormalized.sum(axis=1, keepdims=True), rtol=1e-9)
    labels, _ = skewed_logits(300, seed=0)
    recalls = [(expected_predictions()[labels == label] == label).mean() for label in range(3)]
    line = next(line for line in done.stdout.splitlines() if line.startswith("balanced accuracy"))
    assert line.split()[-1] == f"{np.mean(recalls):.1%}"


def test_adjust_keeps_numeric_ids(folder):
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
def test_adjust_arrays(folder, prior):
    option, name = prior
    done = run("adjust", folder / "logits.npz", option, folder / name, "--label", "y", "--output", folder / "o.npz")
    assert done.exit_code == 0, done.stderr
    assert "balanced accuracy" in done.stdout
    with np.load(folder / "o.npz", allow_pickle=False) as written:
        assert written["predictions"].tolist() == [NAMES[index] for index in expected_predictions()]
        assert written["classes"].tolist() == NAMES
        np.testing.assert_allclose(written["probabilities"].sum(axis=1), 1)


def test_adjust_probabilities_as_their_logits(folder):
    for name, flags in [("logits.npy", ()), ("probabilities.npy", ("--probabilities",))]:
        output = folder / f"out_{name}"
        done = run("adjust", folder / name, "--counts", folder / "counts.npy", "--output", output, *flags)
        assert (done.exit_code, done.stderr) == (0, "")
    np.testing.assert_allclose(np.load(folder / "out_logits.npy"), np.load(folder / "out_probabilities.npy"))


def test_adjust_handles_probability_zero(folder):
    np.save(folder / "sure.npy", np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    done = run(
        *("adjust", folder / "sure.npy", "--probabilities", "--counts", folder / "counts.npy"),
        *("--output", folder / "out.npz"),
    )
    assert done.exit_code == 0, done.stderr
    assert np.load(folder / "out.npz")["predictions"].tolist() == [0, 2]


def test_adjust_notes_scores_that_look_like_probabilities(folder):
    done = run(
        *("adjust", folder / "probabilities.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npy")
    )
    assert done.exit_code == 0
    assert "add --probabilities" in done.stderr


def test_adjust_tau_is_used(folder):
    done = run(
        *("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", folder / "out.npz"),
        *("--tau", "0.4"),
    )
    assert done.exit_code == 0, done.stderr
    assert np.load(folder / "out.npz")["predictions"].tolist() == expected_predictions(0.4).tolist()
    assert not np.array_equal(expected_predictions(0.4), expected_predictions(1.0))


def test_adjust_chooses_tau_on_a_holdout(folder):
    labels, logits = skewed_logits(2000, seed=1)
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


def test_adjust_to_other_frequencies(folder):
    (folder / "target.csv").write_text("class,probability\ncat,0.2\nemu,0.7\ndog,0.1\n")
    shared = ("adjust", folder / "logits.npz", "--counts", folder / "counts.npy", "--force", "--output")
    predictions = {}
    for target in ("train", "estimate", "uniform", folder / "target.csv"):
        done = run(*shared, folder / "out.npz", "--target-prior", target)
        assert done.exit_code == 0, done.stderr
        predictions[str(target)] = np.load(folder / "out.npz")["predictions"].tolist()
    _, logits = skewed_logits(300, seed=0)
    named = np.array(NAMES)
    assert predictions["train"] == named[logits.argmax(axis=1)].tolist()
    assert predictions["uniform"] == named[expected_predictions()].tolist()
    shifted = logits - np.log(COUNTS) + np.log([0.2, 0.1, 0.7])
    assert predictions[str(folder / "target.csv")] == named[shifted.argmax(axis=1)].tolist()
    agreement = np.mean(np.array(predictions["estimate"]) == np.array(predictions["uniform"]))
    assert agreement > 0.9  # the labels are balanced, so that is what an estimate finds


def test_adjust_smooths_a_class_without_samples(folder):
    np.save(folder / "gap.npy", np.array([400, 0, 10]))
    shared = ("adjust", folder / "logits.npy", "--counts", folder / "gap.npy", "--output", folder / "out.npz")
    refused = run(*shared)
    assert refused.exit_code == 2
    assert "class 1 has no training samples" in refused.stderr
    assert "--smooth 1" in refused.stderr
    assert run(*shared, "--smooth", "1").exit_code == 0


def test_adjust_whole_number_labels_are_names_where_names_are_numbers():
    scores = tables.Scores(np.zeros((1, 3)), columns=("3", "1", "2"), class_names=("3", "1", "2"))
    assert scores.positions([1, 2, 3], "labels").tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="Got 0"):
        scores.positions([0], "labels")
    named = tables.Scores(np.zeros((1, 3)), columns=("a", "b", "c"), class_names=("a", "b", "c"))
    assert named.positions([2, 0], "labels").tolist() == [2, 0]
    assert named.positions(["c", "a"], "labels").tolist() == [2, 0]


def test_adjust_overwrites_only_if_told_to(folder):
    output = folder / "out.npy"
    output.write_bytes(b"precious")
    shared = ("adjust", folder / "logits.npy", "--counts", folder / "counts.npy", "--output", output)
    refused = run(*shared)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert output.read_bytes() == b"precious"
    assert run(*shared, "--force").exit_code == 0
    assert np.load(output).shape == (300, 3)


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    (folder / "out.npz").write_bytes(b"precious")
    files = sorted(folder.iterdir())
    done = run(
        *(
            "adjust",
            folder / "logits.npy",
            "--counts",
            folder / "counts.npy",
            "--output",
            folder / "out.npz",
            "--force",
        )
    )
    assert (done.exit_code, done.stderr) == (2, "longtail: disk full\n")
    assert sorted(folder.iterdir()) == files
    assert (folder / "out.npz").read_bytes() == b"precious"


def header_of_nothing(shape):
    """An .npy that says it has this shape, and has no data."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return file.getvalue()


# Bad input: (files to write, arguments, what the message says)

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
    "ragged CSV": ({"bad.csv": "a,b\n1\n"}, ["--train-labels", "bad.csv"], "no readable .csv"),
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
    "target misspelled": ({}, ["--counts", "counts.npy", "--target-prior", "unifrom"], "suffix must be one of"),
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


def assert_refused(done, message):
    assert done.exit_code == 2, done.stdout
    assert done.stderr.startswith("longtail: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_writes_nothing(folder, monkeypatch, case):
    files, arguments, message = BAD_INPUT[case]
    write_files(folder, files)
    (folder / "folder.npy").mkdir()
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    output = [] if "--output" in arguments else ["--output", "out.csv"]
    assert_refused(run("adjust", "logits.npy", *arguments, *output), message)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_scores_are_one_line_and_write_nothing(folder, monkeypatch, case):
    files, message = BAD_SCORES[case]
    write_files(folder, files)
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert_refused(run("adjust", *files, "--counts", "counts.npy", "--output", "out.csv"), message)
    assert sorted(folder.iterdir()) == before


def test_output_columns_must_differ(folder):
    (folder / "bad.csv").write_text("prediction,a,b,c\nx,0.1,0.2,0.7\n")
    done = run("adjust", folder / "bad.csv", "--counts", folder / "counts.npy", "--output", folder / "out.csv")
    assert_refused(done, "two columns named 'prediction'")
    assert not (folder / "out.csv").exists()


def test_inspect_refuses_what_is_not_labels(tmp_path):
    (tmp_path / "empty.csv").write_text("label\n")
    assert_refused(run("inspect", tmp_path / "empty.csv"), "at least one labeled sample")
    (tmp_path / "missing.csv").write_text("label,x\n,1\n,2\n")
    assert_refused(run("inspect", tmp_path / "missing.csv"), "at least one labeled sample")
    (tmp_path / "times.csv").write_text("label\n2020-01-01\n")
    assert_refused(run("inspect", tmp_path / "times.csv"), "whole numbers or strings")


# The frame around the commands


def test_usage_errors_exit_2():
    for arguments in [("adjust",), ("nothing",), ("list", "--nothing"), ("reproduce", "gaussians", "--trials", "1")]:
        assert run(*arguments).exit_code == 2


def test_debug_shows_where_an_error_comes_from(tmp_path):
    done = run("--debug", "inspect", tmp_path / "nothing.csv")
    assert isinstance(done.exception, FileNotFoundError)


def test_errors_of_the_program_are_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("a bug")

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    assert isinstance(run("show", "adaptive").exception, RuntimeError)


def test_interrupt_exits_130(monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("longtail.methods.table.get_method", interrupt)
    done = run("show", "adaptive")
    assert done.exit_code == 130
    assert "Traceback" not in done.stderr


def test_key_errors_print_the_message_not_its_quotes(monkeypatch):
    def fail(name):
        raise KeyError("no such key")

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    assert run("show", "adaptive").stderr == "longtail: no such key\n"


@pytest.mark.parametrize("package", ["typer", "pyarrow"])
def test_without_the_extra_it_says_how_to_get_it(monkeypatch, capsys, package):
    for module in [
        name
        for name in sys.modules
        if name == "longtail.lab.cli.commands" or name == "longtail.lab.data.formats.tables"
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["longtail", "inspect", "labels.npy"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert 'pip install "longtail[lab]"' in str(stopped.value.code)
    assert package in str(stopped.value.code)


def test_the_installed_command(tmp_path):
    code = "import sys; from longtail.lab.cli import main; sys.argv[0] = 'longtail'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "nothing.csv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "longtail: nothing.csv: there is no such file.\n"


def test_names_that_look_like_other_things_stay_names(tmp_path, monkeypatch):
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


def test_quoted_fields_may_have_line_breaks(tmp_path):
    rows = "".join(f'"line {i}\nsecond, line",{"cat" if i % 10 else "dog"}\n' for i in range(60_000))
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    assert (
        json.loads(run("inspect", tmp_path / "t.csv", "--label", "label", "--json").stdout)["num_samples"] == 60_000
    )
