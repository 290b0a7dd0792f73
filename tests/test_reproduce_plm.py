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
        assert get_method(loss.method).takes_indicators
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
    with pytest.raises(RuntimeError):
        list(plm.run_losses(recipe, tmp_path, [0]))
    assert seen == {"partial_label_masking_undersampled": {"rate": 0.7, "per_class": 46}}


def test_the_command_writes_all_tables(tmp_path):
    settings = [part for setting in QUICK for part in ("--set", setting)]
    result = CliRunner().invoke(
        app, ["reproduce", "plm", "--seeds", "1", "--output", str(tmp_path), *settings], catch_exceptions=False
    )
    assert result.exit_code == 0
    with (tmp_path / "tables.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == {"1", "5", "6"}
    assert len({row["row"] for row in rows}) == len(plm.LOSSES) + len(plm.RATES) + len(plm.INITIAL_RATIOS)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rate 1"]["reported"]["error"] == pytest.approx(0.2486)
    # A rate of 1 from the data's ratio is in both tables, and so is the same run.
    assert results["rate 1"]["values"] == results["initial data"]["values"]
    assert "PLM (BCE), undersampled" in result.output
    assert (tmp_path / "report.html").is_file()
