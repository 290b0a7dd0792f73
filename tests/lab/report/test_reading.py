"""Folders to runs."""

import re

import pytest

from longtail.lab.report import read_runs, write_report


def test_no_runs(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="no complete run at or below"):
        read_runs([tmp_path])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", '{"method": "cross_entropy"}'),
        ("summary.json", "[]"),
        ("summary.json", "{"),
        ("metrics.jsonl", "no json\n"),
        ("metrics.jsonl", '{"train_loss": 1.0}\n'),
        ("metrics.jsonl", "[]\n"),
        ("recipe.toml", "= ="),
        ("predictions.safetensors", "no archive"),
        ("environment.json", "{"),
    ],
)
def test_broken_run_folder(tmp_path, file, text, make_predictions, make_run, counts):
    make_run(tmp_path / "run", "cross_entropy", 0, make_predictions(counts))
    (tmp_path / "run" / file).write_text(text)
    output = tmp_path / "page.html"
    output.write_text("what was there before")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "run"))) as caught:
        write_report(read_runs([tmp_path]), output)
    assert "\n" not in str(caught.value)
    assert output.read_text() == "what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_runs_are_found_once_and_read_late(tmp_path, make_predictions, make_run, counts):
    make_run(tmp_path / "deep" / "run", "cross_entropy", 0, make_predictions(counts))
    found = read_runs([tmp_path, tmp_path / "deep" / "run"])
    assert [run.method for run in found] == ["cross_entropy"]
