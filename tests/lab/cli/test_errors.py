"""What inputs can be wrong with is one line that names the file or the setting, and exit code 2."""

import json

import numpy as np
import pytest

DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.options.seed=0.5", "data.options.seed must be a whole number. Got 0.5"),
        ("data.options.seed=true", "data.options.seed must be a whole number. Got True"),
        ("data.options.seed=10000000000000000000", "data.options.seed must be a whole number"),
        ("data.options.test_per_class=1.5", "data.options.test_per_class must be a whole number"),
        ("data.options.test_per_class=many", "data.options.test_per_class must be a whole number. Got 'many'"),
        ("data.options.test_per_class=1000000000000", "test_per_class"),
        ("data.options=5", "data.options must be a table"),
        ("data.seed=-1", "data.seed must be at least 0"),
        ("data.seed=10000000000000000000", "data.seed must be at least 0 and at most"),
        ("data.ratio=nan", "data.ratio must be at least 1 and finite. Got nan"),
        ("data.ratio=true", "data.ratio must be a finite number. Got True"),
        ("data.source=5", "data.source must be text"),
        ("train.epochs=10000000000000000000", "train.epochs must be at least 1 and at most 1e+06"),
        ("train.epochs=true", "train.epochs must be a whole number. Got True"),
        (f"train.epochs={DEEP}", "a setting is nested too deeply"),
        (f"method.options.tau={DEEP}", "a setting is nested too deeply"),
        (f"train{'.a' * 3000}=1", "a setting has at most 16 tables above it"),
        ("train.batch_size=10000000000000000000", "train.batch_size must be at least 1 and at most"),
        ("train.learning_rate=true", "train.learning_rate must be a finite number"),
        ("train.precision=abc", "precision"),
        ("model.options.dropout=nan", "model.options.dropout must be a finite number. Got nan"),
        ("model.options.dropout=true", "model.options.dropout must be a finite number. Got True"),
        ("model.options.dropout=2", "dropout probability has to be between 0 and 1"),
        ("model.options.hidden=5", "model.options.hidden must be a list, each a whole number. Got 5"),
        ("model.options.hidden=[true]", "model.options.hidden must be a list, each a whole number"),
        ("model.options.hidden=[10000000000000000000]", "model.options.hidden must be a list, each a whole number"),
        ("model.options.hidden=[1000000000000000000]", "can't be built with model.options {'hidden': [10000"),
        ("model.options.hidden=[-1]", "can't be built with model.options {'hidden': [-1]}"),
        ("model.options.head=5", "model.options.head must be text. Got 5"),
        ("model.options.head_options=5", "model.options.head_options must be"),
        ("method.options.tau=true", "method.options.tau must be a number. Got True"),
        ("name=../x", "name must be letters, digits"),
    ],
    ids=lambda value: value[:40],
)
def test_a_setting_that_cannot_be_is_named(refuse, tmp_path, monkeypatch, setting, message):
    monkeypatch.chdir(tmp_path)
    refuse(
        "train", "digits", "--method", "logit_adjusted", "--set", "train.epochs=1", "--set", setting, message=message
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"name = 'x'\na = {DEEP}", "r.toml is nested too deeply for a recipe"),
        (f"a{'.a' * 3000} = 1", "r.toml is nested too deeply for a recipe"),
        ("name = ", "r.toml is not a TOML file"),
        ("name = '\udcff'", "r.toml is not a TOML file"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named(refuse, tmp_path, text, message):
    (tmp_path / "r.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    refuse("train", tmp_path / "r.toml", "--output", tmp_path / "run", message=message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (TypeError("'int' object is not iterable"), "longtail: in longtail show adaptive: 'int' object is not iter"),
        (KeyError("epoch"), "longtail: in longtail show adaptive: epoch"),
        (ZeroDivisionError("division by zero"), "longtail: in longtail show adaptive: division by zero"),
        (ValueError("tau must be a number."), "longtail: tau must be a number."),
        (FileNotFoundError(2, "No such file", "x.csv"), "longtail: x.csv: No such file"),
    ],
    ids=repr,
)
def test_an_error_that_names_nothing_gets_the_command_beside_it(refuse, monkeypatch, error, start):
    def fail(name):
        raise error

    monkeypatch.setattr("longtail.methods.table.get_method", fail)
    assert refuse("show", "adaptive", message="").startswith(start)


