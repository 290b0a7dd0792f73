"""Multi-label metrics against scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, precision_recall_fscore_support

from longtail import ClassPrior
from longtail._core import label_curves as curves_module
from longtail.masking import count_bins
from longtail.metrics import (
    AveragePrecision,
    BinnedAveragePrecision,
    MultilabelScores,
    average_precision,
    binned_average_precision,
    binned_average_precision_from_counts,
    count_labels,
    exact_match,
    macro_scores,
    macro_scores_from_counts,
    micro_scores,
    micro_scores_from_counts,
    per_class_scores,
    per_class_scores_from_counts,
)
from longtail.posthoc import apply_thresholds, f1_thresholds


def random_case(seed, num_samples=60, num_classes=5, decimals=2):
    """Scores with ties, and labels that depend on them; the last class has no positives."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_samples, num_classes, generator=generator, dtype=torch.float64).round(decimals=decimals)
    labels = torch.rand(num_samples, num_classes, generator=generator) < scores * torch.linspace(
        0.9, 0.1, num_classes
    )
    labels[:, -1] = False
    return scores, labels


def sklearn_scores(predicted, truth, **options):
    return precision_recall_fscore_support(truth.numpy(), predicted.numpy(), zero_division=0, **options)[:3]


class TestScores:
    @pytest.mark.parametrize("seed", range(5))
    def test_all_equal_those_of_scikit_learn(self, seed):
        scores, labels = random_case(seed)
        predicted = scores > 0.6
        predicted[:, 1] = False  # a class that is never predicted
        counts = count_labels(predicted, labels)
        present = labels.any(dim=0).numpy()
        per_class = sklearn_scores(predicted, labels, average=None)
        macro = sklearn_scores(predicted, labels, average="macro", labels=np.flatnonzero(present))
        micro = sklearn_scores(predicted, labels, average="micro")
        for index in range(3):
            ours = per_class_scores_from_counts(counts)[index].numpy()
            np.testing.assert_allclose(ours[present], per_class[index][present], atol=1e-12)
            assert np.isnan(ours[~present]).all()
            assert macro_scores_from_counts(counts)[index].item() == pytest.approx(macro[index], abs=1e-12)
            assert micro_scores_from_counts(counts)[index].item() == pytest.approx(micro[index], abs=1e-12)
        assert exact_match(predicted, labels).item() == pytest.approx(
            accuracy_score(labels.numpy(), predicted.numpy())
        )

    def test_the_metric_adds_up_batches_and_knows_groups(self):
        scores, labels = random_case(0)
        prior = ClassPrior.from_indicator(labels)
        thresholds = torch.tensor([0.5, 0.6, 0.7, 0.2, 0.5])
        metric = MultilabelScores(5, thresholds, groups={"rarest 2": prior.rarest(2), "head": torch.tensor([0])})
        for rows in torch.arange(60).split(17):
            metric.update(scores[rows], labels[rows])
        values = metric.compute()
        predicted = apply_thresholds(scores, thresholds)
        counts = count_labels(predicted, labels)
        assert values["f1"] == macro_scores_from_counts(counts).f1
        assert values["micro_recall"] == micro_scores_from_counts(counts).recall
        assert values["rarest 2/recall"] == macro_scores_from_counts(counts.of(prior.rarest(2))).recall
        assert values["head/precision"] == per_class_scores_from_counts(counts).precision[0]
        assert values["exact_match"].item() == pytest.approx(accuracy_score(labels.numpy(), predicted.numpy()))
        assert metric.missing_classes().tolist() == [4]
        torch.testing.assert_close(metric.per_class().f1, per_class_scores_from_counts(counts).f1, equal_nan=True)
        metric.reset()
        metric.update(predicted, labels.long())  # predictions of 0 and 1 are scores, too
        assert metric.compute()["head/f1"] == values["head/f1"]

    def test_an_empty_batch_changes_nothing(self):
        metric = MultilabelScores(2)
        metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]]))
        before = metric.compute()
        metric.update(torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.long))
        assert metric.compute() == before

    def test_indices_are_one_hot_rows(self):
        counts = count_labels(torch.eye(3, dtype=torch.bool), torch.tensor([0, 1, 1]))
        assert counts.hits.tolist() == [1, 1, 0]

    def test_nothing_to_average_is_nan(self):
        nothing = count_labels(torch.ones(2, 2), torch.zeros(2, 2))
        assert math.isnan(macro_scores_from_counts(nothing).f1)
        assert math.isnan(micro_scores_from_counts(nothing).precision)

    @pytest.mark.parametrize(
        ("scores", "target", "message"),
        [
            (torch.rand(2, 3), torch.ones(2, 2), r"scores must be \[N, 2\]"),
            (torch.rand(2, 2), torch.ones(2, 3), r"target must be \[2, 2\]"),
            (torch.rand(2, 2), torch.full((2, 2), 2), "must be 0 or 1. Got 2"),
            (torch.tensor([[math.nan, 0.0]]), torch.ones(1, 2), "scores must be finite"),
        ],
    )
    def test_bad_input(self, scores, target, message):
        for metric in (MultilabelScores(2), AveragePrecision(2)):
            with pytest.raises(ValueError, match=message):
                metric.update(scores, target)

    def test_bad_settings(self):
        with pytest.raises(ValueError, match="num_classes"):
            MultilabelScores(0)
        with pytest.raises(ValueError, match="group 'a'"):
            MultilabelScores(2, groups={"a": torch.tensor([5])})
        with pytest.raises(ValueError, match=r"thresholds must be \[2\]"):
            MultilabelScores(2, torch.ones(3)).update(torch.rand(1, 2), torch.ones(1, 2))


