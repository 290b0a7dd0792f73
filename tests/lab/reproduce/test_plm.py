"""The tables of the paper on partial label masking, at the smallest size that has all rows."""

import csv
import json

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce import plm
from longtail.lab.training.recipe import find_recipe, load_recipe
from longtail.methods import get_method

QUICK = [
    "train.epochs=1",
    "train.evaluate_every=0",
    "data.options.test_per_class=4",
]


def test_every_row_names_a_method_and_the_published_numbers():
    for loss in plm.LOSSES.values():
        assert get_method(loss.method).accepts_multilabel
        assert len(loss.reported) == len(plm.COLUMNS)
        assert ("per_class" in get_method(loss.method).options) == loss.is_undersampled
        assert ("rate" in get_method(loss.method).options) == loss.is_masked
    recall = plm.COLUMNS.index("recall_rarest_3")
    assert (plm.LOSSES["BCE"].reported[recall], plm.LOSSES["PLM (BCE)"].reported[recall]) == (51.50, 65.31)


def test_masking_takes_the_settings_of_the_recipe(tmp_path, monkeypatch):
    seen = {}

    def train(recipe, folder, show_progress):
        seen[recipe.method.name] = dict(recipe.method.options)
        raise StopIteration

    monkeypatch.setattr(plm, "train", train)
    recipe = load_recipe(find_recipe("two_digits"), ["method.options.rate=0.7"])
    monkeypatch.setattr(plm, "LOSSES", {"one": plm.LOSSES["PLM (BCE), undersampled"]})
    (row,) = plm.plan_losses(recipe, tmp_path, [0])
    with pytest.raises(StopIteration):
        row.make()
    assert seen == {"partial_label_masking_undersampled": {"rate": 0.7, "per_class": 46}}


def test_the_command_writes_all_tables(tmp_path):
    settings = [part for setting in QUICK for part in ("--set", setting)]
    result = CliRunner().invoke(
        app, ["reproduce", "plm", "--seeds", "1", "--output", str(tmp_path), *settings], catch_exceptions=False
    )
    assert result.exit_code == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == {"1", "5", "6"}
    assert len({row["row"] for row in rows}) == len(plm.LOSSES) + len(plm.RATES) + len(plm.INITIAL_RATIOS)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rate 1"]["reported"]["error"] == pytest.approx(0.2486)
    # A rate of 1 from the data's ratio is in both tables, and so is the same run.
    assert results["rate 1"]["values"] == results["initial data"]["values"]
    assert "PLM (BCE), undersampled" in result.output
    assert (tmp_path / "report.html").is_file()


COCO = ["method.options.rate=0.1", "method.options.clip=[0.0, 1.0]"]


def test_every_masked_row_takes_the_settings_of_coco(tmp_path):
    """Their last row once failed, for the undersampled variant did not know clip."""
    recipe = load_recipe(find_recipe("two_digits"), [*QUICK, *COCO])
    rows = plm.plan_losses(recipe, tmp_path, [0])
    assert rows[-1].key == (1, "PLM (BCE), undersampled", 0)
    assert rows[-1].make().values["f1"] >= 0


def test_a_row_that_fails_keeps_the_others(tmp_path, monkeypatch):
    losses = {name: plm.LOSSES[name] for name in ("BCE", "PLM (BCE)")}
    monkeypatch.setattr(plm, "LOSSES", losses)
    monkeypatch.setattr(plm, "RATES", {})
    monkeypatch.setattr(plm, "INITIAL_RATIOS", {})
    train = plm.train

    def fail_once(recipe, folder, show_progress):
        if recipe.method.name == "binary_cross_entropy":
            raise ValueError("no such\nluck")
        return train(recipe, folder, show_progress=show_progress)

    monkeypatch.setattr(plm, "train", fail_once)
    command = ["reproduce", "plm", "--seeds", "1", "--output", str(tmp_path)]
    command += [part for setting in QUICK for part in ("--set", setting)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "1 row failed; call again to resume. 1, BCE, 0: no such luck" in result.stderr
    assert "PLM (BCE)" in result.stdout
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert {row["row"] for row in csv.DictReader(file)} == {"PLM (BCE)"}
    assert not (tmp_path / "report.html").exists()
    monkeypatch.setattr(plm, "train", train)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(dict.fromkeys(row["row"] for row in csv.DictReader(file))) == ["BCE", "PLM (BCE)"]
    assert (tmp_path / "report.html").exists()
