"""Curves by epoch: where a method ends that acts on the trained model."""

import pytest

from longtail.lab.report.figures.training import draw_accuracy, draw_loss
from longtail.lab.report.kinds import compare


def trace_of(figure, series, mode):
    return next(trace for trace in figure.traces if trace["meta"] == series and trace["mode"] == mode)


def test_a_posthoc_method_ends_at_what_the_table_says(comparison):
    figure = draw_accuracy(comparison)
    index = [method.label for method in comparison.methods].index("posthoc_adjusted")
    final = comparison.methods[index].metric("balanced_accuracy").mean
    line = trace_of(figure, f"method-{index}", "lines")
    mark = trace_of(figure, f"method-{index}", "lines+markers+text")
    assert mark["x"] == [line["x"][-1]] * 2
    assert mark["y"] == [line["y"][-1], pytest.approx(final, abs=1e-4)]
    assert mark["text"][-1] == "after adjustment"
    assert ("posthoc_adjusted", "after adjustment", f"{100 * final:.1f}%") in figure.table.rows


def test_only_posthoc_methods_are_marked(comparison):
    marks = [trace for trace in draw_accuracy(comparison).traces if "text" in trace]
    assert len(marks) == 1
    assert not any("text" in trace for trace in draw_loss(comparison).traces)


def test_the_sentence_says_both_ends(runs):
    plain, adjusted = (
        next(run for run in runs if run.method == name) for name in ("cross_entropy", "posthoc_adjusted")
    )
    comparison = compare([plain, adjusted])
    final = comparison.methods[1].metric("balanced_accuracy").mean
    expected = f"86.0% and {100 * final:.1f}% after adjustment with posthoc_adjusted"
    assert expected in draw_accuracy(comparison).summary
