"""``longtail inspect``."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from longtail import ClassPrior
from longtail.lab.cli.inspect import profile_chart, suggest_methods
from longtail.methods import METHODS


def test_inspect_takes_a_recipe(run):
    recipe = Path(__file__).parents[3] / "recipes" / "digits.toml"
    assert json.loads(run("inspect", recipe, "--json").stdout)["imbalance"] == pytest.approx(50, rel=0.3)


def test_inspect_draws_classes_without_samples(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.array([0, 0, 2])
    np.savez("d.npz", train_images=np.eye(3), train_labels=labels, test_images=np.eye(3), test_labels=np.arange(3))
    recipe = ['name = "r"', "[data]", 'source = "arrays"', "[data.options]", 'path = "d.npz"']
    Path("r.toml").write_text("\n".join([*recipe, "[model]", 'name = "linear"']))
    shown, written = run("inspect", "r.toml"), run("inspect", "r.toml", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(written.stdout, parse_constant=pytest.fail)["imbalance"] is None


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
def test_inspect_counts_labels_of_any_file(run, tmp_path, name, write):
    write(tmp_path / name)
    found = json.loads(run("inspect", tmp_path / name, "--json").stdout)
    assert found["classes"] == [{"class": 5, "count": 3}, {"class": 9, "count": 1}]
    assert found["imbalance"] == 3
    assert found["num_missing"] == (0 if name.endswith(("npy", "npz")) else 1)


def test_inspect_counts_strings_and_tells_missing_ones(run, tmp_path):
    (tmp_path / "labels.csv").write_text("id,kind\n1,NA\n2,NA\n3,\n4,null\n")
    found = json.loads(run("inspect", tmp_path / "labels.csv", "--label", "kind", "--json").stdout)
    assert found["classes"] == [{"class": "NA", "count": 2}, {"class": "null", "count": 1}]
    assert found["num_missing"] == 1
    assert "1 rows have no label" in run("inspect", tmp_path / "labels.csv", "--label", "kind").stdout


def test_inspect_reads_categories(run, tmp_path):
    labels = pa.array(["b", "a", "b", None]).dictionary_encode()
    pa.parquet.write_table(pa.table({"y": labels}), tmp_path / "labels.parquet")
    found = json.loads(run("inspect", tmp_path / "labels.parquet", "--json").stdout)
    assert found["classes"] == [{"class": "b", "count": 2}, {"class": "a", "count": 1}]


def test_inspect_says_which_indices_are_unused_but_takes_ids_for_names(run, tmp_path):
    np.save(tmp_path / "indices.npy", np.array([0, 1, 3]))
    np.save(tmp_path / "ids.npy", np.array([7, 10**12]))
    assert json.loads(run("inspect", tmp_path / "indices.npy", "--json").stdout)["num_skipped"] == 1
    assert json.loads(run("inspect", tmp_path / "ids.npy", "--json").stdout)["num_skipped"] == 0


def test_inspect_is_compact_at_8000_classes(run, tmp_path):
    counts = np.maximum(1, 9000 // np.arange(1, 8001))
    np.save(tmp_path / "labels.npy", np.repeat(np.arange(8000), counts))
    printed = run("inspect", tmp_path / "labels.npy").stdout
    assert "8,000 classes, imbalance 9,000.0" in printed
    assert len(printed.splitlines()) < 35
    assert max(len(line) for line in printed.splitlines()) < 160


@pytest.mark.parametrize("counts", [(5, 5), (900, 40, 3), (1000, 500), tuple(range(1500, 0, -1)), (1,)])
def test_suggestions_exist_and_differ(counts):
    suggested = [method for method, _ in suggest_methods(ClassPrior.from_counts(counts))]
    assert set(suggested) <= set(METHODS)
    assert len(set(suggested)) == len(suggested)
    is_imbalanced = max(counts) > 1.5 * min(counts)
    assert suggested[0] == ("logit_adjusted" if is_imbalanced else "cross_entropy")


@pytest.mark.parametrize("counts", [(1,), (1, 1), (7, 3), (10, 1), (10**6, 10, 1), tuple(range(999, 0, -1))])
def test_profile_chart_falls_and_fits(counts):
    rows = profile_chart(counts, width=40, height=6)
    assert len(rows) == 6
    cells = [row.partition("┤")[2] or row.partition("│")[2] for row in rows]
    assert all(len(row) <= 40 for row in cells)
    heights = [sum("▁▂▃▄▅▆▇█".find(row[column]) + 1 for row in cells if column < len(row)) for column in range(40)]
    drawn = [height for height in heights if height > 0]
    assert drawn == sorted(drawn, reverse=True)
    assert len(drawn) >= min(40, len(counts))
    assert any(row.lstrip().startswith(f"{counts[0]:,} ┤") for row in rows)


def test_inspect_refuses_what_is_not_labels(refuse, tmp_path):
    (tmp_path / "empty.csv").write_text("label\n")
    refuse("inspect", tmp_path / "empty.csv", message="at least one labeled sample")
    (tmp_path / "missing.csv").write_text("label,x\n,1\n,2\n")
    refuse("inspect", tmp_path / "missing.csv", message="at least one labeled sample")
    (tmp_path / "times.csv").write_text("label\n2020-01-01\n")
    refuse("inspect", tmp_path / "times.csv", message="whole numbers or strings")


def test_quoted_fields_may_have_line_breaks(run, tmp_path):
    rows = "".join(f'"line {i}\nsecond, line",{"cat" if i % 10 else "dog"}\n' for i in range(60_000))
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    assert (
        json.loads(run("inspect", tmp_path / "t.csv", "--label", "label", "--json").stdout)["num_samples"] == 60_000
    )


@pytest.mark.parametrize(("more", "escaped"), [("", "\\x1b[31mcat "), ("a\nb\n" * 200, "\\x1b[31mcat (1)")])
def test_names_cannot_steer_the_terminal(run, tmp_path, more, escaped):
    """By name where classes are few, and as an example of the rarest where they are many."""
    names = "cat\nd\x1b]0;title\x07og\n\x1b[31mcat\ncat\n\u202etac\n"
    (tmp_path / "labels.csv").write_text(f"label\n{names}{more}")
    shown = run("inspect", tmp_path / "labels.csv")
    assert shown.exit_code == 0, shown.stderr
    assert all(letter.isprintable() or letter == "\n" for letter in shown.stdout)
    assert escaped in shown.stdout
    assert json.loads(run("inspect", tmp_path / "labels.csv", "--json").stdout)["num_classes"] == (6 if more else 4)


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_inspect_takes_files_of_the_extreme_classification_repository(run, tmp_path, name):
    content = b"3 4 9\n0,7 1:0.5\n7 0:1\n7 2:1\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = json.loads(run("inspect", tmp_path / name, "--json").stdout)
    assert found["classes"] == [{"class": 7, "count": 3}, {"class": 0, "count": 1}]
    assert (found["num_samples"], found["is_multilabel"]) == (3, True)
    assert [METHODS[row["method"]].accepts_multilabel for row in found["methods"]] == [True] * 3
    shown = run("inspect", tmp_path / name).stdout
    assert "3 samples, 2 labels, 1.3 of them per sample" in shown
    assert "longtail adjust SCORES --multilabel" in shown


def test_inspect_shows_few_classes_by_name(run, tmp_path):
    """Two classes of 950 and 120 samples are both head: that says nothing."""
    (tmp_path / "labels.csv").write_text("label\n" + "ham\n" * 950 + "spam\n" * 120)
    printed = run("inspect", tmp_path / "labels.csv").stdout
    assert "head" not in printed
    assert "torso" not in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["ham", "950", "88.8%"] in rows
    assert ["spam", "120", "11.2%"] in rows
    groups = json.loads(run("inspect", tmp_path / "labels.csv", "--json").stdout)["groups"]
    assert [group["num_classes"] for group in groups] == [2, 0, 0]


@pytest.mark.parametrize(("counts", "shown"), [([200] * 11, "head"), ([200, 30, 1, 1, 1, 1], "torso")])
def test_inspect_shows_groups_where_classes_are_many_or_differ(run, tmp_path, counts, shown):
    np.save(tmp_path / "labels.npy", np.repeat(np.arange(len(counts)), counts))
    assert shown in run("inspect", tmp_path / "labels.npy").stdout


def test_inspect_ends_with_the_next_command(run, tmp_path):
    (tmp_path / "labels.csv").write_text("kind\na\na\nb\n")
    last = " ".join(run("inspect", tmp_path / "labels.csv", "--label", "kind").stdout.split())
    assert last.endswith(
        f"longtail adjust SCORES --train-labels {tmp_path / 'labels.csv'} --label kind --output predictions.csv"
    )
    recipe = Path(__file__).parents[3] / "recipes" / "digits.toml"
    assert run("inspect", recipe).stdout.rstrip().endswith(f"longtail compare {recipe}")
    assert "The most frequent class has 66.7% of the samples" in last


def test_inspect_counts_several_files_and_folders(run, refuse, tmp_path):
    for name, rows in (("a", "cat\ndog\n"), ("b", "cat\n")):
        (tmp_path / f"{name}.csv").write_text("label\n" + rows)
    for files in ([tmp_path], [tmp_path / "a.csv", tmp_path / "b.csv"], [tmp_path.as_uri()]):
        found = json.loads(run("inspect", *files, "--json").stdout)
        assert found["classes"] == [{"class": "cat", "count": 2}, {"class": "dog", "count": 1}]
    (tmp_path / "b.csv").write_text("kind\ncat\n")
    refuse("inspect", tmp_path, message="b.csv: every part must have the columns of")
    (tmp_path / "b.csv").write_text("label\n" + "".join(f"{i}\n" for i in range(200)))
    refuse("inspect", tmp_path, "--memory", "0.00005", message="different labels would take")


def test_inspect_counts_the_labels_of_a_matrix(run, tmp_path):
    np.save(tmp_path / "labels.npy", np.array([[1, 1, 0], [1, 0, 0]], dtype=bool))
    found = json.loads(run("inspect", tmp_path / "labels.npy", "--json").stdout)
    assert [row["count"] for row in found["classes"]] == [2, 1, 0]
    assert (found["num_samples"], found["is_multilabel"]) == (2, True)


def test_inspect_takes_counts_with_names_or_without(run, refuse, tmp_path):
    np.save(tmp_path / "counts.npy", np.array([5, 90]))
    (tmp_path / "counts.csv").write_text("animal,count\ncat,5\ndog,90\n")
    for name, classes in (("counts.npy", [1, 0]), ("counts.csv", ["dog", "cat"])):
        shown = run("inspect", tmp_path / name, "--counts", "--json")
        found = json.loads(shown.stdout)
        assert [row["class"] for row in found["classes"]] == classes
        assert (found["num_samples"], found["imbalance"]) == (95, 18)
    assert (
        f"--counts {tmp_path / 'counts.csv'} --output" in run("inspect", tmp_path / "counts.csv", "--counts").stdout
    )
    refuse("inspect", tmp_path / "counts.npy", tmp_path / "counts.csv", "--counts", message="one file. Got 2")


def test_inspect_takes_the_name_of_a_recipe_and_leaves_balanced_labels_alone(run, refuse, tmp_path):
    assert run("inspect", "digits").stdout.rstrip().endswith("longtail compare digits")
    refuse("inspect", "digit", message="no recipe 'digit'; did you mean 'digits'?")
    (tmp_path / "labels.csv").write_text("label\na\nb\n")
    assert "adjust" not in run("inspect", tmp_path / "labels.csv").stdout
