"""Every command, with files, recipes, arguments and folders that may be wrong: it works, or one line says why not."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from longtail.lab.runs.folder import load_run

pytest.importorskip("pyarrow")


def load_generators():
    """The neighbor; tests are imported by path, not from sys.path."""
    spec = importlib.util.spec_from_file_location("fuzz_generators", Path(__file__).with_name("generators.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generators = load_generators()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what odd numbers make others warn of is not the subject
    pytest.mark.skipif(not hasattr(__import__("signal"), "SIGPROF"), reason="cases are stopped by a signal"),
]


def name_outcome(done):
    return "accepted" if done.exit_code == 0 else "refused"


def test_label_files(fuzz, obey, tmp_path):
    def check(case):
        name, content = case
        Path(name).write_bytes(content)
        try:
            return name_outcome(obey("inspect", name))
        finally:
            Path(name).unlink()

    fuzz(generators.label_files(), check, few=120)


def test_score_files(fuzz, obey, tmp_path):
    Path("counts.csv").write_text("class,count\n0,50\n1,5\n2,1\n")

    def check(case):
        (name, content), options = case
        Path(name).write_bytes(content)
        done = obey("adjust", name, "--counts", "counts.csv", "--output", "out.csv", "--force", *options)
        has_output = Path("out.csv").exists()
        Path("out.csv").unlink(missing_ok=True)
        assert has_output == (done.exit_code == 0)
        assert not list(Path().glob(".*.partial"))
        return name_outcome(done)

    options = st.sampled_from([(), ("--tau", "0.5"), ("--tau", "1e308"), ("--target-prior", "counts.csv")])
    fuzz(st.tuples(generators.score_files(), options), check, few=80)


def test_recipes(fuzz, obey, tmp_path):
    def check(content):
        Path("recipe.toml").write_bytes(content)
        shutil.rmtree("run", ignore_errors=True)
        done = obey("train", "recipe.toml", "--output", "run", "--accelerator", "cpu", "--set", "train.epochs=1")
        assert sorted(path.name for path in Path().iterdir() if path.name != "recipe.toml") == (
            ["run"] if done.exit_code == 0 or Path("run").exists() else []
        )
        if done.exit_code == 0:
            load_run(Path("run"))
        return name_outcome(done)

    fuzz(generators.recipe_texts(), check, few=25)


def test_arguments(fuzz, obey, tmp_path):
    Path("labels.csv").write_text("label\na\na\nb\n")
    Path("scores.csv").write_text("0,1\n0.5,0.2\n0.1,0.9\n")

    def check(arguments):
        return name_outcome(obey(*arguments))

    fuzz(generators.arguments(), check, few=80)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    from typer.testing import CliRunner

    from longtail.lab.cli.app import app

    folder = tmp_path_factory.mktemp("whole") / "run"
    arguments = ["train", "digits", "--output", str(folder), *SHORT]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return folder


SHORT = ("--accelerator", "cpu", "--set", "train.epochs=2", "--set", "train.save_embeddings=20")
FILES = ["checkpoint.safetensors", "predictions.safetensors", "embeddings.safetensors"]
FILES += ["metrics.jsonl", "recipe.toml", "summary.json", "environment.json", ".lock"]


@st.composite
def spoiled_folders(draw):
    """Files of a folder to damage, remove, exchange or replace by a folder; and the command to run then."""
    kinds = st.sampled_from(["damage", "damage", "damage", "remove", "exchange", "folder"])
    changes = draw(st.lists(st.tuples(kinds, st.sampled_from(FILES), generators.damages()), min_size=1, max_size=2))
    return changes, draw(st.sampled_from(["report", "embed", "resume", "again"]))


def test_damaged_folders(fuzz, obey, whole, tmp_path):
    """A damaged run is refused, or what it shows is what it was."""
    expected = load_run(whole)

    def check(case):
        changes, command = case
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(whole, "run")
        if command == "resume":
            Path("run/summary.json").unlink()
        for change in changes:
            spoil(Path("run"), *change)
        done = run_command(obey, command)
        if done.exit_code == 0 and command in ("resume", "again"):
            found = load_run(Path("run"))
            assert found.metrics == expected.metrics
            assert (found.predictions.logits == expected.predictions.logits).all()
            losses = [[row["train_loss"] for row in run.history] for run in (found, expected)]
            assert losses[0] == losses[1]
        for output in (Path("o.html"), Path("o.npz")):
            assert output.exists() <= (done.exit_code == 0)
            output.unlink(missing_ok=True)
        return f"{command} {name_outcome(done)}"

    fuzz(spoiled_folders(), check, few=40)


def spoil(folder, kind, name, damage):
    path = folder / name
    if not path.is_file():
        return
    if kind == "damage":
        path.write_bytes(generators.damage_bytes(path.read_bytes(), damage))
    elif kind == "remove":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    else:
        other = folder / FILES[damage[2] % len(FILES)]
        if other.is_file():
            path.write_bytes(other.read_bytes())


def run_command(obey, command):
    if command == "report":
        return obey("report", "run", "--output", "o.html")
    if command == "embed":
        return obey("embed", "run", "--output", "o.npz", "--accelerator", "cpu")
    return obey("train", "digits", "--output", "run", *SHORT)
