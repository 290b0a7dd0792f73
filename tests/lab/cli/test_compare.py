"""The table of ``longtail compare``."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from longtail.lab.cli.compare import render_comparison
from longtail.lab.runs.folder import Predictions, Run


def make_run(method, seed, counts, score):
    """A run that predicts each test sample right with the probability ``score``."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), 50)
    logits = generator.standard_normal((len(labels), len(counts)), dtype=np.float32)
    logits[np.arange(len(labels)), labels] += np.where(generator.random(len(labels)) < score, 9, -9)
    names = tuple(f"class {index}" for index in range(len(counts)))
    predictions = Predictions(logits, logits, labels, np.array(counts), names)
    metrics = {"accuracy": score, "balanced_accuracy": score, "head": score, "torso": score / 2, "tail": score / 3}
    return Run(
        path=Path(method, str(seed)),
        recipe={},
        summary={"method": method, "seed": seed, "seconds": 1.5, "metrics": metrics},
        history=[],
        results=predictions,
    )


def print_runs(runs):
    console = Console(width=80, record=True, markup=False, highlight=False, file=io.StringIO())
    console.print(render_comparison(runs))
    return console.export_text().splitlines()


@pytest.mark.parametrize("spread", [0.01, 0.4])
def test_a_row_is_a_line_of_80_columns_whatever_the_intervals(spread):
    counts = [500, 300, 100, 50, 20, 9, 3]
    names = ["cross_entropy", "class_balanced_sampling", "adaptive_deferred"]
    runs = [make_run(name, seed, counts, 0.5 + spread * seed) for name in names for seed in range(2)]
    heading, _, *rows = print_runs(runs)[: 2 + len(names)]
    assert heading.split() == ["method", "balanced", "head", "torso", "tail", "s"]
    assert sorted(row.split()[0] for row in rows) == sorted(names)
    # Where there is no room, only the first number has its interval.
    assert {row.count("±") for row in rows} == {4 if spread < 0.1 else 1}


def test_two_classes_have_a_column_each():
    heading, _, row = print_runs([make_run("cross_entropy", 0, [900, 100], 0.75)])[:3]
    assert heading.split()[1:] == ["balanced", "class", "0", "class", "1", "s"]
    assert all(60 < float(number) < 90 for number in row.split()[1:4])


def test_numbers_are_whole_beside_long_names():
    counts = [500, 300, 100, 50, 20, 9, 3]
    name = "threshold_equalized (threshold=0.002, keep=0.01, another_option=0.12345)"
    heading, _, *lines = print_runs([make_run(name, seed, counts, 0.5 + 0.1 * seed) for seed in range(2)])
    assert heading.split() == ["method", "balanced", "head", "torso", "tail", "s"]
    assert lines[0].split()[-5:-4] == ["±63.5"]
    assert lines[0].split()[-4:] == ["55.0", "27.5", "18.3", "1.5"]
    assert "".join(line.split("  ")[0] for line in lines[:2]).replace(" ", "") == name.replace(" ", "")