class TestAveragePrecision:
    @pytest.mark.parametrize("decimals", [0, 1, 2, 8])
    @pytest.mark.parametrize("seed", range(3))
    def test_it_equals_scikit_learns_with_and_without_ties(self, seed, decimals):
        scores, labels = random_case(seed, decimals=decimals)
        found = average_precision(scores, labels)
        for c in range(4):
            wanted = average_precision_score(labels[:, c].numpy(), scores[:, c].numpy())
            assert found[c].item() == pytest.approx(wanted, abs=1e-12)
        assert math.isnan(found[4])

    def test_parts_of_the_classes_make_no_difference(self, monkeypatch):
        scores, labels = random_case(1)
        whole = average_precision(scores, labels), f1_thresholds(scores, labels).values
        monkeypatch.setattr(curves_module, "CHUNK_ELEMENTS", 100)
        parts = average_precision(scores, labels), f1_thresholds(scores, labels).values
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-15, equal_nan=True)

    def test_bins_are_exact_for_scores_that_are_bins(self):
        scores, labels = random_case(2, decimals=8)
        rounded = (scores * 50).floor() / 50
        binned = binned_average_precision_from_counts(count_bins(scores, labels, 50))
        torch.testing.assert_close(binned, average_precision(rounded, labels), rtol=0, atol=1e-12, equal_nan=True)

    def test_metrics_are_the_means_over_classes_with_positives(self):
        scores, labels = random_case(3)
        exact, binned = AveragePrecision(5), BinnedAveragePrecision(5, num_bins=100_000)
        for rows in torch.arange(60).split(25):
            exact.update(scores[rows], labels[rows])
            binned.update(scores[rows], labels[rows])
        wanted = average_precision(scores, labels)[:4].mean()
        torch.testing.assert_close(exact.compute(), wanted)
        torch.testing.assert_close(binned.compute(), wanted)

    def test_nothing_seen_is_nan(self):
        for metric in (AveragePrecision(2), BinnedAveragePrecision(2)):
            metric.update(torch.zeros(0, 2), torch.zeros(0, 2))
            assert math.isnan(metric.compute())
        assert average_precision(torch.zeros(0, 2), torch.zeros(0, 2)).isnan().all()

    def test_large_logits_do_not_tie(self):
        """torchmetrics squashes scores outside [0, 1] by a sigmoid, where 30 and 20 are the same float32."""
        found = average_precision(torch.tensor([[30.0], [25.0], [20.0], [-3.0]]), torch.tensor([[0], [1], [1], [0]]))
        assert found.item() == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_functions_are_those_of_their_counts():
    scores, labels = random_case(5)
    predicted = scores > 0.5
    counts = count_labels(predicted, labels)
    pairs = (
        (per_class_scores(predicted, labels), per_class_scores_from_counts(counts)),
        (macro_scores(predicted, labels), macro_scores_from_counts(counts)),
        (micro_scores(predicted, labels), micro_scores_from_counts(counts)),
        (
            [binned_average_precision(scores, labels, 50)],
            [binned_average_precision_from_counts(count_bins(scores, labels, 50))],
        ),
    )
    for found, expected in pairs:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert exact_match(predicted.numpy(), labels.numpy()) == exact_match(predicted, labels)
