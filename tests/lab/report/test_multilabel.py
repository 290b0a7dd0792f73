"""The page about multi-label runs."""

import dataclasses
import json
import re

import numpy as np
import pytest

from longtail.lab.report import write_report
from longtail.lab.report.figures.f1 import draw_f1
from longtail.lab.report.figures.masking_ratios import draw_masking_ratios
from longtail.lab.report.figures.precision_recall import draw_precision, draw_recall
from longtail.lab.report.figures.probabilities import draw_probabilities
from longtail.lab.report.kinds import compare
from longtail.lab.runs.folder import Predictions, Run


def make_run(tmp_path, method, seed=0, num_classes=6, shift=0.0, ratios=False):
    """A made-up run whose logits follow the labels, with noise."""
    generator = np.random.default_rng(seed)
    counts = np.maximum(200 // (1 + np.arange(num_classes)), 1)
    labels = np.random.default_rng(99).random((80, num_classes)) < 0.3
    logits = (2 * labels - 1 + shift + generator.normal(0, 1.5, labels.shape)).astype(np.float32)
    predictions = Predictions(
        logits, logits, labels, counts, tuple(f"<b>{c}" for c in range(num_classes)), num_train=400
    )
    history = [{"epoch": epoch, "train_loss": 1.0 / (epoch + 1), "learning_rate": 0.1} for epoch in range(3)]
    if ratios:
        values = np.linspace(0.5, 0.01, num_classes)
        history = [
            row | {"positive_ratios": [None, *(values[1:] * (1 + row["epoch"])).round(6).tolist()]} for row in history
        ]
    summary = {"method": method, "seed": seed, "seconds": 1.0, "metrics": {}}
    recipe = {"name": "made-up", "method": {"name": method}}
    return Run(tmp_path / method / str(seed), recipe, summary, history, predictions)


@pytest.fixture
def runs(tmp_path):
    plain = [make_run(tmp_path, "binary_cross_entropy", seed, shift=-1.0) for seed in (0, 1)]
    return plain + [make_run(tmp_path, "partial_label_masking", seed, shift=0.5, ratios=True) for seed in (0, 1)]


def test_scores_of_a_class_are_those_of_all_seeds(runs):
    comparison = compare(runs[2:])
    scores = comparison.methods[0].class_scores()
    labels = np.concatenate([run.predictions.labels for run in runs[2:]])
    predicted = np.concatenate([run.predictions.logits for run in runs[2:]]) >= 0
    np.testing.assert_allclose(scores.recall, (labels & predicted).sum(0) / labels.sum(0))
    np.testing.assert_allclose(scores.precision, (labels & predicted).sum(0) / predicted.sum(0))
    assert comparison.main_metric == "f1"
    assert comparison.methods[0].probabilities()[1].sum() == labels.sum()
    assert comparison.labels.num_train == 400
    assert comparison.labels.num_test == 80


def test_figures_show_every_method_and_say_so(runs):
    comparison = compare(runs)
    assert comparison.reference.method == "binary_cross_entropy"
    for figure in (draw_recall(comparison), draw_precision(comparison), draw_f1(comparison)):
        assert len(figure.traces) == 2
        assert len(figure.table.rows) == 6
        assert figure.summary.endswith(".")
    before, after = (method.class_scores().f1 for method in comparison.methods)
    assert f"on {int((after > before).sum())} of 6 classes" in draw_f1(comparison).summary


def test_probabilities_of_head_and_tail_are_shares(runs):
    for is_positive in (True, False):
        figure = draw_probabilities(compare(runs), is_positive)
        assert len(figure.traces) == 4  # two methods, head and tail
        for trace in figure.traces:
            assert sum(trace["y"]) == pytest.approx(1, abs=1e-3)
    plain_head = draw_probabilities(compare(runs), True).traces[0]
    masked_head = draw_probabilities(compare(runs), True).traces[2]
    assert sum(plain_head["y"][:5]) > sum(masked_head["y"][:5])


def test_ratios_leave_out_classes_without_one(runs):
    figure = draw_masking_ratios(compare(runs))
    assert len(figure.traces) == 5
    assert "3 times" in figure.summary
    assert draw_masking_ratios(compare(runs[:2])) is None


def test_the_page_has_its_sections_and_escapes_names(runs, tmp_path):
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for key in ("methods", "classes", "f1", "probabilities", "ratios", "labels", "training", "settings"):
        assert f'<section id="{key}"' in page
    for key in ("tau", "confusions", "calibration"):
        assert f'<section id="{key}"' not in page
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])
    assert {"recall", "precision", "f1-by-class", "positive-probabilities", "positive-ratios"} <= set(figures)
    assert "<b>0" not in page
    assert re.search(
        r"Gain: recall of the 3 rarest classes \+[\d.]+ and recall \+[\d.]+ points. Price: precision −", page
    )


def test_one_run_and_many_classes_make_a_page(tmp_path):
    run = make_run(tmp_path, "asymmetric", num_classes=250)
    assert draw_f1(compare([run])) is None
    write_report([run], tmp_path / "report.html")
    assert "mean F1" in (tmp_path / "report.html").read_text()


def test_single_label_and_multilabel_runs_do_not_mix(runs, tmp_path):
    single = dataclasses.replace(
        runs[0].predictions, labels=runs[0].predictions.labels.argmax(1).astype(np.int64), num_train=None
    )
    with pytest.raises(ValueError, match="must be of the same data"):
        compare([runs[2], dataclasses.replace(runs[0], results=single)])