@pytest.mark.parametrize("name", ["predictions.safetensors", "metrics.jsonl", "recipe.toml", "summary.json"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 50, json.dumps([1] * 9).encode(), b"PK\x03\x04 no archive"])
def test_a_damaged_run_is_named_by_report_and_embed(refuse, trained, tmp_path, name, content):
    import shutil

    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / name).write_bytes(content)
    for arguments in (("report", folder, "--output"), ("embed", folder, "--output")):
        output = tmp_path / ("o.npz" if arguments[0] == "embed" else "o.html")
        line = refuse(*arguments, output, message="this run can't be read")
        assert str(folder) in line
        assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "a.csv", "--lable", "x"], "no such option: --lable (Possible options: --label)"),
        (["inspct", "a.csv"], "no such command 'inspct'. Did you mean 'inspect'"),
        (["inspect"], "missing argument 'FILE'. See"),
        (["--nothing"], "no such option: --nothing. See"),
        (["train", "digits", "--seed", "-1"], "invalid value for '--seed'"),
        (["train", "digits", "--devices", "two"], "--devices must be a whole number or auto. Got 'two'"),
        (["train", "digits", "--set", "epochs=3"], "did you mean 'train.epochs'?"),
        (["train", "digits", "--set", "method.options.tau=1"], "cross_entropy has no option 'tau'"),
        (["train", "digits", "--method", "LDAM"], "here it is called 'max_scaled_adaptive'"),
        (["train", "no.toml"], "there is no file 'no.toml'"),
        (["compare", "digits", "--methods", ","], "--methods must name at least one method"),
        (["show", "balanced_softmax"], "here it is called 'logit_adjusted'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_call_that_is_wrong_is_one_line_that_says_what_to_write(refuse, arguments, message):
    refuse(*arguments, message=message)


def test_a_warning_is_one_line(run, monkeypatch):
    import warnings

    def warn(recipe):
        warnings.warn("a class\n is empty", UserWarning, stacklevel=1)
        raise FileNotFoundError("gone")

    monkeypatch.setattr("longtail.lab.cli._labels.load_data", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("inspect", "digits")
    assert done.stderr == "longtail: a class is empty\nlongtail: gone\n"


OWN = """
def needy(prior, tau):
    return tau

def broken(prior):
    return undefined
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py:needy", "every argument after the prior needs a default. 'tau' has none"),
        ("own.py:broken", "failed: NameError: name 'undefined' is not defined (line 6 of own.py)"),
        ("wrong.py:any", "failed: SyntaxError"),
    ],
)
def test_a_fault_in_code_of_their_own_is_not_said_to_be_a_bug(refuse, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "wrong.py").write_text("def (")
    line = refuse("train", "digits", "--method", name, "--trust-code", message=message)
    assert "bug" not in line


def test_data_that_a_method_is_not_for_are_named(refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", train_images=np.eye(3), train_labels=[0, 0, 2], test_images=np.eye(3), test_labels=[0, 1, 2])
    nothing = {"train_images": np.full((2, 2), np.nan), "train_labels": [0, 1]}
    np.savez("nan.npz", **nothing, test_images=np.eye(2), test_labels=[0, 1])
    recipe = 'name = "r"\n[data]\nsource = "arrays"\noptions = {path = "%s"}\n[model]\nname = "linear"\n'
    (tmp_path / "r.toml").write_text(recipe % "d.npz")
    (tmp_path / "nan.toml").write_text(recipe % "nan.npz")
    refuse("train", "r.toml", "--method", "logit_adjusted", message="class '1' has no training samples; drop it")
    refuse("train", "nan.toml", message="train_images must be finite. Got NaN or an infinity in row 0")
    refuse("train", "two_digits", "--method", "logit_adjusted", message="two digits is multi-label")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("semicolons.csv", "text;label\nhello;a\n", "columns must be separated by ','. Got ';' in the first row"),
        ("latin.csv", "label\n\u00e4\n".encode("latin-1"), "save it as UTF-8"),
        ("spaces.csv", "id, label\n1, a\n", "The name has spaces around it: ' label'."),
        ("labels.json.gz", "{}", "the suffix must be one of .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .npy, .npz."),
    ],
)
def test_a_table_of_another_kind_is_named_with_its_remedy(refuse, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refuse("inspect", tmp_path / name, "--label", "label", message=message)
