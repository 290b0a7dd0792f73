"""What the report computes of runs with one label per sample."""

import numpy as np
import pytest
import torch

from longtail.diagnostics import logit_margins
from longtail.lab.report.digests.single_label import TAUS, find_plain
from longtail.lab.report.kinds import compare
from longtail.lab.runs.folder import Predictions
from longtail.posthoc import adjust_logits


def method_of(comparison, label):
    return next(method for method in comparison.methods if method.label == label)


def accuracies(predicted, labels, num_classes):
    return [np.mean(predicted[labels == index] == index) for index in range(num_classes)]


def test_metrics_are_those_of_plain_loops(runs, comparison, counts):
    predictions = runs[0].predictions
    predicted = predictions.scores.argmax(axis=1)
    by_class = accuracies(predicted, predictions.labels, 10)
    metrics = method_of(comparison, "cross_entropy").runs[0].metrics
    assert metrics["accuracy"] == pytest.approx(np.mean(predicted == predictions.labels))
    assert metrics["balanced_accuracy"] == pytest.approx(np.mean(by_class))
    head = [value for value, count in zip(by_class, counts, strict=True) if count >= 100]
    tail = [value for value, count in zip(by_class, counts, strict=True) if count < 20]
    assert (metrics["head"], metrics["tail"]) == pytest.approx((np.mean(head), np.mean(tail)))


def test_metrics_are_those_that_training_stores(runs, comparison):
    from longtail.lab.training.evaluation import score_metrics

    for run in runs[:3]:
        predictions = run.predictions
        stored = score_metrics(
            torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels), predictions.prior
        )
        shown = method_of(comparison, run.method).runs[run.seed].metrics
        assert {name: shown[name] for name in stored} == pytest.approx(stored)


def test_class_accuracy_is_over_all_seeds(runs, comparison):
    expected = np.mean(
        [accuracies(run.predictions.scores.argmax(axis=1), run.predictions.labels, 10) for run in runs[:3]], axis=0
    )
    assert method_of(comparison, "cross_entropy").class_accuracy() == pytest.approx(expected)


def test_tau_curve_adjusts_the_stored_logits(runs, comparison):
    curve = method_of(comparison, "cross_entropy").runs[0].tau_metrics["balanced_accuracy"]
    predictions = runs[0].predictions
    for tau, value in zip(TAUS, curve, strict=True):
        predicted = adjust_logits(predictions.logits, predictions.prior, float(tau)).argmax(axis=1)
        assert value == pytest.approx(np.mean(accuracies(predicted, predictions.labels, 10))), tau


def test_tau_curve_only_of_plain_cross_entropy(comparison):
    adjusted = {method.label for method in comparison.methods if method.runs[0].tau_metrics is not None}
    assert adjusted == {"cross_entropy", "posthoc_adjusted"}
    assert find_plain(comparison).label == "cross_entropy"


def test_margins_are_those_of_a_loop(runs, comparison):
    predictions = runs[0].predictions
    expected = []
    for scores, label in zip(predictions.scores, predictions.labels, strict=True):
        if label == 9:
            expected.append(scores[label] - max(score for index, score in enumerate(scores) if index != label))
    assert comparison.labels.example("tail").tolist() == [9]
    margins = method_of(comparison, "cross_entropy").runs[0].margins["tail"]
    assert sorted(margins) == pytest.approx(sorted(expected), abs=1e-6)


def test_margins_of_groups_are_those_of_all_their_samples(runs, comparison, counts):
    predictions = runs[0].predictions
    margins = logit_margins(torch.from_numpy(predictions.scores), torch.from_numpy(predictions.labels))
    is_tail = counts[predictions.labels] < 20
    found = method_of(comparison, "cross_entropy").runs[0].group_margins["tail"]
    np.testing.assert_allclose(found, margins.numpy()[is_tail])


def test_worst_confusions_are_those_of_a_loop(runs, comparison):
    pairs = {}
    for run in runs[:3]:
        for label, predicted in zip(run.predictions.labels, run.predictions.scores.argmax(axis=1), strict=True):
            if label != predicted:
                pairs[int(label), int(predicted)] = pairs.get((int(label), int(predicted)), 0) + 1
    # Every class has 120 samples over the seeds, so the largest share is the largest number.
    worst = method_of(comparison, "cross_entropy").worst_confusions()
    assert [one.samples for one in worst] == sorted(pairs.values(), reverse=True)[:10]
    assert all(pairs[one.true, one.predicted] == one.samples and one.of == 120 for one in worst)


def test_sure_confusions_rank_above_those_of_single_samples(tmp_path, make_run):
    labels = np.array([0] * 100 + [1])
    logits = np.zeros((101, 3), dtype=np.float32)
    logits[:80, 2] = logits[80:100, 0] = logits[100, 2] = 1
    predictions = Predictions(logits, logits, labels, np.array([50, 5, 5]), ("a", "b", "c"))
    comparison = compare([make_run(tmp_path / "run", "cross_entropy", 0, predictions)])
    worst = comparison.best.worst_confusions()
    assert [(one.true, one.predicted, one.share) for one in worst] == [(0, 2, 0.8), (1, 2, 1.0)]


def test_chunks_change_nothing(runs, comparison, monkeypatch):
    monkeypatch.setattr("longtail.lab.report.digests.base.CHUNK_ELEMENTS", 70)
    again = compare(runs[:1]).best.runs[0]
    before = method_of(comparison, "cross_entropy").runs[0]
    assert again.metrics == pytest.approx(before.metrics)
    assert again.margins["head"].tolist() == before.margins["head"].tolist()
    assert again.tau_metrics["tail"].tolist() == before.tau_metrics["tail"].tolist()
