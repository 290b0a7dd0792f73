"""Rows in a file: written one by one, kept when one fails, and not made again."""

import csv

import pytest
from rich.console import Console

from longtail.lab.cli.reproduce import print_outcome
from longtail.lab.reproduce._rows import Row, RowFormat, check_settings, conclude, make_rows
from longtail.lab.reproduce.experiment import MissingRow, Outcome, Summary
from longtail.lab.reproduce.gaussians import Options

FORMAT = RowFormat(
    ("name", "seed"),
    lambda result: [{"half": result / 2, "whole": result}],
    lambda key, lines: float(lines[0]["whole"]),
)


def ignore(done, total, doing):
    pass


def read(folder):
    with (folder / "rows.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_is_on_disk_before_the_next_is_made(tmp_path):
    seen = []

    def make():
        seen.append(read(tmp_path))
        return 2.0

    make_rows([Row(("a", 0), lambda: 1.0), Row(("b", 0), make)], FORMAT, tmp_path / "x" / "..", ignore)
    assert seen == [[{"name": "a", "seed": "0", "half": "0.5", "whole": "1.0"}]]


def test_what_an_interrupt_leaves_is_taken_up(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_rows([Row(("a", 0), lambda: 0.1), Row(("b", 0), interrupt)], FORMAT, tmp_path, ignore)
    results, failures = make_rows([Row(("a", 0), interrupt), Row(("b", 0), lambda: 3.0)], FORMAT, tmp_path, ignore)
    assert (results, failures) == ([0.1, 3.0], [])


def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    def fail():
        raise RuntimeError("a\n reason")

    rows = [Row(("a", 0), fail), Row(("b", 0), lambda: 2.0)]
    assert make_rows(rows, FORMAT, tmp_path, ignore) == ([2.0], [MissingRow("a, 0", "a reason")])
    assert make_rows([Row(("a", 0), lambda: 1.0), rows[1]], FORMAT, tmp_path, ignore) == ([1.0, 2.0], [])
    assert [row["name"] for row in read(tmp_path)] == ["a", "b"]


def test_rows_of_other_calls_stay(tmp_path):
    make_rows([Row(("a", seed), lambda: 1.0) for seed in (0, 1, 2)], FORMAT, tmp_path, ignore)
    make_rows([Row(("b", 0), lambda: 5.0)], FORMAT, tmp_path, ignore)
    assert [(row["name"], row["seed"]) for row in read(tmp_path)] == [("b", "0"), ("a", "0"), ("a", "1"), ("a", "2")]


def test_progress_is_said(tmp_path):
    said = []
    rows = [Row(("a", 0), lambda: 1.0), Row(("b", 0), lambda: 2.0)]
    make_rows(rows, FORMAT, tmp_path, lambda *words: said.append(words))
    assert said == [(0, 2, "a, 0"), (1, 2, "b, 0"), (2, 2, "")]


def test_rows_of_other_settings_are_not_mixed(tmp_path):
    check_settings(tmp_path, Options(trials=2, samples=500))
    make_rows([Row(("a", 0), lambda: 1.0)], FORMAT, tmp_path, ignore)
    check_settings(tmp_path, Options(trials=9, samples=500))
    with pytest.raises(ValueError, match=r"holds rows with samples 500, seed 0\. Got samples 600.*another --output"):
        check_settings(tmp_path, Options(trials=2, samples=600))


def test_a_reason_is_said_once(capsys):
    rows = [MissingRow("a", "why"), MissingRow("b", "why"), MissingRow("c", "else")]
    with pytest.raises(ValueError, match=r"^3 rows failed; call again to resume\. a: why; c: else$"):
        print_outcome(Outcome([], [], rows), Console())
    assert capsys.readouterr().out == ""


def test_pictures_wait_until_no_row_is_missing(tmp_path):
    table = Summary(("method",), [("a",)])

    def write(results):
        return [tmp_path / "picture.html"]

    whole = conclude([1.0], [], tmp_path, lambda results: [table], write)
    assert [path.name for path in whole.written] == ["rows.csv", "picture.html"]
    partial = conclude([1.0], [MissingRow("b", "why")], tmp_path, lambda results: [table], write)
    assert [path.name for path in partial.written] == ["rows.csv"]
    assert partial.summaries == [table]
    assert conclude([], [MissingRow("b", "why")], tmp_path, lambda results: [table], write).summaries == []
